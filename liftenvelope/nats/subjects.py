"""Checks of subjects: an invalid subject could end the connection or inject commands.

nats-py before 2.16 sends a line end in a subject unchanged, so the text after it becomes a protocol command.
:func:`wire_subject` therefore runs before every call of nats-py that takes a subject.
"""

from __future__ import annotations

import re
from typing import Final

from liftenvelope._checks import about, as_text
from liftenvelope.errors import UsageError, UsageTypeError

# The server limits the first line of a command to 4,096 bytes; this leaves room for verb, size and reply.
_LONGEST: Final = 3_500
#: Maximum number of cached, checked subjects.
_CACHED: Final = 1_024
_INVALID: Final = re.compile(r"[\s\x00-\x1f\x7f]")


def publish_subject(subject: str) -> str:
    """Return a subject if messages can be published on it.

    Raises:
        UsageError: The subject is empty or too long, or has white space, a control character, an empty token
            or a wildcard token.
    """
    if not isinstance(subject, str):
        raise UsageTypeError(f"subject must be str, got {type(subject).__name__}")
    tokens = subject.split(".")
    if "" in tokens or _INVALID.search(subject):
        raise UsageError(
            f"subject must have no empty token, white space or control character, got {subject!r}"
        )
    if "*" in tokens or ">" in tokens:
        raise UsageError(
            f"subject must not have a wildcard, got {subject!r}: messages are published on one subject"
        )
    _check_size("subject", subject)
    return subject


def _check_size(name: str, subject: str) -> None:
    if (size := len(as_text(name, subject).encode())) > _LONGEST:
        raise UsageError(f"{name} {subject[:40]!r}... must be at most {_LONGEST} bytes, got {size}")


class CommandHeads:
    """Starts of the PUB commands for subjects, checked once: a check takes longer than to encode a message.

    Args:
        reply: Start of the reply subject that follows. Default: none.

    Attributes:
        known: Cached starts by subject. Always the same dict.

    Example:
        >>> CommandHeads("_INBOX.a.").of("orders")
        b'PUB orders _INBOX.a.'
    """

    __slots__ = ("_reply", "known")

    def __init__(self, reply: str = "") -> None:
        self._reply = reply
        self.known: dict[str, bytes] = {}

    def of(self, subject: str) -> bytes:
        """Return the command up to the size, or up to the rest of the reply subject.

        Raises:
            UsageError: As for :func:`publish_subject`.
        """
        try:
            return self.known[subject]
        except (KeyError, TypeError):  # new, or not even a str
            publish_subject(subject)
        if len(self.known) >= _CACHED:
            self.known.clear()
        head = self.known[subject] = f"PUB {subject} {self._reply}".encode()
        return head


def framed(head: bytes, payload: bytes) -> bytes:
    """Return the complete command that publishes a payload. ``head`` is that of :class:`CommandHeads`."""
    return b"%b%d\r\n%b\r\n" % (head, len(payload), payload)


def check_inbox_prefix(prefix: str) -> str:
    """Return an inbox prefix if it is valid.

    Raises:
        UsageError: The prefix is not a valid subject, or has wildcards.
    """
    try:
        return publish_subject(prefix)
    except UsageError as exc:
        text = f"inbox_prefix must be a subject without wildcards, got {prefix!r}"
        raise about(UsageError(text), "inbox_prefix") from exc


def wire_subject(name: str, subject: str) -> str:
    """Return a subject if it fits on one protocol line; wildcards are allowed.

    Args:
        name: Name of the argument, for the error.
        subject: Subject to check.

    Raises:
        UsageError: The subject is empty or too long, or has white space, a control character or a lone
            surrogate.
    """
    if not subject or _INVALID.search(subject):
        raise UsageError(f"{name} must have no white space and no control character, got {subject!r}")
    _check_size(name, subject)
    return subject
