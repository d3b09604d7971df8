"""Notices when the server refuses a subscription, whatever else it reports at that moment.

nats-py keeps one report of the server, so a later one hides the refusal: that of another subscription, or of
a publish of another task. A subscription therefore reads every report of its connection until it is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from liftenvelope.errors import PermissionDeniedError
from liftenvelope.nats.link import Link
from liftenvelope.nats.reports import read_reports, violation_in

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Subscribing", "subscribing_on"]

_locks: WeakKeyDictionary[Client, asyncio.Lock] = WeakKeyDictionary()


class Subscribing:
    """A subscription that the server may refuse. Made by :func:`subscribing_on`.

    Args:
        nc: NATS connection.
        subject: Subject of the subscription.
    """

    def __init__(self, nc: Client, subject: str) -> None:
        self._link = Link(nc)
        self._subject = subject
        self._before = self._link.report
        self._refusal = ""

    def read(self, report: str) -> None:
        """Take a report of the server, in lower case."""
        found = violation_in(report)
        if found is not None and found == ("subscription", self._subject.lower()):
            self._refusal = f"; the server said: {report}"

    def check(self) -> None:
        """Raise PermissionDeniedError if the server has refused the subscription. Call it after a barrier."""
        if not self._refusal and self._link.report is not self._before:
            self.read(str(self._link.report))  # if nats-py no longer passes each report
        if self._refusal:
            raise PermissionDeniedError(0, f"can't subscribe to {self._subject}{self._refusal}")


@asynccontextmanager
async def subscribing_on(nc: Client, subject: str) -> AsyncIterator[Subscribing]:
    """Make a subscription, wait for a barrier and check in this block; others of the connection wait."""
    async with _locks.setdefault(nc, asyncio.Lock()):
        subscribing = Subscribing(nc, subject)
        stop = read_reports(nc, subscribing.read)
        try:
            yield subscribing
        finally:
            stop()
