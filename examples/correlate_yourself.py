"""Build and publish envelopes yourself, and read their acks yourself or with an inbox."""

import asyncio

import nats

from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.nats import AckInbox
from liftenvelope.testing import run_liftbridge


async def main() -> None:
    async with run_liftbridge() as cluster, await nats.connect(cluster.nats_url) as nc:
        cluster.create_stream("audit")

        # With the codec alone: your subscription, your correlation ids.
        acks = await nc.subscribe("my.acks")
        await nc.publish("audit", new_message(b"by hand", ack_inbox="my.acks", correlation_id="first"))
        ack = unmarshal_ack((await acks.next_msg(timeout=5)).data)
        ack.raise_for_error()  # first, because the offset of an error ack is meaningless
        print(f"by hand: {ack.correlation_id} is at offset {ack.offset}")

        async with AckInbox(nc) as inbox:
            # expect() before publishing, because the ack may arrive before publish() returns.
            future = inbox.expect("second", timeout=5)
            envelope = new_message(b"expected", ack_inbox=inbox.subject, correlation_id="second")
            await nc.publish("audit", envelope)
            print(f"expected: {future.correlation_id} is at offset {(await future).offset}")

            # Every ack that arrives at the inbox, expected or not.
            feed = aiter(inbox)
            for number in range(3):
                envelope = new_message(b"feed", ack_inbox=inbox.subject, correlation_id=f"feed-{number}")
                await nc.publish("audit", envelope)
            for _ in range(3):
                ack = await anext(feed)
                print(f"feed: {ack.correlation_id} is at offset {ack.offset}")
            print(f"the inbox waited for none of these: {inbox.stats.unknown} unknown acks")


if __name__ == "__main__":
    asyncio.run(main())
