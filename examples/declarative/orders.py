"""Definitions of a declarative pipeline: the orders of a stream, and how many there are of each item."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
SHAPE = '{"format": "json", "schema": {"id": "int64", "item": "string"}}'


@dp.table  # type: ignore[untyped-decorator] # pyspark has no types for mypy
def orders() -> DataFrame:
    options = {"servers": spark.conf.get("orders.servers") or "", "startingOffsets": "earliest"}
    rows = spark.readStream.format("jetstream").options(**options, payload=SHAPE).load("ORDERS")
    return rows.select("offset", "timestamp", "id", "item")


@dp.materialized_view  # type: ignore[untyped-decorator]
def items() -> DataFrame:
    return spark.table("orders").groupBy("item").count()
