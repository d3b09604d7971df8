"""Makes one subscription of a connection at a time, so that each notices its own refusal.

nats-py keeps one report of the server. Of two subscriptions that are refused at once, only the second one
would find its refusal there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["subscribing_on"]

_locks: WeakKeyDictionary[Client, asyncio.Lock] = WeakKeyDictionary()


def subscribing_on(nc: Client) -> asyncio.Lock:
    """Return the lock of a connection, to hold until ``Link.check_subscribed`` was called."""
    return _locks.setdefault(nc, asyncio.Lock())
