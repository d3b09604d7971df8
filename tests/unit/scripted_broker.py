"""SCRIPTED, NOT REAL: brokers in this process that say what a test tells them to.

They speak gRPC over real sockets, through ``liftenvelope.rpc.server``, and keep logs in lists. They are for
what a real server can't be made to do at a certain moment. What real servers do is tested in
``tests/integration``. The answers, statuses and texts that a test does not name were compared with those of
Liftbridge 1.9.0, call by call. A handshake is an empty message, an error before it has no headers of its own,
and unknown streams and groups have nothing but a name and an error.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from google.protobuf.message import Message as ProtobufMessage

import liftenvelope
from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.client._reading.message_reader import MessageReader
from liftenvelope.client.client import Client
from liftenvelope.rpc._http2 import ErrorCodes
from liftenvelope.rpc.server import Server, ServerCall
from liftenvelope.rpc.status import RpcError, StatusCode

#: Answers one call. What it returns is sent; an RpcError is the call's status.
Handler: TypeAlias = "Callable[[ServerCall, bytes], Awaitable[bytes | None]]"
#: A handler, an answer, or a status.
Step: TypeAlias = "Handler | ProtobufMessage | RpcError"

#: What of a method there is: the name of its request, and whether that is all the answer that it needs.
METHODS = (
    "CreateStream",
    "DeleteStream",
    "PauseStream",
    "SetStreamReadonly",
    "Subscribe",
    "FetchMetadata",
    "FetchPartitionMetadata",
    "Publish",
    "PublishToSubject",
    "SetCursor",
    "FetchCursor",
    "JoinConsumerGroup",
    "LeaveConsumerGroup",
    "FetchConsumerGroupAssignments",
    "ReportConsumerGroupCoordinator",
)
HANDSHAKE = b""
#: Seconds for calls that must succeed, however slow the machine is.
PATIENT = 30.0
LARGEST = 2**63 - 1


def message(offset: int, *, value: bytes = b"", time_ns: int | None = None, partition: int = 0) -> bytes:
    """A stored message, as servers send it."""
    return api_pb2.Message(
        offset=offset,
        value=value or b"value %d" % offset,
        timestamp=offset * 1000 if time_ns is None else time_ns,
        stream="foo",
        partition=partition,
        subject="foo",
        headers={"subject": b"foo", "reply": b""},  # servers add them
    ).SerializeToString()


async def stall(call: ServerCall, request: bytes) -> bytes | None:
    """Never answer."""
    await asyncio.Event().wait()
    return None


def reset(call: ServerCall) -> None:
    """Reset a call with CANCEL, without headers, as grpc-go 1.85 does when a call's deadline passes."""
    call._link.protocol._forget(call.flow.call_id, ErrorCodes.CANCEL)
    call._link.flush()


async def reset_at_once(call: ServerCall, request: bytes) -> bytes | None:
    """A step: reset the call long before its deadline."""
    reset(call)
    return None


async def reset_at_deadline(call: ServerCall, request: bytes) -> bytes | None:
    """A step: reset the call when its deadline passes, a little before the client's own timer fires."""
    assert call.timeout is not None
    await asyncio.sleep(max(0.0, call.timeout - 0.05))
    reset(call)
    return None


@dataclass
class Log:
    """A partition's log.

    Attributes:
        offsets: Its messages.
        high_watermark: Of the last one that is committed, None for all.
        chunk: How many messages share a list.
        size: Bytes of each, 0 for a few.
        removed_to: Of an empty log, the last offset that it had.
    """

    offsets: list[int] = field(default_factory=list)
    high_watermark: int | None = None
    partition: int = 0
    chunk: int = 3
    size: int = 0
    removed_to: int = -1
    grew: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def newest(self) -> int:
        return self.offsets[-1] if self.offsets else self.removed_to

    @property
    def visible(self) -> int:
        return self.newest if self.high_watermark is None else self.high_watermark

    def add(self, count: int = 1) -> None:
        """Append messages; whoever follows the log gets them."""
        self.append(*range(self.newest + 1, self.newest + 1 + count))

    def append(self, *offsets: int) -> None:
        """Append messages with given offsets."""
        self.offsets += offsets
        self.grew.set()
        self.grew = asyncio.Event()

    def payloads(self, first: int, last: int) -> list[bytes]:
        """The messages from one offset to another."""
        found = [offset for offset in self.offsets if first <= offset <= min(last, self.visible)]
        return [
            message(offset, partition=self.partition, value=bytes(self.size) if self.size else b"")
            for offset in found
        ]


class ScriptedBroker:
    """A broker that does as told, and as observed where it was told nothing.

    Attributes:
        id: Its id.
        calls: How often each method was called.
        requests: The requests of each method, in order.
        lists: The brokers that it knows of.
        streams: Their partitions' leaders, by name and number.
        logs: By stream and partition.
        created_ns: Creation time of its streams.
        isr: The brokers in sync of every partition, by default the leader alone.
        reads_backwards: Whether it is one of those that heed ``reverse``.
    """

    def __init__(self, name: str) -> None:
        self.id = name
        self.calls: Counter[str] = Counter()
        self.requests: defaultdict[str, list[bytes]] = defaultdict(list)
        self.lists: list[ScriptedBroker] = [self]
        self.streams: dict[str, list[str]] = {}
        self.subjects: dict[str, str] = {}
        self.logs: dict[tuple[str, int], Log] = {}
        self.reads_backwards = True
        self.partition_count = 0
        self.created_ns = 0
        self.isr: list[str] = []
        self.advertised = ""
        self._once: defaultdict[str, deque[Step]] = defaultdict(deque)
        self._always: dict[str, Step] = {
            "FetchMetadata": self._metadata,
            "FetchPartitionMetadata": self._partition,
            "Subscribe": self._subscribe,
            "CreateStream": api_pb2.CreateStreamResponse(),
            "DeleteStream": api_pb2.DeleteStreamResponse(),
            "PauseStream": api_pb2.PauseStreamResponse(),
            "SetStreamReadonly": api_pb2.SetStreamReadonlyResponse(),
            "Publish": self._publish,
            "SetCursor": api_pb2.SetCursorResponse(),
            "FetchCursor": api_pb2.FetchCursorResponse(offset=-1),
            "LeaveConsumerGroup": api_pb2.LeaveConsumerGroupResponse(),
        }
        handlers = {f"/proto.API/{method}": self._serve(method) for method in METHODS}
        self.server = Server(handlers)
        self.address = ""

    # For tests

    def next(self, method: str, *steps: Step) -> None:
        """Answer the next calls of a method so, one after the other."""
        self._once[method].extend(steps)

    def always(self, method: str, step: Step) -> None:
        """Answer all calls of a method so that nothing else is said of."""
        self._always[method] = step

    def drop(self) -> None:
        """Close every connection, with nothing before: so does Liftbridge 1.9.0 when it stops."""
        for link in tuple(self.server.links):
            link.fail("dropped")

    def go_away(self) -> None:
        """Send GOAWAY on every connection: so does a gateway that drains. Liftbridge 1.9.0 does not."""
        for link in tuple(self.server.links):
            link.protocol.go_away()
            link.flush()

    async def drop_at(self, call: ServerCall, request: bytes) -> bytes | None:
        """A step: take the request, and lose the connection."""
        self.drop()
        await asyncio.Event().wait()
        return None

    def log(self, *offsets: int, stream: str = "foo", partition: int = 0, **kind: Any) -> Log:
        """Make a log on a broker that leads it."""
        leaders = self.streams.setdefault(stream, [])
        leaders += [self.id] * (partition + 1 - len(leaders))
        self.subjects.setdefault(stream, stream)
        made = self.logs[stream, partition] = Log(list(offsets), partition=partition, **kind)
        return made

    def read(self, method: str) -> list[Any]:
        """The requests of a method, parsed."""
        kind = getattr(api_pb2, f"{method}Request")
        return [kind.FromString(data) for data in self.requests[method]]

    # What it does

    def _serve(self, method: str) -> Callable[[ServerCall], Any]:
        async def serve(call: ServerCall) -> None:
            data = b"".join([request async for request in call])
            self.calls[method] += 1
            self.requests[method].append(data)
            step = self._once[method].popleft() if self._once[method] else self._always[method]
            if isinstance(step, RpcError):
                raise step
            if isinstance(step, ProtobufMessage):
                await call.send([step.SerializeToString()])
            elif (answer := await step(call, data)) is not None:
                await call.send([answer])

        return serve

    async def _metadata(self, call: ServerCall, request: bytes) -> bytes:
        return self.metadata(request).SerializeToString()

    def metadata(self, request: bytes) -> api_pb2.FetchMetadataResponse:
        """Return the broker's answer to FetchMetadata."""
        answer = api_pb2.FetchMetadataResponse()
        for one in self.lists:
            host, _, port = (one.advertised or one.address).rpartition(":")
            answer.brokers.add(id=one.id, host=host, port=int(port), partitionCount=one.partition_count)
        asked = api_pb2.FetchMetadataRequest.FromString(request)
        for name in asked.streams or sorted(self.streams):
            if name not in self.streams:
                answer.streamMetadata.add(name=name, error=api_pb2.StreamMetadata.UNKNOWN_STREAM)
                continue
            found = answer.streamMetadata.add(name=name, subject=self.subjects.get(name, name))
            found.creationTimestamp = self.created_ns
            for number, leader in enumerate(self.streams[name]):
                self._describe(found.partitions[number], name, number, leader)
        for group in asked.groups:
            answer.groupMetadata.add(groupId=group, error=api_pb2.ConsumerGroupMetadata.UNKNOWN_GROUP)
        return answer

    def _describe(self, found: api_pb2.PartitionMetadata, stream: str, number: int, leader: str) -> None:
        """Fill in a partition's metadata; offsets are those of this broker's own log."""
        found.id, found.leader = number, leader
        found.isr.extend(self.isr or [leader])
        found.replicas.extend(self.isr or [leader])
        log = self.logs.get((stream, number))
        found.highWatermark = found.newestOffset = -1
        if log is not None:
            found.highWatermark, found.newestOffset = log.visible, log.newest

    async def _partition(self, call: ServerCall, request: bytes) -> bytes:
        asked = api_pb2.FetchPartitionMetadataRequest.FromString(request)
        elsewhere = "The request should be sent to partition leader"
        self._led(asked.stream, asked.partition, "partition not found", elsewhere)
        answer = api_pb2.FetchPartitionMetadataResponse()
        self._describe(answer.metadata, asked.stream, asked.partition, self.id)
        return answer.SerializeToString()

    def _led(self, stream: str, partition: int, missing: str, elsewhere: str) -> Log:
        """A log that this broker leads; the texts are for one that does not exist, or has another leader."""
        log = self.logs.get((stream, partition))
        if log is None:
            if partition >= len(self.streams.get(stream, ())):
                raise RpcError(StatusCode.NOT_FOUND, missing)
            raise RpcError(StatusCode.FAILED_PRECONDITION, elsewhere)
        return log

    async def _publish(self, call: ServerCall, request: bytes) -> bytes:
        asked = api_pb2.PublishRequest.FromString(request)
        if asked.ackPolicy == api_pb2.NONE:
            return b""
        answer = api_pb2.PublishResponse()
        answer.ack.stream, answer.ack.offset = asked.stream, 7
        answer.ack.partitionSubject = answer.ack.msgSubject = asked.stream
        answer.ack.ackInbox, answer.ack.ackPolicy = asked.ackInbox or "ns.ack.inbox", asked.ackPolicy
        answer.ack.correlationId = asked.correlationId
        answer.ack.receptionTimestamp, answer.ack.commitTimestamp = 1_000, 2_000
        return answer.SerializeToString()

    async def _subscribe(self, call: ServerCall, request: bytes) -> None:
        asked = api_pb2.SubscribeRequest.FromString(request)
        log = self._led(asked.stream, asked.partition, "No such partition", "Server not partition leader")
        first = self._first(log, asked)
        if not asked.reverse and asked.stopPosition == api_pb2.STOP_OFFSET and asked.stopOffset < first:
            text = f"Stop offset is before start offset: {asked.stopOffset} < {first}"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)  # before the handshake
        await call.send([HANDSHAKE])
        if asked.reverse and self.reads_backwards:
            await self._send(call, log, log.payloads(0, asked.startOffset)[::-1])
            if not log.offsets or asked.startOffset < log.offsets[0]:
                raise RpcError(StatusCode.INTERNAL, "segment not found")
            raise RpcError(StatusCode.UNKNOWN, "EOF")
        await self._read_on(call, log, first, asked)

    def _first(self, log: Log, asked: api_pb2.SubscribeRequest) -> int:
        if asked.startPosition == api_pb2.TIMESTAMP:
            late = [offset for offset in log.offsets if offset * 1000 >= asked.startTimestamp]
            return late[0] if late else log.newest + 1
        oldest = log.offsets[0] if log.offsets else 0
        return asked.startOffset if asked.startPosition == api_pb2.OFFSET else oldest

    async def _read_on(self, call: ServerCall, log: Log, first: int, asked: api_pb2.SubscribeRequest) -> None:
        """Send messages. As in Liftbridge 1.9.0, only the message at the stop ends the call."""
        last = asked.stopOffset if asked.stopPosition == api_pb2.STOP_OFFSET else LARGEST
        while True:
            grew = log.grew
            found = [offset for offset in log.offsets if first <= offset <= log.visible]
            await self._send(call, log, log.payloads(first, last if last in found else LARGEST))
            if last in found:
                raise RpcError(StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")
            first = found[-1] + 1 if found else first
            await grew.wait()

    async def _send(self, call: ServerCall, log: Log, payloads: Sequence[bytes]) -> None:
        for begin in range(0, len(payloads), log.chunk):
            await call.send(payloads[begin : begin + log.chunk])
            await asyncio.sleep(0)


class StandingStill:
    """Five messages on a broker whose newest segment is empty.

    It sends none of them until it has been asked for the first alone, and for something else after that; or
    has refused it once. A refusal with the status OK ends the subscription after its handshake.
    """

    def __init__(self, broker: ScriptedBroker, refusal: RpcError | None = None) -> None:
        self._broker = broker
        self._refusal = refusal
        self._goes_on = asyncio.Event()
        self._log = broker.log(*range(5))
        broker.always("Subscribe", self._subscribe)

    async def _subscribe(self, call: ServerCall, request: bytes) -> None:
        asked = api_pb2.SubscribeRequest.FromString(request)
        if asked.startPosition == api_pb2.TIMESTAMP:  # as observed: every time is that of the end
            text = f"Stop offset is before start offset: {asked.stopOffset} < 5"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
        if asked.stopOffset < 0:
            await self._broker._subscribe(call, request)
            return
        if asked.stopOffset == 0 and not self._goes_on.is_set():
            if self._refusal is not None:
                self._goes_on.set()
                if self._refusal.code != StatusCode.OK:
                    raise self._refusal
                await call.send([HANDSHAKE])
                return
            self._broker.next("FetchPartitionMetadata", self._go_on)
        await call.send([HANDSHAKE])
        await self._goes_on.wait()
        await self._broker._read_on(call, self._log, asked.startOffset, asked)

    async def _go_on(self, call: ServerCall, request: bytes) -> bytes:
        self._goes_on.set()
        return await self._broker._partition(call, request)


class TimesLost:
    """Five messages on a broker whose newest segment is empty: it takes every time for that of the end."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        broker.log(*range(5))
        broker.always("Subscribe", self._subscribe)

    async def _subscribe(self, call: ServerCall, request: bytes) -> None:
        asked = api_pb2.SubscribeRequest.FromString(request)
        if asked.startPosition == api_pb2.TIMESTAMP and asked.stopOffset < 5:
            text = f"Stop offset is before start offset: {asked.stopOffset} < 5"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
        await self._broker._subscribe(call, request)


def answers(*payloads: bytes, error: RpcError | None = None, stay: bool = False) -> Handler:
    """A step that sends these and ends with a status, or does not end."""

    async def serve(call: ServerCall, request: bytes) -> bytes | None:
        for payload in payloads:
            await call.send([payload])
        if error is not None:
            raise error
        if stay:
            await asyncio.Event().wait()
        return None

    return serve


@asynccontextmanager
async def scripted(count: int = 1) -> AsyncIterator[list[ScriptedBroker]]:
    """Brokers that know each other. At the end every task that was begun meanwhile must end."""
    before = asyncio.all_tasks()
    brokers = [ScriptedBroker(f"b{number}") for number in range(count)]
    for broker in brokers:
        broker.address = await broker.server.start()
        broker.lists = list(brokers)
    try:
        yield brokers
    finally:
        for broker in brokers:
            await broker.server.close()
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:  # of a connection that the client has only just closed
        _, left = await asyncio.wait(left, timeout=10.0)
    assert not left


def client_of(brokers: Iterable[ScriptedBroker], **options: Any) -> Client:
    """A client whose calls outlast a loaded machine. ``events`` is a list that gets its events.

    A shorter ``timeout`` is for the calls that a test makes. The client opens with the patient one.
    """
    events: list[Any] | None = options.pop("events", None)
    if events is not None:
        options["on_event"] = events.append
    client = liftenvelope.connect([broker.address for broker in brokers], **{"timeout": PATIENT, **options})

    async def open_patiently() -> Client:
        await client._context.cluster.fetch([], deadline=Deadline(PATIENT))
        return client

    client.open = open_patiently  # type: ignore[method-assign]
    return client


async def fill(found: list[int], reader: MessageReader, count: int | None = None) -> None:
    """Add the offsets of the next messages, or of all until the end."""
    async with asyncio.timeout(60):
        while count is None or len(found) < count:
            got = await reader.next()
            if got is None:
                assert reader.finished
                return
            found.append(got.offset)


async def offsets(reader: MessageReader, count: int | None = None) -> list[int]:
    """The offsets of the next messages, or of all until the end."""
    found: list[int] = []
    await fill(found, reader, count)
    return found


async def read(client: Client, **options: Any) -> list[int]:
    """The offsets of all messages of a subscription."""
    async with client.subscribe("foo", **options) as reader:
        return await offsets(reader)


async def patiently(reader: MessageReader) -> int:
    """The offset of the next message, which is asked for many times, and never waited for for long."""
    async with asyncio.timeout(60):
        while (got := await reader.next(0.001)) is None:
            assert not reader.finished
    return got.offset


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Poll, with a deadline."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
