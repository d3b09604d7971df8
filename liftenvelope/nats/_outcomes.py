"""Outcomes of a publish: the results and errors that its caller receives."""

from __future__ import annotations

from typing import Final

from liftenvelope._deadlines import MAY_BE_STORED, NOT_STORED, SUBJECT_CAUSES, ack_timeout
from liftenvelope.correlation import Ended
from liftenvelope.envelope import Ack
from liftenvelope.errors import (
    AckTimeoutError,
    PublishError,
    TransportError,
    publish_error,
)
from liftenvelope.types import AckError

#: Possible causes of fewer acks than a publish expects.
_TOO_FEW_CAUSES: Final = (
    "fewer streams record the subject than acks are expected; one of the streams is paused or read-only; "
    "the server is slow or unreachable"
)


def outcome_of(result: Ack | tuple[Ack, ...]) -> Ack | tuple[Ack, ...] | PublishError:
    """Return the outcome of a publish: its ack or acks, or the error that a single ack carries."""
    if type(result) is Ack and result.error is not AckError.OK:
        return publish_error(result)
    return result


def failure_of(
    entry: Ended, subject: str | None, sent: bool, reason: str | None, refusal: str = ""
) -> AckTimeoutError | TransportError:
    """Return the error for a publish without its acks.

    Args:
        entry: Entry removed from the table of pending acks.
        subject: Subject of the message; None if the user published it.
        sent: True if the message was handed to the connection.
        reason: Reason for the early end of the wait. None at the deadline.
        refusal: Permission that the server refused, as text of :meth:`Link.refusal`.
    """
    correlation_id = entry.correlation_id
    where = "" if subject is None else f" on {subject!r}"
    what = f"the message{where} (correlation id {correlation_id!r})"
    if reason is not None:
        outcome = MAY_BE_STORED if sent else NOT_STORED
        return TransportError(f"{reason} before an ack came for {what}: {outcome}", sent=sent)
    if not entry.acks:
        return ack_timeout(what, correlation_id, sent=sent, causes=SUBJECT_CAUSES + refusal)
    came = f"{len(entry.acks)} of {entry.expected} acks"
    return ack_timeout(what, correlation_id, sent=sent, came=came, causes=_TOO_FEW_CAUSES)
