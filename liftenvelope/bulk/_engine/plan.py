"""Batch plan of a read: options validated once and shared by all its ranges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from liftenvelope._checks import as_choice, as_count, as_seconds
from liftenvelope.bulk._engine.crew import Piece
from liftenvelope.bulk._engine.schema import (
    choose_columns,
    make_batch,
    make_schema,
    make_subjects,
    row_columns,
)
from liftenvelope.bulk._engine.subject_mask import SubjectMask
from liftenvelope.bulk.errors import RetentionError

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.jetstream.subject_filter import SubjectFilter
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["BatchPlan", "OnRetention", "make_plan"]

#: Policy for a read whose next messages retention has removed: raise an error, or skip to the oldest message.
OnRetention: TypeAlias = Literal["raise", "skip"]

#: Limits of a batch: Arrow's 32-bit offsets must cover it, including the last message that overfills it.
_MOST_BYTES = 2**30
_MOST_ROWS = 2**27


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Columns and limits of the batches of a read.

    Attributes:
        columns: Names of the columns.
        schema: Arrow schema of the columns.
        envelope: Handling of Liftbridge envelopes, an EnvelopeMode.
        batch_rows: Maximum number of rows in a batch.
        batch_bytes: Bytes of messages at which a batch is full.
        batch_seconds: Maximum age in seconds of a batch that is not full; None for no limit.
        on_retention: Policy if retention has removed the next messages, an OnRetention.
        mask: Filter for the subjects of the rows; None for all subjects.
    """

    columns: tuple[str, ...]
    schema: pa.Schema
    envelope: str
    batch_rows: int
    batch_bytes: int
    batch_seconds: float | None
    on_retention: str
    mask: SubjectMask | None = None

    @property
    def row_columns(self) -> frozenset[str]:
        """Columns that a row reader must fill."""
        found = row_columns(self.columns)
        return found if self.mask is None else found | {"subject"}

    @staticmethod
    def allocate(size: int) -> Any:
        """Allocate memory for a column from Arrow's own pool."""
        return pa.allocate_buffer(size)

    def piece(self, reader: Any, partition: int, begin: int, stop: int = -1) -> Piece | None:
        """Return the rows and gaps that a row reader has collected; None if it has neither.

        Args:
            reader: The row reader.
            partition: Number of the partition.
            begin: First offset of the piece.
            stop: Offset that the piece ends at if the reader has not passed it; the offsets in between are a
                gap. Default -1: the piece ends at the next offset of the reader.
        """
        nbytes, end = reader.nbytes, max(reader.next_offset, stop)
        rows, _, _, gaps, found = reader.take()
        if end > reader.next_offset:
            gaps = [*gaps, (reader.next_offset, end)]
        if not rows and not gaps:
            return None
        batch = make_batch(self.schema, rows, found, partition) if rows else None
        if batch is not None and self.mask is not None:
            # Also if the server filters: servers before 2.10 ignore several filters.
            batch = self.mask.keep(batch, make_subjects(rows, found))
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
    subjects: SubjectFilter | None = None,
) -> BatchPlan:
    """Validate the options of a read and return its batch plan.

    Raises:
        UsageError: An option is invalid; the message names it.
    """
    chosen = choose_columns(columns, envelope)
    batch_rows = as_count("batch_rows", batch_rows, 1, _MOST_ROWS)
    batch_bytes = as_count("batch_bytes", batch_bytes, 1, _MOST_BYTES)
    if batch_seconds is not None:
        as_seconds("batch_seconds", batch_seconds)
    as_choice("on_retention", on_retention, ("raise", "skip"))
    schema = make_schema(chosen, unsigned=unsigned)
    mask = None if subjects is None else SubjectMask(subjects)
    return BatchPlan(chosen, schema, envelope, batch_rows, batch_bytes, batch_seconds, on_retention, mask)


def retention_error(stream: str, partition: int, wanted: int, oldest: int) -> RetentionError:
    """Return the error for a read that retention has overtaken."""
    text = (
        f"{stream}[{partition}]: message {wanted} is gone, the oldest is {oldest}: retention or a purge took "
        f"it; read from start={oldest} or 'earliest', or with on_retention='skip'"
    )
    return RetentionError(text, stream, partition, wanted, oldest)
