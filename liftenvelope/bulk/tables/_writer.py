"""Writer of one stream into one table: reads what is new, and commits it in parts, each once."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from liftenvelope._checks import as_count
from liftenvelope._showing import changed_fields, html_fields
from liftenvelope.bulk._engine.crew import Crew, Piece
from liftenvelope.bulk._reads.copying import CopiedRows
from liftenvelope.bulk._reads.request import PARALLEL
from liftenvelope.bulk._reads.selection import plan_onward
from liftenvelope.bulk.ranges import Gap, Progress, Range
from liftenvelope.bulk.tables._state import TableState, check_incarnation
from liftenvelope.bulk.tables._target import OvertakenError, TableTarget, commit, mapped, patiently
from liftenvelope.errors import LiftEnvelopeError, OffsetOutOfRangeError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.bulk._reads.copying import CopyPlan, CopyRows
    from liftenvelope.bulk.sources import RangedStream
    from liftenvelope.bulk.tables._settings import TableSettings

__all__ = ["TableWriter", "TableWritten"]

#: Bytes of rows in memory that are written into one data file, where a commit may have several.
_FILE_BYTES: Final = 128 * 1024 * 1024


_REMEDY: Final = "write it into another table, or with another stream_id"


@dataclass(frozen=True, slots=True)
class TableWritten:
    """Outcome of a call that brought a table up to date.

    Attributes:
        rows: Number of rows that the call added.
        commits: Number of commits that it made.
        offsets: Next offset of each partition: the table has all messages before it.
        version: Snapshot id of the Iceberg table, or version of the Delta table, that the call saw last. None
            for an Iceberg table without snapshots.
    """

    rows: int
    commits: int
    offsets: Mapping[int, int]
    version: int | None

    def __repr__(self) -> str:
        return changed_fields(self)

    def _repr_html_(self) -> str:
        return html_fields(self)


class TableWriter:
    """Writes a stream into a table, as often as it is asked to.

    Made by :func:`iceberg_writer` and :func:`delta_writer`. A writer keeps its connection, and remembers the
    offsets in the table: a call with nothing new costs a few requests to the server of the stream, and none
    to the table. Any number of writers, in any processes, may write the same stream
    into the same table. Use a writer from one thread at a time.

    Example:
        >>> with bulk.delta_writer("nats://localhost:4222", "ORDERS", "orders") as writer:  # doctest: +SKIP
        ...     while True:
        ...         print(writer.catch_up())
        ...         time.sleep(10)
    """

    def __init__(
        self, source: RangedStream, copy: CopyPlan, target: TableTarget, settings: TableSettings
    ) -> None:
        self._source = source
        self._copy = copy
        self._target = target
        self._settings = settings
        self._state: TableState | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the server of the stream. Idempotent."""
        self._is_closed = True
        self._source.close()

    def catch_up(self) -> TableWritten:
        """Add the messages up to the one that is the newest now, and return when they are committed.

        A call that fails keeps its commits. The next one goes on after them.

        Raises:
            UsageError: The writer is closed; or an option does not fit the stream or the table, such as
                another payload or other subjects than those of earlier calls.
            BadPayloadError: A message is bad, with ``on_bad="fail"``. The messages before it are committed.
            StreamRecreatedError: The stream was deleted and created again since the last commit.
            OffsetOutOfRangeError: The stream ends before the offsets in the table.
            RetentionError: Retention removed messages that the table does not have.
            TableSchemaError: A column of the stream does not fit the table.
            TableCommitError: The catalogue or the storage failed for ``commit_wait`` seconds.
            TableError: The table can't be used for another reason.
            LiftEnvelopeError: As for :func:`liftenvelope.bulk.read`.
            OSError: A file can't be written, for example since the disk is full.
        """
        if self._is_closed:
            raise UsageError("the writer must be open, got a closed one: make another one")
        run = _CatchUp(self._source, self._copy, self._target, self._settings, self._state)
        try:
            run.run()
        finally:
            self._target.discard()
            self._state = run.state
        offsets = dict(run.state.offsets) if run.state is not None else {}
        return TableWritten(run.rows, run.commits, offsets, self._target.version)

    def maintain(self, *, compact: bool = False, expire_hours: int | None = None) -> None:
        """Merge small files and remove old versions of the table, by the calls of its library.

        Readers of versions that are removed fail. Writers go on: the offsets stay.

        Args:
            compact: Merge small files into larger ones. For Delta: pyiceberg has no call for it.
            expire_hours: Age in hours of versions to remove; None (default) keeps them. Delta's files that
                only these versions have are removed as well, its log after ``delta.logRetentionDuration``.
                Iceberg's files stay: pyiceberg removes snapshots alone.

        Raises:
            UsageError: An argument is invalid, or the table does not exist.
            TableCommitError: Other writers came first for ``commit_wait`` seconds, or the catalogue or the
                storage failed.
            TableError: The table's library refused.
        """
        if expire_hours is not None:
            as_count("expire_hours", expire_hours)

        def work() -> None:
            with mapped(self._target.title):
                self._target.maintain(compact=compact, expire_hours=expire_hours)

        patiently(work, self._settings.commit_wait)

    def maintained_at(self) -> int | None:
        """Return when :meth:`maintain` was last done with the table, by any writer.

        Returns:
            Seconds since 1970; None if it was never done, or only by a version that did not record it.

        Raises:
            TableCommitError: The catalogue or the storage failed for ``commit_wait`` seconds.
            TableError: The table's library refused.
        """

        def work() -> int | None:
            with mapped(self._target.title):
                return self._target.maintained_at()

        return patiently(work, self._settings.commit_wait)


class _CatchUp:
    """One call of :meth:`TableWriter.catch_up`.

    Attributes:
        state: State of the stream in the table, as far as it is known; None before the table is loaded.
        rows: Rows committed.
        commits: Commits made.
    """

    def __init__(
        self,
        source: RangedStream,
        copy: CopyPlan,
        target: TableTarget,
        settings: TableSettings,
        state: TableState | None,
    ) -> None:
        self._source = source
        self._copy = copy
        self._target = target
        self._settings = settings
        self._is_cached = state is not None
        self.state = state
        self.rows = self.commits = 0
        self._copied: CopyRows | None = None
        self._created_ns = 0
        #: Where the call ends, by partition. Fixed by its first look at the stream.
        self._stops: dict[int, int] = {}
        self._at: dict[int, int] = {}
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = self._commit_bytes = 0
        self._due: float | None = None
        self._has_moved = False
        self._bytes = self._total = self._passed = 0

    def run(self) -> None:
        """Read and commit until the table has what the stream had at the start of the call."""
        numbers = self._settings.chosen or self._source.partitions()
        self._created_ns = self._source.created()
        state = self.state if self._is_cached and self.state is not None else self._load(numbers)
        while spans := self._spans(numbers, state):
            if self._is_cached:  # the table may have moved on since the last call
                state, self._is_cached = self._load(numbers), False
                continue
            try:
                self._read(spans)
                return
            except OvertakenError:
                self._target.discard()
                state = self._load(numbers)

    def _load(self, numbers: list[int]) -> TableState:
        def load() -> TableState:
            title = self._target.title
            with mapped(title):
                found = self._target.find(numbers)
                known = found.options(self._copy.unrecorded(), title)
                self._copy.check(known, title, _REMEDY)
                spans = self._spans(numbers, found) if self._copy.needs_sample else []
                if self._copy.needs_sample and not spans:
                    return found  # the columns are not known yet
                self._copied = self._copy.rows(self._source, known, lambda: spans)
                return self._target.prepare(self._copied.schema, self._copied.record.dump())

        self.state = patiently(load, self._settings.commit_wait)
        return self.state

    def _spans(self, numbers: list[int], state: TableState) -> list[Range]:
        """Return the ranges that the table lacks."""
        check_incarnation(self._source.stream, state, self._created_ns)
        found = [self._span(number, state.offsets.get(number)) for number in numbers]
        spans = [span for span in found if span.start < span.stop]
        self._total = self._passed + sum(span.stop - span.start for span in spans)
        return spans

    def _span(self, partition: int, reached: int | None) -> Range:
        options = self._settings
        span = plan_onward(
            self._source,
            partition,
            reached,
            options.start,
            self._stops.get(partition, options.stop),
            options.on_retention,
            holder="the table has messages",
            remedy=_REMEDY,
        )
        self._stops.setdefault(partition, span.stop)
        return span

    def _read(self, spans: list[Range]) -> None:
        self._at = {span.partition: span.start for span in spans}
        self._drop()
        self._source.filter_by(self._settings.wanted, whole=self._settings.on_gap is not None)
        jobs = [partial(self._source.read, span, self._copy.plan) for span in spans]
        crew = Crew(jobs, min(len(jobs), PARALLEL), lambda: None)
        try:
            while (piece := self._next(crew)) is not None:
                self._take(piece)
            self._commit()
        finally:
            crew.stop()

    def _next(self, crew: Crew) -> Piece | None:
        """Return the next piece. Commits what is held when it is old, and when the read fails."""
        while True:
            wait = None if self._due is None else max(self._due - time.monotonic(), 0.001)
            try:
                return crew.next(wait)
            except queue.Empty:
                self._commit()
            except LiftEnvelopeError as exc:
                self._commit()
                if isinstance(exc, OffsetOutOfRangeError):  # the read tells a new stream by its offset
                    known = TableState(self._created_ns)
                    check_incarnation(self._source.stream, known, self._source.created())
                raise

    def _take(self, piece: Piece) -> None:
        number = piece.partition
        if self._settings.on_gap is not None:
            for start, stop in piece.gaps:
                self._settings.on_gap(Gap(number, start, stop))
        stop = self._at[number] + piece.offsets
        copies = [CopiedRows([], stop)] if piece.batch is None else self._rows_of(piece.batch, stop)
        for copied in copies:
            self._add(number, copied)
        self._passed += piece.offsets
        self._bytes += piece.nbytes
        self._report()

    def _report(self) -> None:
        if self._settings.progress is not None:
            rows = self.rows + self._held_rows
            try:
                self._settings.progress(Progress(rows, self._bytes, self._passed, self._total))
            except BaseException:  # the caller ends the call: what is read stays, as in an archive
                with suppress(OvertakenError):  # another writer has what was read
                    self._commit()
                raise

    def _rows_of(self, messages: pa.RecordBatch, stop: int) -> Iterator[CopiedRows]:
        """Yield the rows of messages. Commits what is held if their dead letters can't be written."""
        assert self._copied is not None, "the table is loaded before it is written"
        try:
            yield from self._copied.take(messages, stop)
        except LiftEnvelopeError:
            self._commit()
            raise

    def _add(self, partition: int, copied: CopiedRows) -> None:
        for batch in copied.batches:
            self._hold(batch)
        self._has_moved |= copied.stop > self._at[partition]
        self._at[partition] = copied.stop
        if copied.error is not None:
            self._commit()
            raise copied.error
        if self._is_full():
            self._commit()

    def _hold(self, batch: pa.RecordBatch) -> None:
        if self._due is None:
            self._due = time.monotonic() + self._settings.commit_seconds
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        self._commit_bytes += batch.nbytes
        if self._held_bytes >= _FILE_BYTES:
            self._stage()

    def _is_full(self) -> bool:
        options = self._settings
        return (
            self._held_rows >= options.commit_rows
            or self._commit_bytes >= options.commit_bytes
            or (self._due is not None and time.monotonic() >= self._due)
        )

    def _stage(self) -> None:
        if self._held:
            with mapped(self._target.title):
                self._target.stage(self._held)
        self._held, self._held_bytes = [], 0

    def _commit(self) -> None:
        """Commit the rows read so far, and the offsets up to which partitions were read.

        Raises:
            OvertakenError: The table has moved on.
        """
        if not self._has_moved or self.state is None or self._copied is None:
            return
        after = self.state.advanced(self._created_ns, self._at, self._copied.record.dump())
        self._stage()
        # The rows may be those of a new stream of the same name.
        check_incarnation(self._source.stream, after, self._source.created())
        self.state = commit(self._target, self.state, after, self._settings.commit_wait)
        self.rows += self._held_rows
        self.commits += 1
        self._drop()
        if self.state != after:  # another writer has committed as well
            raise OvertakenError

    def _drop(self) -> None:
        """Begin a new commit."""
        self._held, self._due, self._has_moved = [], None, False
        self._held_rows = self._held_bytes = self._commit_bytes = 0
