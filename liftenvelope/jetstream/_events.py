"""Events of a consumption that do not end it.

``messages`` and ``consume`` pass these events to ``on_event``. No event needs a reaction: the consumption
goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftenvelope.errors import LiftEnvelopeError

__all__ = [
    "Disconnected",
    "LeadershipChanged",
    "LimitExceeded",
    "MessageTooLarge",
    "MissedHeartbeats",
    "NoResponders",
    "OrderedReset",
    "PinNotReleased",
    "Pinned",
    "PullEvent",
    "Reconnected",
    "ServerShutdown",
    "UnknownStatus",
    "Unpinned",
]


@dataclass(frozen=True, slots=True)
class PullEvent:
    """Base of all events of a consumption."""


@dataclass(frozen=True, slots=True)
class MissedHeartbeats(PullEvent):
    """The server has been silent for more than two heartbeats; the open pulls are sent again.

    Attributes:
        silent_for: Seconds without a message or heartbeat.
        refusal: Report of the server that this connection may not pull, as the end of a sentence; empty if
            there is none. Servers do not answer such a pull.
    """

    silent_for: float
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class LimitExceeded(PullEvent):
    """The server refused a pull because of a limit of the consumer; the next pull is delayed.

    Attributes:
        description: The server's text, such as ``Exceeded MaxWaiting``.
    """

    description: str


@dataclass(frozen=True, slots=True)
class MessageTooLarge(PullEvent):
    """The next message is larger than ``max_bytes``; nothing is delivered until that message is gone.

    Attributes:
        max_bytes: Limit of the pull, in bytes.
    """

    max_bytes: int


@dataclass(frozen=True, slots=True)
class LeadershipChanged(PullEvent):
    """Another server leads the consumer now; the open pulls are sent again."""


@dataclass(frozen=True, slots=True)
class ServerShutdown(PullEvent):
    """The server is shutting down."""


@dataclass(frozen=True, slots=True)
class NoResponders(PullEvent):
    """No responders for a pull: JetStream is down or the consumer is gone; the next pull is delayed."""


@dataclass(frozen=True, slots=True)
class Disconnected(PullEvent):
    """The connection was lost; pulling resumes after the reconnect."""


@dataclass(frozen=True, slots=True)
class Reconnected(PullEvent):
    """The connection is back."""


@dataclass(frozen=True, slots=True)
class Pinned(PullEvent):
    """This consumption is now pinned: it alone receives the messages of its group.

    Attributes:
        pin_id: Id of the pin, assigned by the server.
    """

    pin_id: str


@dataclass(frozen=True, slots=True)
class Unpinned(PullEvent):
    """This consumption lost the pin. It goes on as a standby, or has ended.

    Attributes:
        pin_id: Id of the lost pin.
    """

    pin_id: str


@dataclass(frozen=True, slots=True)
class PinNotReleased(PullEvent):
    """The pin could not be released at the end; the server revokes it after ``priority_timeout``.

    Attributes:
        pin_id: Id of the pin.
        error: Error of the request.
    """

    pin_id: str
    error: LiftEnvelopeError


@dataclass(frozen=True, slots=True)
class UnknownStatus(PullEvent):
    """The server sent a status that this version does not know; the next pull is delayed.

    Attributes:
        code: Status code.
        description: Text of the status.
    """

    code: int
    description: str


@dataclass(frozen=True, slots=True)
class OrderedReset(PullEvent):
    """An ordered consumer was recreated, and continues after the last delivered message.

    Attributes:
        sequence: Lowest stream sequence that can be delivered next.
        reason: Reason for the reset.
    """

    sequence: int
    reason: str
