"""Typed columns in the batches of a group consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from liftenvelope._checks import as_choice
from liftenvelope.errors import UsageError
from liftenvelope.group._rows import SCHEMA
from liftenvelope.payload import PayloadChoice, PayloadFormat, as_payload
from liftenvelope.payload.row_decoder import RowDecoder, added_columns

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.group._rows import pa

__all__ = ["typed_rows"]


def typed_rows(payload: PayloadChoice, on_bad: str) -> Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]:
    """Return a function that turns a batch of messages into batches of rows.

    Raises:
        UsageError: An option is invalid.
    """
    kind = as_payload(payload)
    if kind is not None:
        return TypedRows(kind, on_bad).decode
    if on_bad != "fail":
        raise UsageError(f"on_bad must be 'fail' without payload=..., got {on_bad!r}")
    return lambda batch: (batch,)


class TypedRows:
    """Replaces the column ``value`` of batches by the columns of a payload.

    The schema is that of the format, or is inferred from the first batch, and does not change.

    Args:
        kind: Format of the values.
        on_bad: ``"fail"`` or ``"column"``.

    Raises:
        UsageError: The policy is unknown, or a field has the name of another column.
    """

    def __init__(self, kind: PayloadFormat, on_bad: str) -> None:
        self._kind = kind
        self._keeps_bad = as_choice("on_bad", on_bad, ("fail", "column")) == "column"
        self._decoder = None if kind.sample_rows else self._made(None)

    def decode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch; those before a bad message come first.

        Raises:
            BadPayloadError: A message is bad, and the policy is ``"fail"``.
        """
        if self._decoder is None:
            self._decoder = self._made(batch["value"].slice(0, self._kind.sample_rows))
        yield from self._decoder.decode(batch)

    def _made(self, sample: pa.Array | None) -> RowDecoder:
        decoder = self._kind.decoder(sample)
        added = added_columns(packed=self._kind.packed, keeps_bad=self._keeps_bad)
        own = [field for field in SCHEMA if field.name != "value"]
        taken = {field.name for field in (*own, *added)}
        for name in decoder.schema.names:
            if name in taken:
                text = f"payload: field {name!r} must not have the name of a column of the batch"
                raise UsageError(f"{text}: give the format a prefix='...'")
        return RowDecoder(
            None,
            decoder,
            pa.schema([*own, *decoder.schema, *added]),
            self._kind.stripped(decoder.schema),
            packed=self._kind.packed,
            keeps_bad=self._keeps_bad,
            letters=None,
        )
