"""Use a JetStream stream as Arrow: publish a table, read a range, count, follow new messages."""

import asyncio

import nats
import pyarrow as pa
import pyarrow.compute as pc

from liftenvelope import bulk
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_nats_server


async def make_stream(url: str) -> None:
    async with await nats.connect(url) as nc:
        await JetStream(nc).create_stream(StreamConfig(name="SENSORS", subjects=("sensors.>",)))


def main() -> None:
    with run_nats_server(jetstream=True) as server:
        asyncio.run(make_stream(server.url))
        rows = range(10_000)
        table = pa.table(
            {
                "subject": ["sensors.hall" if number % 2 else "sensors.kitchen" for number in rows],
                "value": [str(20 + number % 7) for number in rows],
            }
        )
        done = bulk.write(server.url, "SENSORS", table)
        print(f"{done.acked} rows stored, at offsets {done.offsets[0]}")

        # An exact range, in batches. Only the named columns are filled.
        reader = bulk.read(server.url, "SENSORS", start=2_000, columns=["subject", "value"])
        read = reader.read_all()
        degrees = pc.cast(pc.cast(read["value"], pa.string()), pa.int64())
        means = pa.table({"subject": read["subject"].cast(pa.string()), "degrees": degrees})
        for row in means.group_by("subject").aggregate([("degrees", "mean")]).sort_by("subject").to_pylist():
            print(f"{row['subject']}: {row['degrees_mean']:.2f} degrees on average")

        print(f"{bulk.count(server.url, 'SENSORS', start=9_000)} messages from offset 9000 on")

        # Follow new messages. A batch arrives at most half a second after its first message.
        following = bulk.tail(server.url, "SENSORS", batch_seconds=0.5)
        bulk.write(server.url, "SENSORS", pa.table({"value": ["99"]}), subject="sensors.attic")
        print(following.read_next_batch().select(["offset", "subject"]).to_pylist())


if __name__ == "__main__":
    main()
