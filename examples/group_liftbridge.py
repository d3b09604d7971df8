"""Share the partitions of a Liftbridge stream among members, with a coordinator on NATS."""

import asyncio

import nats

import liftenvelope
from liftenvelope.group import GroupClient, GroupConsumer, LiftbridgeTopic
from liftenvelope.testing import run_gateway

READINGS = 300


async def work(addresses: list[str], nats_url: str, name: str, sums: dict[str, int]) -> None:
    """Run one member. In production each is a process of its own, on any machine."""
    nc = await nats.connect(nats_url)
    async with liftenvelope.connect(addresses) as client:
        topic = await LiftbridgeTopic.of_stream(client, "readings")
        async with GroupConsumer(nc, "sums", topic, auto_offset="earliest") as consumer:
            async for batch in consumer.batches(max_messages=50, max_wait=0.05):
                # Committed messages are not delivered again.
                sums[name] = sums.get(name, 0) + len(batch)
                await consumer.commit(batch)
                if sum(sums.values()) >= READINGS:
                    break
    await nc.close()


async def main(addresses: list[str], nats_url: str) -> None:
    async with liftenvelope.connect(addresses) as client:
        await client.create_stream("readings", "readings", partitions=4)
        for number in range(READINGS):
            await client.publish("readings", b"%d" % number, partition=number % 4)
    sums: dict[str, int] = {}
    members = [asyncio.create_task(work(addresses, nats_url, name, sums)) for name in ("anna", "ben")]
    await asyncio.wait(members, return_when=asyncio.FIRST_COMPLETED)
    for member in members:
        member.cancel()
    await asyncio.wait(members)

    nc = await nats.connect(nats_url)
    committed = await GroupClient(nc).committed("sums")
    print(f"{sum(sums.values())} readings; next offsets: {list(committed.values())}")
    await nc.close()


if __name__ == "__main__":
    # The gateway coordinates groups itself. With a real Liftbridge server, run a Coordinator.
    with run_gateway() as gateway:
        asyncio.run(main(gateway.addresses, gateway.nats_url))
