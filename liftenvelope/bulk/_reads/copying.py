"""Copies of a stream in archives and tables: options that all their runs share, and the rows of each read."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from liftenvelope.bulk._engine.plan import make_plan
from liftenvelope.bulk._reads.payload_plan import plan_payload
from liftenvelope.errors import UsageError
from liftenvelope.payload import BadPayloadError

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.bulk._engine.plan import BatchPlan, OnRetention
    from liftenvelope.bulk._engine.schema import EnvelopeMode
    from liftenvelope.bulk._reads.payload import OnBad
    from liftenvelope.bulk._reads.payload_plan import PayloadPlan
    from liftenvelope.bulk.access import Access, Source
    from liftenvelope.bulk.ranges import Range
    from liftenvelope.bulk.sources import RangedStream
    from liftenvelope.jetstream.subject_filter import SubjectFilter
    from liftenvelope.payload import PayloadChoice
    from liftenvelope.payload.row_decoder import RowDecoder
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = [
    "CopiedRows",
    "CopyPlan",
    "CopyRecord",
    "CopyRows",
    "check_same",
    "check_types",
    "make_copy",
    "merged_record",
]


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """Options of the runs that made a copy. Later runs must share them.

    Attributes:
        subjects: Filters of the subjects; None for all.
        payload: Identity of the payload format; None for values as they are.
        fields: Fields of the payload, without its prefix.
    """

    subjects: tuple[str, ...] | None = None
    payload: Mapping[str, str] | None = None
    fields: pa.Schema = pa.schema([])  # noqa: RUF009 - schemas are immutable

    def dump(self) -> str:
        """Return the record as JSON. Its schema is in Arrow's own format."""
        fields = base64.b64encode(self.fields.serialize()).decode() if self.fields.names else ""
        found = {"subjects": self.subjects, "payload": self.payload, "fields": fields}
        return json.dumps(found, separators=(",", ":"), sort_keys=True)

    @classmethod
    def load(cls, text: str) -> CopyRecord:
        """Return the record of a text.

        Raises:
            ValueError: The text is not one of :meth:`dump`.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            subjects, payload, fields = found["subjects"], found["payload"], found["fields"]
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fields))) if fields else pa.schema([])
            return cls(
                None if subjects is None else tuple(map(str, subjects)),
                None if payload is None else {str(name): str(value) for name, value in payload.items()},
                schema,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as exc:
            raise ValueError(f"no record of a copy: {text!r:.200}") from exc


def merged_record(records: Iterable[CopyRecord], title: str) -> CopyRecord | None:
    """Return the record of the parts of a copy, with the fields of all; None for no part.

    Raises:
        UsageError: The parts differ.
    """
    found: CopyRecord | None = None
    for record in records:
        if found is None:
            found = record
            continue
        check_same(found, record, title, "move the files of one of them away")
        check_types(found.fields, record.fields, title)
        added = [field for field in record.fields if field.name not in found.fields.names]
        found = CopyRecord(found.subjects, found.payload, pa.schema([*found.fields, *added]))
    return found


def check_types(known: pa.Schema, given: pa.Schema, title: str) -> None:
    """Check that fields of the same name have the same type.

    Raises:
        UsageError: Two types differ.
    """
    for field in given:
        if field.name in known.names and known.field(field.name).type != field.type:
            text = f"payload must give field {field.name!r} the type that {title} has"
            had = known.field(field.name).type
            raise UsageError(f"{text}, {had}, got {field.type}: rename it, or choose another place")


def check_same(known: CopyRecord, given: CopyRecord, title: str, remedy: str) -> None:
    """Check that two parts of a copy were made with the same payload and subjects.

    Raises:
        UsageError: They differ.
    """
    if known.subjects != given.subjects:
        shown, got = (_shown_subjects(one.subjects) for one in (known, given))
        raise UsageError(f"subjects must be those of {title}, {shown}, got {got}: {remedy}")
    if known.payload != given.payload:
        shown, got = (_shown_payload(one.payload) for one in (known, given))
        raise UsageError(f"payload must be that of {title}, {shown}, got {got}: {remedy}")


def _shown_subjects(subjects: Sequence[str] | None) -> str:
    return "all" if subjects is None else f"{', '.join(subjects):.200}"


def _shown_payload(payload: Mapping[str, str] | None) -> str:
    if payload is None:
        return "raw"
    others = [f"{name}={value!r}" for name, value in payload.items() if name != "format" and value]
    return " ".join([payload.get("format", "unknown"), *others])


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Rows of some messages, as the copy has them.

    Attributes:
        batches: The rows, with those of a message in one batch.
        stop: Offset after the last message that the rows cover.
        error: Error of the message at ``stop``, which ends the read; None if all messages are covered.
    """

    batches: Sequence[pa.RecordBatch]
    stop: int
    error: BadPayloadError | None = None


class CopyRows:
    """Turns the messages of one run into rows of its copy.

    Attributes:
        schema: Schema of the rows.
        record: Record of the run.
        is_packed: True if a message carries any number of rows.

    Args:
        schema: Schema of the rows.
        record: Record of the run.
        decoder: Decoder of the payload; None for values as they are.
        limits: Rows and bytes at which messages with many rows are no longer joined in one batch.
    """

    def __init__(
        self, schema: pa.Schema, record: CopyRecord, decoder: RowDecoder | None, limits: tuple[int, int]
    ) -> None:
        self.schema = schema
        self.record = record
        self.is_packed = decoder is not None and decoder.packed
        self._decoder = decoder
        self._limits = limits

    def take(self, batch: pa.RecordBatch, stop: int) -> Iterator[CopiedRows]:
        """Yield the rows of messages, in pieces of a bounded size. The dead letters of each are stored.

        Args:
            batch: Messages as read.
            stop: Offset after the last one that the messages cover.

        Raises:
            LiftEnvelopeError: A dead letter could not be written. The messages after the last piece are not
                covered.
        """
        if self._decoder is None:
            yield CopiedRows([batch], stop)
            return
        try:
            for reached, rows in self._decoder.pieces(batch):
                end = stop if reached == batch.num_rows else int(batch["offset"][reached].as_py())
                yield CopiedRows(list(self._joined(rows)), end)
        except BadPayloadError as exc:
            yield CopiedRows([], exc.offset, exc)

    def _joined(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in fewer batches: a row group for each message would make files slow to read."""
        most_rows, most_bytes = self._limits
        held: list[pa.RecordBatch] = []
        rows = nbytes = 0
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            nbytes += batch.nbytes
            if rows >= most_rows or nbytes >= most_bytes:
                yield from _one(held)
                held, rows, nbytes = [], 0, 0
        if held:
            yield from _one(held)


def _one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) == 1:
        return batches
    return pa.Table.from_batches(batches).combine_chunks().to_batches()  # type: ignore[no-any-return]


class CopyPlan:
    """Plan of the runs of a copy.

    Attributes:
        plan: Plan of the reads.
        columns: Columns of the copy that do not come from a payload.
        needs_sample: True if the columns are known only after a look at the messages.

    Args:
        plan: Plan of the reads.
        typed: Decoding of the values; None to keep them as they are.
        subjects: Filter of the subjects; None for all.
    """

    def __init__(self, plan: BatchPlan, typed: PayloadPlan | None, subjects: SubjectFilter | None) -> None:
        self.plan = plan
        self.columns = plan.columns if typed is None else typed.chosen
        self.needs_sample = typed is not None and typed.needs_sample
        self._typed = typed
        self._subjects = None if subjects is None else subjects.filters

    def check(self, known: CopyRecord | None, title: str, remedy: str) -> None:
        """Check that a copy was made with these options.

        Args:
            known: Record of the copy; None if it has nothing yet.
            title: Name of the copy, for errors.
            remedy: Advice at the end of the error.

        Raises:
            UsageError: The copy was made with another payload or other subjects.
        """
        if known is not None:
            payload = None if self._typed is None else self._typed.identity
            check_same(known, CopyRecord(self._subjects, payload), title, remedy)

    def unrecorded(self) -> CopyRecord:
        """Return the record of a copy with messages and without a record, as older versions made it."""
        return CopyRecord(self._subjects)

    def rows(
        self, source: RangedStream, known: CopyRecord | None, spans: Callable[[], Sequence[Range]]
    ) -> CopyRows:
        """Return what turns the messages of a run into rows.

        Args:
            source: The stream.
            known: Record of the copy, checked; None if it has nothing yet.
            spans: Returns the ranges that the run reads, to look at their first messages.

        Raises:
            LiftEnvelopeError: The first messages could not be read, or do not lead to a schema.
        """
        plan = self.plan
        limits = (plan.batch_rows, plan.batch_bytes)
        if self._typed is None:
            return CopyRows(plan.schema, CopyRecord(self._subjects), None, limits)
        fields = pa.schema([]) if known is None else known.fields
        decoder = self._typed.decoder(source, spans() if self.needs_sample else (), plan, known=fields)
        gone = [field for field in fields if field.name not in decoder.fields.names]
        record = CopyRecord(self._subjects, self._typed.identity, pa.schema([*decoder.fields, *gone]))
        return CopyRows(decoder.schema, record, decoder, limits)


def make_copy(
    source: Source,
    opened: RangedStream,
    *,
    columns: Iterable[str] | None,
    envelope: EnvelopeMode,
    payload: PayloadChoice,
    on_bad: OnBad,
    batch_rows: int,
    batch_bytes: int,
    on_retention: OnRetention,
    subjects: SubjectFilter | None,
    access: Access | None,
    needed: Sequence[str] = (),
) -> CopyPlan:
    """Validate the options of a copy and return its plan. Sends nothing.

    With a payload, the columns ``needed`` are read in addition to those that are asked for.

    Raises:
        UsageError: An option is invalid.
    """
    typed = plan_payload(payload, on_bad, columns, envelope, source, opened.stream, access)
    plan = make_plan(
        columns if typed is None else dict.fromkeys((*typed.reading, *needed)),
        envelope,
        batch_rows,
        batch_bytes,
        on_retention,
        unsigned=opened.unsigned,
        subjects=subjects,
    )
    return CopyPlan(plan, typed, subjects)
