"""Publish on your own NATS connection, one message at a time, and await each ack.

Shows the outcome of a stored message, of many at once, of a refused message, and of one without an ack.
"""

import asyncio

import nats

from liftenvelope.errors import AckTimeoutError, IncorrectOffsetError
from liftenvelope.nats import AckInbox
from liftenvelope.testing import run_liftbridge


async def main() -> None:
    async with run_liftbridge() as cluster, await nats.connect(cluster.nats_url) as nc, AckInbox(nc) as inbox:
        cluster.create_stream("sensors", subject="sensors.*")
        cluster.create_stream("accounts", optimistic_concurrency=True)

        # One message. The call returns when the partition's leader has stored it.
        ack = await inbox.publish("sensors.kitchen", b"21.5", key=b"kitchen", headers={"unit": b"C"})
        print(f"{ack.msg_subject}: offset {ack.offset} of stream {ack.stream}")

        # Many in flight. capacity() waits while max_outstanding publishes have no ack yet.
        futures = []
        for number in range(1_000):
            await inbox.capacity()
            futures.append(inbox.publish_nowait("sensors.hall", b"%d" % number, key=b"hall"))
        acks = await asyncio.gather(*futures)
        print(f"{len(acks):,} more, the last one at offset {acks[-1].offset:,}")

        # The server refuses a message: its ack carries an error, which is raised.
        await inbox.publish("accounts", b"opened", expected_offset=0)
        try:
            await inbox.publish("accounts", b"opened again", expected_offset=0)
        except IncorrectOffsetError as error:
            print(f"refused, and not stored: {error}")

        # No stream records this subject, so no ack comes: the outcome is unknown.
        try:
            await inbox.publish("nobody.listens", b"lost", timeout=0.2)
        except AckTimeoutError as error:
            print(f"timeout: {error}")

        stats = inbox.stats
        print(f"{stats.completed:,} acks, {stats.expired} timeout, {stats.outstanding} outstanding")


if __name__ == "__main__":
    asyncio.run(main())
