"""Publish readings in envelopes over NATS, count them by minute in Spark, and publish the counts."""

import asyncio
import os
import sys
import tempfile

import nats
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, col, count, window

from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.spark import recommended_conf, register
from liftenvelope.testing import GatewayCluster, run_gateway


async def publish(gateway: GatewayCluster) -> None:
    async with await nats.connect(gateway.nats_url) as nc, AckInbox(nc) as inbox:
        publisher = EnvelopePublisher(nc, "readings", inbox=inbox, partitions=2)
        keys = [b"sensor-%d" % (number % 5) for number in range(1_000)]
        acks = await publisher.publish_batch([b"%d" % (number % 30) for number in range(1_000)], keys=keys)
        assert acks is not None  # the publisher has an inbox
        print(f"{len(await acks):,} readings are stored")


def start_spark() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    local = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    settings = {**recommended_conf(), **local, "spark.sql.shuffle.partitions": "2"}
    spark = builder.config(map=settings).getOrCreate()
    register(spark)
    return spark


def means_by_minute(rows: DataFrame) -> DataFrame:
    sensors = rows.withWatermark("timestamp", "1 minute").groupBy(window("timestamp", "1 minute"), "key")
    return sensors.agg(count("*").alias("n"), avg(col("value").cast("string").cast("int")).alias("mean"))


def pipeline(spark: SparkSession, servers: str, folder: str) -> None:
    at = {"servers": servers}
    rows = spark.readStream.format("liftbridge").options(**at, startingOffsets="earliest").load("readings")
    means = means_by_minute(rows)

    def keep(frame: DataFrame, _: int) -> None:
        frame.write.mode("append").parquet(f"{folder}/means")

    query = means.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
    query.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
    kept = spark.read.parquet(f"{folder}/means").selectExpr("key", "to_json(struct(n, mean)) as value")
    kept.write.format("liftbridge").options(**at).mode("append").save("means")
    out = spark.read.format("liftbridge").options(**at).load("means")
    for row in out.orderBy("key").collect():
        print(bytes(row.key).decode(), bytes(row.value).decode())


if __name__ == "__main__":
    with run_gateway() as gateway, tempfile.TemporaryDirectory() as folder:
        gateway.create_stream("readings", partitions=2)
        gateway.create_stream("means")
        asyncio.run(publish(gateway))
        pipeline(start_spark(), gateway.addresses[0], folder)
