"""Messages that were handed to the connection and have no ack, among the pending acks of an inbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from liftenvelope.correlation import PendingAcks
from liftenvelope.nats._ack_future import AckFuture, Settled

__all__ = ["InFlight", "in_flight", "subject_sent"]

#: Correlation id of a message, and its future, or its batch and the index in the batch.
InFlight: TypeAlias = "tuple[str, AckFuture | tuple[Settled, int]]"


def subject_sent(context: AckFuture | tuple[Settled, int]) -> str | None:
    """Return the subject of a message; None if it waits to be sent, or if the user publishes it."""
    if isinstance(context, tuple):
        return context[0].subject(context[1])  # rows are registered when they are sent
    return context.subject if context.sent else None


def in_flight(pending: PendingAcks) -> Iterator[tuple[str, InFlight]]:
    """Yield the subject of each message that was sent and has no ack, and the message."""
    entry: tuple[str, Any]
    for entry in pending.waiting():
        if (subject := subject_sent(entry[1])) is not None:
            yield subject, entry
