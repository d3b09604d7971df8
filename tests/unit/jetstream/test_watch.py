"""The watch of a connection, polled by hand."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from liftenvelope.jetstream import watch
from liftenvelope.jetstream.watch import ConnectionWatch


class Listener:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def lost(self) -> None:
        self.heard.append("lost")

    def restored(self) -> None:
        self.heard.append("restored")

    def gone(self, reason: str) -> None:
        self.heard.append(reason)


@pytest.fixture
def nc() -> Any:
    """FAKE, NOT REAL: the state of a connection."""
    state = {"is_connected": True, "is_closed": False, "is_draining": False, "is_draining_pubs": False}
    return SimpleNamespace(stats={"reconnects": 0}, last_error=None, **state)


@pytest.fixture
def connection(nc: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectionWatch]:
    monkeypatch.setattr(watch, "_LOOK", 3_600.0)
    connection = ConnectionWatch(nc)
    yield connection
    if connection._timer is not None:
        connection._timer.cancel()


async def test_listener_hears_each_change_after_its_registration_and_none_before(
    nc: Any, connection: ConnectionWatch
) -> None:
    first, second = Listener(), Listener()
    connection.add(first)
    connection._look()
    nc.stats["reconnects"] += 1
    connection.add(second)
    connection._look()
    assert (first.heard, second.heard) == (["restored"], [])
    nc.is_connected = False
    connection._look()
    connection._look()
    assert (first.heard, second.heard) == (["restored", "lost"], ["lost"])


async def test_listener_of_a_lost_connection_hears_that_it_is_as_before(
    nc: Any, connection: ConnectionWatch
) -> None:
    first, second = Listener(), Listener()
    connection.add(first)
    connection._look()
    nc.is_connected = False
    connection.add(second)
    nc.is_connected = True
    connection._look()
    assert (first.heard, second.heard) == ([], ["restored"])


async def test_listener_that_another_one_registers_hears_the_next_change(
    nc: Any, connection: ConnectionWatch
) -> None:
    last = Listener()

    class Registering(Listener):
        def lost(self) -> None:
            nc.is_connected = True
            connection.add(last)

    connection.add(Registering())
    connection._look()
    nc.is_connected = False
    connection._look()
    nc.is_connected = False
    connection._look()
    assert last.heard == ["lost"]


async def test_listeners_that_know_the_state_are_not_looked_at(connection: ConnectionWatch) -> None:
    """A gateway has one for each partition, and the connection is polled four times a second."""
    connection.add(Listener())
    connection._look()

    class Counted(dict[int, Any]):
        walks = 0

        def values(self) -> Any:
            self.walks += 1
            return super().values()

    connection._listeners = counted = Counted(connection._listeners)
    connection._look()
    assert counted.walks == 0
