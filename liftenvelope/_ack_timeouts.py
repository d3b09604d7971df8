"""Error for an ack timeout: one wording for the ack inbox and both clients."""

from __future__ import annotations

from typing import Final

from liftenvelope.errors import AckTimeoutError

#: Outcome of a message that was handed to the connection and got no ack.
MAY_BE_STORED: Final = "the message may be stored, and publishing it again may store it twice"
#: Outcome of a message that never left this process.
NOT_STORED: Final = "the message was never sent, so publishing it again is safe"
#: Usual causes of a missing ack for an envelope published to a subject.
SUBJECT_CAUSES: Final = (
    "no stream records the subject; the stream is paused or read-only; the server is slow or unreachable"
)


def ack_timeout(
    what: str,
    correlation_id: str = "",
    *,
    sent: bool = True,
    came: str = "no ack",
    unknown: str = MAY_BE_STORED,
    causes: str = SUBJECT_CAUSES,
) -> AckTimeoutError:
    """Return the error for a message whose acks did not all arrive in time.

    Args:
        what: The message, with its subject or partition: ``the message on 'orders'``.
        correlation_id: Id that the ack would have carried. Default: none.
        sent: True if the message was handed to the connection. Default True.
        came: Number of acks received, as text. Default ``no ack``.
        unknown: Outcome of a message that was sent. Default :data:`MAY_BE_STORED`.
        causes: The usual causes, separated by semicolons. The text has them only if the message was sent.
    """
    outcome = f"{unknown}. Usual causes: {causes}" if sent else NOT_STORED
    return AckTimeoutError(f"{came} came in time for {what}: {outcome}", correlation_id, sent)
