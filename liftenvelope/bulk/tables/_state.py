"""State of a stream in a table: creation time of the stream and next offset by partition. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from liftenvelope.bulk._reads.copying import CopyRecord
from liftenvelope.bulk.errors import StreamRecreatedError, TableError
from liftenvelope.bulk.ranges import was_recreated
from liftenvelope.jetstream.api import natural

__all__ = ["RECORD", "TableState", "check_incarnation", "dump_states", "load_states"]

#: Beginning of the table's properties that have the records; the id of the stream follows.
RECORD: Final = "liftenvelope.record."
#: Streams that one table may have state of: every commit carries the state of all of them.
_MOST_STREAMS: Final = 1_000


@dataclass(frozen=True, slots=True)
class TableState:
    """Part of a stream that a table has.

    Attributes:
        created_ns: Creation time of the stream in ns since 1970; 0 if unknown.
        offsets: Next offset to read, by partition. A partition without messages in the table is missing.
        record: Record of the options that the stream is written with, as text; empty for none.
    """

    created_ns: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)
    record: str = ""

    def advanced(self, created_ns: int, offsets: Mapping[int, int], record: str) -> TableState:
        """Return the state after a commit up to these offsets."""
        return TableState(created_ns or self.created_ns, {**self.offsets, **offsets}, record)

    def options(self, unrecorded: CopyRecord, title: str) -> CopyRecord | None:
        """Return the options that the stream is written with; None if the table has nothing of it.

        Args:
            unrecorded: Options to assume for a table of an older version.
            title: Name of the table, for errors.

        Raises:
            TableError: The record is not one of this package.
        """
        if not self.offsets:
            return None
        if not self.record:
            return unrecorded
        try:
            return CopyRecord.load(self.record)
        except ValueError as exc:
            text = f"{title} must have the options of its streams in its properties"
            raise TableError(f"{text}: write the stream with another stream_id; {exc}") from exc


def check_incarnation(stream: str, state: TableState, created_ns: int) -> None:
    """Check that the stream is the one whose offsets the table has.

    Raises:
        StreamRecreatedError: The stream was created after these offsets were committed.
    """
    if was_recreated(state.created_ns, created_ns):
        text = (
            f"{stream} must be the stream that the table knows, created at {state.created_ns} ns, got one "
            f"created at {created_ns} ns: write it into another table, or with another stream_id"
        )
        raise StreamRecreatedError(text, stream, state.created_ns, created_ns)


def dump_states(states: Mapping[str, TableState]) -> str:
    """Encode the states of all streams of a table as JSON, by stream id.

    Raises:
        TableError: The table has too many streams.
    """
    if len(states) > _MOST_STREAMS:
        raise TableError(
            f"a table must have at most {_MOST_STREAMS} streams, got {len(states)}: use another table"
        )
    found = {  # without the records: every snapshot has a copy of this
        name: {"created": state.created_ns, "next": {str(key): state.offsets[key] for key in state.offsets}}
        for name, state in states.items()
    }
    return json.dumps(found, separators=(",", ":"), sort_keys=True)


def load_states(text: str) -> dict[str, TableState]:
    """Decode the states of all streams of a table.

    Raises:
        TableError: The text is not one of :func:`dump_states`.
    """
    try:
        found: dict[str, Any] = json.loads(text)
        return {name: _load_state(value) for name, value in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        shown = f"the offsets in the table must be JSON of this package, got {text!r:.200}"
        raise TableError(f"{shown}: write the stream with another stream_id") from exc


def _load_state(value: Any) -> TableState:
    return TableState(
        natural(value["created"]),
        {natural(int(key)): natural(offset) for key, offset in value["next"].items()},
    )
