"""Notices when the server refuses a subscription, whatever else it reports at that moment.

nats-py keeps one report of the server, so a later one hides the refusal: that of another subscription, or of
a publish of another task. A subscription therefore reads every report of its connection until it is checked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from liftenvelope.errors import PermissionDeniedError
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Subscribing"]

_locks: WeakKeyDictionary[Client, asyncio.Lock] = WeakKeyDictionary()


class Subscribing:
    """Used with ``async with`` around a subscription, a barrier and :meth:`check`.

    If nats-py no longer passes reports as it does, only its last one is read.

    Args:
        nc: NATS connection.
        subject: Subject of the subscription.
    """

    def __init__(self, nc: Client, subject: str) -> None:
        self._nc: Any = nc
        self._link = Link(nc)
        self._subject = subject
        self._told = f'subscription to "{subject}"'.lower()
        self._refusal = ""
        self._process = getattr(nc, "_process_err", None)

    async def __aenter__(self) -> Self:
        self._lock = _locks.setdefault(self._nc, asyncio.Lock())
        await self._lock.acquire()
        self._before = self._link.report
        if self._process is not None:
            self._nc._process_err = self._read
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            del self._nc._process_err  # the method of the class is back
        self._lock.release()

    async def _read(self, text: str) -> None:
        """Read a report, which nats-py has converted to lower case, and pass it on."""
        if self._told in text:
            self._refusal = f"; the server said: nats: {text}"
        assert self._process is not None
        await self._process(text)

    def check(self) -> None:
        """Raise PermissionDeniedError if the server has refused the subscription. Call it after a barrier."""
        if not self._refusal and self._link.report is not self._before:
            last = self._link.refusal(self._subject)
            self._refusal = last if self._told in last else ""
        if self._refusal:
            raise PermissionDeniedError(0, f"can't subscribe to {self._subject}{self._refusal}")
