"""Limits of the monitor: how much one sample asks for, and how much is kept."""

from __future__ import annotations

from dataclasses import dataclass, fields

from liftenvelope._checks import as_count

__all__ = ["MAX_SUBJECTS", "MonitorLimits"]

#: Subjects of a stream in a sample.
MAX_SUBJECTS = 20
_LARGEST = 1_000_000


@dataclass(frozen=True, kw_only=True)
class MonitorLimits:
    """Limits of sampling and of the history.

    Attributes:
        max_streams: Streams in a sample. More are counted and left out.
        max_consumers: Consumers in a sample. More are counted and left out.
        max_groups: Groups in a sample. More are counted and left out.
        max_rows: Partitions of one group in a sample. More are counted and left out.
        reads: Streams, groups or partitions that one sample asks about singly. The next sample goes on with
            the next ones, so a small limit makes values older, not wrong.
        counts: Lags of groups that one sample has JetStream count.
        at_once: Requests in flight.
        max_points: Points of a plotted series.
        max_series: Plotted series.
        max_generations: Generations of one group that are kept.

    Raises:
        UsageError: A limit is less than 1, or more than a million.
    """

    max_streams: int = 5_000
    max_consumers: int = 5_000
    max_groups: int = 1_000
    max_rows: int = 1_024
    reads: int = 128
    counts: int = 16
    at_once: int = 16
    max_points: int = 600
    max_series: int = 10_000
    max_generations: int = 50

    def __post_init__(self) -> None:
        for one in fields(self):
            as_count(one.name, getattr(self, one.name), 1, _LARGEST)
