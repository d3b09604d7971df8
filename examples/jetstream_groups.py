"""Choose among several readers of a JetStream consumer with priority groups.

Overflow readers help above a threshold, prioritized readers go by number, and one pinned reader gets all.
"""

import asyncio

import nats

from liftenvelope.jetstream import ConsumerConfig, JetStream, PriorityPolicy, StreamConfig
from liftenvelope.testing import run_nats_server


def grouped(name: str, policy: PriorityPolicy) -> ConsumerConfig:
    return ConsumerConfig(durable_name=name, priority_groups=("jobs",), priority_policy=policy)


async def main() -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await nats.connect(server.url)
        async with JetStream(nc) as js:
            stream = await js.create_stream(StreamConfig(name="JOBS", subjects=("jobs",)))
            for i in range(10):
                await js.publish("jobs", b"job %d" % i)

            # Gets messages only while at least 8 are pending: 3 of 10.
            consumer = await stream.create_consumer(grouped("spare", PriorityPolicy.OVERFLOW))
            batch = await consumer.fetch(10, expires=1, group="jobs", min_pending=8)
            print(f"overflow: {len(batch)} of 10")

            # Both pulls wait at the server when the messages arrive. The lower number is served first.
            await stream.purge()
            consumer = await stream.create_consumer(grouped("ranked", PriorityPolicy.PRIORITIZED))
            async with asyncio.TaskGroup() as tasks:
                later = tasks.create_task(consumer.fetch(2, group="jobs", priority=5))
                first = tasks.create_task(consumer.fetch(2, group="jobs", priority=1))
                while (await consumer.info()).num_waiting < 2:
                    await asyncio.sleep(0.01)
                for i in range(4):
                    await js.publish("jobs", b"job %d" % i)
            print("prioritized:", [[message.data for message in task.result()] for task in (first, later)])

            # One reader gets everything until it is silent for priority_timeout or its pin is removed.
            await stream.purge()
            consumer = await stream.create_consumer(grouped("single", PriorityPolicy.PINNED_CLIENT))
            async with js.advisories("JOBS", "single") as advisories:
                async with consumer.messages(group="jobs", on_pinned=print) as one:
                    await js.publish("jobs", b"for the first")
                    (await one.next(timeout=30)).ack()
                await consumer.unpin("jobs")
                async with consumer.messages(group="jobs") as other:
                    await js.publish("jobs", b"for the other")
                    (await other.next(timeout=30)).ack()
                print([type(await anext(advisories)).__name__ for _ in range(3)])
        await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
