"""Checks the subjects that clients name: those of streams, of messages and of acks.

The gateway's own connection has permissions that no client has: it calls JetStream's API, writes the records
of streams, cursors and groups (``$KV``), calls the group coordinators, answers requests and reads its own
traffic. A client must therefore not name any subject used for these. All checks of such subjects are in this
module.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from liftenvelope import _wire as w
from liftenvelope._logs.throttle import Throttle
from liftenvelope._native import acks
from liftenvelope.errors import UsageError
from liftenvelope.jetstream.names import check_filter
from liftenvelope.nats.replies import ReplySubjects
from liftenvelope.nats.subjects import publish_subject
from liftenvelope.rpc.status import RpcError, StatusCode

__all__ = ["AckInboxes", "ClientSubjects"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Default inbox prefix of NATS clients. Clients may have acks sent there.
_INBOXES: Final = "_INBOX."
_LONGEST_SHOWN: Final = 100
#: Longest subject of a stream, in bytes. The gateway also uses this subject under the prefix
#: ``_lift.checked.``, and both must fit into one protocol line of NATS. Otherwise nats-server closes the
#: gateway's connection.
_LONGEST: Final = 3_400


class ClientSubjects:
    """Decides which subjects clients may record and publish to.

    Args:
        own: Prefixes of the gateway's own inboxes, each with the last dot. Answers of JetStream and messages
            for readers arrive there, so no client may record them or forge them. Default: none.

    Example:
        >>> subjects = ClientSubjects(["gateway.inboxes."])
        >>> subjects.check_recorded("orders.*")
        >>> subjects.check_published("orders.eu")
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        known = (*w.INTERNAL_SUBJECTS, _INBOXES)
        self._internal = (*known, *sorted(prefix for prefix in set(own) if not prefix.startswith(known)))

    def check_recorded(self, subject: str) -> None:
        """Check the subject of a stream, which may have wildcards.

        Raises:
            RpcError: INVALID_ARGUMENT: the subject is malformed or too long, or matches an internal subject.
        """
        try:
            check_filter(subject)
        except UsageError as exc:
            raise _invalid(exc) from exc
        if (size := len(subject.encode("utf-8", "replace"))) > _LONGEST:
            raise _invalid(f"{_shown(subject)}... must have at most {_LONGEST} bytes, got {size}")
        if self._is_internal(subject) or any(_matches_below(subject, start) for start in self._internal):
            names = ", ".join(f"{start.removesuffix('.')}..." for start in self._internal)
            raise _invalid(f"{_shown(subject)} matches internal subjects ({names}): choose another subject")

    def check_published(self, subject: str) -> None:
        """Check the subject of a message that a client publishes through the gateway.

        Raises:
            RpcError: INVALID_ARGUMENT: the subject is malformed, has wildcards or is internal.
        """
        try:
            publish_subject(subject)
        except UsageError as exc:
            raise _invalid(exc) from exc
        if self._is_internal(subject):
            raise _invalid(f"{_shown(subject)} is internal: choose another subject")

    def _is_internal(self, subject: str) -> bool:
        """Return whether a subject without wildcards is internal."""
        return f"{subject}.".startswith(self._internal)


class AckInboxes:
    r"""Decides which ack inboxes clients may name, for messages by gRPC and by NATS.

    Args:
        allowed: Allowed prefixes of ack inboxes, as in :class:`~liftenvelope.gateway.Limits`.
        own: Prefixes of the gateway's own inboxes, each with the last dot. Gateways publish envelopes for
            copying partitions with such inboxes, so these are allowed on NATS as well. A request may name one
            only if clients have inboxes there too: under ``_INBOX.``, or if an allowed prefix begins with
            it. Otherwise a client could forge answers to the gateway. Default: none.

    Attributes:
        prefixes: Allowed prefixes of the ack inbox of an envelope on NATS; an empty prefix allows any that is
            not internal.
        replies: Decides which reply subjects get an answer.

    Example:
        >>> inboxes = AckInboxes(["_INBOX."])
        >>> [inboxes.allows(inbox) for inbox in ("_INBOX.a.1", "acks.1", "_INBOX.a 1\r\nPUB b")]
        [True, False, False]
        >>> inboxes = AckInboxes([">"], own=["gateway."])
        >>> [inboxes.allows(inbox) for inbox in ("acks.1", "$KV.lift_streams.a", "gateway.1")]
        [True, False, False]
    """

    def __init__(self, allowed: Iterable[str], own: Iterable[str] = ()) -> None:
        allowed, own = list(allowed), sorted(set(own))
        shared = (_INBOXES, *allowed)
        self._private = tuple(one for one in own if not any(prefix.startswith(one) for prefix in shared))
        self._names = ", ".join(map(repr, allowed)) or "none"
        self._allowed = tuple(b"" if prefix == w.ANY_SUBJECT else prefix.encode() for prefix in allowed)
        self.prefixes = (*self._allowed, *(prefix.encode() for prefix in own))
        self.replies = ReplySubjects((*allowed, *own))
        self._throttle = Throttle()

    def allows(self, inbox: str) -> bool:
        """Return whether a request may name this ack inbox."""
        is_allowed: bool = acks.is_ack_inbox(inbox.encode("utf-8", "replace"), self._allowed)
        return is_allowed and not inbox.startswith(self._private)

    def allows_on_nats(self, inbox: str) -> bool:
        """Return whether an envelope on NATS may name this ack inbox."""
        is_allowed: bool = acks.is_ack_inbox(inbox.encode("utf-8", "replace"), self.prefixes)
        return is_allowed

    def check(self, inbox: str) -> None:
        """Check the ack inbox of a request; an empty one stands for none and is allowed.

        Raises:
            RpcError: INVALID_ARGUMENT: the inbox is malformed, is internal or has no allowed prefix.
        """
        if inbox.startswith(self._private):
            text = f"ackInbox must not be an inbox of the gateway, got {_shown(inbox)}: name one of your own"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
        if inbox and not self.allows(inbox):
            text = f"ackInbox must be a subject that begins with one of {self._names}, got {_shown(inbox)}"
            raise RpcError(StatusCode.INVALID_ARGUMENT, f"{text} (limit allowed_ack_inboxes)")

    def warn(self, stream: str, partition: int, inbox: bytes, now: float) -> None:
        """Log that an envelope on NATS names a refused ack inbox, at most once a minute.

        Args:
            stream: Name of the stream that stored the envelope.
            partition: Number of the partition.
            inbox: The refused inbox.
            now: Current time in seconds, of a monotonic clock.
        """
        if self._throttle.admits("inbox", now):
            text = "%s, partition %d: refused the ack inbox %r: it must begin with one of %s"
            text += " (limit allowed_ack_inboxes)"
            where = {"stream": stream, "partition": partition}
            _log.warning(text, stream, partition, _readable(inbox), self._names, extra=where)


def _readable(inbox: bytes) -> str:
    return inbox[:_LONGEST_SHOWN].decode("utf-8", "replace")


def _matches_below(subject: str, beginning: str) -> bool:
    """Return whether a subject matches others that begin with ``beginning`` and have further tokens.

    Of the beginning ``$``, which is no whole token, only wildcards are compared.

    Example:
        >>> [_matches_below(subject, "a.b.") for subject in (">", "a.>", "*.*.c", "a.*", "a.c.>")]
        [True, True, True, False, False]
    """
    parts, wanted = subject.split("."), beginning.removesuffix(".").split(".")
    for part, name in zip(parts, wanted, strict=False):
        if part == ">":
            return True
        if part not in ("*", name):
            return False
    return len(parts) > len(wanted)


def _shown(subject: str) -> str:
    return repr(subject[:_LONGEST_SHOWN])


def _invalid(fault: UsageError | str) -> RpcError:
    return RpcError(StatusCode.INVALID_ARGUMENT, f"Subject is invalid: {fault}")
