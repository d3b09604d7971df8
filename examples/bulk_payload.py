"""Read JSON values as typed columns, with a dead letter stream, and write record batches as messages."""

import asyncio

import nats
import pyarrow as pa

from liftenvelope import bulk
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.payload import ArrowBatches, Json
from liftenvelope.testing import run_nats_server


async def make_streams(url: str, *names: str) -> None:
    async with await nats.connect(url) as nc:
        for name in names:
            await JetStream(nc).create_stream(StreamConfig(name=name, subjects=(f"{name.lower()}.>",)))


def main() -> None:
    with run_nats_server(jetstream=True) as server:
        asyncio.run(make_streams(server.url, "ORDERS", "BAD", "PACKED"))
        values = [b'{"id": 1, "price": 2.5}', b"oops", b'{"id": 3, "price": 4, "colour": "red"}']
        bulk.write(server.url, "ORDERS", pa.table({"value": values}), subject="orders.new")

        # Bad messages go to another stream; the good rows are typed.
        schema = pa.schema({"id": pa.int64(), "price": pa.float64()})
        orders = bulk.read(
            server.url,
            "ORDERS",
            payload=Json(schema, unknown="keep"),
            on_bad=bulk.DeadLetter(stream="BAD", subject="bad.orders"),
            columns=["offset", "id", "price", "extra"],
        ).read_all()
        print(orders.to_pylist())
        for letter in bulk.read(server.url, "BAD").read_all().to_pylist():
            print(letter["value"], dict(letter["headers"])["Liftenvelope-Bad-Reason"])

        # 100,000 rows in 10 messages, and back.
        table = pa.table({"id": range(100_000), "price": [number / 4 for number in range(100_000)]})
        packed = ArrowBatches(compression="zstd")
        done = bulk.write(server.url, "PACKED", table, subject="packed.x", payload=packed)
        read = bulk.read(server.url, "PACKED", payload="arrow").read_all()
        is_equal = read.drop(["offset", "row"]).equals(table)
        print(f"{done.acked} messages, {read.num_rows:,} rows, equal: {is_equal}")


if __name__ == "__main__":
    main()
