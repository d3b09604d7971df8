"""Which calls are made again after which failures: the one table, and what reads it.

===============================  ==========================  ===============================================
a call failed with               what that means             made again
===============================  ==========================  ===============================================
no connection, or refused unseen the server did nothing      always, with another broker where any will do
not the leader, no leader yet    the server did nothing      always, after asking for metadata anew
lost half-way, ``UNAVAILABLE``,  it may have been done       where doing it twice does no harm: see RETRIES
``CANCELLED`` by the server
no answer within the attempt     it may have been done       likewise
anything else                    the server refused          never
===============================  ==========================  ===============================================

Again means after a pause that grows from 50 ms to 1 s, with jitter, until the call's own time is up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import TransportError
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["READ", "RETRIES", "Fate", "Retry", "fate_of", "pause_before"]


class Fate(Enum):
    """What is known of a call that failed."""

    NOT_SENT = auto()
    NOT_LEADER = auto()
    NO_LEADER = auto()
    LOST = auto()
    TIMED_OUT = auto()
    REFUSED = auto()

    @property
    def is_uncertain(self) -> bool:
        """Whether the server may have done what was asked."""
        return self in (Fate.LOST, Fate.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Retry:
    """How a method is made again.

    Attributes:
        repeatable: Whether it may be, though the server may have done it already.
        attempt_timeout: Seconds for one attempt, None for all the time there is.
        done_already: Status that a second attempt ends with when the first one had done it.
    """

    repeatable: bool = False
    attempt_timeout: float | None = None
    done_already: StatusCode | None = None


# A broker that waits for the rest of a young cluster can sit on FetchMetadata until its deadline, and a
# stalled one on anything; the next one may answer at once.
READ: Final = Retry(repeatable=True, attempt_timeout=3.0)

RETRIES: Final[Mapping[str, Retry]] = MappingProxyType(
    {
        "FetchMetadata": READ,
        "FetchPartitionMetadata": READ,
        "FetchCursor": READ,
        "FetchConsumerGroupAssignments": READ,
        # The same offset twice is the same as once.
        "SetCursor": Retry(repeatable=True),
        "CreateStream": Retry(repeatable=True, done_already=StatusCode.ALREADY_EXISTS),
        "DeleteStream": Retry(repeatable=True, done_already=StatusCode.NOT_FOUND),
        "PauseStream": Retry(repeatable=True),
        "SetStreamReadonly": Retry(repeatable=True),
        # A second join says only that the consumer is a member, and not in which epoch: the group's consumer
        # leaves and joins anew.
        "JoinConsumerGroup": Retry(),
        "LeaveConsumerGroup": Retry(repeatable=True, done_already=StatusCode.FAILED_PRECONDITION),
        "ReportConsumerGroupCoordinator": Retry(repeatable=True),
        # Twice is two messages.
        "Publish": Retry(),
        "PublishToSubject": Retry(),
    }
)

_NOT_LEADER_TEXTS: Final = (
    "Server not partition leader",
    "should be sent to partition leader",
    "Server not leader for cursors partition",
    "Server not cursor partition leader",
    "broker is not the consumer group coordinator",
)
# The second one: whom the request was handed on to is not there yet, in a cluster that has just formed.
_NO_LEADER_TEXTS: Final = ("no known metadata leader", "nats: no responders available for request")
_FATES: Final[Mapping[int, Fate]] = MappingProxyType(
    {
        StatusCode.UNAVAILABLE: Fate.LOST,
        StatusCode.CANCELLED: Fate.LOST,  # by a server that is stopping
        StatusCode.DEADLINE_EXCEEDED: Fate.TIMED_OUT,
    }
)
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0


def fate_of(error: RpcError | TransportError) -> Fate:
    """Return what is known of a call that ended with an error."""
    if isinstance(error, CallNotProcessedError):
        return Fate.NOT_SENT
    if isinstance(error, TransportError):
        return Fate.LOST
    if error.code == StatusCode.FAILED_PRECONDITION:
        elsewhere = any(text in error.description for text in _NOT_LEADER_TEXTS)
        return Fate.NOT_LEADER if elsewhere else Fate.REFUSED
    if error.code == StatusCode.INTERNAL and any(text in error.description for text in _NO_LEADER_TEXTS):
        return Fate.NO_LEADER
    return _FATES.get(error.code, Fate.REFUSED)


def pause_before(attempt: int) -> float:
    """Return how long to wait before an attempt, in seconds. The first one is attempt 0, at once."""
    if attempt == 0:
        return 0.0
    longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt - 1, 10))
    return float(longest * random.uniform(0.5, 1.0))
