"""What statuses of pulls prove about a filtered tail: when it had every message that matches."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from liftenvelope.bulk._jetstream.consumer_read import ConsumerRead
from liftenvelope.bulk._jetstream.pulls import PENDING, PullsInFlight
from liftenvelope.jetstream.statuses import Status


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (Status.of(404, "No Messages"), [5.0]),
        (Status.of(408, "Requests Pending"), []),
        (Status.of(503), []),  # the pulls get their own
    ],
)
def test_only_an_answer_without_messages_proves_that_nothing_is_pending(
    status: Status, told: list[float]
) -> None:
    found: list[Any] = []
    pulls = PullsInFlight()
    pulls.sent(PENDING, 0, 5.0)
    read: Any = SimpleNamespace(
        _rows=SimpleNamespace(line=()),
        _source=SimpleNamespace(stream="ORDERS"),
        _sid=1,
        _made_at=0.0,
        _check_moved=lambda _: None,
        _pulls=pulls,
        _nothing_pending=found.append,
        _pull_ended=lambda *_: found.append("fruitless"),
    )
    frame = SimpleNamespace(sid=1, number=0, status=status)
    link: Any = SimpleNamespace(handle=lambda _: frame)
    ConsumerRead._other(read, link)
    assert found == told


def test_heartbeats_prove_that_nothing_was_pending_a_second_each_after_their_pull() -> None:
    """A heartbeat may have waited in a socket, so when it is read proves nothing."""
    pulls = PullsInFlight()
    pulls.sent(3, 7, 100.0)
    pulls.sent(4, 7, 100.5)
    assert [pulls.beat(number) for number in (3, 4, 3, 3)] == [101.0, 101.5, 102.0, 103.0]
    assert pulls.beat(99) == pulls.beat(None) == 0.0, "the pull is not known"
    assert pulls.asked(99) is None


@pytest.mark.parametrize(
    ("status", "age", "is_current"),
    [
        (Status.of(408, "Request Timeout"), 30.0, True),
        (Status.of(408, "Request Timeout"), 31.0, False),  # read late: none was open for a second
        (Status.of(409, "Message Size Exceeds MaxBytes"), 16.0, False),
    ],
)
def test_end_of_a_pull_ends_certainty_unless_the_next_one_follows_at_once(
    status: Status, age: float, is_current: bool
) -> None:
    pulls = PullsInFlight()
    assert [pulls.due(-1) is None for _ in range(3)] == [False, False, True]
    for number in (1, 2):
        pulls.sent(number, 0, time.monotonic() - age)
    read: Any = SimpleNamespace(_pulls=pulls, _is_current=True, _next=7, _moved_at=0.0)
    link: Any = SimpleNamespace()
    ConsumerRead._pull_ended(read, link, 1, status)
    assert read._is_current is is_current
