"""Start and stop positions of a read of a partition. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeAlias

from liftenvelope._checks import as_choice, as_count
from liftenvelope.errors import ServerProtocolError, UsageError, UsageTypeError

__all__ = [
    "Cursor", "Start", "StartAt", "Stop", "StopAt", "Timestamp", "offset_after", "parse_start", "parse_stop",
]  # fmt: skip

_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A time in nanoseconds; a :class:`~datetime.datetime` has microseconds only.

    Attributes:
        ns: Nanoseconds since 1970, UTC, as in :attr:`Message.timestamp_ns`.
    """

    ns: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "ns", as_count("ns", self.ns, 0, _LARGEST))


@dataclass(frozen=True, slots=True)
class Cursor:
    """Start after the message that a cursor names as the last one processed.

    Attributes:
        id: Id of the cursor.
        default: Start if the cursor does not exist: ``"earliest"`` (the default), ``"latest"`` or ``"new"``.
    """

    id: str
    default: str = "earliest"

    def __post_init__(self) -> None:
        as_choice("default", self.default, ("earliest", "latest", "new"))


#: Start of a read: ``"new"``, ``"earliest"``, ``"latest"``, an offset, a time, an age, or a cursor.
Start: TypeAlias = str | int | datetime | Timestamp | timedelta | Cursor
#: End of a read, inclusive: ``"latest"``, an offset, or a time. None for no end.
Stop: TypeAlias = str | int | datetime | Timestamp | None


class At(Enum):
    """Kinds of positions."""

    NEW = "new"
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"
    CURSOR = "cursor"


@dataclass(frozen=True, slots=True)
class StartAt:
    """Start of a read, checked.

    Attributes:
        at: Kind of the position.
        number: Offset, or time in ns since 1970.
        cursor: Cursor, for kind CURSOR.
    """

    at: At
    number: int = 0
    cursor: Cursor | None = None


@dataclass(frozen=True, slots=True)
class StopAt:
    """End of a read, checked. The message at this position is still read.

    Attributes:
        at: LATEST, OFFSET or TIME.
        number: Offset, or time in ns since 1970.
    """

    at: At
    number: int = 0


def _nanoseconds(name: str, moment: datetime | Timestamp) -> int:
    if isinstance(moment, Timestamp):
        return moment.ns
    if moment.utcoffset() is None:
        raise UsageError(f"{name} must have a time zone, such as datetime.now(UTC), got {moment!r}")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    if since < timedelta(0):
        raise UsageError(f"{name} must be a time since 1970, got {moment.isoformat()}")
    ns = (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
    if ns > _LARGEST:
        raise UsageError(
            f"{name} must be a time before 2262, whose nanoseconds fit in 64 bits, got {moment.isoformat()}"
        )
    return ns


def _offset(name: str, offset: int) -> int:
    return as_count(name, offset, 0, _LARGEST)


def offset_after(offset: int, about: str) -> int:
    """Return the offset after the one of a message, where a read continues.

    Args:
        offset: Offset that a server sent.
        about: Stream and partition, for the text of errors.

    Raises:
        ServerProtocolError: No offset follows: the given one is the largest of 64 bits.
    """
    if offset >= _LARGEST:
        raise ServerProtocolError(f"{about}: offsets must be at most {_LARGEST - 1}, got {offset}")
    return offset + 1


def parse_start(start: Start, now_ns: int, *, name: str = "start") -> StartAt:
    """Return the start position for a ``start`` argument.

    Args:
        start: The argument of the caller.
        now_ns: Current time in ns since 1970, from which a timedelta counts back.
        name: Name of the argument, for the text of errors.

    Raises:
        UsageError: ``start`` is out of range, or an unknown word.
        UsageTypeError: ``start`` has a type that is not a position.
    """
    match start:
        case "new" | "earliest" | "latest":
            return StartAt(At(start))
        case bool():
            pass
        case int():
            return StartAt(At.OFFSET, _offset(name, start))
        case datetime() | Timestamp():
            return StartAt(At.TIME, _nanoseconds(name, start))
        case timedelta():
            if start < timedelta(0):
                raise UsageError(
                    f"{name} must be a timedelta back from now, which is positive, got {start!r}"
                )
            return StartAt(At.TIME, max(0, now_ns - start // timedelta(microseconds=1) * 1_000))
        case Cursor():
            return StartAt(At.CURSOR, cursor=start)
        case str():
            raise UsageError(f"{name} must be 'new', 'earliest', 'latest' or an offset, got {start!r}")
    raise UsageTypeError(
        f"{name} must be 'new', 'earliest', 'latest', an offset, datetime, Timestamp, timedelta or Cursor, "
        f"got {start!r}"
    )


def parse_stop(stop: Stop, now_ns: int) -> StopAt | None:
    """Return the end position for a ``stop`` argument, None for no end.

    Args:
        stop: The argument of the caller.
        now_ns: Current time in ns since 1970. A stop time must not be later.

    Raises:
        UsageError: ``stop`` is out of range, or an unknown word.
        UsageTypeError: ``stop`` has a type that is not a position.
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
                raise UsageError(
                    f"stop must not be in the future, because servers cannot stop there, got {stop!r}"
                )
            return StopAt(At.TIME, moment)
        case str():
            raise UsageError(f"stop must be 'latest', an offset, a datetime or None, got {stop!r}")
    raise UsageTypeError(f"stop must be 'latest', an offset, a datetime or None, got {stop!r}")
