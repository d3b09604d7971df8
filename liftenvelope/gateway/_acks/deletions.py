"""Reports deleted ack consumers to their readers, by one subscription for each connection.

JetStream publishes an advisory for each consumer that is deleted (ADR-1). A gateway has thousands of ack
consumers, and a subscription to the advisories of each would take as long as the one to its deliveries. The
shared subscription gets the advisories of all consumers of the account. Only their subjects are read, whose
last token is the name of the consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from liftenvelope.nats.receiving import DirectSubscription, subscribe_direct

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["AckDeletions", "ack_deletions_of"]

#: Subject of the advisories. The names of the stream and of the consumer are its last tokens.
_DELETED: Final = "$JS.EVENT.ADVISORY.CONSUMER.DELETED.*.*"


class AckDeletions:
    """Watches for deleted ack consumers on one connection."""

    def __init__(self) -> None:
        # Called when the consumer of that name is deleted.
        self._callbacks: dict[str, Callable[[], None]] = {}
        self._subscription: DirectSubscription | None = None
        self._changing = asyncio.Lock()

    async def add(self, nc: Client, consumer: str, on_deleted: Callable[[], None]) -> None:
        """Watch for the deletion of a consumer from now on; call this before its creation.

        Args:
            nc: The connection.
            consumer: Name of the consumer, unique in the account.
            on_deleted: Called when the consumer was deleted.

        Raises:
            TransportError: The connection is closed or draining.
        """
        self._callbacks[consumer] = on_deleted
        if self._subscription is None:
            async with self._changing:
                if self._subscription is None:
                    self._subscription = await subscribe_direct(nc, _DELETED, self._on_advisories)

    async def remove(self, consumer: str) -> None:
        """Stop watching a consumer; end the subscription with the last one."""
        self._callbacks.pop(consumer, None)
        if self._callbacks:
            return
        async with self._changing:
            if self._subscription is not None and not self._callbacks:
                subscription, self._subscription = self._subscription, None
                await subscription.unsubscribe()

    def _on_advisories(self, messages: list[Any]) -> None:
        for subject, *_ in messages:
            on_deleted = self._callbacks.get(subject.rpartition(".")[2])
            if on_deleted is not None:
                on_deleted()


_deletions: WeakKeyDictionary[Client, AckDeletions] = WeakKeyDictionary()


def ack_deletions_of(nc: Client) -> AckDeletions:
    """Return the shared :class:`AckDeletions` of a connection."""
    return _deletions.setdefault(nc, AckDeletions())
