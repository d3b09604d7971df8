"""Connections that are kept between reads, without servers."""

from __future__ import annotations

import threading

from liftenvelope.bulk.idle import IdleConnections


class _Closing:
    """A connection that only knows whether it is open."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


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


def test_time_of_a_connection_begins_again_when_it_is_kept_again() -> None:
    idle, other, kept = IdleConnections(0.05), _Closing(), _Closing()
    idle.put(kept)
    assert idle.take() is kept
    idle.put(other)
    assert other.closed.wait(60)  # also after the first time of `kept`
    assert not kept.closed.is_set()
    idle.put(kept)
    assert kept.closed.wait(60)
