"""What a call ends with when NATS or JetStream fail: the one place that gives their errors a gRPC status."""

from __future__ import annotations

from typing import Final

from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    EnvelopeTooLargeError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    StreamMessageTooLargeError,
    StreamNotFoundError,
    UsageError,
    WrongLastSequenceError,
)
from liftenvelope.rpc.status import RpcError, StatusCode

__all__ = ["TOO_LARGE", "WRONG_OFFSET", "has_no_room", "status_of"]

#: Texts of Liftbridge, by which clients tell what has happened.
TOO_LARGE = "message exceeds max replication size"
WRONG_OFFSET = "incorrect expected offset"


_C = StatusCode
# The first one that fits counts. A text without a place for the error is Liftbridge's own.
_STATUSES: Final[tuple[tuple[tuple[type[LiftEnvelopeError], ...], StatusCode, str], ...]] = (
    ((WrongLastSequenceError,), _C.UNKNOWN, WRONG_OFFSET),
    ((StreamMessageTooLargeError, EnvelopeTooLargeError), _C.INVALID_ARGUMENT, TOO_LARGE + ": {}"),
    ((UsageError,), _C.INVALID_ARGUMENT, "{}"),
    ((StreamNotFoundError,), _C.NOT_FOUND, "No such stream"),
    ((AckTimeoutError, CallTimeoutError), _C.DEADLINE_EXCEEDED, "JetStream did not answer in time: {}"),
    ((NoJetStreamError,), _C.UNAVAILABLE, "JetStream does not answer: {}"),
    ((JetStreamError,), _C.INTERNAL, "JetStream: {}"),
    ((LiftEnvelopeError,), _C.UNAVAILABLE, "NATS: {}"),
)


#: JetStream's numbers for "no room": for this server, for this account, and whatever else the disk says.
_NO_ROOM: Final = frozenset({10_023, 10_002, 10_028, 10_047, 10_077})


def has_no_room(error: BaseException) -> bool:
    """Whether JetStream answered that it can't store anything, because a disk or a limit is reached."""
    return isinstance(error, JetStreamError) and error.err_code in _NO_ROOM


def status_of(error: LiftEnvelopeError) -> RpcError:
    """Return the status that says so."""
    if isinstance(error, RpcError):
        return error
    code, text = next((code, text) for kinds, code, text in _STATUSES if isinstance(error, kinds))
    return RpcError(code, text.format(error))
