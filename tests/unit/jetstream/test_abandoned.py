"""Removal of what an abandoned request may still create."""

from __future__ import annotations

import asyncio
import gc

import pytest

from liftenvelope.errors import CallTimeoutError, JetStreamError, LiftEnvelopeError, TransportError
from liftenvelope.jetstream.abandoned import created_or_removed


class Server:
    """A fake that answers a creation when it is told to, and records what happens."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.events: list[str] = []
        self.removed = asyncio.Event()

    async def create(self) -> int:
        self.events.append("asked")
        try:
            return await self.answer
        finally:
            self.events.append("answered")

    async def remove(self) -> None:
        self.events.append("removed")
        self.removed.set()


async def test_creation_that_is_answered_is_kept() -> None:
    server = Server()
    server.answer.set_result(7)
    assert await created_or_removed(server.create(), server.remove) == 7
    assert server.events == ["asked", "answered"]


async def test_cancelled_creation_is_removed_after_its_answer() -> None:
    server = Server()
    creating = asyncio.create_task(created_or_removed(server.create(), server.remove))
    await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    for _ in range(10):
        await asyncio.sleep(0)
    assert server.events == ["asked"]
    server.answer.set_result(7)
    await asyncio.wait_for(server.removed.wait(), 60)
    assert server.events == ["asked", "answered", "removed"]


async def test_cancelled_creation_that_fails_leaves_no_unseen_error() -> None:
    unseen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context["message"]))
    server = Server()
    creating = asyncio.create_task(created_or_removed(server.create(), server.remove))
    await asyncio.sleep(0)
    creating.cancel()
    await asyncio.wait([creating])
    server.answer.set_exception(JetStreamError(500, "no room"))
    await asyncio.wait_for(server.removed.wait(), 60)
    await asyncio.sleep(0)
    del server, creating
    gc.collect()
    assert unseen == []


@pytest.mark.parametrize(
    ("error", "events"),
    [
        (CallTimeoutError("no answer"), ["asked", "answered", "removed"]),
        (TransportError("lost", sent=True), ["asked", "answered", "removed"]),
        (JetStreamError(400, "bad config"), ["asked", "answered"]),
    ],
    ids=["no answer", "connection lost", "refused"],
)
async def test_failed_creation_is_removed_if_its_outcome_is_unknown(
    error: LiftEnvelopeError, events: list[str]
) -> None:
    server = Server()
    server.answer.set_exception(error)
    with pytest.raises(type(error)):
        await created_or_removed(server.create(), server.remove)
    for _ in range(10):
        await asyncio.sleep(0)
    assert server.events == events
