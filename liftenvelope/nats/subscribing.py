"""Subscriptions that notice when the server refuses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from liftenvelope.errors import PermissionDeniedError
from liftenvelope.nats.reports import ViolationWatch

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Subscribing", "subscribing_on"]

_locks: WeakKeyDictionary[Client, asyncio.Lock] = WeakKeyDictionary()


class Subscribing:
    """A subscription that the server may refuse. Made by :func:`subscribing_on`.

    Args:
        subject: Subject of the subscription.
        watch: Watch for its refusal.
    """

    def __init__(self, subject: str, watch: ViolationWatch) -> None:
        self._subject = subject
        self._watch = watch

    def check(self) -> None:
        """Raise PermissionDeniedError if the server has refused the subscription. Call it after a barrier."""
        if report := self._watch.report:
            raise PermissionDeniedError(0, f"can't subscribe to {self._subject}; the server said: {report}")


@asynccontextmanager
async def subscribing_on(nc: Client, subject: str) -> AsyncIterator[Subscribing]:
    """Make a subscription, wait for a barrier and check in this block; others of the connection wait."""
    async with _locks.setdefault(nc, asyncio.Lock()):
        with ViolationWatch(nc, "subscription", subject) as watch:
            yield Subscribing(subject, watch)
