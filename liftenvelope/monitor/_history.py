"""History of samples: rates and bounded series to plot. Sans-io.

Each series has at most ``max_points`` points; the oldest ones are dropped. A series ends when what it is
about is gone from the samples. Rates are taken over some seconds, because servers report offsets in steps.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from liftenvelope.monitor._generations import GenerationHistory
from liftenvelope.monitor._limits import MonitorLimits
from liftenvelope.monitor._snapshots import GatewaySample, Snapshot

__all__ = ["History", "Series", "SeriesKey"]

#: Name of a series: ``("total",)``, ``("bytes",)``, ``("stream", name)``, ``("partition", stream, number)``,
#: ``("consumer", stream, name)``, ``("group", name)``, ``("member", group, topic, partition)`` or
#: ``("gateway", id, figure)``.
SeriesKey: TypeAlias = tuple[str | int, ...]
#: Seconds over which a rate is taken.
_WINDOW: Final = 5.0
#: Points to drop at a time, as a fraction of the limit: dropping moves all that are kept.
_SLACK: Final = 4


class Series:
    """Values over time, of which the newest ones are kept.

    Args:
        limit: Most points.

    Example:
        >>> series = Series(100)
        >>> for second, end in enumerate((0, 10, 30)):
        ...     series.add(float(second), float(end))
        >>> series.rate(), series.last, list(series.rates())
        (15.0, 30.0, [(1.0, 10.0), (2.0, 20.0)])
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._times = array("d")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, at: float, value: float) -> None:
        """Add a point. One that is not newer than the last one is ignored: nothing was read since."""
        if self._times and at <= self._times[-1]:
            return
        self._times.append(at)
        self._values.append(value)
        if len(self._times) > self._limit + self._limit // _SLACK:
            del self._times[: -self._limit]
            del self._values[: -self._limit]

    @property
    def last(self) -> float | None:
        """Newest value; None without a point."""
        return self._values[-1] if self._values else None

    def points(self, since: float = 0.0) -> list[tuple[float, float]]:
        """Return the points after a time, at most the limit."""
        place = max(bisect_right(self._times, since), len(self._times) - self._limit, 0)
        return list(zip(self._times[place:], self._values[place:], strict=True))

    def rate(self, window: float = _WINDOW) -> float | None:
        """Return the growth per second over the last seconds; None if it is not known.

        A value that falls, such as the end of a stream that was created again, has no rate.
        """
        if len(self._times) < 2:
            return None
        place = min(bisect_left(self._times, self._times[-1] - window), len(self._times) - 2)
        growth = self._values[-1] - self._values[place]
        return None if growth < 0 else growth / (self._times[-1] - self._times[place])

    def rates(self, since: float = 0.0) -> Iterator[tuple[float, float]]:
        """Yield the growth per second before each point after a time; 0 where the value fell."""
        start = max(bisect_right(self._times, since), len(self._times) - self._limit, 1)
        for place in range(start, len(self._times)):
            growth = self._values[place] - self._values[place - 1]
            yield self._times[place], max(growth, 0.0) / (self._times[place] - self._times[place - 1])


@dataclass(frozen=True, slots=True)
class _Point:
    key: SeriesKey
    at: float
    value: float


class History:
    """Newest snapshot, and the series of all snapshots so far.

    Args:
        limits: Limits of the points of a series, of the number of series, and of the generations of a group.

    Attributes:
        latest: Newest snapshot; None before the first one.
        generations: Generations of each group.

    Example:
        >>> from liftenvelope.monitor import PartitionSample, Snapshot, StreamSample
        >>> history = History()
        >>> for at, end in ((1.0, 100), (3.0, 500)):
        ...     part = PartitionSample(number=0, at=at, end=end)
        ...     orders = StreamSample(name="orders", partitions=[part])
        ...     history.add(Snapshot(at=at, kind="jetstream", streams={"orders": orders}))
        >>> history.rate("stream", "orders"), history.rate("total")
        (200.0, 200.0)
    """

    def __init__(self, limits: MonitorLimits | None = None) -> None:
        self._limits = limits or MonitorLimits()
        self._series: dict[SeriesKey, Series] = {}
        self._total = 0.0
        self._ends: dict[str, int] = {}
        self.latest: Snapshot | None = None
        self.generations = GenerationHistory(self._limits.max_generations)

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot, and drop the series of what is gone."""
        self.latest = snapshot
        self.generations.add(snapshot.groups)
        seen: set[SeriesKey] = set()
        for point in self._points(snapshot):
            series = self._series.get(point.key)
            if series is None:
                if len(self._series) >= self._limits.max_series:
                    continue
                series = self._series[point.key] = Series(self._limits.max_points)
            series.add(point.at, point.value)
            seen.add(point.key)
        for key in self._series.keys() - seen:
            del self._series[key]

    def series(self, *key: str | int) -> Series:
        """Return a series; an empty one if nothing is known."""
        return self._series.get(key) or Series(1)

    def rate(self, *key: str | int) -> float | None:
        """Return the growth of a series per second, such as ``rate("stream", name)``; None if not known."""
        return self.series(*key).rate()

    def _points(self, snapshot: Snapshot) -> Iterator[_Point]:
        yield _Point(("total",), snapshot.at, self._grown(snapshot))
        if snapshot.storage is not None:
            yield _Point(("bytes",), snapshot.at, snapshot.storage.disk + snapshot.storage.memory)
        for stream in snapshot.streams.values():
            if stream.end is not None:
                yield _Point(("stream", stream.name), stream.at, stream.end)
        for one in snapshot.consumers.values():
            yield _Point(("consumer", one.stream, one.name), one.at, one.lag)
        for group in snapshot.groups.values():
            if group.lag is not None:
                yield _Point(("group", group.name), snapshot.at, group.lag)
        for gateway in snapshot.gateways.values():
            yield from _points_of_gateway(gateway)
        # Where there are too many series, those of partitions are left out.
        yield from _points_of_partitions(snapshot)

    def _grown(self, snapshot: Snapshot) -> float:
        """Return the messages recorded since the first snapshot. Deleting a stream does not reduce them."""
        ends = {one.name: one.end for one in snapshot.streams.values() if one.end is not None}
        for name, end in ends.items():
            self._total += max(end - self._ends.get(name, end), 0)
        self._ends = ends
        return self._total


def _points_of_gateway(gateway: GatewaySample) -> Iterator[_Point]:
    figures = gateway.figures
    if figures is not None:
        for name in ("publishes", "acks", "pending_acks", "reads"):
            yield _Point(("gateway", gateway.id, name), figures.at, getattr(figures, name))


def _points_of_partitions(snapshot: Snapshot) -> Iterator[_Point]:
    for stream in snapshot.streams.values():
        for part in stream.partitions if len(stream.partitions) > 1 else ():
            if part.end is not None:
                yield _Point(("partition", stream.name, part.number), part.at, part.end)
    for group in snapshot.groups.values():
        for row in group.partitions:
            if row.lag is not None:
                yield _Point(("member", group.name, row.topic, row.partition), snapshot.at, row.lag)
