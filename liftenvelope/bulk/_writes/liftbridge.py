"""Write a table to a Liftbridge stream with many rows in flight."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

from liftenvelope._backoff import Patience
from liftenvelope._checks import as_count, require
from liftenvelope.arrow import request_columns
from liftenvelope.bulk._engine.event_log import log
from liftenvelope.bulk._liftbridge.brokers import Brokers
from liftenvelope.bulk._outgoing import Written
from liftenvelope.bulk._writes.placing import Placing, byte_column, taken
from liftenvelope.bulk._writes.publish_lane import PublishLane
from liftenvelope.bulk.errors import WriteFailedError
from liftenvelope.client.publish_checks import check_published_stream
from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    NoSuchStreamError,
    NotLeaderError,
    TransportError,
    UsageError,
)
from liftenvelope.types import AckPolicy, as_request_policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc

    from liftenvelope.bulk.access import Target
    from liftenvelope.partition import PartitionChoice, Partitioner
else:
    from liftenvelope.bulk._engine.schema import pa

    pc = require("pyarrow.compute", "bulk")

__all__ = ["LiftbridgeWrite"]

#: Seconds without rows after which the next rows go over new connections. A firewall may have dropped an idle
#: one without a sign, and rows sent over it would be lost without an ack.
_PAUSE: Final = 30.0
#: Random bytes in the prefix of correlation ids.
_IDENT: Final = 6
#: Errors about a row begin with its number in the part that was encoded.
_ROW: Final = re.compile(r"row (\d+)(.*)", re.DOTALL)


class LiftbridgeWrite:
    """One write to a Liftbridge stream.

    Rows go to the leader of their partition, over one call per broker. If a call ends while every row sent
    has its outcome, the write makes a new call, and tries that for ``reconnect_wait`` seconds. If a call ends
    with rows in flight, the write fails, since it is unknown whether these rows are stored. After a refused
    row, no more rows are sent. After 30 s without rows, the write waits for the acks of all rows sent and
    makes new calls.

    Args:
        target: Servers and connection options.
        stream: Name of the stream.
        partition: Partition of rows without one; None to use the partitioner.
        partitioner: Chooses the partitions of the remaining rows.
        ack_policy: LEADER or ALL.
        max_in_flight: Maximum number of rows in flight, over all calls.
        ack_wait: Seconds to wait for acks.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        target: Target,
        stream: str,
        *,
        partition: int | None,
        partitioner: str | PartitionChoice | Partitioner,
        ack_policy: AckPolicy | int,
        max_in_flight: int,
        ack_wait: float,
    ) -> None:
        self._stream = check_published_stream(stream)
        self._placing = Placing(stream, partition, partitioner)
        self._policy = as_request_policy("ack_policy", ack_policy)
        if self._policy is AckPolicy.NONE:
            raise UsageError("ack_policy must be LEADER or ALL, got NONE: a write waits for its acks")
        self._window = as_count("max_in_flight", max_in_flight)
        self._ack_wait = ack_wait
        self._access = target.access
        self._brokers = Brokers(target)
        self._partitions = 0
        self._lanes: dict[str, PublishLane] = {}
        self._routes: dict[int, PublishLane] = {}
        self._rows = self._acked = self._bytes = 0
        self._offsets: dict[int, tuple[int, int]] = {}
        # When the last batch was sent.
        self._used = 0.0

    def open(self) -> None:
        """Look the stream up and divide the window among its brokers.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: The stream does not have the given partition.
            TransportError, CallTimeoutError: No server could be reached.
        """
        partitions = self._brokers.stream(self._stream).partitions
        self._partitions = len(partitions)
        self._placing.open(self._partitions)
        # Each broker gets one call, so the calls share max_in_flight.
        brokers = {info.leader for info in partitions.values() if info.leader}
        self._window = max(1, self._window // max(1, len(brokers)))

    def close(self) -> None:
        """Close the connections."""
        for lane in self._lanes.values():
            lane.close()
        self._brokers.close()

    @property
    def nbytes(self) -> int:
        """Size in bytes of the values published so far."""
        return self._bytes

    @property
    def rows(self) -> int:
        """Number of rows added so far, which is the number of the next row."""
        return self._rows

    @property
    def refusals(self) -> list[tuple[int, LiftEnvelopeError]]:
        """Refused rows by number, and their errors. A row whose error has ``sent`` true may be stored."""
        return sorted((one for lane in self._lanes.values() for one in lane.refusals), key=itemgetter(0))

    def add(self, batch: pa.RecordBatch, expected: pa.Int64Array | None = None) -> None:
        """Publish a batch. On return, all rows are sent, and at most ``max_in_flight`` lack their ack.

        Args:
            batch: The rows.
            expected: Offset that each row must get, in a stream with optimistic concurrency; None for any.

        Raises:
            WriteFailedError: A row was refused, or its outcome is unknown.
            LiftEnvelopeError: The write can't continue, for example because a row is invalid or no server can
                be reached. Pass the error to :meth:`stop`.
        """
        if self._lanes and time.monotonic() - self._used > _PAUSE:
            self._end_calls()
        first = self._rows
        self._rows += batch.num_rows
        for part in self._parts(batch, self._placing.of(batch), expected, first):
            self._publish(part)
        # The source of the next batch may pause for any time, and nothing is sent meanwhile.
        for lane in self._lanes.values():
            lane.flush()
        self._used = time.monotonic()

    def stop(self, error: LiftEnvelopeError) -> NoReturn:
        """End a write that can't continue: wait for the outcomes of the rows sent, then raise.

        Args:
            error: Error of :meth:`add` or of the data.

        Raises:
            LiftEnvelopeError: ``error`` itself, if no row was sent.
            WriteFailedError: Rows were sent. ``__cause__`` is ``error``, or the first refusal.
        """
        if self._acked or any(lane.acks.next for lane in self._lanes.values()):
            self._fail(error)
        raise error

    def settle(self) -> None:
        """Wait for the acks of all rows added.

        Raises:
            WriteFailedError: A row was refused, or its outcome is unknown.
        """
        for lane in self._lanes.values():
            try:
                lane.settle()
            except LiftEnvelopeError as exc:
                self._fail(exc)
            if lane.refusals:
                self._fail(None)

    def finish(self) -> Written:
        """Wait for all acks and return the outcome.

        Raises:
            WriteFailedError: A row was refused, or its outcome is unknown.
        """
        self._end_calls()
        return Written(self._acked, self._bytes, 0, dict(sorted(self._offsets.items())))

    def _end_calls(self) -> None:
        """Wait for all acks and close the calls. Rows that follow get new calls.

        Raises:
            WriteFailedError: As for :meth:`settle`.
        """
        self.settle()
        for lane in list(self._lanes.values()):
            self._retire(lane)

    # Routing

    def _parts(
        self,
        batch: pa.RecordBatch,
        partitions: pa.Int32Array,
        expected: pa.Int64Array | None,
        first: int,
    ) -> Iterator[_Part]:
        """Split a batch by the leaders of the rows' partitions. ``first`` is the number of its first row."""
        if not batch.num_rows:
            return
        by_lane: dict[PublishLane, list[int]] = {}
        numbers = pc.unique(partitions).to_pylist()
        self._connect(numbers)
        for partition in numbers:
            by_lane.setdefault(self._lane(partition), []).append(partition)
        if len(by_lane) == 1:
            rows = range(first, first + batch.num_rows)
            yield _Part(batch, _numbers(partitions), None if expected is None else _numbers(expected), rows)
            return
        for numbers in by_lane.values():
            which = pc.indices_nonzero(pc.is_in(partitions, value_set=pa.array(numbers, pa.int32())))
            offsets = None if expected is None else _numbers(expected.take(which))
            numbered = [first + i for i in which.to_pylist()]
            yield _Part(taken(batch, which), _numbers(partitions.take(which)), offsets, numbered)

    def _connect(self, partitions: Iterable[int]) -> None:
        """Open the calls for partitions; wait until the leaders of new partitions record messages.

        Raises:
            LiftEnvelopeError: As for :meth:`_lane`.
        """
        new = [partition for partition in partitions if partition not in self._routes]
        for partition in new:
            self._lane(partition)
        if new:
            self._wait_until_recorded(new)

    def _lane(self, partition: int) -> PublishLane:
        """Return the call for rows of a partition; open it if necessary.

        Raises:
            TransportError, CallTimeoutError, NotLeaderError: The partition had no reachable leader for
                ``reconnect_wait`` seconds.
            NoSuchStreamError: No broker has known the stream for ``reconnect_wait`` seconds.
            NoSuchPartitionError: There is no such partition.
            PermissionDeniedError: The server does not let this client publish to the stream.
        """
        if partition in self._routes:
            return self._routes[partition]
        patience, failed = Patience(self._access.reconnect_wait, since=time.monotonic()), False
        while True:
            try:
                address = self._brokers.leader(self._stream, partition, self._access.timeout, refresh=failed)
                lane = self._lanes.get(address) or self._new_lane(address)
            # The stream existed when the write began, and a server that starts does not know it at first.
            except (TransportError, CallTimeoutError, NotLeaderError, NoSuchStreamError):
                pause = patience.failed(time.monotonic())
                if pause is None:
                    raise
                failed = True
                time.sleep(pause)
            else:
                self._lanes[address] = self._routes[partition] = lane
                return lane

    def _new_lane(self, address: str) -> PublishLane:
        self._brokers.check_publish(self._stream, address)
        # The dot separates the random part from the row number that follows.
        ident = f"{secrets.token_urlsafe(_IDENT)}."
        channel = self._brokers.new_channel(address)
        return PublishLane(
            channel,
            self._stream,
            ident,
            self._window,
            self._partitions,
            self._ack_wait,
            self._access.max_request_bytes,
        )

    def _retire(self, lane: PublishLane) -> None:
        """Add up the results of a call and close it. Its partitions get a new call when needed."""
        self._acked += lane.acks.acked
        for partition, (first, last) in lane.acks.offsets().items():
            known = self._offsets.get(partition, (first, last))
            self._offsets[partition] = min(known[0], first), max(known[1], last)
        self._lanes = {address: one for address, one in self._lanes.items() if one is not lane}
        self._routes = {partition: one for partition, one in self._routes.items() if one is not lane}
        self._brokers.forget(self._stream)
        lane.close()

    # Sending

    def _publish(self, part: _Part) -> None:
        """Publish rows over one call. If the call ends cleanly, send the remaining rows over a new call.

        Raises:
            TransportError: Calls have ended before they took a row for ``reconnect_wait`` seconds.
        """
        patience = Patience(self._access.reconnect_wait)
        lane = self._lane(part.partition(0))
        requests = self._requests(part, lane.ident)
        self._bytes += requests.nbytes
        while True:
            sent = lane.publish(requests, part.partitions, part.rows)
            if lane.refusals:
                self._fail(None)
            part = part.since(sent)
            if not part.rows:
                return
            if lane.acks.next:
                patience.progressed(time.monotonic())
            elif (pause := patience.failed(time.monotonic())) is not None:
                time.sleep(pause)
            else:
                assert lane.end is not None  # an open call takes every row, or a row was refused
                raise lane.end
            told = {"stream": self._stream, "rows": len(part.rows)}
            log.warning(
                "%(stream)s: the call has ended, sending %(rows)d rows in another one", told, extra=told
            )
            self._retire(lane)
            self._connect(set(part.partitions.cast("i")))
            lane = self._lane(part.partition(0))
            requests = self._requests(part, lane.ident)

    def _requests(self, part: _Part, ident: str) -> Any:
        batch = part.batch
        try:
            return request_columns(
                self._stream,
                byte_column(batch, "value"),
                keys=byte_column(batch, "key"),
                headers=batch.column("headers") if "headers" in batch.schema.names else None,
                partitions=part.partitions,
                policy=int(self._policy),
                ident=ident,
                expected=part.expected,
            )
        except UsageError as exc:
            if (found := _ROW.match(str(exc))) is None:
                raise
            raise UsageError(f"data: row {part.rows[int(found[1])]}{found[2]}") from exc

    def _wait_until_recorded(self, partitions: list[int]) -> None:
        """Wait until the leaders record messages published to partitions, for ``timeout`` seconds each.

        A starting Liftbridge server answers gRPC while it replays its Raft log. The server knows a stream as
        soon as it has replayed the creation of the stream, but subscribes to the NATS subjects of partitions
        only after the last entry. Messages that PublishAsync accepts in between are lost without an ack. The
        same holds for a new leader that other brokers already name. Until the subscription is established,
        the server refuses ``FetchPartitionMetadata`` as "not the leader".
        """
        with contextlib.suppress(LiftEnvelopeError):  # publishing will report the error
            known = self._brokers.stream(self._stream).partitions
            for partition in partitions:
                if partition in known and not known[partition].paused:  # a message resumes a paused partition
                    self._brokers.partition(self._stream, partition)

    def _fail(self, error: LiftEnvelopeError | None) -> NoReturn:
        """Wait for the outcomes that can still come, then raise WriteFailedError.

        Args:
            error: Cause of the failure; None if a row was refused.
        """
        lanes = self._lanes.values()
        for lane in lanes:
            with contextlib.suppress(LiftEnvelopeError):
                lane.settle()
        acked = self._acked + sum(lane.acks.acked for lane in lanes)
        refusals = self.refusals
        late = sum(why.sent for _, why in refusals)
        unknown = sum(lane.acks.pending for lane in lanes) + late
        parts = [f"{self._stream}: {acked} rows are stored"]
        if unknown:
            parts.append(f"of {unknown} it is unknown")
        if refusals:
            row, error = refusals[0]
            parts.append(f"{len(refusals) - late} were refused, first row {row}")
        raise WriteFailedError(f"{', '.join(parts)}: {error}", acked, unknown) from error


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows for one call, with their row numbers in the table.

    Partitions are 32-bit integers, and expected offsets 64-bit integers; None for any offset.
    """

    batch: pa.RecordBatch
    partitions: memoryview
    expected: memoryview | None
    rows: Sequence[int]

    def partition(self, i: int) -> int:
        return int(self.partitions.cast("i")[i])

    def since(self, i: int) -> _Part:
        expected = None if self.expected is None else self.expected[8 * i :]
        return _Part(self.batch.slice(i), self.partitions[4 * i :], expected, self.rows[i:])


def _numbers(array: pa.Int32Array | pa.Int64Array) -> memoryview:
    # A copy, because the caller may write into a numpy array while rows wait.
    size: int = array.type.byte_width
    start = size * array.offset
    return memoryview(memoryview(array.buffers()[1]).cast("B")[start : start + size * len(array)].tobytes())
