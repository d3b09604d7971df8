"""Which stream names and settings a Liftbridge server survives.

Servers don't check names. Some make the process panic, and again at every start, because the request stands
in its Raft log by then; with others the next request does. The same goes for negative settings.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["RESERVED", "check_settings", "check_stream_name"]

#: The server's own streams. It refuses them itself; it is refused here to say so at once.
RESERVED: Final = ("__cursors", "__activity")
# A name becomes a folder, and 300 bytes are too many for it; 240 were fine.
_LONGEST_NAME: Final = 240
# Milliseconds that still fit in the server's 64-bit nanoseconds.
_LONGEST_MS: Final = (2**63 - 1) // 1_000_000
_TIMES: Final = ("retentionMaxAge", "cleanerInterval", "segmentMaxAge", "autoPauseTime")


def check_stream_name(name: str) -> None:
    """Raise UsageError for a name that can't be a stream's, or would kill the server."""
    for is_faulty, fault in _FAULTS:
        if is_faulty(name):
            raise UsageError(f"stream name {name!r}: {fault}")


def _has_stray_dot(name: str) -> bool:
    return name.startswith(".") or name.endswith(".") or ".." in name


def _has_wildcard(name: str) -> bool:
    return "*" in name or ">" in name


def _has_odd_character(name: str) -> bool:
    return any(unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cs") for character in name)


def _is_too_long(name: str) -> bool:
    return len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME


_FAULTS: Final[tuple[tuple[Callable[[str], bool], str], ...]] = (
    (lambda name: not name, "it is empty"),
    (lambda name: name in RESERVED, "it is reserved"),
    (_is_too_long, f"it is longer than {_LONGEST_NAME} bytes"),
    (_has_stray_dot, "it has a dot at its start or end, or two in a row"),
    (_has_wildcard, "it has a wildcard"),
    (_has_odd_character, "it has a space, a control character, or half a character"),
)


def check_settings(settings: Mapping[str, int | bool]) -> None:
    """Raise UsageError for a setting, by its name in the API, that would break the stream or the server."""
    for name, value in settings.items():
        if value < 0 or (name in _TIMES and value > _LONGEST_MS):
            raise UsageError(f"{name}={value!r}: out of range")
