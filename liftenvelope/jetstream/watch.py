"""Watches the user's connection for loss, restoration and closing.

nats-py reports these only to the callbacks of the connection's owner, so this module polls the state.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary, ref

from liftenvelope.nats.link import last_error_of
from liftenvelope.nats.receiving import DirectParser

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["ConnectionListener", "ConnectionWatch", "reason_of", "watch_of"]

#: Polling interval in seconds.
_LOOK: Final = 0.02
#: Polling interval in seconds for an accelerated connection, whose parser reports losses. After each report
#: the connection is polled this many times at the short interval, because a reconnect usually follows soon.
_SELDOM: Final = 0.25
_EAGER_LOOKS: Final = 200


class ConnectionListener(Protocol):
    """Receiver of connection events."""

    def lost(self) -> None:
        """Handle a lost connection, which nats-py tries to restore."""

    def restored(self) -> None:
        """Handle a new connection; nats-py has restored the subscriptions."""

    def gone(self, reason: str) -> None:
        """Handle a closed or draining connection: no more data arrives."""


def reason_of(nc: Any) -> str:
    """Return the reason why a connection delivers no more data; empty if the connection is usable."""
    if nc.is_closed:
        return f"the NATS connection is closed{last_error_of(nc)}"
    return "the NATS connection is being drained" if nc.is_draining or nc.is_draining_pubs else ""


#: State of a connection: number of reconnects, whether it is up, and why it delivers nothing more.
_State = tuple[int, bool, str]


@dataclass(slots=True)
class _Registered:
    """A listener, and the last state of the connection that it knows."""

    listener: ConnectionListener
    known: _State


class ConnectionWatch:
    """Polls one connection while at least one listener is registered.

    A listener hears of every change after its registration, and of none before: a fetch that begins after a
    reconnect, and before the poll that notices it, would pull twice.
    """

    def __init__(self, nc: Client) -> None:
        self._nc: Any = nc
        self._listeners: dict[int, _Registered] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._eager = 0
        # The state that all listeners know, or None. There may be thousands of them.
        self._common: _State | None = None

    def add(self, listener: ConnectionListener) -> None:
        """Register a listener."""
        now = self._state()
        if now != self._common:
            self._common = None
        self._listeners[id(listener)] = _Registered(listener, now)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def nudge(self) -> None:
        """Poll now, and at the short interval for a while: the connection was lost or is being restored."""
        self._eager = _EAGER_LOOKS
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(0, self._look)

    def _pause(self) -> float:
        """Return the seconds until the next poll."""
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

    def remove(self, listener: ConnectionListener) -> None:
        """Unregister a listener."""
        self._listeners.pop(id(listener), None)

    def _state(self) -> _State:
        nc = self._nc
        return int(nc.stats["reconnects"]), bool(nc.is_connected), reason_of(nc)

    def _look(self) -> None:
        self._timer = None
        if not self._listeners:
            self._forget_parser()
            return
        self._timer = asyncio.get_running_loop().call_later(self._pause(), self._look)
        now = self._state()
        if now == self._common:
            return
        self._common = now
        for registered in list(self._listeners.values()):
            if registered.known == now:
                continue
            registered.known = now
            if now[2]:
                registered.listener.gone(now[2])
            elif not now[1]:
                registered.listener.lost()
            else:
                registered.listener.restored()


# Weak keys and values: a watch references its connection, and only listeners keep a watch alive.
_watches: Final[WeakKeyDictionary[Any, ref[ConnectionWatch]]] = WeakKeyDictionary()


def watch_of(nc: Client) -> ConnectionWatch:
    """Return the watch of a connection; each connection has one."""
    known = _watches.get(nc)
    watch = None if known is None else known()
    if watch is None:
        watch = ConnectionWatch(nc)
        _watches[nc] = ref(watch)
    return watch
