"""Typed columns of a scan, whose schema is fixed when the scan is made. A query chooses among the columns."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING

from liftenvelope._checks import as_choice
from liftenvelope.bulk._engine.plan import make_plan
from liftenvelope.bulk._engine.schema import EnvelopeMode
from liftenvelope.bulk._reads.payload import PayloadColumns
from liftenvelope.bulk._reads.payload_plan import PayloadPlan, take_sample
from liftenvelope.bulk._reads.reading import BATCH_BYTES, BATCH_ROWS
from liftenvelope.bulk._reads.request import ReadRequest
from liftenvelope.errors import UsageError
from liftenvelope.payload import PayloadChoice, PayloadFormat, as_payload

if TYPE_CHECKING:
    from typing import Literal

    import pyarrow as pa
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["ScanPayload", "scan_payload"]


class ScanPayload:
    """Decoding of the reads of a scan.

    Attributes:
        schema: All columns of the scan.

    Args:
        kind: Format of the payload, with its schema.
        on_bad: Policy for bad messages.
        envelope: Handling of envelopes.
        request: Messages of the scan.

    Raises:
        UsageError: A field has the name of a column of the stream.
    """

    def __init__(
        self, kind: PayloadFormat, on_bad: Literal["fail", "column"], envelope: str, request: ReadRequest
    ) -> None:
        self._kind = kind
        self._on_bad = on_bad
        self._envelope = envelope
        self._stream = request.stream
        decoder = kind.decoder()
        own = PayloadColumns(kind, on_bad, None, envelope).own
        everything = PayloadColumns(kind, on_bad, (*own, *decoder.schema.names), envelope)
        self.schema: pa.Schema = everything.schema(
            decoder, decoder.schema.names, unsigned=request.is_jetstream
        )
        self._plain = frozenset(own)

    def plan(self, columns: Collection[str]) -> PayloadPlan | None:
        """Return the plan of a query's read; None for a read that need not decode.

        Args:
            columns: Columns that the query needs.
        """
        keeps_each = self._on_bad == "column" and not self._kind.packed  # one row, whatever the value is
        if keeps_each and self._plain.issuperset(columns):
            return None
        chosen = PayloadColumns(self._kind, self._on_bad, columns, self._envelope, exact=True)
        return PayloadPlan(self._kind, chosen, None, self._stream)


def scan_payload(
    payload: PayloadChoice, on_bad: Literal["fail", "column"], envelope: EnvelopeMode, request: ReadRequest
) -> ScanPayload | None:
    """Check the options of a scan with a payload; return None for the bytes as they are.

    Reads the first messages if the format infers its schema from them.

    Raises:
        UsageError: An option is invalid, or there is no message to infer a schema from.
        LiftEnvelopeError: The first messages could not be read.
    """
    as_choice("on_bad", on_bad, ("fail", "column"))
    kind = as_payload(payload)
    if kind is None:
        if on_bad != "fail":
            raise UsageError(f"on_bad must be 'fail' without payload=..., got {on_bad!r}")
        return None
    if kind.sample_rows:
        kind = kind.extending(pa.schema([]), _sample(request, envelope, kind))
    return ScanPayload(kind, on_bad, envelope, request)


def _sample(request: ReadRequest, envelope: EnvelopeMode, kind: PayloadFormat) -> pa.Array:
    plan = make_plan(
        ["value"],
        envelope,
        BATCH_ROWS,
        BATCH_BYTES,
        request.on_retention,
        unsigned=request.is_jetstream,
        subjects=request.subjects,
    )
    with contextlib.closing(request.open()) as opened:
        spans = request.ranges(opened)
        opened.filter_by(request.subjects, whole=False)
        found = take_sample(opened, spans, plan, kind)
    if not len(found):
        raise UsageError("payload must have a schema: there is no message to infer it from")
    return found
