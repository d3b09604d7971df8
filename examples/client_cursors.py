"""Store the position of a reader in cursors, with few calls to the server."""

import asyncio

import liftenvelope
from liftenvelope.testing import run_liftbridge


async def read(client: liftenvelope.Client, count: int) -> list[int]:
    """Read ``count`` messages, starting after those of the last reader."""
    seen: list[int] = []
    async with client.checkpointer("billing", "orders") as checkpoints:
        start = await checkpoints.start(0, default="earliest")
        async with client.subscribe("orders", start=start) as messages:
            async for message in messages:
                seen.append(message.offset)
                checkpoints.processed(message)
                if len(seen) == count:
                    break
        print(f"read {seen[0]} to {seen[-1]}, {await checkpoints.lag(0)} are left")
    return seen


async def main(addresses: list[str]) -> None:
    async with liftenvelope.connect(addresses) as client:
        await client.create_stream("orders", "orders")
        for number in range(100):
            await client.publish("orders", b"order %d" % number)

        # A cursor by hand: the offset of the last message that was processed.
        await client.set_cursor("audit", "orders", 0, 41)
        print("audit:", await client.fetch_cursor("audit", "orders", 0))
        await client.reset_cursor("audit", "orders", 0)
        print("audit:", await client.fetch_cursor("audit", "orders", 0))

        # Each reader continues after the previous one.
        seen = await read(client, 30) + await read(client, 50) + await read(client, 20)
        assert seen == list(range(100))


if __name__ == "__main__":
    with run_liftbridge() as server:
        asyncio.run(main(server.addresses))
