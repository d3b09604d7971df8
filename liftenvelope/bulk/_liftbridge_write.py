"""Rows into a Liftbridge stream, many without their ack at a time."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

from liftenvelope._extras import require
from liftenvelope.arrow import request_columns
from liftenvelope.bulk._brokers import Brokers
from liftenvelope.bulk._placing import Placing, byte_column
from liftenvelope.bulk._publish_lane import Lane
from liftenvelope.bulk.errors import WriteFailedError
from liftenvelope.bulk.outgoing import Written
from liftenvelope.client.options import check_count
from liftenvelope.client.publish_checks import check_published_stream
from liftenvelope.client.retries import pause_before
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    LiftEnvelopeError,
    NotLeaderError,
    PermissionDeniedError,
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
    from liftenvelope.bulk.schema import pa

    pc = require("pyarrow.compute", "bulk")

__all__ = ["LiftbridgeWrite"]

#: Of how many bytes the random part of correlation ids is made.
_IDENT: Final = 6


class LiftbridgeWrite:
    """One write.

    Rows go to the leader of their partition, over one call for each broker. A call that ends while every row
    has its outcome is made again, for ``reconnect_wait`` seconds; if it ends with rows that have none, the
    write has failed, since nobody can say whether they are stored. After a row that was refused none is sent.

    Args:
        target: The servers.
        stream: Name of the stream.
        partition: Where rows go that name no partition; None to have it chosen.
        partitioner: What chooses it.
        ack_policy: LEADER or ALL.
        max_in_flight: How many rows may be without their ack.
        ack_wait: Seconds to wait for acks.

    Raises:
        UsageError: An argument makes no sense.
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
            raise UsageError("ack_policy NONE: a write waits for its acks; expected LEADER or ALL")
        self._window = check_count("max_in_flight", max_in_flight)
        self._ack_wait = ack_wait
        self._access = target.access
        self._brokers = Brokers(target)
        self._partitions = 0
        self._lanes: dict[str, Lane] = {}
        self._routes: dict[int, Lane] = {}
        self._rows = self._acked = self._bytes = 0
        self._offsets: dict[int, tuple[int, int]] = {}

    def open(self) -> None:
        """Make sure that there is such a stream.

        Raises:
            NoSuchStreamError: There is none.
            NoSuchPartitionError: It does not have the partition that was named.
            TransportError, CallTimeoutError: No server could be reached.
        """
        partitions = self._brokers.stream(self._stream).partitions
        self._partitions = len(partitions)
        self._placing.open(self._partitions)
        # What may be in flight is shared out among the calls that there will be.
        brokers = {info.leader for info in partitions.values() if info.leader}
        self._window = max(1, self._window // max(1, len(brokers)))

    def close(self) -> None:
        """Close the connections."""
        for lane in self._lanes.values():
            lane.close()
        self._brokers.close()

    @property
    def nbytes(self) -> int:
        """How many bytes the values of the rows so far have."""
        return self._bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Publish rows. Returns when all but so many as may be in flight are acked.

        Raises:
            UsageError: A row can't be published; nothing of the batch was sent.
            WriteFailedError: A row was refused, or its outcome is unknown.
        """
        self._rows += batch.num_rows
        for part in self._parts(batch, self._placing.of(batch), self._rows - batch.num_rows):
            try:
                self._publish(part)
            except (UsageError, WriteFailedError):
                raise
            except LiftEnvelopeError as exc:
                self._fail(exc)

    def finish(self) -> Written:
        """Wait for all acks.

        Raises:
            WriteFailedError: A row was refused, or its outcome is unknown.
        """
        for lane in list(self._lanes.values()):
            try:
                lane.settle()
            except LiftEnvelopeError as exc:
                self._fail(exc)
            if lane.refusals:
                self._fail(None)
            self._retire(lane)
        return Written(self._acked, self._bytes, 0, dict(sorted(self._offsets.items())))

    # Which way

    def _parts(self, batch: pa.RecordBatch, partitions: pa.Int32Array, first: int) -> Iterator[_Part]:
        """The rows of a batch by the brokers that lead their partitions."""
        if not batch.num_rows:
            return
        by_lane: dict[Lane, list[int]] = {}
        numbers = pc.unique(partitions).to_pylist()
        self._connect(numbers)
        for partition in numbers:
            by_lane.setdefault(self._lane(partition), []).append(partition)
        if len(by_lane) == 1:
            yield _Part(batch, _numbers(partitions), range(first, first + batch.num_rows))
            return
        for numbers in by_lane.values():
            which = pc.indices_nonzero(pc.is_in(partitions, value_set=pa.array(numbers, pa.int32())))
            rows = [first + i for i in which.to_pylist()]
            yield _Part(batch.take(which), _numbers(partitions.take(which)), rows)

    def _connect(self, partitions: Iterable[int]) -> None:
        """Open the calls for partitions, and wait until the leaders of those that are new record messages.

        Raises:
            LiftEnvelopeError: As for :meth:`_lane`.
        """
        new = [partition for partition in partitions if partition not in self._routes]
        for partition in new:
            self._lane(partition)
        if new:
            self._wait_until_recorded(new)

    def _lane(self, partition: int) -> Lane:
        """The call that rows of a partition go over.

        Raises:
            TransportError, CallTimeoutError, NotLeaderError: There was no way for ``reconnect_wait`` seconds.
            NoSuchStreamError, NoSuchPartitionError: There is none.
            PermissionDeniedError: The server does not let this client publish to the stream.
        """
        if partition in self._routes:
            return self._routes[partition]
        limit, attempt = time.monotonic() + self._access.reconnect_wait, 0
        while True:
            try:
                address = self._brokers.leader(self._stream, partition, self._access.timeout)
                lane = self._lanes.get(address) or self._new_lane(address)
            except (TransportError, CallTimeoutError, NotLeaderError):
                if time.monotonic() >= limit:
                    raise
                attempt += 1
                time.sleep(pause_before(attempt))
            else:
                self._lanes[address] = self._routes[partition] = lane
                return lane

    def _new_lane(self, address: str) -> Lane:
        self._brokers.check_publish(self._stream, address)
        # A sign behind what is random: digits follow.
        ident = f"{secrets.token_urlsafe(_IDENT)}."
        channel = self._brokers.new_channel(address)
        return Lane(channel, self._stream, ident, self._window, self._partitions, self._ack_wait)

    def _retire(self, lane: Lane) -> None:
        """Count what came of a call, and forget it. Rows of its partitions find another one."""
        self._acked += lane.acks.acked
        for partition, (first, last) in lane.acks.offsets().items():
            known = self._offsets.get(partition, (first, last))
            self._offsets[partition] = min(known[0], first), max(known[1], last)
        self._lanes = {address: one for address, one in self._lanes.items() if one is not lane}
        self._routes = {partition: one for partition, one in self._routes.items() if one is not lane}
        lane.close()

    # Sending

    def _publish(self, part: _Part) -> None:
        """Publish rows over one call, and what is left of them over another one if that ends without harm."""
        at, count = 0, len(part.rows)
        while at < count:
            lane = self._lane(part.partition(at))
            rest = part.since(at)
            requests = self._requests(rest, lane.ident)
            self._bytes += 0 if at else requests.nbytes
            at += lane.publish(requests, rest.partitions, rest.rows)
            if lane.refusals:
                self._fail(None)
            if at < count:
                self._retire(lane)
                self._connect(set(part.since(at).partitions.cast("i")))

    def _requests(self, part: _Part, ident: str) -> Any:
        batch = part.batch
        return request_columns(
            self._stream,
            byte_column(batch, "value"),
            keys=byte_column(batch, "key"),
            headers=batch.column("headers") if "headers" in batch.schema.names else None,
            partitions=part.partitions,
            policy=int(self._policy),
            ident=ident,
        )

    def _wait_until_recorded(self, partitions: list[int]) -> None:
        """Wait until the leaders record what is published to partitions, for ``timeout`` seconds each.

        A Liftbridge server that starts answers gRPC while it replays its Raft log. It knows a stream as soon
        as it has replayed its creation, but subscribes to the NATS subjects of partitions only after the last
        entry. Messages that PublishAsync takes in between are lost without an ack. The same holds for a new
        leader that other brokers name already. ``FetchPartitionMetadata`` is refused as "not the leader"
        until the subscription stands.
        """
        with contextlib.suppress(LiftEnvelopeError):  # the attempt to send says what is wrong
            known = self._brokers.stream(self._stream).partitions
            for partition in partitions:
                if partition in known and not known[partition].paused:  # a message resumes a paused partition
                    self._brokers.partition(self._stream, partition)

    def _fail(self, error: LiftEnvelopeError | None) -> NoReturn:
        """End the write, once every row has its outcome or never will.

        Args:
            error: Why; None for a row that was refused.
        """
        lanes = self._lanes.values()
        for lane in lanes:
            with contextlib.suppress(LiftEnvelopeError):
                lane.settle()
        acked = self._acked + sum(lane.acks.acked for lane in lanes)
        refusals = sorted((one for lane in lanes for one in lane.refusals), key=itemgetter(0))
        uncertain = AckTimeoutError | PermissionDeniedError
        late = sum(isinstance(why, uncertain) and why.sent for _, why in refusals)
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
    """Rows that go over one call: their partitions as 32-bit integers, and their numbers in the table."""

    batch: pa.RecordBatch
    partitions: memoryview
    rows: Sequence[int]

    def partition(self, i: int) -> int:
        return int(self.partitions.cast("i")[i])

    def since(self, i: int) -> _Part:
        return _Part(self.batch.slice(i), self.partitions[4 * i :], self.rows[i:])


def _numbers(array: pa.Int32Array) -> memoryview:
    start = 4 * array.offset
    return memoryview(array.buffers()[1]).cast("B")[start : start + 4 * len(array)]
