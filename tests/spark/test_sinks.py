"""Sinks and functions, in Spark, on real servers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from liftenvelope import bulk
from liftenvelope.envelope import new_message
from liftenvelope.spark.functions import decode_envelopes, from_envelope, to_envelope
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import make_stream
from tests.spark.streams import Stream, numbers

pytestmark = pytest.mark.timeout(900)


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 3).selectExpr("cast(id as string) as value")


def values(stream: Stream) -> list[int]:
    found = bulk.read(stream.servers, stream.name, columns=["value"]).read_all()["value"].to_pylist()
    return sorted(map(int, found))


class TestBatch:
    def test_every_row_is_stored(self, spark: SparkSession, stream: Stream) -> None:
        rows(spark, 500).write.format(stream.format).options(**stream.sink()).mode("append").save()
        assert values(stream) == list(range(500))

    def test_what_was_read_is_written_with_its_headers(
        self, spark: SparkSession, nats: NatsServer, name: str
    ) -> None:
        for one in (f"{name}-a", f"{name}-b"):
            make_stream(nats.url, one)
        first, second = (Stream("jetstream", nats.url, f"{name}-{one}") for one in "ab")
        frame = spark.sql(
            f"select cast('v' as binary) as value, '{first.name}.x' as subject, "
            "array(struct('A' as key, cast('1' as binary) as value)) as headers"
        )
        frame.write.format("jetstream").options(servers=nats.url, topic=first.name).mode("append").save()
        again = first.read(spark, includeHeaders=True)
        again.write.format("jetstream").options(**second.sink()).mode("append").save()
        found = bulk.read(nats.url, second.name).read_all().to_pylist()
        assert [(row["value"], row["headers"]) for row in found] == [(b"v", [("A", b"1")])]

    def test_rows_to_the_streams_of_their_column(
        self, spark: SparkSession, nats: NatsServer, name: str
    ) -> None:
        for one in (f"{name}-0", f"{name}-1"):
            make_stream(nats.url, one)
        frame = spark.range(20).selectExpr(
            "cast(id as string) as value",
            f"concat('{name}-', cast(id % 2 as string)) as topic",
            f"concat('{name}-', cast(id % 2 as string), '.x') as subject",
            "concat('id-', cast(id as string)) as msgId",
        )
        for _ in range(2):
            frame.write.format("jetstream").option("servers", nats.url).mode("append").save()
        for which in range(2):
            assert values(Stream("jetstream", nats.url, f"{name}-{which}")) == list(range(which, 20, 2))

    @pytest.mark.parametrize("partitions", [0, 3])
    def test_stream_that_there_is_not_fails_a_write_of_no_rows(
        self, spark: SparkSession, stream: Stream, partitions: int
    ) -> None:
        frame = (
            rows(spark, 3).where("value = 'x'") if partitions else spark.createDataFrame([], "value string")
        )
        writer = frame.write.format(stream.format).mode("append")
        writer.options(**stream.sink()).save()
        with pytest.raises(PySparkException, match="there is no stream"):
            writer.options(**{**stream.sink(), "topic": f"{stream.name}-none"}).save()

    def test_overwriting_and_columns_that_there_are_not(self, spark: SparkSession, stream: Stream) -> None:
        writer = rows(spark, 1).write.format(stream.format).options(**stream.sink())
        with pytest.raises(PySparkException, match="use mode\\('append'\\)"):
            writer.mode("overwrite").save()
        wrong = rows(spark, 1).withColumnRenamed("value", "valu").write.format(stream.format)
        with pytest.raises(PySparkException, match="did you mean 'value'"):
            wrong.options(**stream.sink()).mode("append").save()


class TestStream:
    def test_a_batch_that_is_run_again_is_stored_once(
        self, spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path
    ) -> None:
        """Spark dies between the write and its commit: the same batch comes again."""
        for one in (f"{name}-a", f"{name}-b"):
            make_stream(nats.url, one)
        source, sink = (Stream("jetstream", nats.url, f"{name}-{one}") for one in "ab")
        source.write(300)
        frame = source.follow(spark, startingOffsets="earliest", minPartitions=3).select("value")
        options = {**sink.sink(), "deliveryGuarantee": "effectively-once"}
        for _ in range(2):
            sink.run(frame, tmp_path, **options)
            newest = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            newest.unlink()
        sink.run(frame, tmp_path, **options)
        assert values(sink) == list(range(300))
        headers = bulk.read(sink.servers, sink.name, columns=["headers"]).read_all()["headers"].to_pylist()
        assert max(len(dict(row)["Nats-Msg-Id"]) for row in headers) <= 24

    def test_a_task_that_is_killed_while_it_writes(
        self, spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path
    ) -> None:
        """Its second attempt writes all of its rows; those of the first are there already."""
        for one in (f"{name}-a", f"{name}-b"):
            make_stream(nats.url, one)
        source, sink = (Stream("jetstream", nats.url, f"{name}-{one}") for one in "ab")
        source.write(60_000)
        url, written_to, marker = nats.url, sink.name, tmp_path / "stored"

        def killed_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for i, batch in enumerate(batches):
                yield batch
                # What Spark buffers on its way to the sink is two batches of 10,000.
                if i == 4 and not marker.exists():
                    limit = time.monotonic() + 120
                    while not (stored := bulk.count(url, written_to)) and time.monotonic() < limit:
                        time.sleep(0.05)
                    marker.write_text(str(stored))
                    os.kill(os.getpid(), signal.SIGKILL)

        frame = source.follow(spark, startingOffsets="earliest").select("value")
        options = {**sink.sink(), "deliveryGuarantee": "effectively-once", "maxInFlight": 100}
        sink.run(frame.mapInArrow(killed_once, "value binary"), tmp_path / "checkpoint", **options)
        assert int(marker.read_text()) > 0
        assert values(sink) == list(range(60_000))


class TestEnvelopes:
    def test_there_and_back(self, spark: SparkSession) -> None:
        frame = spark.createDataFrame(
            [(bytearray(new_message(b"one", key=b"k")),), (bytearray(b"none"),), (None,)], "value binary"
        )
        for found in (
            frame.select(from_envelope("value").alias("envelope")),
            decode_envelopes(frame),
            frame.selectExpr("from_envelope(value) as envelope"),
        ):
            texts = [row.envelope for row in found.collect()]
            assert [text.value and bytes(text.value) for text in texts] == [b"one", None, None]
            assert [bool(text.error) for text in texts] == [False, True, False]
        with pytest.raises(PySparkException, match="an envelope has at least 8 bytes"):
            frame.select(from_envelope("value", on_malformed="fail")).collect()

    def test_made_of_structs(self, spark: SparkSession) -> None:
        frame = spark.sql("select struct(cast('v' as binary) as value, cast('k' as binary) as key) as s")
        for found in (frame.select(to_envelope("s").alias("e")), frame.selectExpr("to_envelope(s) as e")):
            (row,) = found.select(from_envelope("e").alias("back")).collect()
            assert (bytes(row.back.key), bytes(row.back.value)) == (b"k", b"v")


def test_found_without_registration(spark: SparkSession, stream: Stream) -> None:
    stream.write(5)
    assert numbers(stream.read(spark.newSession())) == stream.numbers
