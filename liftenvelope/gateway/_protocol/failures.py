"""Maps errors of NATS and JetStream to the status of a call or to the answer to a message of PublishAsync."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftenvelope._pb import api_pb2
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    EnvelopeTooLargeError,
    InternalError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    PermissionDeniedError,
    StreamMessageTooLargeError,
    StreamNotFoundError,
    UsageError,
    WrongLastSequenceError,
)
from liftenvelope.nats.reports import violation_in
from liftenvelope.rpc.status import PUBLISH_AGAIN, RpcError, StatusCode, cut_text

if TYPE_CHECKING:
    from liftenvelope.gateway.limits import Limits

__all__ = [
    "TOO_LARGE",
    "WRONG_OFFSET",
    "has_no_room",
    "not_stored",
    "refused_publish",
    "status_of",
    "status_of_call",
]

#: Error texts of Liftbridge, which clients match on.
TOO_LARGE = "message exceeds max replication size"
WRONG_OFFSET = "incorrect expected offset"


_C = StatusCode
# The first match counts. Texts without a placeholder for the error are Liftbridge's own.
_STATUSES: Final[tuple[tuple[tuple[type[LiftEnvelopeError], ...], StatusCode, str], ...]] = (
    ((WrongLastSequenceError,), _C.UNKNOWN, WRONG_OFFSET),
    ((StreamMessageTooLargeError, EnvelopeTooLargeError), _C.INVALID_ARGUMENT, TOO_LARGE + ": {}"),
    ((UsageError,), _C.INVALID_ARGUMENT, "{}"),
    ((StreamNotFoundError,), _C.NOT_FOUND, "No such stream"),
    ((AckTimeoutError, CallTimeoutError), _C.DEADLINE_EXCEEDED, "JetStream did not answer in time: {}"),
    ((NoJetStreamError,), _C.UNAVAILABLE, "JetStream does not answer: {}"),
    # Of the gateway's own user on NATS, on the subject of a message; see also status_of_call.
    ((PermissionDeniedError,), _C.PERMISSION_DENIED, "NATS: {}"),
    ((JetStreamError,), _C.INTERNAL, "JetStream: {}"),
    # A record or a cursor that can't be read: another attempt would read the same.
    ((InternalError,), _C.INTERNAL, "{}"),
    ((LiftEnvelopeError,), _C.UNAVAILABLE, "NATS: {}"),
)


#: Statuses whose cause may pass.
_MAY_PASS: Final = (_C.UNAVAILABLE, _C.DEADLINE_EXCEEDED, _C.ABORTED)

#: JetStream's error codes for a full disk or a limit of the server or the account.
_NO_ROOM: Final = frozenset({10_023, 10_002, 10_028, 10_047, 10_077})


def has_no_room(error: BaseException) -> bool:
    """Return True if JetStream can store nothing because a disk is full or a limit is reached."""
    return isinstance(error, JetStreamError) and error.err_code in _NO_ROOM


def status_of(error: LiftEnvelopeError) -> RpcError:
    """Return the gRPC status for an error; an RpcError is returned unchanged.

    A request to JetStream without an answer, because NATS refuses it, is an error of the gateway.
    """
    if isinstance(error, RpcError):
        return error
    if isinstance(error, CallTimeoutError) and violation_in(str(error)):
        return _refused(error)
    code, text = next((code, text) for kinds, code, text in _STATUSES if isinstance(error, kinds))
    return RpcError(code, text.format(error))


def status_of_call(error: LiftEnvelopeError) -> RpcError:
    """Return the gRPC status for an error that is not about the message of a client.

    If NATS refuses a write to a bucket of the gateway, the gateway lacks a permission, not the client.
    """
    return _refused(error) if isinstance(error, PermissionDeniedError) else status_of(error)


def not_stored(status: RpcError) -> RpcError:
    """Return the status of a message that is certain not to be stored.

    If the cause may pass, the text tells the client to publish the message again.
    """
    if status.code not in _MAY_PASS or PUBLISH_AGAIN in status.description:
        return status
    return RpcError(status.code, f"{PUBLISH_AGAIN}: {status.description}")


def _refused(error: LiftEnvelopeError) -> RpcError:
    return RpcError(StatusCode.INTERNAL, f"NATS refuses the gateway: {error}")


def refused_publish(
    code: api_pb2.PublishAsyncError.Code, text: str, correlation_id: str, limits: Limits
) -> bytes:
    """Return the answer to a message of PublishAsync that was refused, or whose outcome is unknown.

    Args:
        code: The error code.
        text: The error text, cut to ``max_status_bytes``, since it may quote the request.
        correlation_id: Correlation id of the message.
        limits: Limits of the gateway.
    """
    response = api_pb2.PublishResponse(correlationId=correlation_id)
    # Liftbridge sends an empty ack along with the error.
    response.ack.SetInParent()
    response.asyncError.code, response.asyncError.message = code, cut_text(text, limits.max_status_bytes)
    return response.SerializeToString()
