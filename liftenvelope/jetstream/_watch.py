"""Notices when a connection of somebody else's is lost, restored or closed: nats-py tells its owner only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["ConnectionWatch", "Listener", "reason_of", "watch_of"]

#: How often to look, in seconds.
_LOOK: Final = 0.02


class Listener(Protocol):
    """What is told about a connection."""

    def lost(self) -> None:
        """The connection is down; nats-py tries to restore it."""

    def restored(self) -> None:
        """There is a new connection, in which the subscriptions are there again."""

    def gone(self, reason: str) -> None:
        """The connection is closed, or is being drained: nothing comes any more."""


def reason_of(nc: Any) -> str:
    """Why nothing comes from a connection any more; empty if something may."""
    if nc.is_closed:
        return "the NATS connection is closed"
    return "the NATS connection is being drained" if nc.is_draining or nc.is_draining_pubs else ""


class ConnectionWatch:
    """Looks at one connection, as long as somebody listens."""

    def __init__(self, nc: Client) -> None:
        self._nc: Any = nc
        self._listeners: dict[int, Listener] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._seen = self._state()

    def add(self, listener: Listener) -> None:
        """Tell somebody from now on."""
        if not self._listeners:
            self._seen = self._state()
        self._listeners[id(listener)] = listener
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def remove(self, listener: Listener) -> None:
        """Tell somebody nothing any more."""
        self._listeners.pop(id(listener), None)

    def _state(self) -> tuple[int, bool, str]:
        nc = self._nc
        return int(nc.stats["reconnects"]), bool(nc.is_connected), reason_of(nc)

    def _look(self) -> None:
        self._timer = None
        if not self._listeners:
            return
        self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)
        before, now = self._seen, self._state()
        if now == before:
            return
        self._seen = now
        for listener in list(self._listeners.values()):
            if now[2]:
                listener.gone(now[2])
            elif not now[1]:
                listener.lost()
            else:
                listener.restored()


# Weak on both sides: a watch holds its connection, and is held by those who listen.
_watches: Final[WeakKeyDictionary[Any, ref[ConnectionWatch]]] = WeakKeyDictionary()


def watch_of(nc: Client) -> ConnectionWatch:
    """The one watch of a connection."""
    known = _watches.get(nc)
    watch = None if known is None else known()
    if watch is None:
        watch = ConnectionWatch(nc)
        _watches[nc] = ref(watch)
    return watch
