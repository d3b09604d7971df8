"""Plan of a read with ``payload=``: options checked before any I/O, then the schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from liftenvelope._checks import as_count
from liftenvelope.bulk._engine.crew import Crew
from liftenvelope.bulk._engine.schema import make_schema
from liftenvelope.bulk._reads.batches import Batches
from liftenvelope.bulk._reads.dead_letter import DeadLetter, LetterBox
from liftenvelope.bulk._reads.payload import OnBad, PayloadColumns
from liftenvelope.errors import UsageError
from liftenvelope.payload import InferredFormat, PayloadChoice, PayloadFormat, as_payload
from liftenvelope.payload.row_decoder import RowDecoder

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.bulk._engine.plan import BatchPlan
    from liftenvelope.bulk._reads.request import ReadRequest
    from liftenvelope.bulk.access import Access, Source
    from liftenvelope.bulk.ranges import Range
    from liftenvelope.bulk.sources import RangedStream
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["PayloadPlan", "passed_rows", "plan_payload", "take_sample"]

#: Bytes of messages at which a sample ends, however few they are.
_SAMPLE_BYTES: Final = 64 * 1024 * 1024


class PayloadPlan:
    """Decoding of one read.

    Args:
        kind: Format of the payload.
        columns: Columns of the read.
        letters: Writer of dead letters; None for another policy.
        stream: Name of the stream, for errors.
    """

    def __init__(
        self, kind: PayloadFormat, columns: PayloadColumns, letters: LetterBox | None, stream: str
    ) -> None:
        self._kind = kind
        self._columns = columns
        self._letters = letters
        self._stream = stream

    @property
    def reading(self) -> list[str]:
        """Columns to read from the stream."""
        return self._columns.reading

    @property
    def chosen(self) -> tuple[str, ...]:
        """Columns of the result that do not come from the payload."""
        return tuple(self._columns.chosen)

    @property
    def packed(self) -> bool:
        """True if a message carries any number of rows."""
        return self._kind.packed

    @property
    def identity(self) -> Mapping[str, str]:
        """Properties of the format that all runs of a copy must share."""
        return self._kind.identity

    @property
    def needs_sample(self) -> bool:
        """True if the fields are inferred from messages."""
        return self._kind.sample_rows > 0

    def decoder(
        self,
        source: RangedStream,
        spans: Sequence[Range],
        plan: BatchPlan,
        *,
        is_tail: bool = False,
        known: pa.Schema | None = None,
        passed: tuple[int, int] | None = None,
    ) -> RowDecoder:
        """Return the decoder of the batches, after reading a sample if the format needs one.

        Args:
            source: The stream.
            spans: Ranges to take the sample from.
            plan: Plan of the read.
            is_tail: True to fail without a message. A read of an empty range has no typed columns.
            known: Fields that have a type already, without the prefix. Inferred fields are added to them.
            passed: See :func:`passed_rows`.

        Raises:
            UsageError: The sample does not lead to a schema, or a column does not exist.
            LiftEnvelopeError: The sample could not be read.
        """
        sample = None
        if self._kind.sample_rows:
            sample = take_sample(source, spans, plan, self._kind)
            if is_tail and not len(sample):
                raise UsageError("payload must have a schema: there is no message to infer it from")
        # From here on the schema is given: the sample is looked at once.
        kind = self._kind.extending(pa.schema([]) if known is None else known, sample)
        whole = kind.decoder().schema
        decoder = kind.decoder(columns=self._columns.fields)
        return RowDecoder(
            self._stream,
            decoder,
            self._columns.schema(decoder, whole.names, unsigned=source.unsigned),
            kind.fields(None) if isinstance(kind, InferredFormat) else kind.stripped(whole),
            packed=kind.packed,
            keeps_bad=self._columns.on_bad == "column",
            letters=self._letters,
            passed=passed,
        )


def passed_rows(request: ReadRequest, start_row: int, *, packed: bool) -> tuple[int, int] | None:
    """Check the option ``start_row``; return the offset of the first message and the rows to leave out of it.

    Args:
        request: The read.
        start_row: The option.
        packed: True if a message carries any number of rows.

    Raises:
        UsageError: The read does not begin at an offset of one partition, or no message carries many rows.
    """
    if not as_count("start_row", start_row, 0):
        return None
    if not packed:
        text = "start_row must be 0 unless messages carry many rows, as with payload='arrow'"
        raise UsageError(f"{text}, got {start_row}")
    start = request.start
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise UsageError(f"start must be an offset of at least 0 with start_row={start_row}, got {start!r}")
    if not request.is_jetstream and len(request.partitions or ()) != 1:
        raise UsageError(
            f"partitions must be one number with start_row={start_row}, got {request.partitions}"
        )
    return start, start_row


def plan_payload(
    payload: PayloadChoice,
    on_bad: OnBad,
    columns: Iterable[str] | None,
    envelope: str,
    source: Source,
    stream: str,
    access: Access | None,
) -> PayloadPlan | None:
    """Check the options of a read with a payload; return None for a read of the bytes as they are.

    Raises:
        UsageError: An option is invalid.
    """
    kind = as_payload(payload)
    if kind is None:
        if on_bad != "fail":
            raise UsageError(f"on_bad must be 'fail' without payload=..., got {on_bad!r}")
        return None
    chosen = PayloadColumns(kind, on_bad, columns, envelope)
    letters = None
    if isinstance(on_bad, DeadLetter):
        letters = LetterBox(on_bad, source, stream, access, envelope=envelope != "none")
    return PayloadPlan(kind, chosen, letters, stream)


def take_sample(
    source: RangedStream, spans: Sequence[Range], plan: BatchPlan, kind: PayloadFormat
) -> pa.Array:
    """Return the values of the first messages of the ranges: as many as the format samples, and some 64 MiB.

    The first message of a range is enough if it carries rows and gives the columns. It is read alone, because
    a sample of such messages may be as long as the range.
    """
    only = replace(
        plan,
        columns=("value",),
        schema=make_schema(["value"], unsigned=source.unsigned),
        batch_rows=kind.sample_rows,
        batch_seconds=None,
    )
    filled = [span for span in spans if span.start < span.stop]
    if kind.packed and filled and isinstance(kind, InferredFormat):
        first = filled[0]
        values = _first_values(source, [replace(first, stop=first.start + 1)], only)
        if len(kind.fields(values)):
            return values
    return _first_values(source, filled, only)


def _first_values(source: RangedStream, spans: Sequence[Range], plan: BatchPlan) -> pa.Array:
    jobs = [partial(source.read, span, plan) for span in spans]
    found: list[pa.Array] = []
    for batch in Batches(Crew(jobs, 1, lambda: None), None, None, None):
        found.append(batch["value"])
        if sum(map(len, found)) >= plan.batch_rows or sum(part.nbytes for part in found) >= _SAMPLE_BYTES:
            break
    values = pa.chunked_array(found, pa.binary()).combine_chunks()
    return values.slice(0, plan.batch_rows)
