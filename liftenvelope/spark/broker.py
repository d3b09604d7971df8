"""Queries servers for stream extents and reads ranges, over liftenvelope.bulk. Imports nothing of Spark."""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Iterator
from typing import Any, Final, Self

from liftenvelope import bulk
from liftenvelope.bulk.listing import Lister, open_lister
from liftenvelope.bulk.ranges import Extent
from liftenvelope.bulk.sources import LiftbridgeSource, RangedStream, open_stream
from liftenvelope.errors import TransportError
from liftenvelope.spark.errors import DataLossError, OptionError
from liftenvelope.spark.offsets import Offsets, Part, Places
from liftenvelope.spark.options import SourceOptions
from liftenvelope.spark.planning import Extents, Span, begin_at, check_named, end_at
from liftenvelope.spark.schema import BATCH_BYTES, BATCH_ROWS, bulk_columns, spark_batches, spark_schema

__all__ = ["SourceBroker", "read_span"]

_READABLE_POLL: Final = 0.1
#: Seconds for which a stream that was seen must be missing before it counts as deleted.
_GONE_AFTER: Final = 5.0
_GONE_POLL: Final = 0.25


class SourceBroker:
    """Client of the servers for one source: partitions, extents, start and end offsets.

    Connections are opened on first use. Pickling drops them.

    Args:
        options: Options of the source.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._sources: dict[str, RangedStream] = {}
        self._listers: list[Lister] = []
        self._matched: set[str] = set()
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
            connection = self._options.connection
            self._sources[stream] = open_stream(connection.servers, stream, connection.open())
        return self._sources[stream]

    def parts(self) -> list[Part]:
        """Return every partition that is read.

        Raises:
            LiftEnvelopeError: A stream or partition does not exist, or the servers can't be reached.
        """
        wanted, found = self._options.subscription, []
        for stream in self._matching() if wanted.pattern is not None else wanted.streams:
            numbers = self._source(stream).partitions()
            for number in numbers if wanted.partitions is None else wanted.partitions[stream]:
                self._source(stream).check_partition(number)
                found.append((stream, number))
        return found

    def _matching(self) -> list[str]:
        """Return the streams whose names match, waiting up to ``_GONE_AFTER`` for one that is missing.

        A server that has just started knows only some of its streams.
        """
        pattern, connection = self._options.subscription.pattern or "", self._options.connection
        if not self._listers:
            self._listers.append(open_lister(connection.servers, connection.open()))
        limit = time.monotonic() + _GONE_AFTER
        while True:
            found = {name for name in self._listers[0].streams() if re.fullmatch(pattern, name)}
            if found >= self._matched or time.monotonic() > limit:
                self._matched = found
                return sorted(found)
            time.sleep(_GONE_POLL)

    def extents(self) -> dict[Part, Extents]:
        """Return the extent of every partition.

        Raises:
            LiftEnvelopeError: As for :meth:`parts`.
        """
        return {part: self._extents(part) for part in self.parts()}

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
        whole = Extent(extents.oldest, extents.end)
        return self._source(part[0]).at_time(part[1], place.time_ns, whole)

    def await_readable(self, span: Span) -> None:
        """Wait until a range can be read to its end.

        After a crash of its server, a Liftbridge partition may show fewer messages than its log holds. The
        rest become visible when the leader has re-established the high watermark, or when one more message is
        published.

        Raises:
            DataLossError: The partition ends before the range does.
            TransportError: The range did not become readable within ``reconnectWait``.
        """
        limit = time.monotonic() + self._options.connection.access.reconnect_wait
        while (found := self._extents((span.stream, span.partition))).end < span.stop:
            name = f"{span.stream}[{span.partition}]"
            if found.log_end < span.stop:
                if not self._options.fail_on_data_loss:
                    return
                text = f"{name} ends at offset {found.log_end}, but the batch reads up to {span.stop}"
                raise DataLossError(f"{text}; set failOnDataLoss=false, or use a new checkpointLocation")
            if time.monotonic() > limit:
                text = f"{name} shows only {found.end} of {found.log_end} messages since its server crashed"
                raise TransportError(f"{text}; publish one more message to it, and run the query again")
            time.sleep(_READABLE_POLL)

    def check_whole(self, span: Span, done: int) -> None:
        """Raise TransportError if a read ended early without an error.

        Args:
            span: The range.
            done: Offsets read, including those without a message.
        """
        if done >= span.stop - span.start:
            return
        # With failOnDataLoss=false, offsets deleted by retention or by recreating the stream may be missing.
        found, start, stop = self._extents((span.stream, span.partition)), span.start, span.stop
        if not self._options.fail_on_data_loss:
            start, stop = max(start, found.oldest), min(stop, found.log_end)
        if done < stop - start:
            text = f"{span.stream}[{span.partition}]: read {done} of {stop - start} offsets from {start}"
            raise TransportError(f"{text}, because its server restarted during the read; run the task again")


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
        DataLossError: The partition ends before the range does.
        LiftEnvelopeError: The servers can't be reached, or refuse the request.
    """
    with SourceBroker(options) as broker:
        broker.await_readable(span)
        schema = spark_schema(headers=options.headers, envelope=options.envelope)
        seen = [0]
        reader = bulk.read(
            options.connection.servers,
            span.stream,
            partitions=span.partition,
            start=span.start,
            stop=span.stop,
            columns=bulk_columns(schema),
            envelope=options.envelope,  # type: ignore[arg-type] # checked with the options
            batch_rows=BATCH_ROWS,
            batch_bytes=BATCH_BYTES,
            parallel=1,
            on_retention="raise" if options.fail_on_data_loss else "skip",
            progress=lambda progress: seen.__setitem__(0, progress.done),
            access=options.connection.open(),
        )
        yield from spark_batches(reader, schema, span.stream, span.partition)
        broker.check_whole(span, seen[0])
