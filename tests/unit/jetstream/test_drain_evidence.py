"""A drain ends on evidence. Faked: a server can't be made to pause at an exact moment of a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from liftenvelope.jetstream._pulling import endings
from liftenvelope.jetstream._pulling.endings import QUIET, STALLED, until_nothing_is_owed
from liftenvelope.jetstream.infos import ConsumerInfo, SequenceInfo


class SilentFeed:
    """Feed that has received nothing for 10 s and is still owed a message."""

    can_receive = True
    owed = 1

    def __init__(self) -> None:
        self.last_activity = asyncio.get_running_loop().time() - 10


class Answers:
    """Consumer whose infos come from a function of the request's number."""

    def __init__(self, answer: Callable[[int], ConsumerInfo]) -> None:
        self.asked_at: list[float] = []
        self._answer = answer

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        self.asked_at.append(asyncio.get_running_loop().time())
        return self._answer(len(self.asked_at))


def position(pending: int, delivered: int = 0) -> ConsumerInfo:
    return ConsumerInfo(
        stream_name="s", name="c", num_pending=pending, delivered=SequenceInfo(consumer_seq=delivered)
    )


async def drain(source: Answers) -> None:
    async with asyncio.timeout(30):
        await until_nothing_is_owed(SilentFeed(), source, asyncio.get_running_loop().time() + 60)


async def test_drain_of_an_empty_consumer_ends_with_the_second_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endings, "_LATE", 60.0)  # a loop that gets no processor time is late
    source = Answers(lambda _: position(0))
    await drain(source)
    assert len(source.asked_at) == 2


@pytest.mark.parametrize("second", [position(1), position(0, delivered=1)])
async def test_drain_goes_on_if_only_one_answer_shows_an_empty_consumer(
    monkeypatch: pytest.MonkeyPatch, second: ConsumerInfo
) -> None:
    """A server that stood still answers the first request before it reads what was published meanwhile."""
    monkeypatch.setattr(endings, "_LATE", 60.0)
    monkeypatch.setattr(endings, "STALLED", 60.0)
    source = Answers(lambda number: second if number == 2 else position(0, delivered=int(number > 2)))
    await drain(source)
    assert len(source.asked_at) == (3 if second.num_pending == 0 else 4)


async def test_quiet_period_starts_anew_after_the_event_loop_was_blocked() -> None:
    def block_once(number: int) -> ConsumerInfo:
        if number == 1:
            time.sleep(0.5)
        return position(0)

    source = Answers(block_once)
    await drain(source)
    first, second = source.asked_at[:2]
    assert second - first >= 0.5 + QUIET


async def test_consumer_counts_as_stalled_only_after_answers_that_far_apart() -> None:
    """The position changes once: the consumer has delivered to another reader."""
    source = Answers(lambda number: position(5, delivered=min(number, 3)))
    await drain(source)
    assert source.asked_at[-1] - source.asked_at[2] >= STALLED
