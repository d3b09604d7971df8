"""Envelopes in SQL, and times in the session's zone, in Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from liftenvelope.envelope import new_message, unmarshal_message
from liftenvelope.errors import UsageError
from liftenvelope.spark.functions import decode_envelopes, from_envelope
from tests.spark.streams import Stream

pytestmark = pytest.mark.timeout(900)


def test_malformed_envelopes_in_sql(spark: SparkSession) -> None:
    rows = [(0, bytearray(new_message(b"v", key=b"k"))), (1, bytearray(b"none")), (2, None)]
    frame = spark.createDataFrame(rows, "id int, value binary")
    frame.createOrReplaceTempView("raw")
    text = (
        "select id, e.key, e.value, e.error from (select id, from_envelope(value) as e from raw) order by id"
    )
    found: list[Any] = spark.sql(text).collect()
    assert [(row.key, row.value) for row in found] == [(b"k", b"v"), (None, None), (None, None)]
    assert [bool(row.error) for row in found] == [False, True, False]
    back = spark.sql("select to_envelope(from_envelope(value)) as value from raw where id = 0")
    again = unmarshal_message(bytes(back.collect()[0].value))
    assert (again.key, again.value) == (b"k", b"v")
    assert [bool(row.envelope.error) for row in decode_envelopes(frame).orderBy("id").collect()] == [
        *(False, True, False)
    ]
    with pytest.raises(PySparkException, match="an envelope has at least 8 bytes"):
        decode_envelopes(frame, on_malformed="fail").collect()


def test_some_fields_of_envelopes(spark: SparkSession) -> None:
    rows = [
        (0, bytearray(new_message(b"v", key=b"k", headers={"h": b"1"}))),
        (1, bytearray(b"no")),
        (2, None),
    ]
    frame = spark.createDataFrame(rows, "id int, value binary")
    fields = ["headers", "value", "key"]
    ours = decode_envelopes(frame, fields=fields).orderBy("id")
    column = frame.select("id", from_envelope("value", fields=fields).alias("envelope")).orderBy("id")
    assert ours.schema == column.schema
    assert ours.select("envelope.*").columns == fields
    whole = decode_envelopes(frame).orderBy("id").select("id", *(f"envelope.{name}" for name in fields))
    for found in (ours, column):
        assert found.select("id", "envelope.*").collect() == whole.collect()
    with pytest.raises(PySparkException, match="an envelope has at least 8 bytes"):
        decode_envelopes(frame, fields=["key"], on_malformed="fail").collect()


@pytest.mark.parametrize("fields", [["offset"], ["key", "key"], [], "key"])
def test_wrong_fields_of_envelopes(spark: SparkSession, fields: Any) -> None:
    frame = spark.createDataFrame([(bytearray(b""),)], "value binary")
    expected = "fields must be some of 'key', 'value', "
    with pytest.raises(UsageError, match=expected):
        decode_envelopes(frame, fields=fields)
    with pytest.raises(UsageError, match=expected):
        from_envelope("value", fields=fields)


def _plan(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_rows_not_columns_go_to_the_function(spark: SparkSession, tmp_path: Path) -> None:
    """Columns would go through Spark's rows all the same, and back, and once more into rows."""
    path = str(tmp_path / "raw")
    spark.createDataFrame([(bytearray(new_message(b"v", key=b"k")),)], "value binary").write.parquet(path)
    frame = spark.read.parquet(path).select(from_envelope("value").alias("e"))
    steps = [line.lstrip(" +-:*()0123456789").split(maxsplit=1)[0] for line in _plan(frame).splitlines()]
    assert steps == ["Project", "ArrowEvalPython", "ColumnarToRow", "FileScan"]
    assert [(row.e.key, row.e.value) for row in frame.collect()] == [(b"k", b"v")]


def test_two_fields_of_one_call(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(bytearray(new_message(b"v", key=b"k")),)], "value binary")
    both = frame.selectExpr("from_envelope(value).key", "from_envelope(value).value")
    assert _plan(both).count("ArrowEvalPython") == 1
    assert both.collect() == [(b"k", b"v")]
    kept = "from (select from_envelope(value) as e from {raw}) where e.error is null"
    assert _plan(spark.sql(f"select e.key {kept}", raw=frame)).count("ArrowEvalPython") == 2
    opened = decode_envelopes(frame).where("envelope.error is null").selectExpr("envelope.key")
    assert _plan(opened).count("MapInArrow") == 1
    assert opened.collect() == [(b"k",)]


def test_times_in_the_zone_of_the_session(spark: SparkSession, stream: Stream) -> None:
    zone = ZoneInfo(spark.conf.get("spark.sql.session.timeZone") or "")
    assert zone.key == "America/New_York"
    stream.write(3)
    text = "date_format(timestamp, 'yyyy-MM-dd HH:mm:ss.SSSSSS') as text"
    for row in stream.read(spark).selectExpr(text, "timestamp_nanos as ns").collect():
        moment = datetime.fromtimestamp(row.ns // 10**9, UTC).replace(microsecond=row.ns // 1_000 % 10**6)
        assert row.text == moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S.%f")
