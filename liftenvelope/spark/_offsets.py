"""Start and end offsets from options, and query positions in the checkpoint's JSON. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from liftenvelope.spark._words import Words, whole
from liftenvelope.spark.errors import CheckpointError, OptionError

__all__ = [
    "EARLIEST",
    "LATEST",
    "Offsets",
    "Part",
    "PartitionPlace",
    "Places",
    "Position",
    "check_order",
    "end_places",
    "start_places",
]

#: A partition of a stream.
Part: TypeAlias = tuple[str, int]
#: Next offset of each partition.
Offsets: TypeAlias = dict[Part, int]

#: Special offsets, with the values of Spark's Kafka source.
EARLIEST: Final = -2
LATEST: Final = -1

_VERSION: Final = 1
_MILLISECOND: Final = 1_000_000
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """Start or end in one partition.

    Attributes:
        offset: An offset, ``EARLIEST`` or ``LATEST``; None to use ``time_ns``.
        time_ns: Start or end at the first message at or after this time, in ns since 1970.
    """

    offset: int | None = None
    time_ns: int = 0


@dataclass(frozen=True, slots=True)
class Places:
    """Start or end in every partition.

    Attributes:
        default: Place for partitions missing in ``named``; None if ``named`` must have all of them.
        named: Place for each named partition.
    """

    default: PartitionPlace | None
    named: Mapping[Part, PartitionPlace]

    def of(self, part: Part) -> PartitionPlace | None:
        """Return the place for one partition; None if the options name none."""
        return self.named.get(part, self.default)


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a query, as Spark writes it into the checkpoint.

    The position carries the start of its own range because Spark keeps no offset for the start of the first
    batch. If "latest" were asked for again after a crash, it would be a later offset, and the messages
    between would be skipped.

    Attributes:
        offsets: Next offset of each partition.
        begun: Start of the range that ends here.
        created: Creation time of each stream in ns since 1970, where it is known: a stream that was created
            again under its name has the same offsets for other messages.
    """

    offsets: Offsets
    begun: Offsets
    created: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value; equal positions give equal text."""
        found: dict[str, Any] = {
            "v": _VERSION,
            "offsets": _nested(self.offsets),
            "from": _nested(self.begun),
        }
        if self.created:  # as text: a parser of JSON may round integers beyond 2**53
            found["created"] = {stream: str(self.created[stream]) for stream in sorted(self.created)}
        return found

    @classmethod
    def from_json(cls, found: Any) -> Position:
        """Parse a position from the checkpoint.

        Raises:
            CheckpointError: The value is damaged or of another version.
        """
        if not isinstance(found, dict) or found.get("v") != _VERSION:
            text = f"the checkpoint must hold an offset of version {_VERSION} of this source, got {found!r}"
            raise CheckpointError(f"{text}; use the version that wrote it, or a new checkpointLocation")
        try:
            created = {stream: _offset(int(text)) for stream, text in found.get("created", {}).items()}
            return cls(_flat(found["offsets"]), _flat(found["from"]), created)
        except (KeyError, AttributeError, TypeError, ValueError) as exc:
            raise CheckpointError(f"the checkpoint is damaged, use a new one: it holds {found!r}") from exc


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    # Spark compares offsets by their text, so the order must be stable.
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
    """Return the start from the options. A timestamp for all partitions overrides per-partition options.

    Raises:
        OptionError: An option is malformed.
    """
    return _places(words, "starting", default, ("earliest", "latest"))


def end_places(words: Words) -> Places:
    """Return the end from the options; otherwise like :func:`start_places`.

    Raises:
        OptionError: An option is malformed.
    """
    return _places(words, "ending", "latest", ("latest",))


def _places(words: Words, which: str, default: str, named: tuple[str, ...]) -> Places:
    text = words.text(f"{which}Timestamp")
    if text is not None:
        return Places(_moment(f"{which}Timestamp", whole(text), text), {})
    rest = PartitionPlace(EARLIEST if default == "earliest" else LATEST)
    moments = words.mapping(f"{which}OffsetsByTimestamp")
    if moments is not None:
        name = f"{which}OffsetsByTimestamp"
        return Places(
            None, {part: _moment(_named(name, part), value, value) for part, value in _parts(name, moments)}
        )
    name = f"{which}Offsets"
    text = words.text(name)
    if text is None:
        return Places(rest, {})
    if text.lower() in named:
        return Places(PartitionPlace(EARLIEST if text.lower() == "earliest" else LATEST), {})
    if not text.startswith("{"):
        expected = " or ".join(map(repr, named))
        raise OptionError(f'{name} must be {expected} or JSON like {{"orders": {{"0": 23}}}}, got {text!r}')
    least = EARLIEST if which == "starting" else LATEST
    return Places(
        None,
        {
            part: _place(_named(name, part), value, least)
            for part, value in _parts(name, words.mapping(name) or {})
        },
    )


def _named(name: str, part: Part) -> str:
    return f"{name} of {part[0]}[{part[1]}]"


def check_order(start: Places, end: Places) -> None:
    """Raise OptionError if a range would end before it starts."""
    for part in sorted({*start.named, *end.named}):
        first, last = start.of(part), end.of(part)
        if first is not None and last is not None and _is_before(last, first):
            text = f"the end of {part[0]}[{part[1]}] must not be before its start"
            raise OptionError(f"{text} {_shown(first)}, got {_shown(last)}")
    if start.default is not None and end.default is not None and _is_before(end.default, start.default):
        first, last = start.default, end.default
        text = f"endingTimestamp must not be before startingTimestamp={_shown(first)}"
        raise OptionError(f"{text}, got {_shown(last)}")


def _is_before(one: PartitionPlace, other: PartitionPlace) -> bool:
    """Return True if ``one`` is before ``other`` for certain, without asking a server."""
    if one.offset is None or other.offset is None:
        return one.offset is other.offset and one.time_ns < other.time_ns
    return 0 <= one.offset < other.offset


def _shown(place: PartitionPlace) -> int:
    """Return the offset or the timestamp in milliseconds, as in the options."""
    return place.time_ns // _MILLISECOND if place.offset is None else place.offset


def _moment(name: str, value: Any, given: Any) -> PartitionPlace:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST // _MILLISECOND:
        raise OptionError(f"{name} must be milliseconds since 1970, before the year 2262, got {given!r}")
    return PartitionPlace(None, value * _MILLISECOND)


def _place(name: str, value: Any, least: int) -> PartitionPlace:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        words = "-2 (earliest) or -1 (latest)" if least == EARLIEST else "-1 (latest)"
        raise OptionError(f"{name} must be an offset, {words}, got {value!r}")
    return PartitionPlace(value)


def _parts(name: str, given: dict[str, Any]) -> list[tuple[Part, Any]]:
    """Return partitions and values; a number in place of an object belongs to partition 0."""
    made: list[tuple[Part, Any]] = []
    for stream, parts in given.items():
        each = parts if isinstance(parts, dict) else {"0": parts}
        for partition, value in each.items():
            number = whole(partition)
            if number is None or str(number) != partition or number < 0:  # no two names of one partition
                raise OptionError(f"{name}: keys of {stream!r} must be partition numbers, got {partition!r}")
            made.append(((stream, number), value))
    if not made:
        raise OptionError(f"{name} must name at least one partition, got {given!r}")
    return made
