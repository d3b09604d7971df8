"""Typed columns in the batches of a consumer or a subscription."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from liftenvelope._checks import as_choice
from liftenvelope.errors import UsageError
from liftenvelope.payload._choice import PayloadChoice, as_payload
from liftenvelope.payload._formats import PayloadFormat
from liftenvelope.payload.row_decoder import RowDecoder, added_columns

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["TypedRows", "typed_rows"]


def typed_rows(payload: PayloadChoice, on_bad: str, schema: pa.Schema, stream: str) -> TypedRows | None:
    """Return what turns batches of messages into batches of rows; None without a payload.

    Args:
        payload: Format of the values, or None.
        on_bad: ``"fail"`` or ``"column"``.
        schema: Columns of the batches of messages, with ``value``, ``partition`` and ``offset``.
        stream: Column with the name of the stream, for errors.

    Raises:
        UsageError: An option is invalid, or a field has the name of another column.
    """
    kind = as_payload(payload)
    if kind is not None:
        return TypedRows(kind, on_bad, schema, stream)
    if on_bad != "fail":
        raise UsageError(f"on_bad must be 'fail' without payload=..., got {on_bad!r}")
    return None


class TypedRows:
    """Replaces the column ``value`` of batches by the columns of a payload. Made by :func:`typed_rows`.

    The schema is that of the format, or is inferred from the first batch, and does not change.
    """

    def __init__(self, kind: PayloadFormat, on_bad: str, schema: pa.Schema, stream: str) -> None:
        self._kind = kind
        self._stream = stream
        self._own = [field for field in schema if field.name != "value"]
        self._keeps_bad = as_choice("on_bad", on_bad, ("fail", "column")) == "column"
        self._decoder = None if kind.sample_rows else self._made(None)

    def pieces(
        self, batch: pa.RecordBatch, *, apart: bool = False
    ) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """Yield the rows of a batch, as :meth:`.RowDecoder.pieces` does; those before a bad message first.

        Raises:
            BadPayloadError: A message is bad, and the policy is ``"fail"``.
            UsageError: A field that is found has the name of another column.
        """
        if self._decoder is None:
            self._decoder = self._made(batch["value"].slice(0, self._kind.sample_rows))
        yield from self._decoder.pieces(batch, apart=apart)

    def _made(self, sample: pa.Array | None) -> RowDecoder:
        decoder = self._kind.decoder(sample)
        added = added_columns(packed=self._kind.packed, keeps_bad=self._keeps_bad)
        taken = {field.name for field in (*self._own, *added)}
        for name in decoder.schema.names:
            if name in taken:
                text = f"payload: field {name!r} must not have the name of a column of the batch"
                raise UsageError(f"{text}: give the format a prefix='...'")
        return RowDecoder(
            None,
            decoder,
            pa.schema([*self._own, *decoder.schema, *added]),
            self._kind.stripped(decoder.schema),
            packed=self._kind.packed,
            keeps_bad=self._keeps_bad,
            letters=None,
            stream_column=self._stream,
        )
