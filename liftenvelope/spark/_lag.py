"""Lag of a streaming query, from the progress that Spark reports. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from liftenvelope._checks import shown
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.spark._offsets import Position
from liftenvelope.spark.errors import CheckpointError

__all__ = ["PartitionLag", "lag"]


class PartitionLag(NamedTuple):
    """Lag of a streaming query in one partition.

    Attributes:
        source: Index of the source in the progress of the query.
        stream: Name of the stream.
        partition: Number of the partition, 0 on JetStream.
        offset: Offset that the query reads next.
        end: End of the partition when Spark last asked for it.
        rows: Offsets between them, which is the number of messages unless some were deleted or are filtered.
    """

    source: int
    stream: str
    partition: int
    offset: int
    end: int
    rows: int


def lag(progress: Mapping[str, Any] | None) -> list[PartitionLag]:
    """Return how far a streaming query is behind in each partition, after its last completed batch.

    Sources of other packages are left out. A partition that is new since the last batch counts from offset 0.

    Args:
        progress: ``query.lastProgress``, an item of ``query.recentProgress``, ``event.progress`` of a
            ``StreamingQueryListener``, or the dict of its JSON.

    Raises:
        UsageTypeError: The progress is not a mapping. It is None until a query has completed a batch.
        UsageError: The progress has no source of liftenvelope, or is malformed.

    Example:
        >>> end = {"v": 1, "offsets": {"readings": {"0": 100}}, "from": {"readings": {"0": 90}}}
        >>> latest = {"v": 1, "offsets": {"readings": {"0": 120}}, "from": {"readings": {"0": 120}}}
        >>> [row] = lag({"sources": [{"endOffset": end, "latestOffset": latest}]})
        >>> row.stream, row.partition, row.rows
        ('readings', 0, 20)
    """
    if not isinstance(progress, Mapping):
        text = f"progress must be a StreamingQueryProgress or its dict, got {type(progress).__name__}"
        raise UsageTypeError(f"{text}; query.lastProgress is None until a batch is complete")
    sources = progress.get("sources")
    if not isinstance(sources, list | tuple) or not all(isinstance(one, Mapping) for one in sources):
        raise UsageError(f"progress must have a list of sources, got {shown(sources)}")
    own = [(index, one) for index, one in enumerate(sources) if _is_own(one)]
    if not own:
        raise UsageError("progress must have a source 'liftbridge' or 'jetstream', got none")
    return [row for index, one in own for row in _rows(index, one)]


def _is_own(source: Mapping[str, Any]) -> bool:
    """Return True for a source of this package: only its offsets have a version and offsets."""
    end = _value(source.get("endOffset"))
    return isinstance(end, dict) and {"v", "offsets"} <= end.keys()


def _rows(index: int, source: Mapping[str, Any]) -> list[PartitionLag]:
    done, latest = (_position(index, name, source.get(name)) for name in ("endOffset", "latestOffset"))
    found = []
    for (stream, partition), end in latest.offsets.items():
        offset = done.offsets.get((stream, partition), 0)
        # After a crash of its server, a partition may show fewer messages than the query has read.
        found.append(PartitionLag(index, stream, partition, offset, end, max(end - offset, 0)))
    return found


def _position(index: int, name: str, given: Any) -> Position:
    try:
        return Position.from_json(_value(given))
    except CheckpointError as exc:
        text = f"progress: {name} of source {index} must be an offset of this version of liftenvelope"
        raise UsageError(f"{text}, got {shown(given)}") from exc


def _value(given: Any) -> Any:
    """Return the value of an offset: PySpark gives its JSON as text, the JSON of the progress the value."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return None
