"""Pipelined publishing: one PublishAsync stream per broker.

:class:`PublishStreams`, one per client, finds the stream for a partition, makes correlation ids, and watches
the deadlines of all messages with one timer. Each stream is a
:class:`~liftenvelope.client._sending.lane.Lane`, which reopens it when it is lost.
:class:`~liftenvelope.client._sending.in_flight.InFlight` decides the outcomes of a stream's messages.
"""

from __future__ import annotations

import asyncio
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope._deadlines import Deadline, DeadlineBuckets
from liftenvelope._wire import IdSource
from liftenvelope.client._recent import MOST_NAMES
from liftenvelope.client._sending.in_flight import DONE, Entry, Outcome, Sink
from liftenvelope.client._sending.lane import Lane
from liftenvelope.client._sending.leader_check import LOOK_UP
from liftenvelope.client.failures import no_such_partition
from liftenvelope.client.publish_permission import PublishPermissions
from liftenvelope.envelope import Ack
from liftenvelope.errors import (
    LiftEnvelopeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    PermissionDeniedError,
    TransportError,
    UsageError,
)
from liftenvelope.partition import RoundRobinPartitioner

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftenvelope.client._brokers.cluster import Cluster
    from liftenvelope.client.metadata import StreamInfo

__all__ = ["MAX_WAITING_BYTES", "PublishStreams"]

#: Backpressure limit: producers that can wait do so while more bytes than this are unsent on all streams.
MAX_WAITING_BYTES: Final = 1024 * 1024
#: Resolution of deadlines in seconds: a timeout can be noticed this late.
_RESOLUTION: Final = 0.02


class _Run(Protocol):
    """A bulk publish whose task takes messages from an async iterator."""

    def stop(self) -> None:
        """Stop taking messages."""
        ...


class PublishStreams:
    """All publish streams of a client."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.round_robin = RoundRobinPartitioner()
        self._permissions = PublishPermissions(cluster)
        #: Time of the loop's clock until which brokers may have restarted only a moment ago.
        self.wary_until = 0.0
        self._ids = IdSource()
        #: Endless iterator of new correlation ids.
        self.ids = self._ids.stream
        self._serials = count()
        self._deadlines = DeadlineBuckets(_RESOLUTION)
        self._last_bucket: dict[str, Entry] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Time of the timer. uvloop's handle of a timer that is due at once does not tell its time.
        self._timer_at = inf
        self._lanes: dict[str, Lane] = {}
        self._pins: dict[tuple[str, int], Lane] = {}
        # Number of pins at which idle ones are dropped.
        self._tidy_at = MOST_NAMES
        # Futures of callers of progress(), as a set in the order of the calls.
        self._waiting: dict[asyncio.Future[None], None] = {}
        #: Bulk publishes to stop on close.
        self.runs: set[_Run] = set()
        self._tasks: set[asyncio.Task[Ack | None]] = set()
        #: True once closing cancels the tasks of unary calls.
        self.has_given_up = False
        self._closed = False

    # Finding the stream

    async def partition_info(self, stream: str, deadline: Deadline, partition: int | None) -> StreamInfo:
        """Return the metadata of a stream, and check that it has a partition if one is given.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition, even in newly fetched metadata.
        """
        info = await self.cluster.stream(stream, deadline)
        if partition is not None and partition not in info.partitions:
            info = await self.cluster.stream(stream, deadline, refresh=True)
            if partition not in info.partitions:
                raise no_such_partition(stream, partition, len(info.partitions))
        return info

    def pinned(self, stream: str, partition: int) -> Lane | None:
        """Return the lane of a partition, None if it has none yet."""
        return self._pins.get((stream, partition))

    async def pin(self, info: StreamInfo, partition: int, deadline: Deadline) -> Lane:
        """Return the lane of a partition, and open one if needed, preferably to the partition's leader.

        Raises:
            PermissionDeniedError: The server does not let this client publish to the stream.
            TransportError, CallTimeoutError: No broker answered in time.
        """
        address = await self._address(info.partitions[partition].leader, deadline)
        await self._permissions.check(address, info.name, deadline)
        lane = self._pins.get((info.name, partition))  # a concurrent call may have set it
        if lane is not None:
            return lane
        if self._closed:
            raise TransportError("the client is closed: make a new one with connect()")
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = Lane(self, address)
        if len(self._pins) >= self._tidy_at:
            self._drop_idle_pins()
        self._pins[info.name, partition] = lane
        return lane

    def _drop_idle_pins(self) -> None:
        """Bound the pins of a client that uses ever new streams.

        A partition with messages in flight keeps its lane, and so its order. The others are pinned again with
        their next message, from cached metadata.
        """
        busy = {one for lane in self._lanes.values() for one in lane.flight.partitions}
        self._pins = {partition: lane for partition, lane in self._pins.items() if partition in busy}
        self._tidy_at = max(MOST_NAMES, 2 * len(self._pins))

    async def _address(self, leader: str, deadline: Deadline) -> str:
        if leader:
            try:
                return await self.cluster.broker_address(leader, Deadline(min(deadline.left, LOOK_UP)))
            except LiftEnvelopeError:
                pass  # any broker forwards messages, and an unreachable one is noticed soon
        return await self.cluster.any_broker((), deadline)

    def retire(self, lane: Lane) -> None:
        """Forget a lane that has ended. Its partitions get a new lane with their next message."""
        self._lanes = {address: one for address, one in self._lanes.items() if one is not lane}
        self._pins = {partition: one for partition, one in self._pins.items() if one is not lane}

    # Messages

    def new_id(self, given: str | None) -> str:
        """Return the correlation id of a message: the given one, or a new one.

        Raises:
            UsageError: The given id is empty, or that of a message in flight.
        """
        if given is None:
            return next(self.ids)
        in_use = any(given in lane.flight.pending for lane in self._lanes.values())
        if not given or in_use or self._ids.is_reserved(given):
            what = "differ from those of the messages in flight" if given else "not be empty"
            raise UsageError(f"correlation_id must {what}, got {given!r}")
        return given

    def may_be_acked_late(self, correlation_id: str | None) -> bool:
        """Return True if an ack may still come for a message of that id which was given up.

        The ack of another message with the id could not be told apart from it.
        """
        return correlation_id is not None and any(
            correlation_id in lane.flight.given_up for lane in self._lanes.values()
        )

    def _bucket(self, deadline: float) -> dict[str, Entry]:
        """Return the bucket for messages with a deadline. The caller must fill the bucket at once."""
        bucket = self._deadlines.bucket(deadline)
        if bucket is not self._last_bucket:
            self._last_bucket = bucket
            if self._timer_at > deadline + _RESOLUTION:
                self._set_timer(deadline + _RESOLUTION)
        return bucket

    def submit(self, lane: Lane, entries: Sequence[Entry], timeout: float) -> None:
        """Give messages to a lane. Their sinks get the outcomes within ``timeout`` seconds."""
        bucket = self._bucket(asyncio.get_running_loop().time() + timeout)
        lane.flight.add(entries, bucket, next(self._serials))
        lane.wake()

    def track(self, task: asyncio.Task[Ack | None]) -> None:
        """Count a publish that is made by a unary call as in flight until its task ends."""
        self._tasks.add(task)
        task.add_done_callback(self._untrack)

    def _untrack(self, task: asyncio.Task[Ack | None]) -> None:
        self._tasks.discard(task)
        self.wake()

    def settle(self, outcomes: Iterable[tuple[Entry, Outcome]]) -> None:
        """Pass outcomes of messages to their sinks."""
        for entry, outcome in outcomes:
            if type(outcome) is not Ack:
                self._learn(entry.sink.stream, outcome)
            entry.sink.settle(entry, outcome)
        self.wake()

    def _learn(self, stream: str, outcome: Outcome) -> None:
        """Apply a failure to the other messages of the stream, if it concerns them."""
        if isinstance(outcome, NoSuchStreamError | NoSuchPartitionError):
            self.cluster.forget(stream)
        elif isinstance(outcome, PermissionDeniedError) and outcome.sent:
            # The server stores messages that it refuses: send nothing more before a permission check.
            self._permissions.refused(stream)
            self._pins = {key: lane for key, lane in self._pins.items() if key[0] != stream}
            for lane in self._lanes.values():
                self.settle(lane.flight.deny(stream, outcome))

    def drop(self, sink: Sink) -> None:
        """Give up every message of a sink. The sink gets no outcome of them."""
        for lane in self._lanes.values():
            for entry in [entry for entry in lane.flight.pending.values() if entry.sink is sink]:
                lane.flight.drop(entry)
        self.wake()

    @property
    def count(self) -> int:
        """Number of messages without an outcome."""
        # A copy: a thread that exports metrics reads while the event loop adds lanes.
        return sum(len(lane.flight.pending) for lane in list(self._lanes.values())) + len(self._tasks)

    @property
    def is_full(self) -> bool:
        """True if producers that can wait should do so: more than ``MAX_WAITING_BYTES`` are unsent."""
        return sum(lane.flight.waiting_bytes for lane in self._lanes.values()) > MAX_WAITING_BYTES

    def has_room(self, max_outstanding: int) -> bool:
        """Return True if one more message may be sent: fewer than the limit are without an outcome.

        Same as a check of :attr:`count` and :attr:`is_full`, in one pass, because it runs for every message.
        """
        outstanding, waiting_bytes = len(self._tasks), 0
        for lane in self._lanes.values():
            outstanding += len(lane.flight.pending)
            waiting_bytes += lane.flight.waiting_bytes
        return outstanding < max_outstanding and waiting_bytes <= MAX_WAITING_BYTES

    # Waiting

    def wake(self) -> None:
        """Wake all callers of :meth:`progress`."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def progress(self) -> None:
        """Wait until a message gets its outcome or is sent. Every message gets an outcome in the end."""
        # A future for each caller: one that is shared needs asyncio.shield(), and so a turn of the loop more.
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    async def flush(self) -> None:
        """Wait until every message submitted before this call has an outcome."""
        serial, tasks = next(self._serials), set(self._tasks)
        while self._oldest() < serial or tasks & self._tasks:
            await self.progress()

    def _oldest(self) -> float:
        flights = [lane.flight.pending for lane in self._lanes.values() if lane.flight.pending]
        return min((next(iter(pending.values())).serial for pending in flights), default=float("inf"))

    # Deadlines

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = asyncio.get_running_loop().call_at(at, self._expire), at

    def _expire(self) -> None:
        """Settle messages whose deadline has passed."""
        self._timer, self._timer_at = None, inf
        self._last_bucket = None
        now = asyncio.get_running_loop().time()
        for bucket in self._deadlines.pop_due(now):
            self._time_out(list(bucket.values()))
        if (end := self._deadlines.next_end()) is not None:
            self._set_timer(end)

    def _time_out(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.state != DONE:
                error = entry.timed_out()
                entry.flight.drop(entry)
                entry.sink.settle(entry, error)
        self.wake()

    async def close(self) -> None:
        """Send what can be sent, then end every stream. Messages without an outcome are settled as lost."""
        self._closed = True
        for run in tuple(self.runs):
            run.stop()
        await self._permissions.close()
        for _ in range(3):  # one turn each for the writers, the connections, and the tasks that those wake
            await asyncio.sleep(0)
        await asyncio.gather(*(lane.close() for lane in list(self._lanes.values())))
        self._lanes, self._pins = {}, {}
        self.has_given_up = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
