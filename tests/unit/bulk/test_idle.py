"""Connections that are kept between reads, without servers."""

from __future__ import annotations

import threading

import pytest

from liftenvelope.bulk import idle as idle_module
from liftenvelope.bulk.idle import IdleConnections


class _Closing:
    """A connection that only knows whether it is open."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class _Clock:
    """A clock in place of the module ``time``, which the test moves."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ends: list[float] = []
        self._changed = threading.Condition()

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        with self._changed:
            end = self._now + seconds
            self._ends.append(end)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._now >= end, 60)

    def advance(self, seconds: float) -> None:
        with self._changed:
            self._now += seconds
            self._changed.notify_all()

    def wait_for_sleepers(self) -> None:
        """Wait until a thread sleeps, and none has yet to notice that its time is over."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._ends and self._ends[-1] > self._now, 60)


def test_connection_is_taken_once_and_stays_open() -> None:
    idle, kept = IdleConnections(60), _Closing()
    idle.put(kept)
    assert idle.take() is kept
    assert idle.take() is None
    assert not kept.closed.is_set()


def test_newest_connection_to_an_address_is_taken_first() -> None:
    idle, first, second, other = IdleConnections(60), _Closing(), _Closing(), _Closing()
    for connection, address in ((first, "a:1"), (second, "a:1"), (other, "b:1")):
        idle.put(connection, address)
    assert [idle.take(address) for address in ("a:1", "a:1", "a:1", "b:1")] == [second, first, None, other]


def test_connection_that_no_read_takes_is_closed() -> None:
    idle, kept = IdleConnections(0.01), _Closing()
    idle.put(kept)
    assert kept.closed.wait(60)
    assert idle.take() is None


def test_time_of_a_connection_begins_again_when_it_is_kept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(idle_module, "time", clock)
    idle, other, kept = IdleConnections(10.0), _Closing(), _Closing()
    idle.put(kept)
    idle.put(other, "other")
    clock.wait_for_sleepers()
    clock.advance(4.0)
    assert idle.take() is kept
    idle.put(kept)
    clock.advance(6.0)
    clock.wait_for_sleepers()  # the connections whose time was over are closed
    assert other.closed.is_set()
    assert not kept.closed.is_set()
    clock.advance(4.0)
    assert kept.closed.wait(60)
