"""Liftbridge stream for bulk reads: requests for offsets, and range reads into batches."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Final

from liftenvelope import _native
from liftenvelope._checks import check_stream_name
from liftenvelope.bulk._engine.range_read import RangeRead
from liftenvelope.bulk._liftbridge.brokers import Brokers
from liftenvelope.bulk._liftbridge.start_lookup import BlockingStartLookup
from liftenvelope.bulk.errors import ReadLostError, ServerProtocolError
from liftenvelope.bulk.ranges import Extent
from liftenvelope.client.failures import call_error
from liftenvelope.client.partition_read import PartitionRead, Verdict
from liftenvelope.client.positions import At, StartAt, StopAt
from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    NotLeaderError,
    PartitionPausedError,
    StreamDeletedError,
    TransportError,
)
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.bulk._engine.crew import Outlet
    from liftenvelope.bulk._engine.plan import BatchPlan
    from liftenvelope.bulk.access import Target
    from liftenvelope.bulk.ranges import Range
    from liftenvelope.jetstream.subject_filter import SubjectFilter
    from liftenvelope.rpc.blocking import ResponseStream

__all__ = ["LiftbridgeSource"]

#: Seconds to wait for data before checking whether the read must stop.
_LOOK: Final = 0.25
#: Seconds to pause before a read while the server sends messages one by one.
_PAUSE: Final = 0.001
#: Seconds to wait for the message that confirms a subscription.
_HANDSHAKE: Final = 5.0
#: Seconds of silence after which a read asks the server whether any message is left.
_SILENCE: Final = 0.5
#: Polls to wait for the newest message to commit, and the seconds before each poll. The limit counts answers,
#: not time, because a stalled server neither commits nor answers.
_COMMIT_ANSWERS: Final = 30
_COMMIT_POLL: Final = 0.05
#: Seconds that a stream must be missing before it counts as deleted. A broker that has just started knows no
#: streams for some seconds.
_GONE_AFTER: Final = 10.0
_MISSING: Final = (NoSuchStreamError, NoSuchPartitionError)


class LiftbridgeSource:
    """A Liftbridge stream.

    Args:
        target: Servers and connection options.
        stream: Name of the stream.

    Raises:
        UsageError: The name is not a valid stream name.
    """

    unsigned = False

    def __init__(self, target: Target, stream: str) -> None:
        check_stream_name(stream)
        self.stream = stream
        self.access = target.access
        self.brokers = Brokers(target)

    def close(self) -> None:
        """Close the connections for requests. Reads use their own connections."""
        self.brokers.close()

    def partitions(self) -> list[int]:
        """Return the numbers of the partitions."""
        return sorted(self.brokers.stream(self.stream).partitions)

    def check_partition(self, partition: int) -> None:
        """Raise NoSuchPartitionError unless the stream has the partition."""
        self.brokers.check_partition(self.stream, partition)

    def extent(self, partition: int) -> Extent:
        """Return the current extent of the committed messages.

        Waits briefly for the newest message to commit.
        """
        info = self.brokers.partition(self.stream, partition)
        newest = info.newest_offset
        for _ in range(_COMMIT_ANSWERS):
            if info.high_watermark >= newest:
                break
            time.sleep(_COMMIT_POLL)
            info = self.brokers.partition(self.stream, partition)
        end = info.high_watermark + 1
        created_ns = self.brokers.created(self.stream, recent=True)
        return Extent(min(self._oldest(partition, newest), end), end, created_ns)

    def newest(self, partition: int) -> int:
        """Return the offset of the newest message, even if it is not committed yet; -1 for none."""
        return self.brokers.partition(self.stream, partition).newest_offset

    def lookup(self, partition: int) -> BlockingStartLookup:
        """Return a lookup of offsets at the leader of a partition."""
        return BlockingStartLookup(self.brokers, self.stream, partition, self.access.timeout)

    def _oldest(self, partition: int, newest: int) -> int:
        lookup = self.lookup(partition)
        found = lookup.oldest()
        # Servers report 0 as the start of a log that retention has emptied.
        if found == 0 and newest >= 0 and lookup.is_emptied(newest):
            return newest + 1
        if found is None:
            text = f"{self.stream}[{partition}]: its leader does not say where it begins"
            raise CallTimeoutError(text)
        return found

    def at_time(self, partition: int, time_ns: int, extent: Extent) -> int:
        """Return the offset of the first message that is not older than a time."""
        found = self.lookup(partition).at_time(time_ns, extent.end - 1)
        if found is None:
            text = f"{self.stream}[{partition}]: its leader does not say where that time is"
            raise CallTimeoutError(text)
        return min(found, extent.end)

    def created(self) -> int:
        """Return the creation time of the stream in ns since 1970; 0 if the server does not report it."""
        return self.brokers.created(self.stream)

    def may_have_holes(self) -> bool:
        """Return False: removals by anything but retention are rare, and Liftbridge does not report them."""
        return False

    def filter_by(self, subjects: SubjectFilter | None, *, whole: bool) -> None:
        """Do nothing: Liftbridge servers do not filter, so the reader does."""

    def subjects(self, most: int) -> list[str] | None:  # noqa: ARG002 - servers don't tell
        """Return None: only a read can find the subjects."""
        return None

    def count(self, span: Range, subjects: SubjectFilter | None) -> int | None:  # noqa: ARG002 - servers don't tell
        """Return None: only a read can count the messages."""
        return None

    def read(self, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        """Read a range into an outlet. Blocks, so each range runs in a thread of its own."""
        source = copy.copy(self)
        source.brokers = self.brokers.checked(outlet.check)  # a stalled server delays the end by one call
        _LiftbridgeRead(source, span, plan, outlet).run()


class _LiftbridgeRead(RangeRead):
    """Reads one range over as many subscriptions as needed."""

    _source: LiftbridgeSource
    _rows: _native.bulk.StoredRows
    _passing = (TransportError, CallTimeoutError, NotLeaderError, *_MISSING)

    def __init__(self, source: LiftbridgeSource, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        rows = _native.bulk.StoredRows(
            plan.row_columns,
            plan.batch_rows,
            plan.batch_bytes,
            source.access.max_message_bytes,
            plan.allocate,
        )
        super().__init__(source, span, plan, outlet, rows, f"{source.stream}[{span.partition}]")
        # Next offset when the server last asked to continue with a new call. A repetition at the same offset
        # is a failure.
        self._went_on_at = -1
        self._missing_since: float | None = None
        # Since when the high watermark has been below the next offset.
        self._hidden_since: float | None = None
        # Since when committed messages have been due without arriving.
        self._due_since: float | None = None
        # Whether the current batch had rows before the last wait.
        self._had_rows = False

    def _check_failure(self, error: Exception, now: float) -> None:
        if not isinstance(error, _MISSING):
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since >= _GONE_AFTER:
            raise StreamDeletedError(StatusCode.NOT_FOUND, f"{self._name}: the stream is gone") from error

    # One subscription

    def _read(self) -> None:
        while not self._read_once():
            pass

    def _read_once(self) -> bool:
        """Make one call; return True if the range is complete, and False to continue with a new call."""
        source, span = self._source, self._span
        self._hand_out(block=True)
        if 0 <= span.stop <= self._next:
            return True
        address = source.brokers.reader(
            source.stream, span.partition, source.access.timeout, refresh=self._was_lost
        )
        end = source.newest(span.partition) + 1 if self._was_lost else self._next
        self._check_same_log(end, source.created())  # metadata of the last second may be the old stream's
        stop = StopAt(At.OFFSET, span.stop - 1) if span.stop >= 0 else None
        start, replica = StartAt(At.OFFSET, self._next), source.access.read_isr_replica
        read = PartitionRead(source.stream, span.partition, start, stop, read_isr_replica=replica)
        with source.brokers.new_channel(address) as channel:
            self._outlet.check()
            try:
                request = read.request(resume=False).SerializeToString()
                with channel.server_stream("/proto.API/Subscribe", request, sink=self._rows) as call:
                    self._rows.follow(self._next, span.stop)
                    self._pump(call)
            except (ReadLostError, ServerProtocolError):
                raise
            except (RpcError, TransportError) as exc:
                if not self._is_finished(read, exc):
                    return False
        self._hand_out(block=True)
        return True

    def _is_finished(self, read: PartitionRead, error: RpcError | TransportError) -> bool:
        """Interpret the end of a call: True if the whole range was read, False to continue with a new call.

        Raises:
            TransportError: The read can be retried after a pause.
            LiftEnvelopeError: The read can't continue.
        """
        verdict = read.ended(error)
        if verdict is Verdict.FINISHED:
            self._flush(self._span.stop)
            return True
        if verdict is Verdict.GO_ON and self._next > self._went_on_at:
            self._went_on_at = self._next
            return False
        if isinstance(verdict, PartitionPausedError) and not self._is_paused():
            # Not paused: retention also closes segments, some time before it removes them from the list.
            raise TransportError(str(verdict)) from error
        if isinstance(verdict, LiftEnvelopeError):
            raise verdict from error
        raise TransportError(str(call_error("Subscribe", error, self._name))) from error

    def _is_paused(self) -> bool:
        info = self._source.brokers.stream(self._source.stream).partitions.get(self._span.partition)
        return info is not None and info.paused

    def _pump(self, call: ResponseStream) -> None:
        """Read until the range is complete or the call ends.

        Silence for ``pause`` seconds triggers a look at the partition (:meth:`_is_over`). The pause then
        doubles, by at most ``stall_timeout`` at a time.
        """
        began = heard = time.monotonic()
        pause, self._due_since = _SILENCE, None
        while True:
            came = self._receive(call)
            now = time.monotonic()
            if came:
                heard, pause, self._due_since, self._hidden_since = now, _SILENCE, None, None
                if self._take():
                    return
            elif call.ended:
                raise TransportError(f"{self._name}: the server ended the subscription and gave no reason")
            elif not self._rows.stands and now - began > _HANDSHAKE:
                raise TransportError(f"{self._name}: the subscription did not stand after {_HANDSHAKE:g} s")
            elif self._rows.stands and now - heard > pause:
                if self._is_over(now):
                    return
                pause += min(pause, self._source.access.stall_timeout)
            self._flush_if_old(block=True)

    def _receive(self, call: ResponseStream) -> bool:
        """Wait for bytes from the server, which go straight into the rows; return False if none came."""
        self._outlet.check()
        self._had_rows = self._rows.rows > 0
        try:
            return call.wait(timeout=self._time_to_wait(_LOOK), pause=_PAUSE)
        except RpcError:
            if call.ended:
                raise
            return False

    def _take(self) -> bool:
        """Look at the rows, of which more came; return True if the range is complete."""
        rows, states = self._rows, _native.bulk
        while True:
            self._next = rows.next_offset
            if not self._had_rows and rows.rows:
                self._began, self._had_rows = time.monotonic(), True
            if rows.state == states.MORE:
                return False
            if rows.state == states.BROKEN:
                raise self._broken(rows.bad)
            self._flush()
            if rows.state == states.DONE:
                return True
            # While this waits for room, the call's flow-control window stops the server.
            self._hand_out(block=True)
            self._had_rows = False
            rows.resume()

    def _broken(self, bad: bytes) -> LiftEnvelopeError:
        size = int.from_bytes(bad[1:5], "big")
        limit = self._source.access.max_message_bytes
        if len(bad) == 5 and not bad[0] and size > limit:
            text = f"{self._name}: a message of {size} bytes; max_message_bytes is {limit}"
            return RpcError(StatusCode.RESOURCE_EXHAUSTED, text)
        return ServerProtocolError(
            f"{self._name}: the server sent what is no message of a valid offset: {bad[:40]!r}"
        )

    def _is_over(self, now: float) -> bool:
        """Ask the server why nothing comes; return True if no message is left in the range.

        Raises:
            TransportError: Committed messages have been due for ``stall_timeout`` seconds.
            ReadLostError: The messages have been hidden for ``reconnect_wait`` seconds.
        """
        source, span = self._source, self._span
        info = source.brokers.partition(source.stream, span.partition)
        is_there = 0 <= span.stop <= info.newest_offset + 1
        if is_there and source.lookup(span.partition).is_empty(span.stop - 1, info.newest_offset):
            self._flush(span.stop)
            return True
        if info.high_watermark < self._next:
            self._due_since = None
            self._check_hidden(now)
        elif self._due_since is None:
            self._due_since = now
        elif now - self._due_since > source.access.stall_timeout:
            raise TransportError(f"{self._name}: nothing came for {now - self._due_since:.1f} s")
        return False

    def _check_hidden(self, now: float) -> None:
        """Give up on messages that existed when the read began but are no longer visible.

        Raises:
            ReadLostError: The messages have been hidden for ``reconnect_wait`` seconds.
        """
        if self._span.stop < 0:
            return
        self._hidden_since = now if self._hidden_since is None else self._hidden_since
        wait = self._source.access.reconnect_wait
        if now - self._hidden_since >= wait:
            text = (
                f"{self._name}: the messages from offset {self._next} on could not be seen for {wait:g} s: a "
                f"server that was killed hides them until one more is published to the partition"
            )
            raise ReadLostError(text)
