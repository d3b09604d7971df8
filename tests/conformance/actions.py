"""Actions that most tests of the suite share: fill a stream, read one, wait for something."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from liftenvelope.client import Client
from liftenvelope.envelope import Message

#: For everything that has to happen sooner or later, however busy the machine is, in seconds.
PATIENCE: Final = 60.0
#: Soon enough to wait for its end, and long enough for a message to be sent meanwhile, in seconds.
SOON: Final = 3.0


async def fill(client: Client, stream: str, values: int | Iterable[bytes], **options: Any) -> list[int]:
    """Publish values one after the other, by number ``m0``, ``m1`` and so on; return their offsets."""
    if isinstance(values, int):
        values = [b"m%d" % number for number in range(values)]
    acks = [await client.publish(stream, value, **options) for value in values]
    return [ack.offset for ack in acks if ack is not None]


async def new_stream(client: Client, name: str, values: int | Iterable[bytes] = 0, **options: Any) -> None:
    """Make a stream on the subject of its own name, with these values in partition 0."""
    await client.create_stream(name, name, **options)
    await fill(client, name, values, partition=0)


async def read(client: Client, stream: str, **options: Any) -> list[Message]:
    """Read until the read ends by itself, which it must do."""
    async with asyncio.timeout(PATIENCE), client.subscribe(stream, **options) as messages:
        return [message async for message in messages]


async def read_offsets(client: Client, stream: str, **options: Any) -> list[int]:
    """Read as above; return the offsets alone."""
    return [message.offset for message in await read(client, stream, **options)]


async def take(messages: Any, count: int) -> list[Message]:
    """Return the next so many messages of a reader, which must come."""
    taken: list[Message] = []
    async with asyncio.timeout(PATIENCE):
        while len(taken) < count:
            taken.append(await anext(messages))
    return taken


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    """Poll until it is so, with a deadline."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)
