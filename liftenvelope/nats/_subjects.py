"""What may be published on: a bad subject would end the connection, or smuggle in commands of its own."""

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
    try:
        size = len(subject.encode())
    except UnicodeEncodeError:
        raise UsageError(f"subject {subject!r} has a lone surrogate, which UTF-8 can't carry") from None
    if size > _LONGEST:
        raise UsageError(f"subject {subject[:40]!r}... has {size} bytes; at most {_LONGEST} are allowed")
    return subject
