"""Where a read of a partition begins and ends, and how far it is. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeAlias

from liftenvelope.errors import UsageError, UsageTypeError

__all__ = ["Cursor", "Start", "StartAt", "Stop", "StopAt", "Timestamp", "parse_start", "parse_stop"]

_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A moment in full precision, where a :class:`~datetime.datetime` has microseconds.

    Attributes:
        ns: Nanoseconds since 1970, UTC: what :attr:`Message.timestamp_ns` says.
    """

    ns: int

    def __post_init__(self) -> None:
        if isinstance(self.ns, bool) or not isinstance(self.ns, int):
            raise UsageTypeError(f"Timestamp takes an int of nanoseconds, not {self.ns!r}")
        if not 0 <= self.ns <= _LARGEST:
            raise UsageError(f"Timestamp({self.ns}): expected nanoseconds since 1970, in 64 bits")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Begin after the message that a cursor names as the last one processed.

    Attributes:
        id: The cursor's id.
        default: Where to begin if there is no such cursor: ``"earliest"``, ``"latest"`` or ``"new"``.
    """

    id: str
    default: str = "earliest"

    def __post_init__(self) -> None:
        if self.default not in ("earliest", "latest", "new"):
            raise UsageError(f"Cursor default {self.default!r}: expected 'earliest', 'latest' or 'new'")


#: ``"new"``, ``"earliest"``, ``"latest"``, an offset, a moment, that long ago, or after a cursor.
Start: TypeAlias = str | int | datetime | Timestamp | timedelta | Cursor
#: ``"latest"``, an offset, or a moment: the last that is read. None for never.
Stop: TypeAlias = str | int | datetime | Timestamp | None


class At(Enum):
    """Kinds of places."""

    NEW = "new"
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"
    CURSOR = "cursor"


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where a read begins, checked.

    Attributes:
        at: The kind of place.
        number: The offset, or the time in ns since 1970.
        cursor: The cursor.
    """

    at: At
    number: int = 0
    cursor: Cursor | None = None


@dataclass(frozen=True, slots=True)
class StopAt:
    """Where a read ends, checked; the message there is still read.

    Attributes:
        at: LATEST, OFFSET or TIME.
        number: The offset, or the time in ns since 1970.
    """

    at: At
    number: int = 0


def _nanoseconds(name: str, moment: datetime | Timestamp) -> int:
    if isinstance(moment, Timestamp):
        return moment.ns
    if moment.utcoffset() is None:
        raise UsageError(f"{name}={moment!r}: a datetime needs a time zone, such as datetime.now(UTC)")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    if since < timedelta(0):
        raise UsageError(f"{name}={moment!r}: expected a time since 1970")
    ns = (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
    if ns > _LARGEST:
        raise UsageError(f"{name}={moment!r}: expected a time before 2262, whose nanoseconds fit in 64 bits")
    return ns


def _offset(name: str, offset: int) -> int:
    if not 0 <= offset <= _LARGEST:
        raise UsageError(f"{name}={offset}: expected an offset of 0 or more")
    return offset


def parse_start(start: Start, now_ns: int) -> StartAt:
    """Return where to begin.

    Args:
        start: As the caller said it.
        now_ns: The time, which a timedelta counts back from.

    Raises:
        UsageError: It is out of range, or an unknown word.
        UsageTypeError: It is of no type that says where to begin.
    """
    match start:
        case "new" | "earliest" | "latest":
            return StartAt(At(start))
        case bool():
            pass
        case int():
            return StartAt(At.OFFSET, _offset("start", start))
        case datetime() | Timestamp():
            return StartAt(At.TIME, _nanoseconds("start", start))
        case timedelta():
            if start < timedelta(0):
                raise UsageError(f"start={start!r}: expected a time back from now, which is positive")
            return StartAt(At.TIME, max(0, now_ns - start // timedelta(microseconds=1) * 1_000))
        case Cursor():
            return StartAt(At.CURSOR, cursor=start)
        case str():
            raise UsageError(f"start={start!r}: expected 'new', 'earliest', 'latest' or an offset")
    raise UsageTypeError(
        f"start={start!r}: expected 'new', 'earliest', 'latest', an offset, datetime, timedelta or Cursor"
    )


def parse_stop(stop: Stop, now_ns: int) -> StopAt | None:
    """Return where to end, None for never.

    Args:
        stop: As the caller said it.
        now_ns: The time, which a time to stop at must not be after.

    Raises:
        UsageError: It is out of range, or an unknown word.
        UsageTypeError: It is of no type that says where to end.
    """
    match stop:
        case None:
            return None
        case "latest":
            return StopAt(At.LATEST)
        case bool():
            pass
        case int():
            return StopAt(At.OFFSET, _offset("stop", stop))
        case datetime() | Timestamp():
            moment = _nanoseconds("stop", stop)
            if moment > now_ns:
                raise UsageError(f"stop={stop!r}: it is in the future, which servers can't stop at")
            return StopAt(At.TIME, moment)
        case str():
            raise UsageError(f"stop={stop!r}: expected 'latest', an offset, a datetime or None")
    raise UsageTypeError(f"stop={stop!r}: expected 'latest', an offset, a datetime or None")
