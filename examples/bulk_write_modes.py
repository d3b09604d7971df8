"""Write tables into JetStream: pipelined, in atomic batches, by fast ingest, and handle a failed write."""

import asyncio

import nats
import pyarrow as pa

from liftenvelope import bulk
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_nats_server


async def make_stream(url: str) -> None:
    config = StreamConfig(name="LEDGER", subjects=("ledger.>",), allow_atomic=True, allow_batched=True)
    async with await nats.connect(url) as nc:
        await JetStream(nc).create_stream(config)


def main() -> None:
    with run_nats_server(jetstream=True) as server:
        asyncio.run(make_stream(server.url))
        table = pa.table({"value": [f"booking {number}" for number in range(20_000)]})

        # One ack for each row. With message ids, a row that is sent again is stored once.
        done = bulk.write(
            server.url, "LEDGER", table, subject="ledger.a", mode="pipelined", message_id="june"
        )
        print(f"pipelined: {done.acked} rows, {done.duplicates} of them before")
        done = bulk.write(
            server.url, "LEDGER", table, subject="ledger.a", mode="pipelined", message_id="june"
        )
        print(f"pipelined: {done.acked} rows, {done.duplicates} of them before")

        # One ack for some hundred rows, at the rate that the server sets. The default for such a stream.
        done = bulk.write(server.url, "LEDGER", table, subject="ledger.b", mode="fast")
        print(f"fast: {done.acked} rows, at offsets {done.offsets[0]}")

        # All or nothing: both sides of a booking, if no other booking changed the account in between.
        unless_newer = [("Nats-Expected-Last-Subject-Sequence", b"40000")]
        sides = pa.table(
            {
                "subject": ["ledger.a", "ledger.b"],
                "value": ["-5", "+5"],
                "headers": pa.array([[], unless_newer], pa.map_(pa.string(), pa.binary())),
            }
        )
        print("atomic:", bulk.write(server.url, "LEDGER", sides, mode="atomic").offsets[0])
        try:
            bulk.write(server.url, "LEDGER", sides, mode="atomic")
        except bulk.WriteFailedError as error:
            print(f"atomic: {error.acked} rows stored, {error.unknown} unknown: {error.__cause__}")
        print(bulk.count(server.url, "LEDGER"), "messages")


if __name__ == "__main__":
    main()
