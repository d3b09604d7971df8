"""A program in Spark Connect, run by test_connect: it reads, writes, streams, and opens envelopes."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from liftenvelope.spark import recommended_conf, register
from liftenvelope.spark.functions import decode_envelopes, from_envelope, to_envelope
from tests.spark.streams import finish


def connect() -> SparkSession:
    builder: Any = SparkSession.builder.remote("local[2]")
    local = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    for name, value in {**recommended_conf(), **local, "spark.ui.enabled": "false"}.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def values(frame: Any) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.collect())


def main(format_: str, servers: str, first: str, second: str, folder: str) -> None:
    spark = connect()
    register(spark)
    at = {"servers": servers}
    subject = {"subject": f"{second}.x"} if format_ == "jetstream" else {}
    assert values(spark.read.format(format_).options(**at).load(first)) == list(range(50))
    rows = spark.readStream.format(format_).options(**at, startingOffsets="earliest").load(first)
    writer = (
        rows.select("value")
        .writeStream.format(format_)
        .options(
            **at, **subject, topic=second, deliveryGuarantee="effectively-once", checkpointLocation=folder
        )
    )
    finish(writer)
    written = spark.read.format(format_).options(**at).load(second)
    assert values(written) == list(range(50))
    written.write.format(format_).options(**at, **subject, topic=second).mode("append").save()
    assert spark.read.format(format_).options(**at).load(second).count() == 100
    raw = written.limit(1).select(to_envelope(expr("struct(value)")).alias("value"))
    for frame in (
        raw.select(from_envelope("value").alias("envelope")),
        raw.selectExpr("from_envelope(value) as envelope"),
        decode_envelopes(raw),
    ):
        (row,) = frame.selectExpr("envelope.value as value", "envelope.error as error").collect()
        assert (row.value is not None, row.error) == (True, None)
    print("done")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
