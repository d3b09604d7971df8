"""Read a stream with the Liftbridge client: all of it, a part of it, as batches, and as it grows."""

import asyncio

import liftenvelope
from liftenvelope.testing import run_liftbridge


async def main(addresses: list[str]) -> None:
    async with liftenvelope.connect(addresses) as client:
        await client.create_stream("readings", "readings", partitions=2)
        for number in range(10):
            await client.publish("readings", str(20 + number).encode(), partition=number % 2)

        # A subscription with a stop ends by itself.
        async with client.subscribe("readings", partition="all", start="earliest", stop="latest") as messages:
            print("all:", sorted([int(message.value) async for message in messages]))

        async with client.subscribe("readings", partition=1, start=1, stop=3) as messages:
            print("offsets 1 to 3 of partition 1:", [int(message.value) async for message in messages])

        async with client.subscribe("readings", start="earliest", stop="latest") as messages:
            async for batch in messages.batches(3):
                print("a batch:", [message.offset for message in batch])

        # A subscription without a stop continues, even over lost connections.
        async with client.subscribe("readings", start="new") as messages:
            await client.publish("readings", b"99", partition=0)
            message = await messages.next(timeout=30)
            print("new:", message and message.value, "then", messages.position)


if __name__ == "__main__":
    with run_liftbridge() as server:
        asyncio.run(main(server.addresses))
