"""Folders of an archive in Hive's layout, such as ``dt=2026-11-25/hour=14``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from liftenvelope._checks import as_choice, require
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    from liftenvelope.bulk._engine.schema import pa

    pc = require("pyarrow.compute", "bulk")

__all__ = ["Layout", "PartitionBy"]

#: Folders of an archive: by partition of the stream, by day, by hour.
PartitionBy: TypeAlias = Literal["partition", "dt", "hour"]
_NS_PER_HOUR: Final = 3600 * 10**9
_HOURS_PER_DAY: Final = 24
#: Hive's name for a folder of rows without a value.
_NONE: Final = "__HIVE_DEFAULT_PARTITION__"


class Layout:
    """Divides rows among folders. All rows of a file are in one folder.

    Args:
        partition_by: Folders, from the outermost to the innermost.

    Attributes:
        by: The folders.
        has_time: True for folders by time.

    Raises:
        UsageError: The folders are unknown, repeated, or ``hour`` stands without ``dt`` before it.
    """

    def __init__(self, partition_by: Iterable[str]) -> None:
        if isinstance(partition_by, str) or not isinstance(partition_by, Iterable):
            raise UsageTypeError(f"partition_by must be a list of names, got {partition_by!r}")
        self.by: Final = tuple(partition_by)
        for name in self.by:
            as_choice("partition_by", name, get_args(PartitionBy))
        if len(set(self.by)) != len(self.by):
            raise UsageError(f"partition_by must have each name once, got {self.by!r}")
        if "hour" in self.by and "dt" not in self.by[: self.by.index("hour")]:
            raise UsageError(f"partition_by must have 'dt' before 'hour', got {self.by!r}")
        self.has_time: Final = "dt" in self.by
        self._unit = _NS_PER_HOUR * (1 if "hour" in self.by else _HOURS_PER_DAY)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Check that the rows have what the folders are made of.

        Raises:
            UsageError: The column ``timestamp`` is missing.
        """
        if self.has_time and "timestamp" not in columns:
            raise UsageError("columns must have 'timestamp' for folders by time")

    def divide(self, batch: pa.RecordBatch, partition: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows in order, in pieces of one folder each, with the path of the folder."""
        if not self.has_time:
            yield self._folder(partition, None), batch
            return
        times = batch.column("timestamp").cast(pa.int64())
        runs = pc.run_end_encode(pc.divide(times, self._unit))
        start = 0
        for end, period in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            yield self._folder(partition, period), batch.slice(start, end - start)
            start = end

    def folder_at(self, partition: int, moment_ns: int) -> str:
        """Return the path of the folder for a time in nanoseconds since 1970."""
        return self._folder(partition, moment_ns // self._unit if self.has_time else None)

    def _folder(self, partition: int, period: int | None) -> str:
        moment = None if period is None else datetime.fromtimestamp(period * self._unit // 10**9, UTC)
        values = {
            "partition": str(partition),
            "dt": _NONE if moment is None else moment.date().isoformat(),
            "hour": _NONE if moment is None else f"{moment.hour:02}",
        }
        return "/".join(f"{name}={values[name]}" for name in self.by)
