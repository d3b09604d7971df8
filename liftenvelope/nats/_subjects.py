"""Checks of subjects: a bad one would end the connection, or smuggle commands onto it.

nats-py before 2.16 sends a line end in a subject as it is, so that what follows it is a command of its own.
:func:`wire_subject` stands before every call of nats-py that takes a subject.
"""

from __future__ import annotations

import re
from typing import Final

from liftenvelope.errors import UsageError, UsageTypeError

# The server reads a command's first line up to 4,096 bytes; room for the verb, a size and a reply is kept.
_LONGEST: Final = 3_500
_INVALID: Final = re.compile(r"[\s\x00-\x1f\x7f]")


def publish_subject(subject: str) -> str:
    """A subject that a message may be published on.

    Raises:
        UsageError: It is empty, too long, has white space or control characters, an empty token, or a
            wildcard as a token.
    """
    if not isinstance(subject, str):
        raise UsageTypeError(f"subject must be str, not {type(subject).__name__}")
    tokens = subject.split(".")
    if "" in tokens or _INVALID.search(subject):
        raise UsageError(
            f"subject {subject!r} is empty, or has an empty token, white space or a control character"
        )
    if "*" in tokens or ">" in tokens:
        raise UsageError(f"subject {subject!r} has a wildcard: messages are published on one subject")
    _check_size("subject", subject)
    return subject


def _check_size(name: str, subject: str) -> None:
    try:
        size = len(subject.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{name} {subject!r} has a lone surrogate, which UTF-8 can't carry") from None
    if size > _LONGEST:
        raise UsageError(f"{name} {subject[:40]!r}... has {size} bytes; at most {_LONGEST} are allowed")


def check_inbox_prefix(prefix: str) -> str:
    """Return the prefix, if inboxes can begin with it.

    Raises:
        UsageError: It is no subject, or has wildcards.
    """
    try:
        return publish_subject(prefix)
    except UsageError as exc:
        raise UsageError(f"inbox_prefix must be a subject without wildcards, got {prefix!r}") from exc


def wire_subject(name: str, subject: str) -> str:
    """Return a subject, with wildcards perhaps, that stays within its line of the protocol.

    Args:
        name: What the error calls it.
        subject: The subject.

    Raises:
        UsageError: It is empty or too long, or has white space, a control character or a lone surrogate.
    """
    if not subject or _INVALID.search(subject):
        raise UsageError(f"{name} must have no white space and no control character, got {subject!r}")
    _check_size(name, subject)
    return subject
