"""Share the partitions of a stream among the members of a consumer group while members join and leave."""

import asyncio

import liftenvelope
from liftenvelope.client import Consumer
from liftenvelope.testing import run_liftbridge

ORDERS = 200


async def work(addresses: list[str], name: str, done: dict[bytes, str], stop: asyncio.Event) -> None:
    """One member. In earnest each would be a process of its own, on any machine."""

    def assigned(partitions: list[tuple[str, int]]) -> None:
        print(f"{name} gets {[number for _, number in partitions]}")

    async with liftenvelope.connect(addresses) as client:
        consumer = client.consumer("billing", ["orders"], auto_offset="earliest", on_assigned=assigned)
        async with consumer:
            leaving = asyncio.create_task(leave(consumer, stop))
            async for message in consumer:
                # A message can be delivered twice when partitions move, so the work must be idempotent.
                done[message.value] = name
            await leaving
        print(f"{name} has left")


async def leave(consumer: Consumer, stop: asyncio.Event) -> None:
    await stop.wait()
    await consumer.close()


async def main(addresses: list[str]) -> None:
    done: dict[bytes, str] = {}
    stops = [asyncio.Event(), asyncio.Event()]
    async with liftenvelope.connect(addresses) as client:
        await client.create_stream("orders", "orders", partitions=4)
        members = []
        for name, stop in zip(["anna", "ben"], stops, strict=True):
            members.append(asyncio.create_task(work(addresses, name, done, stop)))
            for number in range(ORDERS // 2 * len(members) - ORDERS // 2, ORDERS // 2 * len(members)):
                await client.publish("orders", b"order %d" % number, partition=number % 4)
        async with asyncio.timeout(60):
            while len(done) < ORDERS:
                await asyncio.sleep(0.05)
        for stop, member in zip(stops, members, strict=True):
            stop.set()
            await member
        print(f"{len(done)} orders done")


if __name__ == "__main__":
    with run_liftbridge() as server:
        asyncio.run(main(server.addresses))
