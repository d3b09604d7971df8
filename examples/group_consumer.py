"""Share the partitions of a JetStream stream among members of a group, with a coordinator of its own."""

import asyncio

import nats

from liftenvelope.group import Coordinator, GroupClient, GroupConsumer, JetStreamTopic, TopicPartition
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_nats_server

SUBJECTS = [f"orders.{number}" for number in range(4)]
TOPIC = JetStreamTopic.of_stream("ORDERS", SUBJECTS)
ORDERS = 200


async def work(url: str, name: str, done: dict[bytes, str], stop: asyncio.Event) -> None:
    """One member. In earnest each would be a process of its own, on any machine."""

    def assigned(partitions: list[TopicPartition]) -> None:
        print(f"{name} gets {[number for _, number in partitions]}")

    nc = await nats.connect(url)
    consumer = GroupConsumer(nc, "billing", TOPIC, auto_offset="earliest", on_assigned=assigned)
    async with consumer:
        leaving = asyncio.create_task(leave(consumer, stop))
        async for message in consumer:
            # A message can be delivered twice when partitions move, so the work must be idempotent.
            done[message.data] = name
        await leaving
    await nc.close()


async def leave(consumer: GroupConsumer, stop: asyncio.Event) -> None:
    await stop.wait()
    await consumer.close()


async def main(url: str) -> None:
    nc = await nats.connect(url)
    async with Coordinator(nc), JetStream(nc) as js:
        await js.create_stream(StreamConfig(name="ORDERS", subjects=("orders.*",)))
        done: dict[bytes, str] = {}
        stop = asyncio.Event()
        members = [asyncio.create_task(work(url, name, done, stop)) for name in ("anna", "ben")]
        number = 0
        async with asyncio.timeout(60):
            while len(done) < ORDERS or len({*done.values()}) < 2:
                await js.publish(SUBJECTS[number % 4], b"order %d" % number)
                number += 1
        stop.set()
        await asyncio.gather(*members)
        committed = await GroupClient(nc).committed("billing")
        print(f"{len(done)} orders done; the offsets that come next: {list(committed.values())}")
    await nc.close()


if __name__ == "__main__":
    with run_nats_server(jetstream=True) as server:
        asyncio.run(main(server.url))
