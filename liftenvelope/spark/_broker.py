"""Queries servers for stream extents and reads ranges, over liftenvelope.bulk. Imports nothing of Spark."""

from __future__ import annotations

import re
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Self, TypeVar

from liftenvelope import bulk
from liftenvelope._backoff import Patience
from liftenvelope.bulk.listing import Lister, open_lister
from liftenvelope.bulk.narrowing import Narrowing
from liftenvelope.bulk.ranges import Extent, Range, was_recreated
from liftenvelope.bulk.sources import LiftbridgeSource, RangedStream, narrowed_range, open_stream
from liftenvelope.errors import (
    CallTimeoutError,
    NoJetStreamError,
    NoSuchPartitionError,
    NoSuchStreamError,
    NotLeaderError,
    ServerProtocolError,
    StreamNotFoundError,
    TransportError,
)
from liftenvelope.spark._connection import ConnectionSettings
from liftenvelope.spark._offsets import Offsets, Part, Places
from liftenvelope.spark._options import SourceOptions
from liftenvelope.spark._planning import Extents, Span, begin_at, check_named, end_at
from liftenvelope.spark._schema import BATCH_BYTES, BATCH_ROWS, bulk_columns, spark_batches, spark_schema
from liftenvelope.spark.errors import DataLossError, OptionError

__all__ = ["SourceBroker", "read_span"]

_T = TypeVar("_T")
_NOT_FOUND: Final = (NoSuchStreamError, StreamNotFoundError)
#: Errors of a request while a server restarts or a leader is elected.
_TEMPORARY: Final = (TransportError, CallTimeoutError, NoJetStreamError, NotLeaderError)
_READABLE_POLL: Final = 0.1
#: Seconds for which a stream that was seen must be missing before it counts as deleted.
_GONE_AFTER: Final = 5.0
_GONE_POLL: Final = 0.25
#: Streams that tasks of this process have waited for in vain, with servers and creation times. Other tasks
#: of a batch do not wait again. A stream that is created anew has another time.
_DELETED: Final[deque[tuple[ConnectionSettings, str, int]]] = deque(maxlen=256)


class SourceBroker:
    """Client of the servers for one source: partitions, extents, start and end offsets.

    Connections are opened on first use. Pickling drops them.

    Args:
        options: Options of the source.
        in_task: True to keep the connections of a task for later tasks of the process.
    """

    def __init__(self, options: SourceOptions, *, in_task: bool = False) -> None:
        self._options = options
        self._access = options.connection.open_in_task if in_task else options.connection.open
        self._sources: dict[str, RangedStream] = {}
        self._listers: list[Lister] = []
        self._matched: set[str] = set()
        # Streams that existed at some time, and those that are deleted as far as is known.
        self._seen: set[str] = set()
        self._gone: set[str] = set()
        # A query that can't reach its servers at the first start fails at once: its options may be wrong.
        self._reached = False
        # Spark does not always report the end of a query.
        weakref.finalize(self, _close_all, self._sources, self._listers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceBroker, (self._options,)

    def close(self) -> None:
        """Close every connection. The next call opens them again."""
        _close_all(self._sources, self._listers)

    def _source(self, stream: str) -> RangedStream:
        if stream not in self._sources:
            self._sources[stream] = open_stream(self._options.connection.servers, stream, self._access())
        return self._sources[stream]

    def _parts(self, stream: str) -> list[Part]:
        """Return every partition of a stream that is read."""
        wanted, source = self._options.subscription, self._source(stream)
        existing = source.partitions()
        numbers = existing if wanted.partitions is None else wanted.partitions[stream]
        for number in numbers:
            source.check_partition(number)
        return [(stream, number) for number in numbers]

    def _matching(self) -> list[str]:
        """Return the streams whose names match, waiting up to ``_GONE_AFTER`` for one that is missing.

        A server that has just started knows only some of its streams.
        """
        pattern = self._options.subscription.pattern or ""
        if not self._listers:
            self._listers.append(open_lister(self._options.connection.servers, self._access()))
        limit = time.monotonic() + _GONE_AFTER
        while True:
            found = {name for name in self._listers[0].streams() if re.fullmatch(pattern, name)}
            if found >= self._matched or time.monotonic() > limit:
                self._matched = found
                return sorted(found)
            time.sleep(_GONE_POLL)

    def extents(self, known: Collection[str] = (), *, lenient: bool = False) -> dict[Part, Extents]:
        """Return the extent of every partition that is read.

        A stream that existed before is left out once it has been missing for ``_GONE_AFTER`` seconds. Servers
        that were reached before are waited for, for ``reconnectWait``.

        Args:
            known: Streams that existed before, in addition to those that this object has seen.
            lenient: True to leave out a missing stream even if it was never seen.

        Raises:
            LiftEnvelopeError: A stream or partition does not exist, or the servers can't be reached.
        """
        self._seen.update(known)
        self._reached = self._reached or bool(known)
        return self._patiently(lambda: self._all_extents(lenient=lenient))

    def _all_extents(self, *, lenient: bool) -> dict[Part, Extents]:
        wanted = self._options.subscription
        found: dict[Part, Extents] = {}
        for stream in self._matching() if wanted.pattern is not None else wanted.streams:
            may_miss = lenient or wanted.pattern is not None or stream in self._seen
            extents = self._stream_extents(stream, may_miss=may_miss)
            if extents is not None:
                self._seen.add(stream)
                found |= extents
        return found

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """Call a function. Retry for ``reconnectWait`` if servers that were reached before don't answer."""
        patience = Patience(self._options.connection.access.reconnect_wait if self._reached else 0.0)
        while True:
            try:
                found = ask()
            except _TEMPORARY as exc:
                pause = patience.failed(time.monotonic())
                if pause is None or isinstance(exc, ServerProtocolError):
                    raise
                time.sleep(pause)
            else:
                self._reached = True
                return found

    def _stream_extents(self, stream: str, *, may_miss: bool) -> dict[Part, Extents] | None:
        def ask() -> dict[Part, Extents]:
            # First: if the stream is created again in between, its tasks notice.
            created = self._source(stream).created()
            return {part: replace(self._extents(part), created=created) for part in self._parts(stream)}

        return self._unless_gone(stream, ask) if may_miss else ask()

    def _unless_gone(
        self, stream: str, ask: Callable[[], _T], errors: tuple[type[Exception], ...] = _NOT_FOUND
    ) -> _T | None:
        """Call a function; return None once the stream has been missing for ``_GONE_AFTER`` seconds.

        The next call does not wait again, unless the stream existed in between.

        Args:
            stream: Name of the stream.
            ask: The function.
            errors: Errors that say that it is missing.
        """
        patience = Patience(0.0 if stream in self._gone else _GONE_AFTER, longest=_GONE_POLL)
        while True:
            try:
                found = ask()
            except errors:
                pause = patience.failed(time.monotonic())
                if pause is None:
                    self._gone.add(stream)
                    return None
                time.sleep(pause)
            else:
                self._gone.discard(stream)
                return found

    def _extents(self, part: Part) -> Extents:
        stream, partition = part
        source = self._source(stream)
        found = source.extent(partition)
        log_end = found.end
        if isinstance(source, LiftbridgeSource):
            log_end = max(source.brokers.partition(stream, partition).newest_offset + 1, found.end)
        return Extents(found.oldest, found.end, log_end)

    def begin(self, extents: dict[Part, Extents]) -> Offsets:
        """Return the start offset of every partition, from the options.

        Raises:
            OptionError: The options name no offset for a partition, an offset beyond its end, or a timestamp
                after its newest message.
        """
        places = self._options.start
        check_named(places, extents)
        found: Offsets = {}
        for part, extent in extents.items():
            moment = self._moment(places, part, extent)
            if moment == extent.end and not self._options.late_start_is_end:
                text = f"{part[0]}[{part[1]}] has no message at or after the starting timestamp"
                raise OptionError(
                    f"{text}; to begin at its end, set startingOffsetsByTimestampStrategy=latest"
                )
            found[part] = begin_at(places, part, extent, moment)
            if found[part] > extent.log_end and self._options.fail_on_data_loss:
                text = f"startingOffsets of {part[0]}[{part[1]}] must be at most {extent.log_end}"
                raise OptionError(f"{text}, the end of the partition, got {found[part]}")
        return found

    def end(self, extents: dict[Part, Extents]) -> Offsets:
        """Return the end offset of every partition, from the options.

        Raises:
            OptionError: The options name no offset for a partition.
        """
        places = self._options.end
        check_named(places, extents)
        return {
            part: end_at(places, part, extent, self._moment(places, part, extent))
            for part, extent in extents.items()
        }

    def _moment(self, places: Places, part: Part, extents: Extents) -> int | None:
        place = places.of(part)
        if place is None or place.offset is not None:
            return None
        if extents.oldest == extents.end:
            return extents.end
        source, time_ns, whole = self._source(part[0]), place.time_ns, Extent(extents.oldest, extents.end)
        return self._patiently(lambda: source.at_time(part[1], time_ns, whole))

    def narrowed(self, span: Span, narrowing: Narrowing) -> Span | None:
        """Return the part of a range that a query may need; None for none."""
        source, whole = self._source(span.stream), Range(span.partition, span.start, span.stop)
        found = self._patiently(lambda: narrowed_range(source, whole, narrowing))
        return replace(span, start=found.start, stop=found.stop) if found.start < found.stop else None

    def await_readable(self, span: Span) -> bool:
        """Wait until a range can be read to its end.

        After a crash of its server, a Liftbridge partition may show fewer messages than its log holds. The
        rest become visible when the leader has re-established the high watermark, or when one more message is
        published.

        Returns:
            False, with a warning, if the partition was deleted or the stream created again, and
            ``failOnDataLoss`` is false.

        Raises:
            DataLossError: The partition ends before the range does, it was deleted, or the stream was created
                again.
            TransportError: The range did not become readable within ``reconnectWait``, or no server could be
                reached for that long.
        """
        reconnect_wait = self._options.connection.access.reconnect_wait
        patience = Patience(reconnect_wait, first=_READABLE_POLL, longest=_READABLE_POLL)
        name = f"{span.stream}[{span.partition}]"

        self._reached = True  # by the process that planned the range
        while True:
            found = self._unless_deleted(span)
            if found is None:
                self._lost(f"{name} does not exist any more, but the batch reads up to {span.stop}")
                return False
            if self._was_recreated(span):
                return False
            if found.end >= span.stop:
                return True
            if found.log_end < span.stop:
                text = f"{name} ends at offset {found.log_end}, but the batch reads up to {span.stop}"
                if self._options.fail_on_data_loss:
                    self._lost(text)
                return True
            if (pause := patience.failed(time.monotonic())) is None:
                text = f"{name} shows only {found.end} of {found.log_end} messages since its server crashed"
                raise TransportError(f"{text}; publish one more message to it, and run the query again")
            time.sleep(pause)

    def _unless_deleted(self, span: Span) -> Extents | None:
        """Return the extents of the partition of a range; None once it has been missing for a while."""
        deleted = (self._options.connection, span.stream, span.created)
        if span.created and deleted in _DELETED:
            self._gone.add(span.stream)

        def ask() -> Extents:
            return self._patiently(lambda: self._extents((span.stream, span.partition)))

        # A stream that was made anew may have fewer partitions.
        found = self._unless_gone(span.stream, ask, (*_NOT_FOUND, NoSuchPartitionError))
        if found is not None:
            with suppress(ValueError):
                _DELETED.remove(deleted)
        elif deleted not in _DELETED:
            _DELETED.append(deleted)
        return found

    def _was_recreated(self, span: Span) -> bool:
        """Return True, with a warning, if the stream was created again since a range of it was planned.

        Raises:
            DataLossError: It was, and ``failOnDataLoss`` is true.
        """
        if not span.created:
            return False
        try:
            found = self._patiently(self._source(span.stream).created)
        except _NOT_FOUND:  # deleted only now
            return False
        if not was_recreated(span.created, found):
            return False
        text = f"{span.stream} was deleted and created again, but the batch reads the old one"
        self._lost(f"{text} up to offset {span.stop} of partition {span.partition}")
        return True

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss=false, or use a new checkpointLocation")
        _warn_of_loss(text)

    def check_whole(self, span: Span, done: int) -> None:
        """Check a read that has ended without an error. Warn of a loss that is passed over.

        Args:
            span: The range.
            done: Offsets read, including those without a message.

        Raises:
            TransportError: The read ended early, or the stream was created again meanwhile and
                ``failOnDataLoss`` is false. The rows may be of the new stream; the next attempt has none.
            DataLossError: The stream was created again meanwhile, and ``failOnDataLoss`` is true.
        """
        if self._was_recreated(span):
            # The next batch begins at the start of the new stream: rows of it here would come twice.
            text = (
                f"{span.stream} was deleted and created again during the read of partition {span.partition}"
            )
            raise TransportError(f"{text}; run the task again")
        if done >= span.stop - span.start:
            return
        # With failOnDataLoss=false, offsets deleted by retention or by recreating the stream may be missing.
        found = self._patiently(lambda: self._extents((span.stream, span.partition)))
        start, stop = span.start, span.stop
        if not self._options.fail_on_data_loss:
            start, stop = max(start, found.oldest), min(stop, found.log_end)
        if done < stop - start:
            text = f"{span.stream}[{span.partition}]: read {done} of {stop - start} offsets from {start}"
            raise TransportError(f"{text}, because its server restarted during the read; run the task again")
        self.warn_of_deleted(span, span.stop - span.start - done)

    def warn_of_deleted(self, span: Span, lost: int) -> None:
        """Warn that some offsets of a range were deleted before they were read.

        A stream that removes single messages by itself may have lost none: nothing is known of it.
        """
        try:
            may_have_holes = self._patiently(self._source(span.stream).may_have_holes)
        except _NOT_FOUND:  # deleted only now, which the next batch tells
            return
        if not may_have_holes:
            text = f"{lost} of {span.stop - span.start} offsets from {span.start}"
            _warn_of_loss(f"{span.stream}[{span.partition}]: {text} were deleted before they were read")


def _warn_of_loss(text: str) -> None:
    warnings.warn(f"data loss: {text}", RuntimeWarning, stacklevel=3)


def _close_all(sources: dict[str, RangedStream], listers: list[Lister]) -> None:
    while sources:
        sources.popitem()[1].close()
    while listers:
        listers.pop().close()


def read_span(options: SourceOptions, span: Span) -> Iterator[Any]:
    """Read a range as record batches for Spark. Closing the iterator ends the read.

    Args:
        options: Options of the source.
        span: The range.

    Raises:
        RetentionError: Messages of the range are gone, and ``failOnDataLoss`` is true.
        DataLossError: The partition ends before the range does, or the stream was deleted.
        LiftEnvelopeError: The servers can't be reached, or refuse the request.
    """
    with SourceBroker(options, in_task=True) as broker:
        if not broker.await_readable(span):
            return
        broker.close()  # the read takes the connection, and check_whole() takes it back
        schema = spark_schema(options)
        seen = [0]
        reader = bulk.read(
            options.connection.servers,
            span.stream,
            partitions=span.partition,
            subjects=None if options.subjects is None else options.subjects.filters,
            start=span.start,
            stop=span.stop,
            columns=bulk_columns(schema),
            envelope=options.envelope,  # type: ignore[arg-type] # checked with the options
            payload=options.payload,
            on_bad=options.on_bad,
            batch_rows=BATCH_ROWS,
            batch_bytes=BATCH_BYTES,
            parallel=1,
            on_retention="raise" if options.fail_on_data_loss else "skip",
            progress=lambda progress: seen.__setitem__(0, progress.done),
            access=options.connection.open_in_task(),
        )
        yield from spark_batches(reader, schema, span.stream, span.partition)
        broker.check_whole(span, seen[0])
