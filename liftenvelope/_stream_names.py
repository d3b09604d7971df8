"""Checks for stream names and settings that would crash a Liftbridge server.

Servers don't check names. Some names make the process panic, and again at every start, because the request is
in its Raft log by then. With other names the next request makes it panic. Negative settings do the same.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["RESERVED", "check_settings", "check_stream_name"]

#: The server's own streams. The server refuses these names too; the check here fails earlier.
RESERVED: Final = ("__cursors", "__activity")
# Bytes. The server creates a folder with the stream's name: 300 bytes are too long, 240 bytes worked.
_LONGEST_NAME: Final = 240
# Largest number of milliseconds that fits in the server's 64-bit nanoseconds.
_LONGEST_MS: Final = (2**63 - 1) // 1_000_000
_TIMES: Final = ("retentionMaxAge", "cleanerInterval", "segmentMaxAge", "autoPauseTime")


def check_stream_name(name: str) -> None:
    """Raise UsageError for a stream name that is invalid or would crash the server."""
    for is_faulty, fault in _FAULTS:
        if is_faulty(name):
            raise UsageError(f"stream name {fault}, got {name!r}")


def _has_stray_dot(name: str) -> bool:
    return name.startswith(".") or name.endswith(".") or ".." in name


def _has_wildcard(name: str) -> bool:
    return "*" in name or ">" in name


def _has_odd_character(name: str) -> bool:
    return any(unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cs") for character in name)


def _is_too_long(name: str) -> bool:
    return len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME


_FAULTS: Final[tuple[tuple[Callable[[str], bool], str], ...]] = (
    (lambda name: not name, "must not be empty"),
    (lambda name: name in RESERVED, "must not be one that the server reserves"),
    (_is_too_long, f"must be at most {_LONGEST_NAME} bytes"),
    (_has_stray_dot, "must not have a dot at its start or end, or two in a row"),
    (_has_wildcard, "must not have a wildcard"),
    (_has_odd_character, "must not have a space, a control character or a lone surrogate"),
)


def check_settings(settings: Mapping[str, int | bool]) -> None:
    """Raise UsageError for a setting that would break the stream or server. Keys: API names of settings."""
    for name, value in settings.items():
        if value < 0:
            raise UsageError(f"{name} must be at least 0, got {value!r}")
        if name in _TIMES and value > _LONGEST_MS:
            raise UsageError(f"{name} must be at most {_LONGEST_MS} milliseconds, got {value!r}")
