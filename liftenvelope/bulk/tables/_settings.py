"""Options that every table format shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypedDict

from liftenvelope._checks import as_count, as_full_text, as_seconds, check_calls
from liftenvelope.bulk._engine.plan import OnRetention
from liftenvelope.bulk._engine.schema import EnvelopeMode
from liftenvelope.bulk._reads.copying import CopyPlan, make_copy
from liftenvelope.bulk._reads.payload import OnBad
from liftenvelope.bulk._reads.reading import BATCH_BYTES, BATCH_ROWS
from liftenvelope.bulk._reads.selection import check_range
from liftenvelope.bulk.access import Access, ServerKind, Source, find_target
from liftenvelope.bulk.ranges import OnGap, OnProgress, Stop
from liftenvelope.bulk.sources import RangedStream, open_stream
from liftenvelope.bulk.tables._partitioning import PartitionBy, parse_partitions
from liftenvelope.client.positions import Start
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream.subject_filter import SubjectFilter, parse_subjects
from liftenvelope.payload import PayloadChoice

__all__ = ["TableOptions", "TableSettings"]

_COMMIT_ROWS: Final = 1_000_000
_COMMIT_BYTES: Final = 128 * 1024 * 1024


class TableOptions(TypedDict, total=False):
    """Options of :func:`to_iceberg`, :func:`to_delta` and their writers. All may be left out.

    Attributes:
        partitions: As for :func:`liftenvelope.bulk.read`.
        subjects: As for :func:`liftenvelope.bulk.read`. All calls for a table must be given the same: it
            passes the other messages for good. Add other subjects with another ``stream_id``.
        start: As for :func:`liftenvelope.bulk.read`. Applies to partitions of which the table has nothing.
        stop: As for :func:`liftenvelope.bulk.read`.
        columns: As for :func:`liftenvelope.bulk.read`.
        envelope: As for :func:`liftenvelope.bulk.read`.
        payload: As for :func:`liftenvelope.bulk.read`. All calls for a table must be given the same format.
            Fields keep the types of earlier calls, and new ones become columns.
        on_bad: As for :func:`liftenvelope.bulk.read`. With ``"column"``, the bad messages are in the table,
            each once. With ``"fail"``, the messages before the bad one are committed. Dead letters are stored
            before the commit that passes them; a call that is killed or overtaken may repeat them.
        batch_rows: As for :func:`liftenvelope.bulk.read`.
        batch_bytes: As for :func:`liftenvelope.bulk.read`.
        on_retention: As for :func:`liftenvelope.bulk.read`. Applies if retention removed messages that the
            table does not have yet.
        on_gap: As for :func:`liftenvelope.bulk.read`. Called again for a gap that is read again.
        progress: As for :func:`liftenvelope.bulk.read`.
        access: As for :func:`liftenvelope.bulk.read`.
        partition_by: Partitioning of a table that is created: names of columns, or ``"hour(timestamp)"``,
            ``"day(timestamp)"`` or ``"month(timestamp)"``, one or several. A table that exists must have this
            partitioning. Default: none, or that of the table.
        properties: Properties of a table that is created.
        stream_id: Name of the stream in the table, under which its offsets are kept. Default: the kind of
            server and the name of the stream, such as ``"jetstream/ORDERS"``.
        commit_rows: Rows after which a commit is made. Default 1,000,000.
        commit_bytes: Bytes of rows in memory after which a commit is made. Default 128 MiB.
        commit_seconds: Age in seconds of the oldest row at which a commit is made. Default 60.
        commit_wait: Seconds to keep trying a commit that others outrun, or that the catalogue or the storage
            refuses. Default 60.
    """

    partitions: Iterable[int] | int | None
    subjects: Iterable[str] | str | None
    start: Start
    stop: Stop
    columns: Iterable[str] | None
    envelope: EnvelopeMode
    payload: PayloadChoice
    on_bad: OnBad
    batch_rows: int
    batch_bytes: int
    on_retention: OnRetention
    on_gap: OnGap | None
    progress: OnProgress | None
    access: Access | None
    partition_by: str | Iterable[str] | None
    properties: Mapping[str, str] | None
    stream_id: str | None
    commit_rows: int
    commit_bytes: int
    commit_seconds: float
    commit_wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The options with their defaults, checked. See :class:`TableOptions`."""

    partitions: Iterable[int] | int | None = None
    subjects: Iterable[str] | str | None = None
    start: Start = "earliest"
    stop: Stop = None
    columns: Iterable[str] | None = None
    envelope: EnvelopeMode = "none"
    payload: PayloadChoice = None
    on_bad: OnBad = "fail"
    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    on_retention: OnRetention = "raise"
    on_gap: OnGap | None = None
    progress: OnProgress | None = None
    access: Access | None = None
    partition_by: str | Iterable[str] | None = None
    properties: Mapping[str, str] | None = None
    stream_id: str | None = None
    commit_rows: int = _COMMIT_ROWS
    commit_bytes: int = _COMMIT_BYTES
    commit_seconds: float = 60.0
    commit_wait: float = 60.0
    #: Numbers of the partitions; None for all.
    chosen: list[int] | None = field(init=False)
    #: Filter of the subjects; None for all.
    wanted: SubjectFilter | None = field(init=False)
    #: Partitioning of a new table; None if it is not given.
    parts: tuple[PartitionBy, ...] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chosen", check_range(self.partitions, self.start, self.stop, None)[2])
        check_calls(on_gap=self.on_gap, progress=self.progress)
        as_count("commit_rows", self.commit_rows)
        as_count("commit_bytes", self.commit_bytes)
        as_seconds("commit_seconds", self.commit_seconds)
        as_seconds("commit_wait", self.commit_wait, zero=True)
        object.__setattr__(self, "wanted", parse_subjects(self.subjects))
        object.__setattr__(self, "parts", parse_partitions(self.partition_by))
        if self.stream_id is not None and not as_full_text("stream_id", self.stream_id):
            raise UsageError("stream_id must not be empty: leave it out for the name of the stream")
        if not isinstance(self.properties, Mapping | None):
            raise UsageTypeError(f"properties must be a mapping, got {type(self.properties).__name__}")

    def open(self, source: Source, stream: str) -> tuple[RangedStream, CopyPlan, str]:
        """Return the stream, the plan of its copy, and its id. Sends nothing.

        Raises:
            UsageError: An argument is invalid.
        """
        kind = find_target(source, self.access).kind
        opened = open_stream(source, stream, self.access)
        copy = make_copy(
            source,
            opened,
            columns=self.columns,
            envelope=self.envelope,
            payload=self.payload,
            on_bad=self.on_bad,
            batch_rows=self.batch_rows,
            batch_bytes=self.batch_bytes,
            on_retention=self.on_retention,
            subjects=self.wanted,
            access=self.access,
        )
        name = "jetstream" if kind is ServerKind.NATS else "liftbridge"
        return opened, copy, self.stream_id or f"{name}/{stream}"
