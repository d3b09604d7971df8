"""Read a JetStream stream in order, in batches, and return messages that were pulled ahead.

The ordered consumer is deleted on the way, as by the loss of its server. The reader continues without a gap.
"""

import asyncio

import nats

from liftenvelope.jetstream import ConsumerConfig, JetStream, StreamConfig
from liftenvelope.testing import run_nats_server


async def main() -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await nats.connect(server.url)
        async with JetStream(nc) as js:
            stream = await js.create_stream(StreamConfig(name="ORDERS", subjects=("orders.>",)))
            for i in range(1_000):
                await js.publish_async("orders.new", b"order %d" % i)
            await js.publish_async_complete()

            # Each batch continues after the previous one. An empty batch means that no message is left.
            ordered, seen = stream.ordered_consumer(), []
            while batch := await ordered.fetch_no_wait(300):
                seen += [message.metadata.stream_sequence for message in batch]
                async for name in stream.consumer_names():
                    await stream.delete_consumer(name)
            print(seen == list(range(1, 1_001)))

            # nak=True redelivers messages that were pulled ahead now instead of after ack_wait.
            consumer = await stream.create_consumer(ConsumerConfig(durable_name="packing"))
            async with consumer.messages(max_messages=50) as messages:
                (await messages.next(timeout=30)).ack()
                messages.stop(nak=True)
            print((await consumer.next(timeout=30)).metadata.num_delivered <= 2)
        await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
