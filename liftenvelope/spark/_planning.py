"""Plans the offsets of each batch and divides them among tasks. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from liftenvelope.bulk.ranges import was_recreated
from liftenvelope.spark._offsets import EARLIEST, LATEST, Offsets, Part, PartitionPlace, Places, Position
from liftenvelope.spark.errors import DataLossError, OptionError

__all__ = [
    "Extents",
    "Planner",
    "Span",
    "Trigger",
    "begin_at",
    "check_named",
    "creation_times",
    "divide",
    "end_at",
    "spans_between",
]


@dataclass(frozen=True, slots=True)
class Extents:
    """Offsets available in a partition.

    Attributes:
        oldest: Offset of the oldest message, or of the next message if there is none.
        end: Offset after the newest readable message.
        log_end: Offset after the newest stored message. After a crash of its server, a partition may hide its
            newest messages for a while.
        created: Creation time of the stream in ns since 1970; 0 if it is not known.
    """

    oldest: int
    end: int
    log_end: int
    created: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Offsets that one task reads in a partition, from ``start`` up to but not including ``stop``.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        start: First offset.
        stop: Offset after the last one.
        created: Creation time of the stream in ns since 1970; 0 if it is not known.
    """

    stream: str
    partition: int
    start: int
    stop: int
    created: int = 0


@dataclass(frozen=True, slots=True)
class Trigger:
    """Limits on the size of a micro-batch.

    Attributes:
        most: Most offsets; None for no limit.
        least: Fewest offsets, unless ``delay`` has passed; None for no limit.
        delay: Longest wait for ``least``, in seconds.
    """

    most: int | None = None
    least: int | None = None
    delay: float = 0.0


def _name(part: Part) -> str:
    return f"{part[0]}[{part[1]}]"


def creation_times(extents: Mapping[Part, Extents]) -> dict[str, int]:
    """Return the creation time of each stream, in ns since 1970, where it is known."""
    return {stream: extent.created for (stream, _), extent in extents.items() if extent.created}


def check_named(places: Places, parts: Iterable[Part]) -> None:
    """Raise OptionError if the options name a partition that is not read."""
    unknown = sorted(set(places.named) - set(parts))
    if unknown:
        raise OptionError(f"an offset is given for {_name(unknown[0])}, which is not read; leave it out")


def _place(places: Places, part: Part) -> PartitionPlace:
    found = places.of(part)
    if found is None:
        raise OptionError(f"no offset is given for {_name(part)}; name every partition that is read")
    return found


def begin_at(places: Places, part: Part, extents: Extents, at_time: int | None) -> int:
    """Return the offset at which to begin.

    Args:
        places: Start or end from the options.
        part: The partition.
        extents: Offsets available in the partition.
        at_time: First offset at or after the place's time, if the place is a time.

    Raises:
        OptionError: The options name no offset for the partition.
    """
    place = _place(places, part)
    if place.offset is None:
        return extents.end if at_time is None else max(at_time, extents.oldest)
    return {EARLIEST: extents.oldest, LATEST: extents.end}.get(place.offset, place.offset)


def end_at(places: Places, part: Part, extents: Extents, at_time: int | None) -> int:
    """Return the offset before which to end; never beyond the readable end.

    Raises:
        OptionError: The options name no offset for the partition.
    """
    place = _place(places, part)
    if place.offset is None:
        return extents.end if at_time is None else min(at_time, extents.end)
    return extents.end if place.offset == LATEST else min(place.offset, extents.end)


def spans_between(begin: Offsets, end: Offsets, created: Mapping[str, int]) -> list[Span]:
    """Return the non-empty ranges, sorted by stream and partition.

    Args:
        begin: First offset of each partition.
        end: Offset after the last one of each partition.
        created: Creation time of each stream in ns since 1970, where it is known.
    """
    found = [Span(*part, begin.get(part, 0), stop, created.get(part[0], 0)) for part, stop in end.items()]
    return sorted(span for span in found if span.start < span.stop)


def divide(spans: Sequence[Span], min_parts: int | None, max_records: int) -> list[Span]:
    """Divide ranges into parts for tasks. Equal arguments give equal parts.

    Args:
        spans: The ranges.
        min_parts: Fewest parts wanted. There may be more, and there are fewer if there are too few offsets.
        max_records: Most offsets in a part.
    """
    total = sum(span.stop - span.start for span in spans)
    size = max_records
    if min_parts is not None and min_parts > len(spans):
        # Each range gets its share of the parts by its share of the offsets, rounded up.
        size = min(size, max(total // min_parts, 1))
    return [part for span in spans for part in _even(span, size)]


def _even(span: Span, size: int) -> list[Span]:
    length = span.stop - span.start
    parts = -(-length // size)
    cuts = [span.start + length * i // parts for i in range(parts + 1)]
    return [replace(span, start=start, stop=stop) for start, stop in pairwise(cuts)]


def _share(begin: Offsets, ends: Offsets, most: int) -> Offsets:
    """Return ends that take at most ``most`` offsets, shared among partitions by what each has to read."""
    sizes = {part: end - begin[part] for part, end in ends.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    found = {part: begin[part] + most * size // total for part, size in sizes.items()}
    left = most - sum(found[part] - begin[part] for part in found)
    # The offsets left by rounding go to partitions with most to read, so that no partition starves.
    for part in sorted(sizes, key=lambda part: (found[part] - ends[part], part))[:left]:
        found[part] += 1
    return found


class Planner:
    """Plans the end of each batch of a streaming query.

    Args:
        includes: Returns True if the options of the query name a partition.
        fail_on_data_loss: Fail the query if a partition is deleted or recreated.

    Attributes:
        losses: Losses that were passed over, as texts. The caller empties it.
        deleted: Ranges before the oldest message that were passed over. The caller empties it.
    """

    def __init__(self, includes: Callable[[Part], bool], *, fail_on_data_loss: bool) -> None:
        self._includes = includes
        self._fails = fail_on_data_loss
        self._target: Offsets | None = None
        self._last: float | None = None
        self.losses: list[str] = []
        self.deleted: list[Span] = []

    def stop_at(self, extents: Mapping[Part, Extents]) -> None:
        """Never read beyond the current ends (``Trigger.AvailableNow``)."""
        self._target = {part: extent.end for part, extent in extents.items()}

    def next(
        self, start: Position, extents: Mapping[Part, Extents], trigger: Trigger, now: float
    ) -> Position:
        """Return the end of the next batch; ``start`` itself if there is no batch yet.

        Args:
            start: End of the last batch.
            extents: Current offsets of every partition.
            trigger: Limits on the size of the batch.
            now: Monotonic time in seconds.

        Raises:
            DataLossError: Messages that the query has not read are gone.
        """
        begin = self._begin(start, extents)
        ends = {
            part: self._end(part, begin[part], extent) for part, extent in extents.items() if part in begin
        }
        fresh = sum(ends[part] - begin[part] for part in ends)
        created = creation_times(extents)
        changed = begin != start.offsets or any(
            was_recreated(known, created.get(stream, 0)) for stream, known in start.created.items()
        )
        if not fresh and not changed:
            return start
        if not changed and self._is_early(fresh, trigger, now):
            return start
        self._last = now
        if trigger.most is not None:
            ends = _share(begin, ends, trigger.most)
        kept = {stream for stream, _ in begin}
        times = {**start.created, **created}
        return Position(ends, begin, {stream: times[stream] for stream in kept & times.keys()})

    def _end(self, part: Part, begin: int, extent: Extents) -> int:
        end = extent.end
        if self._target is not None:
            end = min(end, self._target.get(part, begin))
        return max(end, begin)

    def _is_early(self, fresh: int, trigger: Trigger, now: float) -> bool:
        """Return True to wait for more offsets: never for the first batch or after :meth:`stop_at`."""
        if trigger.least is None or fresh >= trigger.least or self._target is not None:
            return False
        return self._last is not None and now - self._last < trigger.delay

    def _begin(self, start: Position, extents: Mapping[Part, Extents]) -> Offsets:
        begin: Offsets = {}
        for part, offset in start.offsets.items():
            extent = extents.get(part)
            if extent is None:
                state = "does not exist" if self._includes(part) else "is not named by the options"
                self._lost(f"{_name(part)} {state} any more; the query was at offset {offset}")
            elif was_recreated(start.created.get(part[0], 0), extent.created):
                self._lost(f"{_name(part)} was deleted and created again; the query was at offset {offset}")
                begin[part] = extent.oldest
            elif offset > extent.log_end:
                text = f"{_name(part)} ends at offset {extent.log_end}, but the query was at {offset}"
                self._lost(f"{text}: the stream was recreated, or its newest messages were lost")
                begin[part] = extent.oldest
            elif offset < extent.oldest and not self._fails:
                # Deleted offsets would count for maxOffsetsPerTrigger: perhaps thousands of empty batches.
                self.deleted.append(Span(*part, offset, extent.oldest))
                begin[part] = extent.oldest
            else:
                begin[part] = offset
        for part, extent in extents.items():
            # A new partition is read from its beginning once it has a message.
            if part not in start.offsets and extent.oldest < extent.end:
                begin[part] = extent.oldest
        return begin

    def _lost(self, text: str) -> None:
        if self._fails:
            hint = "start with a new checkpointLocation, or set failOnDataLoss=false"
            raise DataLossError(f"{text}; {hint}")
        self.losses.append(text)
