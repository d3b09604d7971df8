"""Spark reads the files of ``bulk.to_parquet``, as docs/archiving.md tells it to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from liftenvelope import bulk
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import make_stream, publish
from tests.integration.project.test_examples import ROOT, blocks
from tests.spark.streams import Stream

pytestmark = pytest.mark.timeout(900)
NAMES = ("key", "value", "headers", "offset", "timestamp", "timestamp_nanos", "partition", "subject")


def documented(kind: str, folder: Path) -> str:
    """Return the block of the page that reads an archive with Spark, for an archive in a folder."""
    texts = [one.text for one in blocks(ROOT / "docs" / "archiving.md") if one.info == kind]
    (text,) = [text for text in texts if "nanosAsLong" in text]
    return text.replace("/data/archive/orders", str(folder))


def as_documented(spark: SparkSession, folder: Path) -> DataFrame:
    """Run the block of Python on an archive in a folder; return its DataFrame."""
    # Settings end with this session.
    names: dict[str, Any] = {"spark": spark.newSession()}
    exec(documented("python spark", folder), names)
    frame = names["orders"]
    assert isinstance(frame, DataFrame)
    return frame


def expected(stream: Stream) -> list[tuple[Any, ...]]:
    """Rows of a stream in the order of partitions and offsets, with times in microseconds and nanoseconds."""
    table = bulk.read(stream.servers, stream.name).read_all()
    nanos = table["timestamp"].cast(pa.int64())
    table = table.set_column(table.column_names.index("timestamp"), "timestamp_nanos", nanos)
    found = []
    for row in table.to_pylist():
        row |= {"headers": dict(row["headers"]), "timestamp": row["timestamp_nanos"] // 1_000}
        found.append(tuple(row[name] for name in NAMES))
    return sorted(found, key=lambda row: (row[NAMES.index("partition")], row[NAMES.index("offset")]))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows in the same form."""
    chosen = [f"unix_micros({name}) as {name}" if name == "timestamp" else name for name in NAMES]
    found = []
    for row in frame.orderBy("partition", "offset").selectExpr(*chosen).collect():
        values = row.asDict()
        for name in ("key", "value"):
            values[name] = None if values[name] is None else bytes(values[name])
        values["headers"] = {name: bytes(value) for name, value in values["headers"].items()}
        found.append(tuple(values[name] for name in NAMES))
    return found


@pytest.mark.parametrize("folders", [[], ["dt", "hour", "partition"]], ids=["flat", "hive"])
def test_every_row_of_an_archive_is_read(
    spark: SparkSession, stream: Stream, tmp_path: Path, folders: list[Literal["dt", "hour", "partition"]]
) -> None:
    for _ in range(2):
        stream.write(300)
        bulk.to_parquet(stream.servers, stream.name, tmp_path, partition_by=folders, rotate_rows=200)
    frame = as_documented(spark, tmp_path)
    types = dict(frame.dtypes)
    assert (types["timestamp"], types["timestamp_nanos"], types["offset"]) == (
        "timestamp",
        "bigint",
        "bigint",
    )
    found = rows(frame)
    assert len(found) == 600
    assert found == expected(stream)
    if folders:
        days = [row.dt.isoformat() for row in frame.select("dt").distinct().collect()]
        assert sum(frame.where(f"dt = '{day}'").count() for day in days) == 600


def test_headers_of_an_archive_are_read(
    spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path
) -> None:
    make_stream(nats.url, name)
    publish(
        nats.url, [(f"{name}.{i}", b"%d" % i, {"a": f"é{i}", "b": ""} if i % 2 else None) for i in range(50)]
    )
    bulk.to_parquet(nats.url, name, tmp_path)
    assert rows(as_documented(spark, tmp_path)) == expected(Stream("jetstream", nats.url, name))


def test_fields_that_came_later_are_columns_of_all_rows(
    spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path
) -> None:
    make_stream(nats.url, name)
    for start, extra in ((0, {}), (10, {"item": "tea"})):
        publish(
            nats.url,
            [(f"{name}.x", json.dumps({"id": start + i, **extra}).encode(), None) for i in range(10)],
        )
        bulk.to_parquet(nats.url, name, tmp_path, payload="json")
    found = as_documented(spark, tmp_path).orderBy("offset").select("id", "item").collect()
    assert [tuple(row) for row in found] == [(i, None if i < 10 else "tea") for i in range(20)]


def test_sql_of_the_page_reads_every_row(
    spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path
) -> None:
    make_stream(nats.url, name)
    publish(nats.url, [(f"{name}.{i}", b"%d" % i, None) for i in range(50)])
    bulk.to_parquet(nats.url, name, tmp_path)
    session = spark.newSession()
    setting, query = documented("sql", tmp_path).rstrip(";\n").split(";\n")
    session.sql(setting)
    found = session.sql(f"SELECT unix_micros(time), subject, value FROM ({query}) ORDER BY 1, 2").collect()
    times, subjects, values = (NAMES.index(one) for one in ("timestamp", "subject", "value"))
    there = [
        (row[times], row[subjects], row[values]) for row in expected(Stream("jetstream", nats.url, name))
    ]
    assert [(time, subject, bytes(value)) for time, subject, value in found] == sorted(there)
