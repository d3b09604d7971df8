"""Pipelined publishing: one PublishAsync stream for each broker that messages go through.

:class:`PublishStreams` is what a client has of it: it finds the stream for a partition, gives out correlation
ids, and watches the deadlines of all messages with one timer. A :class:`Lane` is one stream, made again when
it is lost. What becomes of the messages on it :class:`~liftenvelope.client.in_flight.InFlight` decides.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Final

from liftenvelope._correlation_ids import IdSource
from liftenvelope._deadlines import DeadlineBuckets
from liftenvelope._pb import api_pb2
from liftenvelope.client.cluster import Deadline
from liftenvelope.client.in_flight import DONE, Entry, InFlight, Outcome, Sink
from liftenvelope.client.publish_codec import read_publish_responses
from liftenvelope.client.publish_permission import PublishPermissions
from liftenvelope.envelope import Ack
from liftenvelope.errors import (
    EnvelopeError,
    LiftEnvelopeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    PermissionDeniedError,
    TransportError,
    UsageError,
)
from liftenvelope.partition import RoundRobinPartitioner
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftenvelope.client.cluster import Cluster
    from liftenvelope.client.metadata import StreamInfo
    from liftenvelope.client.publish_many import PublishMany
    from liftenvelope.rpc.aio import Call

__all__ = ["MAX_WAITING_BYTES", "Lane", "PublishStreams"]

#: Who can wait before giving more does so while more than this waits to be sent, on all streams together.
MAX_WAITING_BYTES: Final = 1024 * 1024
#: What is handed to the transport at once. What was handed over counts as sent.
_CHUNK_BYTES: Final = 128 * 1024
#: Seconds by which a deadline can be noticed late.
_RESOLUTION: Final = 0.02
#: Seconds after a loss in which leaders must be found. After that, what waits is sent all the same.
_PATIENCE: Final = 5.0
#: Seconds after a loss in which new streams are begun as carefully.
_WARY: Final = 10.0
#: Seconds in which a leader must be found; after that any broker will do.
_LOOK_UP: Final = 1.0
_METHOD: Final = "/proto.API/PublishAsync"


class Lane:
    """A publish stream by way of one broker, and of another one when that is lost.

    It has a task from its first message until it has been idle for ``keep_alive_time``, or was lost with
    nothing on it.
    """

    def __init__(self, streams: PublishStreams, address: str) -> None:
        self.flight = InFlight()
        self._streams = streams
        self._cluster = streams.cluster
        self._address = address
        self._call: Call | None = None
        self._garbled: RpcError | None = None
        self._wake: asyncio.Future[None] | None = None
        # Whether anything came since the last look; whether we have closed our side.
        self._used = True
        self._closing = False
        # How often in a row it was lost, or could not be made; one if another one was, not long ago.
        self._lost = int(asyncio.get_running_loop().time() < streams.wary_until)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._serve())

    def wake(self) -> None:
        """Have what waits sent as soon as may be."""
        if self._wake is None or self._wake.done():
            return  # the writer is at it
        call = self._call
        if call is not None and call.is_idle and not self._closing:
            # The first ones in a turn of the loop are spared the writer's.
            call.send_soon(self._take())
        if self.flight.has_waiting:
            self._wake.set_result(None)

    def _take(self) -> list[bytes]:
        """Take what is to be sent next, and let those know who wait for room."""
        was_full = self._streams.is_full
        requests = self.flight.take(_CHUNK_BYTES)
        if was_full:
            self._streams.wake()
        return requests

    async def close(self) -> None:
        """End it. What has no outcome yet is settled as lost."""
        if self._call is not None and not self._closing:
            self._call.half_close()
        self._task.cancel()
        try:
            await asyncio.gather(self._task, return_exceptions=True)
        finally:
            self._streams.settle(self.flight.abandon("the client was closed"))

    async def _serve(self) -> None:
        """Keep the stream up as long as there is something to do on it."""
        failed: list[str] = []
        self._look_later()
        try:
            while True:
                call = await self._connect(failed)
                if call is not None:
                    await self._converse(call)
                if not self.flight.pending:
                    break
        finally:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._streams.retire(self)

    async def _connect(self, failed: list[str]) -> Call | None:
        """Begin the call: with the broker that it is for, else with any. None if that failed; then wait."""
        deadline = Deadline(self._cluster.options.connect_timeout)
        if self._lost:
            await deadline.pause(self._lost)
            await self._until_served(Deadline(_PATIENCE))
        address = await self._cluster.any_broker(failed, deadline) if failed else self._address
        try:
            channel = await self._cluster.connections.channel(address)
            call = channel.bidi(_METHOD)
        except (CallNotProcessedError, RpcError):
            # Nothing was lost: what waits goes on waiting, until its deadline.
            self._note_loss()
            failed.append(address)
            return None
        failed.clear()
        return call

    async def _until_served(self, deadline: Deadline) -> None:
        """After a loss, wait until leaders take the messages that wait.

        A broker that has just come back knows none of its streams for a moment, and then takes messages for
        partitions that it does not record yet: they would be lost, and nobody be told.
        """
        attempt = 0
        while not deadline.is_over and not await self._is_served():
            attempt += 1
            await deadline.pause(attempt)

    async def _is_served(self) -> bool:
        for stream, partition in self.flight.partitions:
            if not await self._streams.is_served(stream, partition):
                return False
        return True

    async def _converse(self, call: Call) -> None:
        """Send and receive until the call ends."""
        self._call, self._closing, self._garbled = call, False, None
        call.listen(self._answered)
        writer = asyncio.create_task(self._write(call))
        error: RpcError | TransportError | None = None
        try:
            await call.receive()  # the end
        except (RpcError, TransportError) as exc:
            error = self._cause(exc)
        finally:
            self._call = None
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        if not self._closing:
            self._note_loss()
        self._streams.settle(self.flight.ended(error))

    def _cause(self, error: RpcError | TransportError) -> RpcError | TransportError:
        """What ended the stream: an error, or what the call was given up for."""
        return self._garbled or error

    def _answered(self, payloads: list[bytes]) -> None:
        """Take answers, as they come from the socket."""
        if self._garbled is not None:
            return
        self._used, self._lost = True, 0
        try:
            responses = read_publish_responses(payloads)
        except EnvelopeError as exc:
            self._garbled = RpcError(StatusCode.INTERNAL, f"the server's answer can't be read: {exc}")
            if self._call is not None:  # not at once: the connection is handing out what came
                asyncio.get_running_loop().call_soon(self._call.cancel)
            return
        self._streams.settle(self.flight.feed(responses))

    def _note_loss(self) -> None:
        self._lost += 1
        self._streams.wary_until = asyncio.get_running_loop().time() + _WARY

    async def _write(self, call: Call) -> None:
        """Send what waits, in large pieces, as fast as the transport takes it."""
        flight = self.flight
        try:
            while True:
                while flight.has_waiting and not self._closing:
                    await call.send(self._take())
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
        except (RpcError, TransportError):
            return  # the reader learns the same, and settles what that means
        finally:
            self._wake = None

    def _look_later(self) -> None:
        seconds = self._cluster.options.keep_alive_time / 2
        self._idle_timer = asyncio.get_running_loop().call_later(seconds, self._close_idle)

    def _close_idle(self) -> None:
        """Close our side if nothing came for a while and nothing is to come. The server then ends it."""
        if self._call is not None and not self._used and not self.flight.pending and not self._closing:
            self._closing = True
            self._call.half_close()
        self._used = False
        self._look_later()


class PublishStreams:
    """The publish streams of a client."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.round_robin = RoundRobinPartitioner()
        self._permissions = PublishPermissions(cluster)
        #: Until when, by the loop's clock, brokers may only just have come back.
        self.wary_until = 0.0
        self._ids = IdSource()
        #: New correlation ids, without end.
        self.ids = self._ids.stream
        self._serials = count()
        self._deadlines = DeadlineBuckets(_RESOLUTION)
        self._last_bucket: dict[str, Entry] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lanes: dict[str, Lane] = {}
        self._pins: dict[tuple[str, int], Lane] = {}
        self._progress: asyncio.Future[None] | None = None
        #: Those that have a task to take messages from an async iterator.
        self.runs: set[PublishMany] = set()
        self._tasks: set[asyncio.Task[Ack | None]] = set()
        self._closed = False

    # Finding the stream

    async def partition_info(self, stream: str, deadline: Deadline, partition: int | None) -> StreamInfo:
        """Return a stream that has a partition, if one is given.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: It has no such partition, also after asking again.
        """
        info = await self.cluster.stream(stream, deadline)
        if partition is not None and partition not in info.partitions:
            info = await self.cluster.stream(stream, deadline, refresh=True)
            if partition not in info.partitions:
                known = len(info.partitions)
                text = f"stream {stream!r} has no partition {partition}, but {known} from 0"
                raise NoSuchPartitionError(StatusCode.NOT_FOUND, text)
        return info

    async def is_served(self, stream: str, partition: int) -> bool:
        """Ask whether a partition has a leader who says so himself. A paused one is woken by a message."""
        deadline = Deadline(_LOOK_UP)
        request = api_pb2.FetchPartitionMetadataRequest(stream=stream, partition=partition)
        route = self.cluster.leader_of(stream, partition)
        try:
            info = await self.cluster.stream(stream, deadline, refresh=True)
            if partition in info.partitions and info.partitions[partition].paused:
                return True
            data = request.SerializeToString()
            await self.cluster.call("FetchPartitionMetadata", data, route, deadline, f"{stream}[{partition}]")
        except PermissionDeniedError:
            return True  # a client that may only publish can't find it out
        except LiftEnvelopeError:
            return False  # asked again, or found out by publishing
        return True

    def pinned(self, stream: str, partition: int) -> Lane | None:
        """Return the lane that messages of a partition go by, None if there is none yet."""
        return self._pins.get((stream, partition))

    async def pin(self, info: StreamInfo, partition: int, deadline: Deadline) -> Lane:
        """Return the lane that messages of a partition go by, by choice that of its leader.

        Raises:
            PermissionDeniedError: The server does not let this client publish to the stream.
            TransportError, CallTimeoutError: No broker answered in time.
        """
        address = await self._address(info.partitions[partition].leader, deadline)
        await self._permissions.check(address, info.name, deadline)
        lane = self._pins.get((info.name, partition))  # another one was quicker
        if lane is not None:
            return lane
        if self._closed:
            raise TransportError("the client is closed: make a new one with connect()")
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = Lane(self, address)
        self._pins[info.name, partition] = lane
        return lane

    async def _address(self, leader: str, deadline: Deadline) -> str:
        if leader:
            try:
                return await self.cluster.broker_address(leader, Deadline(min(deadline.left, _LOOK_UP)))
            except LiftEnvelopeError:
                pass  # any broker hands messages on, and whether it can be reached is seen soon enough
        return await self.cluster.any_broker((), deadline)

    def retire(self, lane: Lane) -> None:
        """Forget a lane that has ended. Its partitions find another one when they need it."""
        self._lanes = {address: one for address, one in self._lanes.items() if one is not lane}
        self._pins = {partition: one for partition, one in self._pins.items() if one is not lane}

    # Messages

    def new_id(self, given: str | None) -> str:
        """Return the correlation id of a message: the given one, or one that is not in use.

        Raises:
            UsageError: The given one is that of a message in flight.
        """
        if given is None:
            return next(self.ids)
        in_use = any(given in lane.flight.pending for lane in self._lanes.values())
        if not given or in_use or self._ids.is_reserved(given):
            what = "is that of a message in flight" if given else "must not be empty"
            raise UsageError(f"correlation_id {given!r} {what}")
        return given

    def _bucket(self, deadline: float) -> dict[str, Entry]:
        """Return where messages of a deadline stand until they have an outcome; to be filled at once."""
        bucket = self._deadlines.bucket(deadline)
        if bucket is not self._last_bucket:
            self._last_bucket = bucket
            if self._timer is None or self._timer.when() > deadline + _RESOLUTION:
                self._set_timer(deadline + _RESOLUTION)
        return bucket

    def submit(self, lane: Lane, entries: Sequence[Entry], timeout: float) -> None:
        """Give messages to a lane. Their sinks are told the outcomes, after ``timeout`` at the latest."""
        bucket = self._bucket(asyncio.get_running_loop().time() + timeout)
        lane.flight.add(entries, bucket, next(self._serials))
        lane.wake()

    def track(self, task: asyncio.Task[Ack | None]) -> None:
        """Look after a publish that goes by a call of its own."""
        self._tasks.add(task)
        task.add_done_callback(self._untrack)

    def _untrack(self, task: asyncio.Task[Ack | None]) -> None:
        self._tasks.discard(task)
        self.wake()

    def settle(self, outcomes: Iterable[tuple[Entry, Outcome]]) -> None:
        """Tell the sinks what became of messages."""
        for entry, outcome in outcomes:
            if type(outcome) is not Ack:
                self._learn(entry.sink.stream, outcome)
            entry.sink.settle(entry, outcome)
        self.wake()

    def _learn(self, stream: str, outcome: Outcome) -> None:
        """Draw the conclusions of a failure for the other messages of a stream."""
        if isinstance(outcome, NoSuchStreamError | NoSuchPartitionError):
            self.cluster.forget(stream)
        elif isinstance(outcome, PermissionDeniedError) and outcome.sent:
            # The server would store what it refuses: send nothing more before it was asked.
            self._permissions.refused(stream)
            self._pins = {key: lane for key, lane in self._pins.items() if key[0] != stream}
            for lane in self._lanes.values():
                self.settle(lane.flight.deny(stream, outcome))

    def drop(self, sink: Sink) -> None:
        """Give up every message of a sink. It is told of none of them."""
        for lane in self._lanes.values():
            for entry in [entry for entry in lane.flight.pending.values() if entry.sink is sink]:
                lane.flight.drop(entry)
        self.wake()

    @property
    def count(self) -> int:
        """How many messages have no outcome."""
        return sum(len(lane.flight.pending) for lane in self._lanes.values()) + len(self._tasks)

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be sent that those who can should wait before giving more."""
        return sum(lane.flight.waiting_bytes for lane in self._lanes.values()) > MAX_WAITING_BYTES

    # Waiting

    def wake(self) -> None:
        """Have those who wait for progress look again."""
        if self._progress is not None:
            self._progress.set_result(None)
            self._progress = None

    async def progress(self) -> None:
        """Return when a message has got its outcome, or was sent. Every message has one in the end."""
        if self._progress is None:
            self._progress = asyncio.get_running_loop().create_future()
        # Several may wait; the cancellation of one must not reach the others.
        await asyncio.shield(self._progress)

    async def flush(self) -> None:
        """Return when every message that was submitted until now has an outcome."""
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
        self._timer = asyncio.get_running_loop().call_at(at, self._expire)

    def _expire(self) -> None:
        """Settle what is over its time."""
        self._timer = None
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
        """End every stream. What can be sent is sent first; what then has no outcome is settled as lost."""
        self._closed = True
        for run in tuple(self.runs):
            run.stop()
        await self._permissions.close()
        for _ in range(3):  # the writers, the connections, and what those woke
            await asyncio.sleep(0)
        await asyncio.gather(*(lane.close() for lane in list(self._lanes.values())))
        self._lanes, self._pins = {}, {}
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
