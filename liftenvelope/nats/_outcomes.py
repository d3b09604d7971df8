"""How a publish ends, and what its caller is told."""

from __future__ import annotations

from liftenvelope.correlation import Ended
from liftenvelope.envelope import Ack
from liftenvelope.errors import (
    AckTimeoutError,
    PublishError,
    TransportError,
    UsageError,
    UsageTypeError,
    publish_error,
)
from liftenvelope.types import AckError

_UNKNOWN = "it may have been stored, and publishing it again may store it twice"
_UNSENT = "it was never sent, so publishing it again is safe"


def positive(name: str, seconds: float) -> float:
    """A number of seconds that can be waited for."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageTypeError(f"{name} must be a number of seconds, not {type(seconds).__name__}")
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{name} must be a positive number of seconds, not {seconds!r}")
    return seconds


def outcome_of(result: Ack | tuple[Ack, ...]) -> Ack | tuple[Ack, ...] | PublishError:
    """What a publish is told of the acks that it waited for: of a single one also its error."""
    if type(result) is Ack and result.error is not AckError.OK:
        return publish_error(result)
    return result


def failure_of(entry: Ended, sent: bool, reason: str | None) -> AckTimeoutError | TransportError:
    """What a publish is told that got no ack: in time, or before the end that the reason names."""
    what = f"the message with correlation id {entry.correlation_id!r}: {_UNKNOWN if sent else _UNSENT}"
    if reason is not None:
        return TransportError(f"{reason} before an ack came for {what}", sent=sent)
    came = f"{len(entry.acks)} of {entry.expected} acks" if entry.acks else "no ack"
    return AckTimeoutError(f"{came} came in time for {what}", entry.correlation_id, sent)
