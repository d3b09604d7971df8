"""Where a query begins and how far it is, in JSON: what options say, and what a checkpoint holds. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from liftenvelope.spark.errors import CheckpointError, OptionError
from liftenvelope.spark.words import Words, whole

__all__ = [
    "EARLIEST",
    "LATEST",
    "Offsets",
    "Part",
    "Place",
    "Places",
    "Position",
    "check_order",
    "end_places",
    "start_places",
]

#: A partition of a stream.
Part: TypeAlias = tuple[str, int]
#: The offset that comes next, of each partition.
Offsets: TypeAlias = dict[Part, int]

#: In place of an offset, as Spark's Kafka source has them.
EARLIEST: Final = -2
LATEST: Final = -1

_VERSION: Final = 1
_MILLISECOND: Final = 1_000_000
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where to begin or to end in a partition.

    Attributes:
        offset: An offset, or EARLIEST or LATEST. None where it is a moment.
        time_ns: The first message that is not older, in ns since 1970.
    """

    offset: int | None = None
    time_ns: int = 0


@dataclass(frozen=True, slots=True)
class Places:
    """Where to begin or to end in every partition.

    Attributes:
        default: In those that ``named`` has not; None if it must have all of them.
        named: In each partition that was named.
    """

    default: Place | None
    named: Mapping[Part, Place]

    def of(self, part: Part) -> Place | None:
        """Where that is in one partition; None if nothing was said of it."""
        return self.named.get(part, self.default)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a query is: what Spark writes into the checkpoint.

    It carries where its own range began, since Spark keeps no offset for the beginning of the first batch:
    asked again after a crash, "latest" would be a later one, and what lies between would be skipped.

    Attributes:
        offsets: The next offset of each partition.
        begun: Where the range that ends here began.
    """

    offsets: Offsets
    begun: Offsets

    def to_json(self) -> dict[str, Any]:
        """Return what is written; equal positions give equal text."""
        return {"v": _VERSION, "offsets": _nested(self.offsets), "from": _nested(self.begun)}

    @classmethod
    def from_json(cls, found: Any) -> Position:
        """Return the position that was written.

        Raises:
            CheckpointError: It is none of this version.
        """
        if not isinstance(found, dict) or found.get("v") != _VERSION:
            text = f"the checkpoint holds {found!r}: expected an offset of version {_VERSION} of this source"
            raise CheckpointError(f"{text}; use the version that wrote it, or a new checkpointLocation")
        try:
            return cls(_flat(found["offsets"]), _flat(found["from"]))
        except (KeyError, AttributeError, TypeError, ValueError) as exc:
            raise CheckpointError(f"the checkpoint holds {found!r}, which is damaged") from exc


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    # Spark compares offsets by their text: the order must be the same every time.
    made: dict[str, dict[str, int]] = {}
    for (stream, partition), offset in sorted(offsets.items()):
        made.setdefault(stream, {})[str(partition)] = offset
    return made


def _flat(nested: Any) -> Offsets:
    return {
        (stream, int(partition)): _offset(offset)
        for stream, parts in nested.items()
        for partition, offset in parts.items()
    }


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def start_places(words: Words, default: str) -> Places:
    """Return where to begin, as options say; of several, a moment for all wins over those for each partition.

    Raises:
        OptionError: An option makes no sense.
    """
    return _places(words, "starting", default, ("earliest", "latest"))


def end_places(words: Words) -> Places:
    """Return where to end; likewise.

    Raises:
        OptionError: An option makes no sense.
    """
    return _places(words, "ending", "latest", ("latest",))


def _places(words: Words, which: str, default: str, named: tuple[str, ...]) -> Places:
    text = words.text(f"{which}Timestamp")
    if text is not None:
        return Places(_moment(f"{which}Timestamp={text!r}", whole(text)), {})
    rest = Place(EARLIEST if default == "earliest" else LATEST)
    moments = words.mapping(f"{which}OffsetsByTimestamp")
    if moments is not None:
        name = f"{which}OffsetsByTimestamp"
        return Places(
            None, {part: _moment(_said(name, part, value), value) for part, value in _parts(name, moments)}
        )
    name = f"{which}Offsets"
    text = words.text(name)
    if text is None:
        return Places(rest, {})
    if text.lower() in named:
        return Places(Place(EARLIEST if text.lower() == "earliest" else LATEST), {})
    if not text.startswith("{"):
        expected = " or ".join(map(repr, named))
        raise OptionError(f'{name}={text!r}: expected {expected}, or JSON such as {{"orders": {{"0": 23}}}}')
    least = EARLIEST if which == "starting" else LATEST
    return Places(
        None,
        {
            part: _place(_said(name, part, value), value, least)
            for part, value in _parts(name, words.mapping(name) or {})
        },
    )


def _said(name: str, part: Part, value: Any) -> str:
    return f"{name}: {part[0]}[{part[1]}]: {value!r}"


def check_order(start: Places, end: Places) -> None:
    """Raise OptionError if options say that something is to end before it begins."""
    for part in sorted({*start.named, *end.named}):
        first, last = start.of(part), end.of(part)
        if first is not None and last is not None and _is_before(last, first):
            text = f"{part[0]}[{part[1]}] is to be read from {_shown(first)} up to {_shown(last)}"
            raise OptionError(f"{text}, which is before it")
    if start.default is not None and end.default is not None and _is_before(end.default, start.default):
        first, last = start.default, end.default
        raise OptionError(f"endingTimestamp={_shown(last)} is before startingTimestamp={_shown(first)}")


def _is_before(one: Place, other: Place) -> bool:
    """Whether that is known without asking a server."""
    if one.offset is None or other.offset is None:
        return one.offset is other.offset and one.time_ns < other.time_ns
    return 0 <= one.offset < other.offset


def _shown(place: Place) -> int:
    """As options have it."""
    return place.time_ns // _MILLISECOND if place.offset is None else place.offset


def _moment(said: str, value: Any) -> Place:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST // _MILLISECOND:
        raise OptionError(f"{said}: expected milliseconds since 1970, before the year 2262")
    return Place(None, value * _MILLISECOND)


def _place(said: str, value: Any, least: int) -> Place:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        words = "-2 (earliest) or -1 (latest)" if least == EARLIEST else "-1 (latest)"
        raise OptionError(f"{said}: expected an offset, {words}")
    return Place(value)


def _parts(name: str, given: dict[str, Any]) -> list[tuple[Part, Any]]:
    """The partitions and what is said of each; a number in place of an object is said of partition 0."""
    made: list[tuple[Part, Any]] = []
    for stream, parts in given.items():
        each = parts if isinstance(parts, dict) else {"0": parts}
        for partition, value in each.items():
            number = whole(partition)
            if number is None or number < 0:
                raise OptionError(f"{name}: {partition!r}: expected the number of a partition of {stream!r}")
            made.append(((stream, number), value))
    if not made:
        raise OptionError(f"{name}: expected at least one partition")
    return made
