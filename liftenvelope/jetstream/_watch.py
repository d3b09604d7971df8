"""Notices when a connection of somebody else's is lost, restored or closed: nats-py tells its owner only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary, ref

from liftenvelope.nats._receiving import DirectParser

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["ConnectionWatch", "Listener", "reason_of", "watch_of"]

#: How often to look, in seconds.
_LOOK: Final = 0.02
#: How often, where the parser of an accelerated connection tells when that is lost, and for how many looks
#: after such a word it is looked at as often as elsewhere: the connection is back before long.
_SELDOM: Final = 0.25
_EAGER_LOOKS: Final = 200


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
        self._eager = 0
        self._seen = self._state()

    def add(self, listener: Listener) -> None:
        """Tell somebody from now on."""
        if not self._listeners:
            self._seen = self._state()
        self._listeners[id(listener)] = listener
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def nudge(self) -> None:
        """Look now, and often for a while: the connection was lost, or is about to be restored."""
        self._eager = _EAGER_LOOKS
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(0, self._look)

    def _pause(self) -> float:
        """How long to wait before the next look."""
        parser = getattr(self._nc, "_ps", None)
        if not isinstance(parser, DirectParser):
            return _LOOK
        parser.on_reset[id(self)] = self.nudge
        self._eager -= self._eager > 0
        return _LOOK if self._eager or not self._nc.is_connected else _SELDOM

    def _forget_parser(self) -> None:
        parser = getattr(self._nc, "_ps", None)
        if isinstance(parser, DirectParser):
            parser.on_reset.pop(id(self), None)

    def remove(self, listener: Listener) -> None:
        """Tell somebody nothing any more."""
        self._listeners.pop(id(listener), None)

    def _state(self) -> tuple[int, bool, str]:
        nc = self._nc
        return int(nc.stats["reconnects"]), bool(nc.is_connected), reason_of(nc)

    def _look(self) -> None:
        self._timer = None
        if not self._listeners:
            self._forget_parser()
            return
        self._timer = asyncio.get_running_loop().call_later(self._pause(), self._look)
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
