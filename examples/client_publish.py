"""Publish with the Liftbridge client: one message, without waiting, ten thousand, and refusals."""

import asyncio
from collections.abc import AsyncIterator

import liftenvelope
from liftenvelope.client import OutgoingMessage
from liftenvelope.errors import IncorrectOffsetError, PublishError
from liftenvelope.testing import run_liftbridge


async def readings() -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield keys and values one by one."""
    for number in range(20):
        await asyncio.sleep(0.001)
        yield b"sensor-%d" % (number % 4), b"%d" % number


async def main(addresses: list[str]) -> None:
    async with liftenvelope.connect(addresses) as client:
        await client.create_stream("readings", "readings", partitions=2)

        ack = await client.publish("readings", b"21.5", key=b"sensor-1", headers={"unit": b"C"})
        print("one, stored at", ack and ack.offset)

        futures = [await client.publish_async("readings", b"%d" % number) for number in range(100)]
        acks = await asyncio.gather(*futures)
        print("without waiting:", len(acks))

        summary = await client.publish_many("readings", (b"%d" % number for number in range(10_000)))
        print("many:", summary)

        async for index, ack in client.publish_many("readings", readings()):
            if index % 10 == 0:
                print(f"reading {index} is stored on {ack.msg_subject}")

        await client.create_stream("ledger", "ledger", optimistic_concurrency=True)
        entries = [OutgoingMessage(value=b"%d" % offset, expected_offset=offset) for offset in (0, 1, 1, 2)]
        summary = await client.publish_many("ledger", entries, max_in_flight=1, on_error="collect")
        for index, error in summary.failures.items():
            print(f"entry {index}: {error}")
        try:
            await client.publish("ledger", b"late", expected_offset=0)
        except IncorrectOffsetError as error:
            print(f"refused: {error}")
        try:
            await client.publish("readings", b"x" * 2_000_000)
        except PublishError as error:
            print(f"too large: {error}")


if __name__ == "__main__":
    with run_liftbridge() as server:
        asyncio.run(main(server.addresses))
