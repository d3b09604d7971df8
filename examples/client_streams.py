"""Create, inspect, pause and delete streams with the Liftbridge client, and handle its errors."""

import asyncio

import liftenvelope
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.testing import run_liftbridge


async def main(addresses: list[str]) -> None:
    async with liftenvelope.connect(addresses) as client:
        await client.create_stream(
            "orders.tea", "orders", partitions=3, retention_max_age=86_400, compact_enabled=True
        )
        metadata = await client.fetch_metadata(streams=["orders"])
        print("brokers:", len(metadata.brokers), "partitions:", metadata.partition_count("orders"))

        await client.publish("orders", b"one tea", key=b"customer-8", partition=1)
        state = await client.fetch_partition_metadata("orders", 1)
        print("newest offset of partition 1:", state.newest_offset)

        await client.pause_stream("orders", partitions=[1])
        ack = await client.publish("orders", b"another tea", partition=1)  # resumes it
        print("stored after a pause:", ack and ack.offset)

        for wrong in ("orders", "two words"):
            try:
                await client.create_stream("orders.tea", wrong)
            except LiftEnvelopeError as error:
                print(f"{type(error).__name__}: {error}")
        await client.delete_stream("orders")


if __name__ == "__main__":
    with run_liftbridge() as server:
        asyncio.run(main(server.addresses))
