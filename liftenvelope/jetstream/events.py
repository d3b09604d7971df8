"""What happens to a consumption that is worth knowing and does not end it.

``messages`` and ``consume`` hand these to their ``on_event``. None needs an answer: the consumption goes on.
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
    """The server has been silent for more than two heartbeats; what was pulled is pulled anew.

    Attributes:
        silent_for: For how many seconds.
    """

    silent_for: float


@dataclass(frozen=True, slots=True)
class LimitExceeded(PullEvent):
    """The server refused a pull because of a limit of the consumer; the next one waits a while.

    Attributes:
        description: The server's text, such as ``Exceeded MaxWaiting``.
    """

    description: str


@dataclass(frozen=True, slots=True)
class MessageTooLarge(PullEvent):
    """The next message alone is larger than ``max_bytes``: nothing comes until it is gone.

    Attributes:
        max_bytes: What was allowed.
    """

    max_bytes: int


@dataclass(frozen=True, slots=True)
class LeadershipChanged(PullEvent):
    """Another server leads the consumer now; what was pulled is pulled anew."""


@dataclass(frozen=True, slots=True)
class ServerShutdown(PullEvent):
    """The server is about to stop."""


@dataclass(frozen=True, slots=True)
class NoResponders(PullEvent):
    """Nobody answers pulls: JetStream is not up, or the consumer is gone; the next pull waits a while."""


@dataclass(frozen=True, slots=True)
class Disconnected(PullEvent):
    """The connection was lost; nothing is pulled until it is back."""


@dataclass(frozen=True, slots=True)
class Reconnected(PullEvent):
    """The connection is back."""


@dataclass(frozen=True, slots=True)
class Pinned(PullEvent):
    """This consumption is the one of its group that gets the messages now.

    Attributes:
        pin_id: The id that the server gave it.
    """

    pin_id: str


@dataclass(frozen=True, slots=True)
class Unpinned(PullEvent):
    """This consumption no longer gets the messages of its group. It goes on as a standby, or has ended.

    Attributes:
        pin_id: The id that it had.
    """

    pin_id: str


@dataclass(frozen=True, slots=True)
class PinNotReleased(PullEvent):
    """The pin could not be given back at the end: the server takes it after ``priority_timeout``.

    Attributes:
        pin_id: The id of the pin.
        error: Error of the request.
    """

    pin_id: str
    error: LiftEnvelopeError


@dataclass(frozen=True, slots=True)
class UnknownStatus(PullEvent):
    """The server said something that this version has no name for; the next pull waits a while.

    Attributes:
        code: Its number.
        description: Its text.
    """

    code: int
    description: str


@dataclass(frozen=True, slots=True)
class OrderedReset(PullEvent):
    """An ordered consumer was made anew, and goes on where it was.

    Attributes:
        sequence: The sequence in the stream that comes next at the earliest.
        reason: Why.
    """

    sequence: int
    reason: str
