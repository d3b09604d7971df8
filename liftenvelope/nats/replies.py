"""Decides which reply subjects a responder answers.

nats-server checks the subject that a client publishes to, but not the reply subject that the client names. A
responder that answers any reply subject publishes where its own permissions allow and the client's do not:
to JetStream's API, to a bucket, to the subject of a stream. So answers go to inboxes alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from liftenvelope import _wire as w
from liftenvelope._logs.throttle import Throttle
from liftenvelope._native import acks
from liftenvelope.nats._event_log import log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = ["ReplySubjects", "inbox_prefix_of"]

#: Default inboxes of NATS clients, those of users with inboxes of their own such as ``_INBOX_ann.``, and the
#: subjects that nats-server puts in place of an inbox when a request comes from another account.
_INBOXES: Final = ("_INBOX.", "_INBOX_", "_R_.")
#: nats-server puts this and two hashes in front of an inbox when a request comes from another cluster.
_ROUTED: Final = b"_GR_."
_ROUTED_TOKENS: Final = 3
#: Characters of a subject in the log.
_LONGEST_SHOWN: Final = 100


class ReplySubjects:
    """Decides which reply subjects a responder answers.

    Args:
        allowed: Allowed prefixes besides ``_INBOX.`` and ``_INBOX_``. ``">"`` allows every subject that is
            not internal.

    Example:
        >>> replies = ReplySubjects(["team."])
        >>> [replies.allows(reply) for reply in ("_INBOX.a.1", "_INBOX_ann.1", "team.a.1")]
        [True, True, True]
        >>> [replies.allows(reply) for reply in ("orders", "$JS.API.INFO", "_GR_.a.b.$JS.API.INFO")]
        [False, False, False]
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._prefixes = tuple(b"" if one == w.ANY_SUBJECT else one.encode() for one in (*_INBOXES, *allowed))
        self._throttle = Throttle()

    def allows(self, reply: str) -> bool:
        """Return whether an answer may go to this subject. False for no reply subject."""
        subject = inbox = reply.encode("utf-8", "replace")
        if subject.startswith(_ROUTED):
            inbox = subject.split(b".", _ROUTED_TOKENS)[-1]
        # The two hashes are the client's too if it made up the prefix, so all of the subject is checked.
        is_allowed: bool = acks.is_ack_inbox(subject) and acks.is_ack_inbox(inbox, self._prefixes)
        return is_allowed

    def admits(self, request: Msg) -> bool:
        """Return whether a request gets an answer. Log a refused reply subject, at most once a minute."""
        if self.allows(request.reply):
            return True
        if request.reply and self._throttle.admits("reply", time.monotonic()):
            shown = request.subject[:_LONGEST_SHOWN], request.reply[:_LONGEST_SHOWN]
            log.warning("a request on %r gets no answer, its reply subject is no inbox: %r", *shown)
        return False


def inbox_prefix_of(nc: Client) -> str:
    """Return the prefix of a connection's inboxes, including the last dot."""
    return nc.new_inbox().rpartition(".")[0] + "."
