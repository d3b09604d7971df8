"""Encodes names of groups and coordinators as tokens of subjects and keys."""

from __future__ import annotations

import re
from typing import Final

from liftenvelope.errors import UsageError, UsageTypeError

__all__ = [
    "ANY",
    "METHODS",
    "changed_subject",
    "check_prefix",
    "check_token",
    "controller_subject",
    "token_of",
]

#: Calls that any coordinator serves; the group's controller serves the others.
ANY: Final = ("ListGroups", "CreateGroup")
METHODS: Final = (
    *ANY,
    "DeleteGroup",
    "RegisterConsumer",
    "Heartbeat",
    "RewindConsumer",
    "Commit",
    "Leave",
    "FetchOffsets",
)
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_-]")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def token_of(name: str) -> str:
    """Encode a name as a token; different names give different tokens.

    Example:
        >>> token_of("billing"), token_of("b.1 é")
        ('billing', 'b=2E1=20=C3=A9')
    """
    data = name.encode()
    if _PLAIN.sub(b"", data) == b"":
        return name
    return "".join(chr(byte) if _PLAIN.match(bytes((byte,))) else f"={byte:02X}" for byte in data)


def check_token(what: str, value: object) -> str:
    """Check that a name is a token and return it.

    Raises:
        UsageError: The name is not 1 to 64 letters, digits, dashes and underscores.
    """
    if not isinstance(value, str):
        raise UsageTypeError(f"{what} must be a str, got {value!r}")
    if not _TOKEN.fullmatch(value):
        raise UsageError(f"{what} must be 1 to 64 letters, digits, '-' and '_', got {value!r}")
    return value


def check_prefix(prefix: object) -> str:
    """Check a prefix of subjects and return it; a prefix does not end with a dot.

    Raises:
        UsageError: A token is empty, or has characters other than letters, digits, dashes and underscores.
    """
    if not isinstance(prefix, str):
        raise UsageTypeError(f"prefix must be a str, got {prefix!r}")
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"prefix must be tokens of letters, digits, '-' and '_', got {prefix!r}")
    return prefix


def controller_subject(prefix: str, coordinator_id: str) -> str:
    """Return the subject prefix for calls to one coordinator; the method follows after a dot."""
    return f"{prefix}.at.{coordinator_id}"


def changed_subject(prefix: str, group: str) -> str:
    """Return the subject on which a controller announces that a group is changing or has changed."""
    return f"{prefix}.changed.{token_of(group)}"
