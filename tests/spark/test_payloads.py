"""Payloads of sources and sinks, in Spark, on real servers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from liftenvelope import bulk
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import make_stream, publish
from tests.spark.streams import Stream, finish

pytestmark = pytest.mark.timeout(900)

#: Every kind of type, as a description of a payload has them.
SCHEMA = {
    "id": "int64",
    "small": "int8",
    "count": "uint64",
    "price": "decimal128(10, 2)",
    "tags": ["string"],
    "at": "timestamp[ns, UTC]",
    "place": {"x": "float64", "`name": "string"},
}
JSON = json.dumps({"format": "json", "schema": SCHEMA})


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "small": number % 100,
        "count": 2**64 - 1 - number,
        "price": "12.50",
        "tags": ["a", None],
        "at": "2026-11-25T12:00:00Z",
        "place": {"x": number / 2, "`name": "here"},
    }


def publish_rows(stream: Stream, *values: object) -> None:
    texts = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    publish(stream.servers, [(f"{stream.name}.x", text, None) for text in texts])


@pytest.fixture
def js(nats: NatsServer, name: str) -> Stream:
    make_stream(nats.url, name)
    return Stream("jetstream", nats.url, name)


def test_batch_query_has_typed_columns(spark: SparkSession, js: Stream) -> None:
    publish_rows(js, *map(row, range(50)), b"oops")
    frame = js.read(spark, payload=JSON, onBad="column", minPartitions=3)
    assert "value" not in frame.columns
    found = frame.orderBy("offset").collect()
    assert [one.id for one in found] == [*range(50), None]
    first = found[1].asDict(recursive=True)
    assert (first["small"], first["count"], str(first["price"])) == (1, 2**64 - 2, "12.50")
    assert (first["tags"], first["place"]) == (["a", None], {"x": 0.5, "`name": "here"})
    assert first["at"].astimezone(UTC) == datetime(2026, 11, 25, 12, tzinfo=UTC)
    assert (first["topic"], first["subject"]) == (js.name, f"{js.name}.x")
    assert (found[50].bad_reason, bytes(found[50].bad_value)) == ("no JSON object", b"oops")
    assert frame.where("offset < 10").count() == 10
    with pytest.raises(PySparkException, match="message 50 is bad"):
        js.read(spark, payload=JSON).collect()


def test_rows_written_as_arrow_messages_are_read_again(
    spark: SparkSession, js: Stream, nats: NatsServer, name: str, tmp_path: Path
) -> None:
    make_stream(nats.url, f"{name}-B")
    target = Stream("jetstream", nats.url, f"{name}-B")
    publish_rows(js, *map(row, range(500)))
    source = js.follow(spark, payload=JSON, startingOffsets="earliest", maxOffsetsPerTrigger=250)
    rows = source.drop("key", "subject", "partition", "topic")
    options = {"payload": "arrow", "packRows": 100, "deliveryGuarantee": "effectively-once"}
    target.run(rows, tmp_path / "c", **target.sink(), **options)
    stored = bulk.read(nats.url, target.name).read_all()
    assert stored.num_rows >= 5
    read = bulk.read(nats.url, target.name, payload="arrow").read_all()
    assert sorted(read["id"].to_pylist()) == list(range(500))
    assert len(set(zip(read["offset"].to_pylist(), read["row"].to_pylist(), strict=True))) == 500
    packed = json.dumps({"format": "arrow", "schema": {"id": "int64", "tags": ["string"]}})
    again = target.read(spark, payload=packed)
    assert sorted(one.id for one in again.select("id", "row").collect()) == list(range(500))
    assert again.count() == 500
    assert again.where("row >= 50").count() == sum(row >= 50 for row in read["row"].to_pylist())


def test_rows_are_encoded_as_json_with_their_keys(spark: SparkSession, stream: Stream) -> None:
    rows = spark.createDataFrame([(b"k1", 1, "tea"), (b"k2", 2, None)], "key BINARY, id BIGINT, item STRING")
    if stream.format == "jetstream":
        rows = rows.drop("key")
    rows.write.format(stream.format).options(**stream.sink(), payload="json").mode("append").save()
    found = bulk.read(stream.servers, stream.name).read_all().to_pylist()
    assert sorted(json.loads(one["value"])["id"] for one in found) == [1, 2]
    if stream.format == "liftbridge":
        assert {one["key"] for one in found} == {b"k1", b"k2"}
    kind = json.dumps({"format": "json", "schema": {"id": "int64", "item": "string"}})
    assert {(one.id, one.item) for one in stream.read(spark, payload=kind).collect()} == {
        (1, "tea"),
        (2, None),
    }


def test_streaming_query_writes_dead_letters_and_goes_on(
    spark: SparkSession, js: Stream, nats: NatsServer, name: str, tmp_path: Path
) -> None:
    make_stream(nats.url, f"{name}-BAD")
    publish_rows(js, row(0), b"oops", row(2))
    letter = json.dumps({"stream": f"{name}-BAD", "subject": f"{name}-BAD.x"})
    frame = js.follow(spark, payload=JSON, onBad=letter, startingOffsets="earliest")
    writer = frame.select("offset", "id").writeStream.format("parquet").option("path", str(tmp_path / "out"))
    finish(writer.option("checkpointLocation", str(tmp_path / "c")))
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((one.offset, one.id) for one in found) == [(0, 0), (2, 2)]
    letters = bulk.read(nats.url, f"{name}-BAD").read_all()
    assert letters["value"].to_pylist() == [b"oops"]


def test_bad_message_fails_a_streaming_query(spark: SparkSession, js: Stream, tmp_path: Path) -> None:
    publish_rows(js, row(0), b"oops")
    frame = js.follow(spark, payload=JSON, startingOffsets="earliest").select("id")
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    with pytest.raises(StreamingQueryException, match="message 1 is bad: no JSON object"):
        finish(writer.option("checkpointLocation", str(tmp_path / "c")))


def test_packed_rows_with_keys_are_refused_before_any_task(spark: SparkSession, js: Stream) -> None:
    rows = spark.sql("select cast('k' as binary) as key, 1 as id where false")
    with pytest.raises(PySparkException, match="column 'key' must not be given with this payload"):
        rows.write.format("jetstream").options(**js.sink(), payload="arrow").mode("append").save()


def test_packed_row_that_the_server_does_not_take_is_named(spark: SparkSession, js: Stream) -> None:
    rows = spark.createDataFrame([("x" * 2_000_000,)], "item STRING")
    writer = rows.write.format("jetstream").options(**js.sink(), payload="arrow", packBytes=4_000_000)
    with pytest.raises(PySparkException, match="data: row 0 must have at most"):
        writer.mode("append").save()
    assert bulk.count(js.servers, js.name) == 0
