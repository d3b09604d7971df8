"""Subjects that clients name: the one place that decides what the gateway records and publishes for them.

The gateway's own connection may do what no client may: call JetStream's API, write the records of streams,
cursors and groups (``$KV``), answer requests, and read its own traffic. So a client may name none of the
subjects that these use.
"""

from __future__ import annotations

from typing import Final

from liftenvelope._backend import acks
from liftenvelope.errors import UsageError
from liftenvelope.jetstream._names import check_filter
from liftenvelope.nats._subjects import publish_subject
from liftenvelope.rpc.status import RpcError, StatusCode

__all__ = ["check_published", "check_recorded", "is_ack_inbox"]

#: First tokens of the subjects that NATS, its clients and the gateways use among themselves.
_INTERNAL: Final = ("_INBOX", "_lift")
_LONGEST_SHOWN: Final = 100


def check_recorded(subject: str) -> None:
    """Check the subject of a stream, which may have wildcards.

    Raises:
        RpcError: INVALID_ARGUMENT: it is malformed, or matches a subject that is internal.

    Example:
        >>> check_recorded("orders.*")
    """
    try:
        check_filter(subject)
    except UsageError as exc:
        raise _invalid(exc) from exc
    first, _, rest = subject.partition(".")
    if first.startswith("$") or first in _INTERNAL or first == ">" or (first == "*" and rest):
        names = ", ".join(f"{name}.>" for name in ("$*", *_INTERNAL))
        raise _invalid(f"{_shown(subject)} matches internal subjects ({names}): begin with another name")


def check_published(subject: str) -> None:
    """Check the subject of a message that a client publishes by the gateway.

    Raises:
        RpcError: INVALID_ARGUMENT: it is malformed or has wildcards, or it is internal.
    """
    try:
        publish_subject(subject)
    except UsageError as exc:
        raise _invalid(exc) from exc
    first = subject.partition(".")[0]
    if first.startswith("$") or first in _INTERNAL:
        raise _invalid(f"{_shown(subject)} is internal: the gateway publishes nothing there for a client")


def is_ack_inbox(inbox: str) -> bool:
    r"""Return whether an ack may go to this subject on behalf of a client.

    Example:
        >>> is_ack_inbox("_INBOX.a.1"), is_ack_inbox("$KV.lift_streams.a"), is_ack_inbox("a 1\r\nPUB b")
        (True, False, False)
    """
    is_subject: bool = acks.is_ack_inbox(inbox.encode("utf-8", "replace"))
    return is_subject and not inbox.startswith("_lift.")


def _shown(subject: str) -> str:
    return repr(subject[:_LONGEST_SHOWN])


def _invalid(fault: UsageError | str) -> RpcError:
    return RpcError(StatusCode.INVALID_ARGUMENT, f"Subject is invalid: {fault}")
