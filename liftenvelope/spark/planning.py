"""Which offsets a batch has, and how they are divided among tasks. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from liftenvelope.spark.errors import DataLossError, OptionError
from liftenvelope.spark.offsets import EARLIEST, LATEST, Offsets, Part, Place, Places, Position

__all__ = [
    "Extents",
    "Planner",
    "Span",
    "Trigger",
    "begin_at",
    "check_named",
    "divide",
    "end_at",
    "spans_between",
]


@dataclass(frozen=True, slots=True)
class Extents:
    """Where the messages of a partition are.

    Attributes:
        oldest: Offset of the oldest message, or of the next one if there is none.
        end: The offset after the newest message that can be read.
        log_end: The offset after the newest message that there is; after a crash of its server, a partition
            may for a while not let all of it be read.
    """

    oldest: int
    end: int
    log_end: int


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """What one task reads: offsets of one partition, from ``start`` up to but not including ``stop``."""

    stream: str
    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Trigger:
    """How much a micro-batch takes.

    Attributes:
        most: So many offsets at most; None for any number.
        least: So many at least, unless ``delay`` has passed; None for any number.
        delay: In seconds.
    """

    most: int | None = None
    least: int | None = None
    delay: float = 0.0


def _name(part: Part) -> str:
    return f"{part[0]}[{part[1]}]"


def check_named(places: Places, parts: Iterable[Part]) -> None:
    """Raise OptionError if places are named for partitions that are not read."""
    unknown = sorted(set(places.named) - set(parts))
    if unknown:
        raise OptionError(f"an offset is given for {_name(unknown[0])}, which is not read or does not exist")


def _place(places: Places, part: Part) -> Place:
    found = places.of(part)
    if found is None:
        raise OptionError(f"no offset is given for {_name(part)}: name every partition that is read")
    return found


def begin_at(places: Places, part: Part, extents: Extents, at_time: int | None) -> int:
    """Return the offset to begin at.

    Args:
        places: What options say.
        part: The partition.
        extents: Where its messages are.
        at_time: The first offset that is not older, where the place is a moment.

    Raises:
        OptionError: Nothing is said of the partition.
    """
    place = _place(places, part)
    if place.offset is None:
        return extents.end if at_time is None else max(at_time, extents.oldest)
    return {EARLIEST: extents.oldest, LATEST: extents.end}.get(place.offset, place.offset)


def end_at(places: Places, part: Part, extents: Extents, at_time: int | None) -> int:
    """Return the offset to end before; never beyond what can be read.

    Raises:
        OptionError: Nothing is said of the partition.
    """
    place = _place(places, part)
    if place.offset is None:
        return extents.end if at_time is None else min(at_time, extents.end)
    return extents.end if place.offset == LATEST else min(place.offset, extents.end)


def spans_between(begin: Offsets, end: Offsets) -> list[Span]:
    """Return the ranges that have something in them, in the order of their names."""
    found = [Span(*part, begin.get(part, 0), stop) for part, stop in end.items()]
    return sorted(span for span in found if span.start < span.stop)


def divide(spans: Sequence[Span], min_parts: int | None, max_records: int) -> list[Span]:
    """Divide ranges, so that several tasks read parts of them. Equal arguments give equal parts.

    Args:
        spans: The ranges.
        min_parts: So many parts are wanted at least; there may be more, and fewer where there are not as many
            offsets.
        max_records: So many offsets a part has at most.
    """
    total = sum(span.stop - span.start for span in spans)
    size = max_records
    if min_parts is not None and min_parts > len(spans):
        # Each range gets the same share of the parts as it has of the offsets, rounded up.
        size = min(size, max(total // min_parts, 1))
    return [part for span in spans for part in _even(span, size)]


def _even(span: Span, size: int) -> list[Span]:
    length = span.stop - span.start
    parts = -(-length // size)
    cuts = [span.start + length * i // parts for i in range(parts + 1)]
    return [Span(span.stream, span.partition, start, stop) for start, stop in pairwise(cuts)]


def _share(begin: Offsets, ends: Offsets, most: int) -> Offsets:
    """How far to go if it is to be so many offsets in all: each partition by its share of what there is."""
    sizes = {part: end - begin[part] for part, end in ends.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    found = {part: begin[part] + most * size // total for part, size in sizes.items()}
    left = most - sum(found[part] - begin[part] for part in found)
    # What rounding has left over goes to those that have most to read, so that none waits for ever.
    for part in sorted(sizes, key=lambda part: (found[part] - ends[part], part))[:left]:
        found[part] += 1
    return found


class Planner:
    """How far a streaming query goes, batch after batch.

    Args:
        fail_on_data_loss: Whether partitions that vanish or begin anew end the query.
    """

    def __init__(self, *, fail_on_data_loss: bool) -> None:
        self._fails = fail_on_data_loss
        self._target: Offsets | None = None
        self._last: float | None = None
        self.losses: list[str] = []

    def stop_at(self, extents: Mapping[Part, Extents]) -> None:
        """Go no further than to what is the end now, whatever comes (``Trigger.AvailableNow``)."""
        self._target = {part: extent.end for part, extent in extents.items()}

    def next(
        self, start: Position, extents: Mapping[Part, Extents], trigger: Trigger, now: float
    ) -> Position:
        """Return how far the next batch goes; ``start`` itself if there is to be none yet.

        Args:
            start: Where the last batch ended.
            extents: Where the messages of every partition are, now.
            trigger: How much the batch takes.
            now: A clock in seconds that only goes forward.

        Raises:
            DataLossError: Messages that were yet to be read are gone.
        """
        begin = self._begin(start, extents)
        ends = {
            part: self._end(part, begin[part], extent) for part, extent in extents.items() if part in begin
        }
        fresh = sum(ends[part] - begin[part] for part in ends)
        changed = begin != start.offsets
        if not fresh and not changed:
            return start
        if not changed and self._is_early(fresh, trigger, now):
            return start
        self._last = now
        if trigger.most is not None:
            ends = _share(begin, ends, trigger.most)
        return Position(ends, begin)

    def _end(self, part: Part, begin: int, extent: Extents) -> int:
        end = extent.end
        if self._target is not None:
            end = min(end, self._target.get(part, begin))
        return max(end, begin)

    def _is_early(self, fresh: int, trigger: Trigger, now: float) -> bool:
        """Whether to wait for more. Not in the first batch, nor where more would not be taken."""
        if trigger.least is None or fresh >= trigger.least or self._target is not None:
            return False
        return self._last is not None and now - self._last < trigger.delay

    def _begin(self, start: Position, extents: Mapping[Part, Extents]) -> Offsets:
        begin: Offsets = {}
        for part, offset in start.offsets.items():
            extent = extents.get(part)
            if extent is None:
                self._lost(f"{_name(part)} is gone; the query was at offset {offset}")
            elif offset > extent.log_end:
                text = f"{_name(part)} ends at offset {extent.log_end}, and the query was at {offset}"
                self._lost(f"{text}: the stream was made anew, or has lost its end")
                begin[part] = extent.oldest
            else:
                begin[part] = offset
        for part, extent in extents.items():
            # A partition that is new is read from its beginning, as soon as there is something in it.
            if part not in start.offsets and extent.oldest < extent.end:
                begin[part] = extent.oldest
        return begin

    def _lost(self, text: str) -> None:
        if self._fails:
            hint = "start with a new checkpointLocation, or go on with failOnDataLoss=false"
            raise DataLossError(f"{text}; {hint}")
        self.losses.append(text)
