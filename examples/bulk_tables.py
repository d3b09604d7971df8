"""Write a stream into a Delta and an Iceberg table, each message once, also with two writers at once."""

import asyncio
import tempfile
from pathlib import Path

import nats
import pyarrow as pa
from deltalake import DeltaTable

from liftenvelope import bulk
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_nats_server


async def make_stream(url: str) -> None:
    async with await nats.connect(url) as nc:
        await JetStream(nc).create_stream(StreamConfig(name="ORDERS", subjects=("orders.>",)))


def write_orders(url: str, count: int) -> None:
    orders = {"subject": ["orders.tea"] * count, "value": [f"order {i}" for i in range(count)]}
    bulk.write(url, "ORDERS", pa.table(orders))


def main() -> None:
    with run_nats_server(jetstream=True) as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run(make_stream(server.url))
        lake = Path(folder)

        write_orders(server.url, 1_000)
        done = bulk.to_iceberg(
            server.url, "ORDERS", "shop.orders", warehouse=lake / "iceberg", partition_by="day(timestamp)"
        )
        print(f"Iceberg: {done.rows} rows in {done.commits} commit, next offset {done.offsets[0]}")

        table = lake / "orders"
        with (
            bulk.delta_writer(server.url, "ORDERS", table) as one,
            bulk.delta_writer(server.url, "ORDERS", table) as two,
        ):
            for writer in (one, two, one):
                done = writer.catch_up()
                print(f"Delta: {done.rows} rows, version {done.version}")
                write_orders(server.url, 10)
        print(f"{DeltaTable(table).to_pyarrow_table().num_rows} rows in the Delta table")


if __name__ == "__main__":
    main()
