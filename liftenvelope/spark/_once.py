"""Writes the rows of a task to Liftbridge, each stored once, by expected offsets.

:mod:`liftenvelope.spark._row_places` explains why this is safe.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from liftenvelope import bulk
from liftenvelope._backoff import Patience
from liftenvelope._checks import require
from liftenvelope.bulk import WriteFailedError
from liftenvelope.bulk.ranges import Progress
from liftenvelope.bulk.sources import open_stream
from liftenvelope.bulk.writing import LiftbridgeWrite, Placing
from liftenvelope.errors import (
    IncorrectOffsetError,
    LiftEnvelopeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    TransportError,
)
from liftenvelope.spark._marked_rows import NumberedRows, marked
from liftenvelope.spark._row_places import NO_OFFSET, PROBE, ROW_HEADER, RowMark, RowPlaces, row_marks
from liftenvelope.spark._schema import header_lists
from liftenvelope.types import AckPolicy

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from liftenvelope.bulk.access import Target
    from liftenvelope.client.blocking import BlockingClient
else:
    pa = require("pyarrow", "spark")
    pc = require("pyarrow.compute", "spark")

__all__ = ["OnceWriter"]

#: Messages read back from the end of a partition at first; each further step reads eight times as many.
_LOOK_BACK: Final = 256
#: Seconds to wait until stored messages become readable, before the partition counts as hiding some.
_SHOWN_WAIT: Final = 1.0
_SHOWN_POLL: Final = 0.05


class _Hidden(LiftEnvelopeError):  # noqa: N818 - internal signal, never reaches a caller
    """A partition has messages that can't be read yet. Its argument is the offset of the next message."""


class OnceWriter:
    """Stores the rows of one attempt of a task.

    Args:
        client: Client of the cluster, to read from it.
        target: The same cluster, to write to it.
        stream: Name of the stream.
        key: Identity of the task: ``query:batch:task``.
        partitioner: ``"key"`` or ``"round_robin"``, for rows without a partition.
        max_in_flight: Maximum number of rows in flight.

    Attributes:
        rows: Rows given to :meth:`add`; all are stored.
        bytes: Total size of their values.
        duplicates: Rows that an earlier attempt had stored.

    Raises:
        NoSuchStreamError: The stream does not exist.
    """

    def __init__(
        self,
        client: BlockingClient,
        target: Target,
        stream: str,
        key: str,
        *,
        partitioner: str,
        max_in_flight: int,
    ) -> None:
        query, batch, task = key.rsplit(":", 2)
        self._task = (query, int(batch), int(task))
        self._client = client
        self._stream = stream
        self._wait = target.access.reconnect_wait
        self._publisher = _Publisher(target, stream, max_in_flight)
        self._placing = Placing(stream, None, partitioner)
        self._placing.open(client.fetch_metadata(streams=[stream]).partition_count(stream))
        self._places: dict[int, RowPlaces] = {}
        self._given: dict[int, int] = {}
        self.rows = self.bytes = self.duplicates = 0

    def close(self) -> None:
        """Close the connections. Rows in flight may be stored."""
        self._publisher.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Store rows in order; return when all are stored.

        Args:
            batch: Rows with the columns of :func:`liftenvelope.bulk.write`.

        Raises:
            BatchChangedError: The rows differ from those of an earlier run of the batch.
            OptionError: The stream does not check expected offsets.
            NoSuchPartitionError: A row names a partition that does not exist.
            WriteFailedError: Some rows were not stored, or their outcome is unknown.
            LiftEnvelopeError: No server could be reached.
        """
        rows = NumberedRows(batch, self._placing.of(batch), self._given)
        self.rows += batch.num_rows
        self.bytes += rows.bytes
        for partition in rows.portions:
            if partition not in self._places:
                self._places[partition] = self._look_back(partition)
        for partition, portion in rows.portions.items():
            missing = self._places[partition].missing(portion.first, portion.checksums)
            self.duplicates += len(portion.checksums) - len(missing)
        self._store(rows)

    def finish(self) -> None:
        """Check that no partition has more rows of this task than were added.

        Raises:
            BatchChangedError: A partition has more.
        """
        for partition, places in self._places.items():
            places.check_rows(self._given[partition])

    # Storing

    def _store(self, rows: NumberedRows) -> None:
        """Send the missing rows until all are stored."""
        patience = Patience(self._wait, since=time.monotonic())
        unseen: dict[int, int] = {}
        while plans := self._plans(rows, unseen):
            known = self._known
            failed = self._send(rows, plans)
            error = next(iter(failed.values()), None)
            unseen = self._learn_again(failed)
            if self._known > known or error is None:
                patience.progressed(time.monotonic())
            elif (pause := patience.failed(time.monotonic())) is None:
                raise self._given_up(unseen, error) from error
            else:
                time.sleep(pause)

    @property
    def _known(self) -> int:
        """Measure of progress: grows when a row is stored or a partition is read further."""
        return sum(places.end + places.checked for places in self._places.values())

    def _plans(self, rows: NumberedRows, unseen: dict[int, int]) -> dict[int, list[tuple[int, int]]]:
        """Return the rows to send to each incomplete partition, possibly none for now."""
        plans = {}
        for partition, portion in rows.portions.items():
            places, end = self._places[partition], unseen.get(partition)
            if missing := places.missing(portion.first, portion.checksums):
                plans[partition] = places.plan(missing) if end is None else places.plan_unseen(missing, end)
        return plans

    def _send(
        self, rows: NumberedRows, plans: dict[int, list[tuple[int, int]]]
    ) -> dict[int, LiftEnvelopeError]:
        """Send rows; return an error for each partition that may not have stored all of them."""
        sent = [(partition, row, offset) for partition, plan in plans.items() for row, offset in plan]
        failed = {partition: self._checked(error) for partition, error in self._publish(rows, sent).items()}
        for partition, row, offset in sent:
            if partition in failed:
                continue
            if offset == NO_OFFSET:
                raise self._places[partition].not_checked()
            self._places[partition].stored(row, offset)
        # A partition that hides messages got no rows; read it again.
        failed |= {partition: _Hidden() for partition, plan in plans.items() if not plan}
        return failed

    def _publish(self, rows: NumberedRows, sent: list[tuple[int, int, int]]) -> dict[int, LiftEnvelopeError]:
        """Publish rows with their expected offsets; return the errors by partition.

        If a row has failed, each partition has, since the outcomes of its rows may be unknown.
        """
        if not sent:
            return {}
        found = [rows.find(partition, row) for partition, row, _ in sent]
        numbers = [PROBE if offset == NO_OFFSET else row for _, row, offset in sent]
        marks = row_marks(self._task, numbers, [checksum for _, checksum in found])
        batch = marked(rows.batch.take(pa.array([place for place, _ in found])), marks)
        error, refused = self._publisher.publish(batch, pa.array([offset for _, _, offset in sent]))
        if error is None:
            return {}
        failed = {partition: error for partition, _, _ in sent}
        for i, refusal in reversed(refused):
            partition, _, offset = sent[i]
            failed[partition] = refusal
            if offset == NO_OFFSET and isinstance(refusal, IncorrectOffsetError):
                self._places[partition].checked = True
        return failed

    def _checked(self, error: LiftEnvelopeError) -> LiftEnvelopeError:
        """Return an error that calls for another look at the partition; raise any other."""
        # A server that starts has neither the stream nor its partitions before it has replayed its log.
        starting = NoSuchStreamError, NoSuchPartitionError
        if isinstance(error, (IncorrectOffsetError, *starting)) or error.retriable:
            return error
        text = f"{self._stream}: not all of {self.rows} rows were stored: {error}"
        raise WriteFailedError(text, 0, 0) from error

    def _given_up(self, unseen: dict[int, int], error: LiftEnvelopeError) -> WriteFailedError:
        if not unseen:
            why = f"no row could be stored for {self._wait:g} s: {error}"
        else:
            number, end = next(iter(unseen.items()))
            name = f"{self._stream}[{number}]"
            why = f"{name} has {end} offsets but does not show all of them, as after a crash of its server"
            why += "; publish a message to it with expected_offset=-1 to make them visible"
        return WriteFailedError(f"{self._stream}: {why}", 0, 0)

    # Reading

    def _learn_again(self, partitions: Iterable[int]) -> dict[int, int]:
        """Read what was added to partitions; return the ends of those that hide messages."""
        unseen = {}
        for partition in partitions:
            places = self._places[partition]
            try:
                end = self._end_of(partition)
                places.learn(self._marks(partition, places.end, end), max(end, places.end))
            except _Hidden as exc:
                unseen[partition] = exc.args[0]
            except LiftEnvelopeError as exc:
                self._checked(exc)
        return unseen

    def _look_back(self, partition: int) -> RowPlaces:
        """Read a partition backwards until the rows of this task are found."""
        places = RowPlaces(*self._task, f"{self._stream}[{partition}]")
        query, batch, _ = self._task
        end = stop = self._shown_end_of(partition)
        marks: list[tuple[int, RowMark]] = []
        size = _LOOK_BACK
        while stop > 0:
            start = max(stop - size, 0)
            found = list(self._marks(partition, start, stop))
            marks = found + marks
            # Every row of an earlier batch was stored before the first row of this batch was sent.
            if any(mark.query == query and mark.batch < batch for _, mark in found):
                break
            stop, size = start, size * 8
        places.learn(marks, end)
        return places

    def _shown_end_of(self, partition: int) -> int:
        limit = time.monotonic() + self._wait
        while True:
            try:
                return self._end_of(partition)
            except _Hidden as exc:
                if time.monotonic() > limit:
                    raise self._given_up({partition: exc.args[0]}, exc) from exc

    def _end_of(self, partition: int) -> int:
        """Return the end of a partition, once all of its messages can be read.

        Raises:
            _Hidden: Some of them can't be read yet.
        """
        limit, there = time.monotonic() + _SHOWN_WAIT, -1
        while True:
            info = self._client.fetch_partition_metadata(self._stream, partition)
            # Other writers may keep appending; reading up to the first end seen is enough.
            there = there if there >= 0 else info.newest_offset
            if info.high_watermark >= there:
                return info.high_watermark + 1
            if time.monotonic() > limit:
                raise _Hidden(info.newest_offset + 1)
            time.sleep(_SHOWN_POLL)

    def _marks(self, partition: int, start: int, stop: int) -> Iterator[tuple[int, RowMark]]:
        """Yield the marks of this task in a range, and the first mark of the query in each batch read.

        A read that finds a lower end of the partition than :meth:`_end_of`, as after a restart of the server,
        stops there without an error. Rows behind it would be stored twice if they counted as read.

        Raises:
            TransportError: The read ended before ``stop``.
        """
        if start >= stop:
            return
        done = 0

        def count(progress: Progress) -> None:
            nonlocal done
            done = progress.done

        reader = bulk.read(
            self._client,
            self._stream,
            partitions=partition,
            start=start,
            stop=stop,
            columns=["offset", "headers"],
            on_retention="skip",
            progress=count,
        )
        query, number, task = self._task
        for batch in reader:
            for offset, text in _row_headers(batch, f"{query}:", f"{query}:{number}:{task}:"):
                mark = RowMark.parse(text)
                if mark is not None:
                    yield offset, mark
        if done < stop - start:
            oldest = self._oldest(partition)
            if oldest <= start:
                text = f"{self._stream}[{partition}]: read {done} of {stop - start} offsets from {start}"
                raise TransportError(f"{text}, because its server restarted; run the task again")
            yield from self._marks(partition, oldest, stop)  # retention has taken some

    def _oldest(self, partition: int) -> int:
        with contextlib.closing(open_stream(self._client, self._stream, None)) as opened:
            return opened.extent(partition).oldest


class _Publisher:
    """Publishes rows that expect offsets. The connections stay open until a publish fails.

    Args:
        target: Servers and connection options.
        stream: Name of the stream.
        max_in_flight: Maximum number of rows in flight.
    """

    def __init__(self, target: Target, stream: str, max_in_flight: int) -> None:
        self._target = target
        self._stream = stream
        self._limit = max_in_flight
        self._write: LiftbridgeWrite | None = None

    def publish(
        self, batch: pa.RecordBatch, expected: pa.Int64Array
    ) -> tuple[LiftEnvelopeError | None, list[tuple[int, LiftEnvelopeError]]]:
        """Publish rows and wait for their acks.

        Returns:
            The error, or None if all rows are stored; and the refused rows with their own errors.
        """
        write = self._write if self._write is not None else self._new_write()
        first = write.rows
        try:
            if self._write is None:
                self._write = write
                write.open()
            write.add(batch, expected)
            write.settle()
        except LiftEnvelopeError as exc:
            refused = [(row - first, error) for row, error in write.refusals]
            self.close()
            cause = exc.__cause__ if isinstance(exc, WriteFailedError) else None
            return cause if isinstance(cause, LiftEnvelopeError) else exc, refused
        return None, []

    def _new_write(self) -> LiftbridgeWrite:
        return LiftbridgeWrite(
            self._target,
            self._stream,
            partition=None,
            partitioner="key",  # never asked, since each row has its partition
            ack_policy=AckPolicy.ALL,
            max_in_flight=self._limit,
            ack_wait=self._target.access.timeout,
        )

    def close(self) -> None:
        """Close the connections. Rows without an ack may be stored."""
        write, self._write = self._write, None
        if write is not None:
            write.close()


def _row_headers(batch: pa.RecordBatch, query: str, task: str) -> Iterator[tuple[int, str]]:
    """Yield offsets and texts of a task's row headers, and of the first row header of the query.

    The first one shows that the range reaches back to an earlier batch. The rest are left out because there
    may be very many.
    """
    headers = header_lists(batch.column("headers"))
    names, texts = headers.values.flatten()
    places = pc.indices_nonzero(pc.equal(names, ROW_HEADER))
    if not len(places):
        return
    texts = texts.take(places)
    first = pc.index(pc.starts_with(texts, pattern=query), True).as_py()
    wanted = pc.indices_nonzero(pc.starts_with(texts, pattern=task)).to_pylist()
    rows = pc.list_parent_indices(headers).take(places)
    offsets = batch.column("offset").take(rows)
    for i in sorted({first, *wanted} - {-1}):
        yield offsets[i].as_py(), texts[i].as_py().decode("utf-8", "replace")
