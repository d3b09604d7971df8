"""Writes the rows of a task to Liftbridge, each stored once, by expected offsets over the blocking client.

:mod:`liftenvelope.spark._row_places` explains why this is safe.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from liftenvelope import bulk
from liftenvelope._backoff import Patience
from liftenvelope._checks import require
from liftenvelope.bulk import WriteFailedError
from liftenvelope.bulk.outgoing import LiftbridgeRows, rows_of
from liftenvelope.bulk.ranges import Progress
from liftenvelope.bulk.sources import open_stream
from liftenvelope.client.publish_many import OutgoingMessage
from liftenvelope.client.publish_summary import PublishSummary
from liftenvelope.errors import (
    IncorrectOffsetError,
    LiftEnvelopeError,
    NoSuchStreamError,
    TransportError,
)
from liftenvelope.partition import make_partitioner
from liftenvelope.spark._row_places import NO_OFFSET, PROBE, ROW_HEADER, RowMark, RowPlaces
from liftenvelope.spark._schema import header_lists
from liftenvelope.types import AckPolicy

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

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

#: Rows of one partition by number: the message and its checksum.
_Portion: TypeAlias = dict[int, tuple[OutgoingMessage, int]]


class _Hidden(LiftEnvelopeError):  # noqa: N818 - internal signal, never reaches a caller
    """A partition has messages that can't be read yet. Its argument is the offset of the next message."""


class OnceWriter:
    """Stores the rows of one attempt of a task.

    Args:
        client: Client of the cluster.
        stream: Name of the stream.
        key: Identity of the task: ``query:batch:task``.
        partitioner: ``"key"`` or ``"round_robin"``, for rows without a partition.
        wait: Seconds to keep retrying without progress.

    Attributes:
        rows: Rows given to :meth:`add`; all are stored.
        bytes: Total size of their values.
        duplicates: Rows that an earlier attempt had stored.

    Raises:
        NoSuchStreamError: The stream does not exist.
    """

    def __init__(
        self, client: BlockingClient, stream: str, key: str, *, partitioner: str, wait: float
    ) -> None:
        query, batch, task = key.rsplit(":", 2)
        self._task = (query, int(batch), int(task))
        self._client = client
        self._stream = stream
        self._wait = wait
        self._partitioner = make_partitioner(partitioner)
        self._partitions = client.fetch_metadata(streams=[stream]).partition_count(stream)
        self._places: dict[int, RowPlaces] = {}
        self._given: dict[int, int] = {}
        self.rows = self.bytes = self.duplicates = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Store rows in order; return when all are stored.

        Args:
            batch: Rows with the columns of :func:`liftenvelope.bulk.write`. All of them are in flight at
                once.

        Raises:
            BatchChangedError: The rows differ from those of an earlier run of the batch.
            OptionError: The stream does not check expected offsets.
            WriteFailedError: Some rows were not stored, or their outcome is unknown.
            LiftEnvelopeError: No server could be reached.
        """
        rows = rows_of(batch)
        self.rows += len(rows.values)
        self.bytes += sum(map(len, rows.values))
        portions = self._divided(rows)
        for partition in portions:
            if partition not in self._places:
                self._places[partition] = self._look_back(partition)
        for partition, portion in portions.items():
            self.duplicates += len(portion) - len(self._missing(partition, portion))
        self._store(portions)

    def finish(self) -> None:
        """Check that no partition has more rows of this task than were added.

        Raises:
            BatchChangedError: A partition has more.
        """
        for partition, places in self._places.items():
            places.check_rows(self._given[partition])

    # Rows

    def _divided(self, rows: LiftbridgeRows) -> dict[int, _Portion]:
        portions: dict[int, _Portion] = {}
        for i, value in enumerate(rows.values):
            key = rows.keys[i] if rows.keys is not None else None
            partition = rows.partitions[i] if rows.partitions is not None else None
            if partition is None:
                partition = self._partitioner.partition(self._stream, key, value, self._partitions)
            row = self._given.get(partition, 0)
            self._given[partition] = row + 1
            checksum = zlib.crc32(value, zlib.crc32(key or b""))
            headers = dict(rows.headers[i]) if rows.headers is not None else {}
            headers[ROW_HEADER] = str(RowMark(*self._task, row, checksum)).encode()
            message = OutgoingMessage(value=value, key=key, headers=headers, partition=partition)
            portions.setdefault(partition, {})[row] = (message, checksum)
        return portions

    def _missing(self, partition: int, portion: _Portion) -> list[int]:
        places = self._places[partition]
        return [row for row, (_, checksum) in portion.items() if not places.is_stored(row, checksum)]

    # Storing

    def _store(self, portions: dict[int, _Portion]) -> None:
        """Send the missing rows until all are stored."""
        patience = Patience(self._wait, since=time.monotonic())
        unseen: dict[int, int] = {}
        while plans := self._plans(portions, unseen):
            known = self._known
            failed = self._send(portions, plans)
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

    def _plans(
        self, portions: dict[int, _Portion], unseen: dict[int, int]
    ) -> dict[int, list[tuple[int, int]]]:
        """Return the rows to send to each incomplete partition, possibly none for now."""
        plans = {}
        for partition, portion in portions.items():
            if missing := self._missing(partition, portion):
                places = self._places[partition]
                end = unseen.get(partition)
                plans[partition] = places.plan(missing) if end is None else places.plan_unseen(missing, end)
        return plans

    def _send(
        self, portions: dict[int, _Portion], plans: dict[int, list[tuple[int, int]]]
    ) -> dict[int, LiftEnvelopeError]:
        """Send rows; return the first error of each partition that did not store all of them."""
        sent = [(partition, row, offset) for partition, plan in plans.items() for row, offset in plan]
        messages = [
            _expecting(self._task, *portions[partition][row], offset) for partition, row, offset in sent
        ]
        failed: dict[int, LiftEnvelopeError] = {}
        for index, error in self._publish(messages).failures.items():
            partition, _, offset = sent[index]
            failed.setdefault(partition, self._checked(error))
            if offset == NO_OFFSET and isinstance(error, IncorrectOffsetError):
                self._places[partition].checked = True
        for partition, row, offset in sent:
            if partition in failed:
                continue
            if offset == NO_OFFSET:
                raise self._places[partition].not_checked()
            self._places[partition].stored(row, offset)
        # A partition that hides messages got no rows; read it again.
        failed |= {partition: _Hidden() for partition, plan in plans.items() if not plan}
        return failed

    def _publish(self, messages: list[OutgoingMessage]) -> PublishSummary:
        if not messages:
            return PublishSummary(0, {}, {})
        try:
            return self._client.publish_many(
                self._stream,
                messages,
                on_error="collect",
                ack_policy=AckPolicy.ALL,
                max_in_flight=len(messages),
            )
        except LiftEnvelopeError as exc:
            # No broker leads a partition: the outcome of each message is unknown.
            return PublishSummary(0, dict.fromkeys(range(len(messages)), exc), {})

    def _checked(self, error: LiftEnvelopeError) -> LiftEnvelopeError:
        """Return an error that calls for another look at the partition; raise any other."""
        if isinstance(error, IncorrectOffsetError | NoSuchStreamError) or error.retriable:
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


def _expecting(
    task: tuple[str, int, int], message: OutgoingMessage, checksum: int, offset: int
) -> OutgoingMessage:
    headers = message.headers
    if offset == NO_OFFSET:
        headers = {**(headers or {}), ROW_HEADER: str(RowMark(*task, PROBE, checksum)).encode()}
    return OutgoingMessage(
        value=message.value,
        key=message.key,
        headers=headers,
        partition=message.partition,
        expected_offset=offset,
    )


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
