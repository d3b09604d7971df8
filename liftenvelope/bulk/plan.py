"""How a read makes its batches: checked once, the same for every range of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from liftenvelope.bulk._crew import Piece
from liftenvelope.bulk.errors import RetentionError
from liftenvelope.bulk.schema import choose_columns, make_batch, make_schema
from liftenvelope.client.options import check_count, check_seconds
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.bulk.schema import pa

__all__ = ["BatchPlan", "OnRetention", "make_plan"]

#: What becomes of a read whose next messages retention has removed.
OnRetention: TypeAlias = Literal["raise", "skip"]

#: Arrow's offsets of 32 bits must do for a batch, and for its last message.
_MOST_BYTES = 2**30
_MOST_ROWS = 2**27


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How to make batches.

    Attributes:
        columns: Names of the columns.
        schema: Their schema.
        envelope: What becomes of envelopes.
        batch_rows: How many rows a batch has at most.
        batch_bytes: After how many bytes of messages a batch is full.
        batch_seconds: How old a batch gets that is not full; None for any age.
        on_retention: What becomes of a read whose next messages retention has removed.
    """

    columns: tuple[str, ...]
    schema: pa.Schema
    envelope: str
    batch_rows: int
    batch_bytes: int
    batch_seconds: float | None
    on_retention: str

    @staticmethod
    def allocate(size: int) -> Any:
        """Memory for a column, from Arrow's own pool."""
        return pa.allocate_buffer(size)

    def piece(self, reader: Any, partition: int, begin: int, stop: int = -1) -> Piece | None:
        """Return what a row reader has filled, None if there is nothing.

        Args:
            reader: The row reader.
            partition: Number of the partition.
            begin: The offset that the piece begins at.
            stop: The offset that it ends at, if nothing else comes before it.
        """
        nbytes, end = reader.nbytes, max(reader.next_offset, stop)
        rows, _, _, gaps, found = reader.take()
        if end > reader.next_offset:
            gaps = [*gaps, (reader.next_offset, end)]
        if not rows and not gaps:
            return None
        batch = make_batch(self.schema, rows, found, partition) if rows else None
        return Piece(batch, partition, nbytes, end - begin, gaps)


def make_plan(
    columns: Iterable[str] | None,
    envelope: str,
    batch_rows: int,
    batch_bytes: int,
    on_retention: str,
    *,
    unsigned: bool,
    batch_seconds: float | None = None,
) -> BatchPlan:
    """Return how to make batches.

    Raises:
        UsageError: An option makes no sense; it is named.
    """
    chosen = choose_columns(columns, envelope)
    if check_count("batch_rows", batch_rows) > _MOST_ROWS:
        raise UsageError(f"batch_rows={batch_rows!r}: expected {_MOST_ROWS} or less")
    if check_count("batch_bytes", batch_bytes) > _MOST_BYTES:
        raise UsageError(f"batch_bytes={batch_bytes!r}: expected {_MOST_BYTES} or less")
    if batch_seconds is not None:
        check_seconds("batch_seconds", batch_seconds)
    if on_retention not in ("raise", "skip"):
        raise UsageError(f"on_retention={on_retention!r}: expected 'raise' or 'skip'")
    schema = make_schema(chosen, unsigned=unsigned)
    return BatchPlan(chosen, schema, envelope, batch_rows, batch_bytes, batch_seconds, on_retention)


def retention_error(stream: str, partition: int, wanted: int, oldest: int) -> RetentionError:
    """The error for a read that retention has overtaken."""
    text = (
        f"{stream}[{partition}]: message {wanted} is gone, the oldest is {oldest}: retention or a purge took "
        f"it; read from start={oldest} or 'earliest', or with on_retention='skip'"
    )
    return RetentionError(text, stream, partition, wanted, oldest)
