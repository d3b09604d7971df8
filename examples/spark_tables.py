"""Keep a Delta table and an Iceberg table of a stream with foreachBatch, each row once."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable

import nats
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession

from liftenvelope import bulk
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.spark import recommended_conf, register
from liftenvelope.testing import run_nats_server

Write = Callable[[DataFrame, int], None]
SHAPE = '{"format": "json", "schema": {"id": "int64", "item": "string"}}'
#: A second attempt of pyiceberg would append the rows again after another writer of the same batch.
ONE_ATTEMPT = {"commit.retry.num-retries": "0"}


def into_delta(path: str) -> Write:
    """Return a function that appends each batch of a query to a Delta table once."""

    def write(frame: DataFrame, batch: int) -> None:
        query = query_id(frame)
        last = DeltaTable(path).transaction_version(query) if DeltaTable.is_deltatable(path) else None
        if last is not None and last >= batch:
            return  # stored before a crash
        # One commit has the rows and the number of the batch. It fails if another of this query came first.
        done = CommitProperties(app_transactions=[Transaction(query, batch)])
        write_deltalake(path, in_utc(frame.toArrow()), mode="append", commit_properties=done)

    return write


def into_iceberg(catalog: Catalog, name: str) -> Write:
    """Return a function that appends each batch of a query to an Iceberg table once."""

    def write(frame: DataFrame, batch: int) -> None:
        mark = f"spark.batch.{query_id(frame)}"
        rows = in_utc(frame.toArrow())
        table = catalog.create_table_if_not_exists(name, rows.schema, properties=ONE_ATTEMPT)
        if int(table.properties.get(mark, -1)) >= batch:
            return  # stored before a crash
        with table.transaction() as change:  # one commit
            change.append(rows)
            change.set_properties({mark: str(batch)})

    return write


def query_id(frame: DataFrame) -> str:
    """Return the id of the query. It belongs to the checkpoint, and a new checkpoint numbers from 0 again."""
    found: str | None = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found is not None  # foreachBatch sets it
    return found


def in_utc(rows: pa.Table) -> pa.Table:
    """Return rows whose times have the zone that both formats take, not that of the session."""
    zoned = [field for field in rows.schema if pa.types.is_timestamp(field.type) and field.type.tz]
    schema = rows.schema
    for field in zoned:
        schema = schema.set(
            schema.get_field_index(field.name), pa.field(field.name, pa.timestamp("us", "UTC"))
        )
    return rows.cast(schema)


def start_spark() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    spark = SparkSession.builder.master("local[2]").config(map={**recommended_conf(), **local}).getOrCreate()
    register(spark)
    return spark


def keep(spark: SparkSession, servers: str, checkpoint: str, write: Write) -> None:
    """Bring a table up to date."""
    options = {"servers": servers, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1000"}
    rows = spark.readStream.format("jetstream").options(**options, payload=SHAPE).load("ORDERS")
    chosen = rows.select("offset", "timestamp", "id", "item")
    query = chosen.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


async def make_stream(url: str) -> None:
    async with await nats.connect(url) as nc:
        await JetStream(nc).create_stream(StreamConfig(name="ORDERS", subjects=("orders.>",)))


def main(servers: str, folder: str) -> None:
    asyncio.run(make_stream(servers))
    os.mkdir(f"{folder}/lake")
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/lake/catalog.db", warehouse=f"file://{folder}/lake")
    catalog.create_namespace("shop")
    spark = start_spark()
    for part in (range(3_000), range(3_000, 5_000)):
        orders = pa.table({"id": part, "item": ["tea"] * len(part)})
        bulk.write(servers, "ORDERS", orders, subject="orders.new", payload="json")
        keep(spark, servers, f"{folder}/to-delta", into_delta(f"{folder}/orders"))
        keep(spark, servers, f"{folder}/to-iceberg", into_iceberg(catalog, "shop.orders"))
        delta = DeltaTable(f"{folder}/orders").to_pyarrow_table()
        iceberg = catalog.load_table("shop.orders").scan().to_arrow()
        print(f"{delta.num_rows:,} rows in the Delta table, {iceberg.num_rows:,} in the Iceberg table")


if __name__ == "__main__":
    with run_nats_server(jetstream=True) as server, tempfile.TemporaryDirectory() as place:
        main(server.url, place)
