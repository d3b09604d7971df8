"""Rows of a task into Liftbridge, each once: by expected offsets, over the blocking client.

See :mod:`liftenvelope.spark._row_places` for why that holds.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from liftenvelope import bulk
from liftenvelope._extras import require
from liftenvelope.bulk import WriteFailedError
from liftenvelope.bulk.outgoing import Rows, rows_of
from liftenvelope.client.publish_many import OutgoingMessage
from liftenvelope.client.publish_summary import PublishSummary
from liftenvelope.client.retries import pause_before
from liftenvelope.errors import IncorrectOffsetError, LiftEnvelopeError, NoSuchStreamError
from liftenvelope.partition import make_partitioner
from liftenvelope.spark._row_places import NO_OFFSET, PROBE, ROW_HEADER, RowMark, RowPlaces
from liftenvelope.spark.schema import header_lists
from liftenvelope.types import AckPolicy

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from liftenvelope.client.blocking import BlockingClient
else:
    pa = require("pyarrow", "spark")
    pc = require("pyarrow.compute", "spark")

__all__ = ["OnceWriter"]

#: So many messages are looked at first, from the end of a partition; then eight times as many, and so on.
_LOOK_BACK: Final = 256
#: How long to wait for what is stored to be shown, before the question whether it is hidden.
_SHOWN_WAIT: Final = 1.0
_SHOWN_POLL: Final = 0.05

#: Rows of one partition by number: what is sent, and its checksum.
_Portion: TypeAlias = dict[int, tuple[OutgoingMessage, int]]


class _Hidden(LiftEnvelopeError):  # noqa: N818 - no error of a caller's
    """A partition has more than it shows, up to an offset."""


class OnceWriter:
    """Writes the rows of one attempt of a task.

    Args:
        client: The cluster.
        stream: Name of the stream.
        key: Which task this is: ``query:batch:task``.
        partitioner: ``"key"`` or ``"round_robin"``, for rows without a partition.
        wait: For so many seconds it is tried again without anything stored in between.

    Attributes:
        rows: How many rows it was given; all are stored.
        bytes: How many bytes their values have.
        duplicates: How many of them had been stored before.

    Raises:
        NoSuchStreamError: There is no such stream.
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
        """Store rows, in order; return when all are.

        Args:
            batch: Such as :func:`liftenvelope.bulk.write` takes. All of them are in flight at once.

        Raises:
            BatchChangedError: They are others than when the batch ran before.
            OptionError: The stream does not check expected offsets.
            WriteFailedError: Not all rows are stored, or it is unknown whether they are.
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
        """Check that the partitions have no more rows of this task than it was given.

        Raises:
            BatchChangedError: They have.
        """
        for partition, places in self._places.items():
            places.check_rows(self._given[partition])

    # Rows

    def _divided(self, rows: Rows) -> dict[int, _Portion]:
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
        """Send what is missing until nothing is."""
        limit, attempt = time.monotonic() + self._wait, 0
        unseen: dict[int, int] = {}
        while plans := self._plans(portions, unseen):
            known = self._known
            failed = self._send(portions, plans)
            error = next(iter(failed.values()), None)
            unseen = self._learn_again(failed)
            if self._known > known or error is None:
                limit, attempt = time.monotonic() + self._wait, 0
            elif time.monotonic() > limit:
                raise self._given_up(unseen, error) from error
            else:
                attempt += 1
                time.sleep(pause_before(attempt))

    @property
    def _known(self) -> int:
        """Grows with all that is stored or found out."""
        return sum(places.end + places.checked for places in self._places.values())

    def _plans(
        self, portions: dict[int, _Portion], unseen: dict[int, int]
    ) -> dict[int, list[tuple[int, int]]]:
        """What to send to each partition that has not all of its rows; perhaps nothing, for now."""
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
        """Send rows; return the first error of each partition that has not stored all of its."""
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
        # Those that nothing could be sent to are looked at again.
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
            # No broker leads a partition: it is not known which of them are stored.
            return PublishSummary(0, dict.fromkeys(range(len(messages)), exc), {})

    def _checked(self, error: LiftEnvelopeError) -> LiftEnvelopeError:
        """Return an error after which to look again; raise any other."""
        if isinstance(error, IncorrectOffsetError | NoSuchStreamError) or error.retriable:
            return error
        text = f"{self._stream}: {self.rows} rows were to be stored, and not all are: {error}"
        raise WriteFailedError(text, 0, 0) from error

    def _given_up(self, unseen: dict[int, int], error: LiftEnvelopeError) -> WriteFailedError:
        if not unseen:
            why = f"nothing could be stored for {self._wait:g} s: {error}"
        else:
            number, end = next(iter(unseen.items()))
            name = f"{self._stream}[{number}]"
            why = f"{name} has {end} offsets and does not show all of them, as after a crash of its server"
            why += f"; it does once a message is published to it with expected_offset=-1: {error}"
        return WriteFailedError(f"{self._stream}: {why}", 0, 0)

    # What there is

    def _learn_again(self, partitions: Iterable[int]) -> dict[int, int]:
        """Look at what partitions have now; return those that don't show all of it, and where they end."""
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
        """Find the rows of this task that a partition has."""
        places = RowPlaces(*self._task, f"{self._stream}[{partition}]")
        query, batch, _ = self._task
        end = stop = self._shown_end_of(partition)
        marks: list[tuple[int, RowMark]] = []
        size = _LOOK_BACK
        while stop > 0:
            start = max(stop - size, 0)
            found = list(self._marks(partition, start, stop))
            marks = found + marks
            # All of an earlier batch were stored before the first of this one was sent.
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
        """Return up to where a partition can be read, once that is all that it has.

        Raises:
            _Hidden: It can't, for a while.
        """
        limit, there = time.monotonic() + _SHOWN_WAIT, -1
        while True:
            info = self._client.fetch_partition_metadata(self._stream, partition)
            # Others may go on writing: what was there when it was asked first is enough.
            there = there if there >= 0 else info.newest_offset
            if info.high_watermark >= there:
                return info.high_watermark + 1
            if time.monotonic() > limit:
                raise _Hidden(info.newest_offset + 1)
            time.sleep(_SHOWN_POLL)

    def _marks(self, partition: int, start: int, stop: int) -> Iterator[tuple[int, RowMark]]:
        """The marks of this task in a range, and some of the others that the query has."""
        if start >= stop:
            return
        reader = bulk.read(
            self._client,
            self._stream,
            partitions=partition,
            start=start,
            stop=stop,
            columns=["offset", "headers"],
            on_retention="skip",
        )
        query, number, task = self._task
        for batch in reader:
            for offset, text in _row_headers(batch, f"{query}:", f"{query}:{number}:{task}:"):
                mark = RowMark.parse(text)
                if mark is not None:
                    yield offset, mark


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
    """Offsets and texts of the headers that begin as those of a task, and of the first of the query.

    The first one tells whether there is one of an earlier batch. There may be very many of others.
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
