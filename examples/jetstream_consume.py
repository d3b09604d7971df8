"""Read a JetStream stream in five ways: a batch, one message, an iteration, a handler, in order.

Shows acks of each kind, the metadata of a message, and how an iteration and a handler end.
"""

import asyncio

import nats

from liftenvelope.jetstream import ConsumerConfig, JetStream, Message, StreamConfig
from liftenvelope.testing import run_nats_server


async def main() -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await nats.connect(server.url)
        async with JetStream(nc) as js:
            stream = await js.create_stream(StreamConfig(name="ORDERS", subjects=("orders.>",)))
            for i in range(1_000):
                await js.publish_async("orders.new", b"order %d" % i)
            await js.publish_async_complete()
            consumer = await stream.create_consumer(ConsumerConfig(durable_name="packing", max_deliver=3))

            # A batch, returned once it has 10 messages or a second has passed.
            batch = await consumer.fetch(10, expires=1)
            for message in batch[1:]:
                message.ack()
            batch[0].nak()  # redelivered at once

            # One message. ack_sync waits until the server has recorded the ack.
            await (await consumer.next(timeout=30)).ack_sync()

            # An iteration, which pulls at most 500 messages ahead.
            async with consumer.messages() as messages:
                async for message in messages:
                    message.ack()
                    if message.metadata.num_pending == 0:
                        await messages.drain()  # received messages are still delivered, then the loop ends

            # nak=True redelivers messages that were pulled ahead now instead of after ack_wait.
            await js.publish("orders.new", b"for the handler")
            async with consumer.messages() as messages:
                while not messages.buffered:
                    await asyncio.sleep(0.01)
                messages.stop(nak=True)

            # A handler. The future is set when the handler has the last message.
            done = asyncio.get_running_loop().create_future()

            async def handle(message: Message) -> None:
                message.ack()
                if message.data == b"the end":
                    done.set_result(message.data)

            async with await consumer.consume(handle, auto_ack_progress=True):
                await js.publish("orders.new", b"the end")
                print(await done)

            # All messages again, in order, without acks.
            async with stream.ordered_consumer().messages() as messages:
                print([(await messages.next(timeout=30)).metadata.stream_sequence for _ in range(5)])

            # The same in batches. Each continues after the previous one.
            ordered, count = stream.ordered_consumer(), 0
            while batch := await ordered.fetch_no_wait(300):
                count += len(batch)
            print(count)
        await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
