"""Names of groups and coordinators as tokens of subjects and keys."""

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

#: What is asked of any coordinator, and what of a group's controller.
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
    """Any name as a token; different names give different ones.

    Example:
        >>> token_of("billing"), token_of("b.1 é")
        ('billing', 'b=2E1=20=C3=A9')
    """
    data = name.encode()
    if _PLAIN.sub(b"", data) == b"":
        return name
    return "".join(chr(byte) if _PLAIN.match(bytes((byte,))) else f"={byte:02X}" for byte in data)


def check_token(what: str, value: object) -> str:
    """A name that is a token as it is.

    Raises:
        UsageError: It is not 1 to 64 letters, digits, dashes and underscores.
    """
    if not isinstance(value, str):
        raise UsageTypeError(f"{what} must be str, not {type(value).__name__}")
    if not _TOKEN.fullmatch(value):
        raise UsageError(f"{what}={value!r}: expected 1 to 64 letters, digits, '-' and '_'")
    return value


def check_prefix(prefix: object) -> str:
    """A prefix of subjects, without a dot at its end.

    Raises:
        UsageError: It has other tokens than of letters, digits, dashes and underscores.
    """
    if not isinstance(prefix, str):
        raise UsageTypeError(f"prefix must be str, not {type(prefix).__name__}")
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"prefix={prefix!r}: expected letters, digits, '-' and '_', and dots between them")
    return prefix


def controller_subject(prefix: str, coordinator_id: str) -> str:
    """Where a coordinator takes what is asked of it alone, without the method."""
    return f"{prefix}.at.{coordinator_id}"


def changed_subject(prefix: str, group: str) -> str:
    """Where a controller tells that a group is changing, or has changed."""
    return f"{prefix}.changed.{token_of(group)}"
