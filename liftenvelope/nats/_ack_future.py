"""Options and result types of a publish."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypedDict

from liftenvelope.envelope import Ack, AckPolicy

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["AckFuture", "EnvelopeOptions", "Settled"]


class EnvelopeOptions(TypedDict, total=False):
    """Options of one message: see :func:`liftenvelope.envelope.new_message`."""

    key: Buffer | None
    headers: Mapping[str, Buffer] | None
    correlation_id: str | None
    ack_policy: AckPolicy | int
    expected_offset: SupportsIndex
    crc: bool


class Settled(Protocol):
    """Receives the outcome of each message of a batch.

    Attributes:
        before: Last error of the connection before the first message of the batch.
    """

    before: Exception | None

    def subject(self, index: int) -> str:
        """Return the subject of a message."""
        ...

    def settle(self, index: int, outcome: Ack | Exception) -> None:
        """Record the ack of a message, which may carry an error, or the error that replaces the ack."""
        ...


class _FutureOwner(Protocol):
    """The ack inbox that made a future."""

    def _give_up(self, future: AckFuture) -> None:
        """Forget a future that is being cancelled."""
        ...


class AckFuture(asyncio.Future[Any]):
    """Future of the ack of a publish; cancelling the future abandons the publish.

    The result is the :class:`Ack`, or a tuple of acks if ``expected`` is not 1.

    Attributes:
        correlation_id: Correlation id of the ack.
        sent: True if the message has been handed to the connection.
        subject: Subject of the message. None for an envelope that the user publishes.
    """

    # Callers keep many futures: a dict for each doubles their memory, and the garbage collector visits it.
    __slots__ = ("_before", "_counted", "_inbox", "correlation_id", "sent", "subject")

    correlation_id: str
    subject: str | None
    sent: bool
    _before: Exception | None  # last error of the connection before the publish
    _inbox: _FutureOwner
    _counted: bool

    def cancel(self, msg: Any | None = None) -> bool:
        """Abandon the publish. If the message was sent, it may still be stored, and its ack is a late one."""
        if self.done():
            return False
        # Before the future is done, so that a task woken by the future finds the place free.
        self._inbox._give_up(self)
        return super().cancel(msg)
