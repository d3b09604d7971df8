"""Publish whole batches to a stream with partitions: from lists, and from an Arrow record batch."""

import asyncio

import nats
import pyarrow as pa

from liftenvelope.nats import AckInbox, BatchSummary, EnvelopePublisher
from liftenvelope.testing import run_liftbridge

PARTITIONS = 3


async def main() -> None:
    async with run_liftbridge() as cluster, await nats.connect(cluster.nats_url) as nc, AckInbox(nc) as inbox:
        cluster.create_stream("orders", partitions=PARTITIONS)
        publisher = EnvelopePublisher(nc, "orders", inbox=inbox, partitions=PARTITIONS)

        # Lists. The same key goes to the same partition.
        keys = [b"customer-%d" % (number % 10) for number in range(10_000)]
        values = [b"order-%d" % number for number in range(10_000)]
        acks = await publisher.publish_batch(values, keys=keys)
        assert acks is not None  # the publisher has an inbox
        report("lists", await acks)

        # All columns at once. A column "partition" would choose the partitions.
        table = pa.record_batch(
            {
                "value": [b"order-a", b"order-b", b"order-c"],
                "key": ["customer-1", "customer-2", None],
                "headers": pa.array([[("shop", b"7")], None, []], pa.map_(pa.string(), pa.binary())),
            }
        )
        acks = await publisher.publish_batch(table)
        report("Arrow", await acks)

        for partition in range(PARTITIONS):
            newest = cluster.partition_metadata("orders", partition).newestOffset
            print(f"partition {partition} has {newest + 1:,} messages")


def report(what: str, summary: BatchSummary) -> None:
    slowest = max(summary.latencies, default=0.0)
    print(f"{what}: {len(summary):,} messages, all stored: {summary.ok}, slowest ack {slowest * 1e3:.1f} ms")
    for index, error in summary.failures.items():
        print(f"  message {index}: {error}")


if __name__ == "__main__":
    asyncio.run(main())
