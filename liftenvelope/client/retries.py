"""Retry policy of unary calls: one table of failures, and the functions that apply it.

===============================  ==========================  ===============================================
a call failed with               meaning                     retried
===============================  ==========================  ===============================================
no connection, or refused unseen the server did nothing      always, with another broker where any will do
not the leader, no leader yet    the server did nothing      always, after fetching metadata again
lost half-way, ``UNAVAILABLE``,  it may have been done       if repeating does no harm: see RETRIES
``CANCELLED`` by the server
no answer within the attempt,    it may have been done       the same
or no decision of the cluster
anything else                    the server refused          never
===============================  ==========================  ===============================================

Retries continue until the deadline of the call. ``_backoff.pause_before`` gives the pause before each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import TransportError
from liftenvelope.rpc.status import PUBLISH_AGAIN, CallNotProcessedError, RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["READ", "READ_ONCE", "RETRIES", "Fate", "Retry", "fate_of"]

#: More doublings are longer than any call, and a server that says "too late" at once can cause thousands.
_MOST_DOUBLINGS: Final = 20


class Fate(Enum):
    """Known effect of a call that failed."""

    NOT_SENT = auto()
    NOT_LEADER = auto()
    NO_LEADER = auto()
    LOST = auto()
    TIMED_OUT = auto()
    REFUSED = auto()

    @property
    def is_uncertain(self) -> bool:
        """True if the server may have carried out the request."""
        return self in (Fate.LOST, Fate.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry rule of a method.

    Attributes:
        repeatable: Whether the method may be repeated although the server may have carried it out already.
        attempt_timeout: Seconds for one attempt, None for all the time of the call.
        doubles: Whether each attempt that was not answered in time doubles the time of the next.
        done_already: Status of a second attempt if the first one was carried out, None if there is no such
            status.
        leaders: Number of brokers that may answer that they are not the leader, None for any number.
    """

    repeatable: bool = False
    attempt_timeout: float | None = None
    doubles: bool = False
    done_already: StatusCode | None = None
    leaders: int | None = None

    def timeout_after(self, late: int) -> float | None:
        """Return the seconds for an attempt after so many that were not answered in time."""
        if self.attempt_timeout is None or not self.doubles:
            return self.attempt_timeout
        return self.attempt_timeout * 2.0 ** min(late, _MOST_DOUBLINGS)

    def allows(self, fate: Fate, failed: int) -> bool:
        """Return True if there may be another attempt.

        Args:
            fate: How the last attempt has ended.
            failed: Number of attempts so far.
        """
        if fate is Fate.NOT_LEADER and self.leaders is not None and failed >= self.leaders:
            return False
        return fate is not Fate.REFUSED and (self.repeatable or not fate.is_uncertain)


# The attempt timeout leaves time for another broker. A broker that waits for the rest of a new cluster can
# hold FetchMetadata until its deadline, and a stalled broker any call. It doubles because a broker with too
# much to do, as with 2,000 calls at once, would be asked again and again for what it has half done.
READ: Final = Retry(repeatable=True, attempt_timeout=3.0, doubles=True)
# Liftbridge 1.9.0 sometimes misses that Raft has applied a change, and answers at the deadline of the call:
# timeoutFuture.Error() in server/raft.go drops a result that arrives before its select. Until then, it may
# hold the lock of all changes. A second attempt finds the change made. Changes of streams get more time,
# since a gateway stops the creation of a large stream at the deadline.
_GROUP_ATTEMPT: Final = 5.0
_STREAM_ATTEMPT: Final = 20.0

#: A read of a leader that may be missing: metadata is fetched again once.
READ_ONCE: Final = replace(READ, leaders=2)

RETRIES: Final[Mapping[str, Retry]] = MappingProxyType(
    {
        "FetchMetadata": READ,
        "FetchPartitionMetadata": READ,
        "FetchCursor": READ,
        "FetchConsumerGroupAssignments": READ,
        # Idempotent: the second call stores the same offset.
        "SetCursor": Retry(repeatable=True),
        "CreateStream": Retry(
            repeatable=True, attempt_timeout=_STREAM_ATTEMPT, done_already=StatusCode.ALREADY_EXISTS
        ),
        "DeleteStream": Retry(
            repeatable=True, attempt_timeout=_STREAM_ATTEMPT, done_already=StatusCode.NOT_FOUND
        ),
        "PauseStream": Retry(repeatable=True, attempt_timeout=_STREAM_ATTEMPT),
        "SetStreamReadonly": Retry(repeatable=True, attempt_timeout=_STREAM_ATTEMPT),
        # Not repeatable: a second join fails because the consumer is a member, and does not name the epoch.
        # The group's consumer leaves and joins again instead.
        "JoinConsumerGroup": Retry(attempt_timeout=_GROUP_ATTEMPT),
        "LeaveConsumerGroup": Retry(
            repeatable=True, attempt_timeout=_GROUP_ATTEMPT, done_already=StatusCode.FAILED_PRECONDITION
        ),
        "ReportConsumerGroupCoordinator": Retry(repeatable=True, attempt_timeout=_GROUP_ATTEMPT),
        # Not repeatable: a second publish may store a second message.
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
# Second text: in a cluster that has just formed, the broker that should handle the request is not there yet.
# The last two are from Raft, as those of _UNDECIDED_TEXTS, and mean that it did not take the change.
_NO_LEADER_TEXTS: Final = (
    "no known metadata leader",
    "nats: no responders available for request",
    "node is not the leader",
    "leadership transfer in progress",
)
# Texts of Liftbridge, with one of the codes below, for a change that the cluster had not decided when
# the broker gave up: it may still be made. At the deadline of a call, a broker gives one of them or
# DEADLINE_EXCEEDED. Sources: server/raft.go and the errors of hashicorp/raft, and nats.go for calls that are
# passed to the leader.
_UNDECIDED_TEXTS: Final = (
    "raft operation timed out",
    "timed out enqueuing operation",
    "leadership lost while committing log",
    "raft is already shutdown",
    "context deadline exceeded",
    "nats: timeout",
)
# FAILED_PRECONDITION refuses the first member of a group, with which the group is created.
_DECIDED_WITH: Final = (StatusCode.INTERNAL, StatusCode.FAILED_PRECONDITION)
_FATES: Final[Mapping[int, Fate]] = MappingProxyType(
    {
        StatusCode.UNAVAILABLE: Fate.LOST,
        StatusCode.CANCELLED: Fate.LOST,  # by a server that is stopping
        StatusCode.DEADLINE_EXCEEDED: Fate.TIMED_OUT,
        StatusCode.ABORTED: Fate.NO_LEADER,  # by a gateway: another one changed the stream at the same time
    }
)


def fate_of(error: RpcError | TransportError) -> Fate:
    """Classify a call that ended with an error."""
    if isinstance(error, CallNotProcessedError):
        return Fate.NOT_SENT
    if isinstance(error, TransportError):
        return Fate.LOST
    if error.code in _DECIDED_WITH and any(text in error.description for text in _UNDECIDED_TEXTS):
        return Fate.TIMED_OUT
    if error.code == StatusCode.FAILED_PRECONDITION:
        elsewhere = any(text in error.description for text in _NOT_LEADER_TEXTS)
        return Fate.NOT_LEADER if elsewhere else Fate.REFUSED
    has_no_leader = error.code == StatusCode.INTERNAL and any(
        text in error.description for text in _NO_LEADER_TEXTS
    )
    if has_no_leader or PUBLISH_AGAIN in error.description:
        return Fate.NO_LEADER
    return _FATES.get(error.code, Fate.REFUSED)
