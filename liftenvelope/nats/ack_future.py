"""What a publish is given, and what it gives back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypedDict

from liftenvelope.envelope import Ack, AckPolicy

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from liftenvelope.nats.ack_inbox import AckInbox

__all__ = ["AckFuture", "PublishOptions", "Settled"]


class PublishOptions(TypedDict, total=False):
    """The options of one message: see :func:`liftenvelope.envelope.new_message`."""

    key: Buffer | None
    headers: Mapping[str, Buffer] | None
    correlation_id: str | None
    ack_policy: AckPolicy | int
    expected_offset: SupportsIndex
    crc: bool


class Settled(Protocol):
    """Receives the outcome of each message of a batch."""

    def subject(self, index: int) -> str:
        """Return the subject of a message."""
        ...

    def settle(self, index: int, outcome: Ack | Exception) -> None:
        """Take the ack, which may carry an error, or the error that came instead of one."""
        ...


class AckFuture(asyncio.Future[Any]):
    """The ack that a publish waits for; cancelling it gives the publish up.

    Await it for the :class:`Ack`, or for a tuple of acks where other than one was expected.

    Attributes:
        correlation_id: The id that the ack will carry.
        sent: Whether the message has been handed to the connection.
        subject: Subject of the message. None for an envelope that the user publishes.
    """

    correlation_id: str
    subject: str | None
    sent: bool
    _inbox: AckInbox
    _counted: bool

    def cancel(self, msg: Any | None = None) -> bool:
        """Give the publish up. If it was sent it may be stored all the same; its ack is then a late one."""
        if self.done():
            return False
        # Before the future is done: whoever is woken by it finds its place free.
        self._inbox._give_up(self)
        return super().cancel(msg)
