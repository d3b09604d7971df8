"""Direct reads, without a server: what becomes of a reader that is cancelled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from liftenvelope.jetstream._stored import _next


async def test_a_cancellation_that_comes_with_an_answer_is_not_lost() -> None:
    # Stands in for a connection that is there.
    api: Any = SimpleNamespace(
        nc=SimpleNamespace(is_closed=False, is_connected=True, stats={"reconnects": 0})
    )
    answers: asyncio.Queue[Any] = asyncio.Queue()
    reading = asyncio.create_task(_next(api, answers, "ORDERS", 5.0, epoch=0))
    await asyncio.sleep(0)
    answers.put_nowait("answer")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert answers.get_nowait() == "answer"
