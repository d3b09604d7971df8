"""Publish to a JetStream stream, one message at a time and thousands at once, and handle each outcome.

Shows acks, duplicates, optimistic concurrency, messages that expire, and a subject that nothing records.
"""

import asyncio

import nats

from liftenvelope.errors import NoJetStreamError, WrongLastSequenceError
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.nats import accelerate
from liftenvelope.testing import run_nats_server


async def main() -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await nats.connect(server.url)
        async with JetStream(nc) as js:
            config = StreamConfig(name="ORDERS", subjects=("orders.>",), max_age=3600, allow_msg_ttl=True)
            stream = await js.create_stream(config)

            # One message. The call returns when the stream has stored it.
            ack = await js.publish(
                "orders.new",
                b"two apples",
                headers={"customer": "17", "tag": ["fruit", "new"]},
                message_id="o-1",
            )
            again = await js.publish("orders.new", b"two apples", message_id="o-1")
            print(f"stored as {ack.sequence}; a duplicate the second time: {again.duplicate}")

            # Many in flight, with acks read by liftenvelope. Waits while max_outstanding have no ack.
            with accelerate(nc):
                futures = [await js.publish_async("orders.new", b"order %d" % i) for i in range(20_000)]
                acks = await asyncio.gather(*futures)
            print(f"{len(acks):,} more, the last one as {acks[-1].sequence:,}")

            # Stored only if no other message was stored on the subject meanwhile.
            await js.publish("orders.state.7", b"open", expected_last_subject_sequence=0)
            try:
                await js.publish("orders.state.7", b"paid", expected_last_subject_sequence=0)
            except WrongLastSequenceError as error:
                print(f"refused, and not stored: {error}")

            # Deleted after a minute, regardless of the stream's max_age.
            await js.publish("orders.offer", b"today only", ttl=60)

            try:
                await js.publish("invoices.new", b"?")
            except NoJetStreamError as error:
                print(f"not stored: {error}")

            info = await stream.info(subjects_filter="orders.>")
            print(f"{info.state.messages:,} messages: {dict(info.state.subjects)}")
        await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
