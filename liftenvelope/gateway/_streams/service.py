"""Serves CreateStream, DeleteStream, PauseStream and SetStreamReadonly.

A change has several steps: the record in the bucket, the partitions in JetStream, the activity events. A
gateway may die between two steps, so each intermediate state can be repaired from the record:

- Creation and deletion first store a record in state CREATING or DELETING that names the gateway as maker.
  :class:`UnfinishedStreams` removes such a stream later.
- Events are stored by the same write as the change. ``tell_left_over`` publishes those left later.
- :class:`Repairs` makes JetStream record what the stream's record says: after an error during a change, at
  the start, and when gateways come or go.

``Core.changing`` admits one change at a time of streams on the same or overlapping subjects; compare-and-set
guards against other gateways.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from liftenvelope._checks import RESERVED
from liftenvelope._pb import api_pb2
from liftenvelope.errors import (
    InvalidConfigError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    StreamNameInUseError,
)
from liftenvelope.gateway._acks.checked import wait_for_intakes
from liftenvelope.gateway._clients.authorization import client_name
from liftenvelope.gateway._cluster.activity import created, deleted, paused, readonly_set, resumed
from liftenvelope.gateway._cluster.records import PartitionRecord, RecordedEvent, StreamPhase, StreamRecord
from liftenvelope.gateway._partitions.probes import most_replicas
from liftenvelope.gateway._protocol.requests import read_request
from liftenvelope.gateway._streams.handing_over import with_sources
from liftenvelope.gateway._streams.new_records import MOST_REPLICAS, check_replicas, new_record
from liftenvelope.gateway._streams.orphans import remove_orphans_of
from liftenvelope.gateway._streams.repairing import Repairs
from liftenvelope.gateway._streams.unfinished import UNKNOWN_OUTCOME, UnfinishedStreams
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator

    from liftenvelope._pb.api_pb2 import ActivityStreamEvent
    from liftenvelope.gateway._core import Core
    from liftenvelope.rpc.server import ServerCall

__all__ = ["StreamService"]

#: Implementation of a unary method that changes streams: serialized request to serialized response.
StreamChange: TypeAlias = "Callable[[bytes], Coroutine[Any, Any, bytes]]"

#: Partitions of a stream that are created concurrently.
_AT_ONCE: Final = 16
#: Time limit for copies to catch up with a partition that hands over its subject, in seconds.
_CATCH_UP: Final = 5.0


class StreamService:
    """Creates, changes and removes streams.

    Args:
        core: The gateway's parts.

    Attributes:
        repairs: Repairs streams after changes that ended half-way.
        unfinished: Removes streams whose creation or deletion ended half-way.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.repairs = Repairs(core)
        self.unfinished = UnfinishedStreams(core, self.repairs)
        self._changes: set[asyncio.Task[bytes]] = set()
        # Streams that are being created, by name: they count in the quotas of their owners.
        self._creating: dict[str, StreamRecord] = {}

    async def close(self, timeout: float = 5.0) -> None:
        """Wait at most ``timeout`` seconds for the changes in progress, then cancel those that are left."""
        self.unfinished.refuse()
        if self._changes:
            await asyncio.wait(self._changes, timeout=timeout)
        for change in self._changes:
            change.cancel()
        self.unfinished.close()
        self.repairs.close()

    def whole(self, serve: StreamChange) -> StreamChange:
        """Wrap a method so that it runs to its end even if its call is cancelled."""

        async def call(raw: bytes) -> bytes:
            change = asyncio.get_running_loop().create_task(serve(raw))
            self._changes.add(change)
            change.add_done_callback(self._done)
            return await asyncio.shield(change)

        return call

    def _done(self, change: asyncio.Task[bytes]) -> None:
        self._changes.discard(change)
        if not change.cancelled():
            change.exception()  # the caller may be gone: mark the exception as retrieved

    @asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[StreamRecord]:
        """Hold the locks for a change of a stream that exists; yield its record.

        Raises:
            RpcError: NOT_FOUND: the stream does not exist.
        """
        while True:
            subject = (await self._core.registry.find(name)).subject
            async with self._core.changing.held(name, subject):
                record = await self._core.registry.find(name)
                if record.subject == subject:
                    yield record
                    return
            # Deleted meanwhile, and created again on another subject.

    async def settled(self, name: str) -> None:
        """Wait for the end of changes of a stream that this gateway makes.

        Raises:
            RpcError: NOT_FOUND: the stream does not exist.
        """
        async with self._changing(name):
            pass

    # Creating

    async def create(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve CreateStream; see :func:`new_record` and :meth:`make` for the errors."""
        answer = await self.whole(partial(self._create, client_name(call.peer_certificate)))(raw)
        # Not part of the change: once the client gives up, nobody waits.
        name = read_request(api_pb2.CreateStreamRequest, raw, self._core.options.limits).name
        await wait_for_intakes(self._core.js, partial(self._core.registry.known, name))
        return answer

    async def _create(self, owner: str, raw: bytes) -> bytes:
        request = read_request(api_pb2.CreateStreamRequest, raw, self._core.options.limits)
        record = new_record(request, self._core.options, self._core.subjects, owner=owner)
        events = self._events(created(record))
        try:
            await self._make_new(record, events)
        except RpcError as exc:
            is_taken = isinstance(exc.__cause__, StreamNameInUseError)
            if not is_taken or not await remove_orphans_of(self._core, record, _CATCH_UP):
                raise
            await self._make_new(record, events)
        self._tell(record.name, events)
        await self._core.agreement.reach(record.name)
        return api_pb2.CreateStreamResponse().SerializeToString()

    async def _make_new(self, record: StreamRecord, events: tuple[RecordedEvent, ...]) -> None:
        """Make a stream that a client wants; see :meth:`make` for the errors."""
        async with self.unfinished.lock_for(record):
            with self._counted(record):
                self._check_group(record)
                if record.replicas == MOST_REPLICAS:
                    record = replace(record, replicas=await most_replicas(self._core.js))
                    check_replicas(record.replicas, record.settings)
                with self.unfinished.removed_after_errors(record):
                    await self.make(record, events)

    @contextmanager
    def _counted(self, record: StreamRecord) -> Iterator[None]:
        """Check the owner's quota of streams, and count the stream before its record is stored.

        Raises:
            RpcError: RESOURCE_EXHAUSTED: the owner would exceed its quota.
        """
        self._core.quotas.check_stream(self._core.registry, record, self._creating.values())
        self._creating[record.name] = record
        try:
            yield
        finally:
            del self._creating[record.name]

    def _check_group(self, record: StreamRecord) -> None:
        """Refuse a second stream with the same group and subject: JetStream would give each all messages."""
        for other in self._core.registry if record.group else ():
            if (other.group, other.subject) == (record.group, record.subject):
                text = (
                    f"group must differ from that of stream {other.name!r}, got {record.group!r}: on "
                    "JetStream, two streams can't share the messages of a subject"
                )
                raise RpcError(StatusCode.FAILED_PRECONDITION, text)

    def _events(self, event: ActivityStreamEvent) -> tuple[RecordedEvent, ...]:
        """Return an event as it is stored in a record."""
        return (self._core.activity.recorded(event),)

    def _tell(self, name: str, events: tuple[RecordedEvent, ...]) -> None:
        """Publish events of a record; each is removed from the record once the activity stream has it."""
        self._core.activity.tell(name, events)

    async def tell_left_over(self, alive: Iterable[str], *, of_the_dead: bool) -> None:
        """Publish the events left in records by earlier runs of this gateway or by dead gateways."""
        activity, living = self._core.activity, set(alive)
        for record in self._core.registry:
            left = [e for e in record.events if activity.is_left_over(e, living, of_the_dead=of_the_dead)]
            activity.tell(record.name, left)

    async def make(self, record: StreamRecord, events: tuple[RecordedEvent, ...] = ()) -> StreamRecord:
        """Create the stream of a record and return its READY record; on failure remove what was created.

        Args:
            record: Record of the stream, in state CREATING.
            events: Events to store in the record once the stream is ready. Default none.

        Raises:
            RpcError: ALREADY_EXISTS: a stream of that name exists. INVALID_ARGUMENT or INTERNAL: JetStream
                refuses to create a partition. UNAVAILABLE: JetStream can't do so now. FAILED_PRECONDITION:
                the subject can't be recorded. ABORTED: another gateway took this one for dead and has removed
                the stream.
            CallTimeoutError, TransportError: JetStream did not answer. The record and partitions may be left.
        """
        await self._core.registry.create(record)
        partitions = await self._partitions_of(record)
        made = record.with_partitions(partitions).with_events(events)
        try:
            return await self._core.registry.change(record.name, partial(_ready, made=made))
        except RpcError as exc:
            if exc.code not in (StatusCode.ABORTED, StatusCode.NOT_FOUND):
                raise
            # Partitions that were made after another gateway has removed the stream have no record.
            await self.unfinished.remove_partitions(record)
            if exc.code == StatusCode.NOT_FOUND:
                raise _removed(record.name) from exc
            raise

    async def adopted(self, record: StreamRecord) -> StreamRecord:
        """Return a record with the id that its JetStream stream has: a stream whose record was lost."""
        found = await self._core.storage.id_of(record.stream_of(0))
        return replace(record, id=found) if found else record

    async def _partitions_of(self, record: StreamRecord) -> dict[int, PartitionRecord]:
        """Create the partitions; if JetStream refuses one, remove the stream."""
        try:
            return await self._make_partitions(record)
        except UNKNOWN_OUTCOME:
            raise
        except BaseException as exc:
            with suppress(LiftEnvelopeError):
                await self.unfinished.remove(record)
            if isinstance(exc, JetStreamError):
                # A cluster that elects its leader refuses for now: clients may try again.
                code = StatusCode.UNAVAILABLE if isinstance(exc, NoJetStreamError) else StatusCode.INTERNAL
                if isinstance(exc, InvalidConfigError) or "replicas" in exc.description:
                    code = StatusCode.INVALID_ARGUMENT
                raise RpcError(code, f"JetStream can't store the stream: {exc.description}") from exc
            raise

    async def _make_partitions(self, record: StreamRecord) -> dict[int, PartitionRecord]:
        """Create the partitions in batches of 16. On an error, finish the batch, then raise it.

        If some requests of the batch have an unknown outcome, the error of one of them is raised.
        """
        made: dict[int, PartitionRecord] = {}
        numbers = range(len(record.partitions))
        while len(made) < len(numbers):
            some = numbers[len(made) : len(made) + _AT_ONCE]
            creating = (self._core.storage.create(record, number) for number in some)
            sources = await asyncio.gather(*creating, return_exceptions=True)
            errors = [source for source in sources if isinstance(source, BaseException)]
            if errors:
                raise next((error for error in errors if isinstance(error, UNKNOWN_OUTCOME)), errors[0])
            for number, source in zip(some, sources, strict=True):
                assert not isinstance(source, BaseException)
                made[number] = PartitionRecord(source=source)
        return made

    # Removing

    async def delete(self, raw: bytes) -> bytes:
        """Serve DeleteStream. A reserved stream is refused with INVALID_ARGUMENT."""
        name = read_request(api_pb2.DeleteStreamRequest, raw, self._core.options.limits).name
        _check_not_reserved(name)
        async with self._changing(name) as before:
            events = self._events(deleted(name))
            change = partial(_deleting, before, maker=self._core.options.id, events=events)
            record = await self._core.registry.change(name, change)
            with self.unfinished.removed_after_errors(record):
                await self.unfinished.remove(record, timeout=_CATCH_UP)
        await self._core.agreement.reach(name)
        return api_pb2.DeleteStreamResponse().SerializeToString()

    # Pausing

    async def pause(self, raw: bytes) -> bytes:
        """Serve PauseStream. A reserved stream is refused with INVALID_ARGUMENT."""
        request = read_request(api_pb2.PauseStreamRequest, raw, self._core.options.limits)
        _check_not_reserved(request.name)
        record = await self._core.registry.find(request.name)
        numbers = _chosen(record, request.partitions)
        record = await self.set_paused(record.name, numbers, resume_all=request.resumeAll)
        return api_pb2.PauseStreamResponse().SerializeToString()

    async def set_paused(self, name: str, numbers: list[int], *, resume_all: bool = False) -> StreamRecord:
        """Pause partitions. They record nothing until a message published by gRPC resumes them.

        Args:
            name: Name of the stream.
            numbers: Numbers of the partitions.
            resume_all: Whether a message for any partition of the stream resumes all paused ones. Default
                False.

        Raises:
            RpcError: NOT_FOUND: the stream or a partition does not exist.
        """
        async with self._changing(name) as before:
            _chosen(before, numbers)
            now, events = time.time_ns(), self._events(paused(name, numbers, resume_all))

            def change(record: StreamRecord) -> StreamRecord:
                record = _same(record, before)
                parts = {number: record.partitions[number].with_paused(True, now) for number in numbers}
                return replace(record.with_partitions(parts).with_events(events), resume_all=resume_all)

            with self.repairs.after_errors(before):
                record = await self._core.registry.change(name, change)
                try:
                    sources = await self._sources(before, record, numbers)
                finally:
                    self._tell(name, events)
                record = await self._core.registry.change(name, partial(with_sources, before, sources))
        await self.repairs.check(name, numbers)
        await self._core.agreement.reach(name)
        return record

    async def resume(self, name: str, partition: int) -> StreamRecord:
        """Resume a partition, or all paused ones if the stream was paused with ``resume_all``.

        Raises:
            RpcError: NOT_FOUND: the stream or the partition does not exist.
        """
        async with self._changing(name) as before:
            _chosen(before, [partition])
            numbers = before.to_resume(partition)
            if not numbers:
                return before
            now, events = time.time_ns(), self._events(resumed(name, numbers))

            def change(record: StreamRecord) -> StreamRecord:
                record = _same(record, before)
                parts = {number: record.partitions[number].with_paused(False, now) for number in numbers}
                return record.with_partitions(parts).with_events(events)

            # Subject first: a partition whose record says that it is resumed must already record messages.
            after = change(before)
            await self.repairs.wait_detached(before, numbers)
            with self.repairs.after_errors(before):
                sources = await self._sources(before, after, numbers)
                record = await self._core.registry.change(
                    name, lambda r: with_sources(before, sources, change(r))
                )
        self._tell(name, events)
        await self.repairs.check(name, numbers)
        return record

    # Readonly

    async def set_readonly(self, raw: bytes) -> bytes:
        """Serve SetStreamReadonly. A reserved stream is refused with INVALID_ARGUMENT."""
        request = read_request(api_pb2.SetStreamReadonlyRequest, raw, self._core.options.limits)
        _check_not_reserved(request.name)
        async with self._changing(request.name) as before:
            numbers, now = _chosen(before, request.partitions), time.time_ns()
            events = self._events(readonly_set(before.name, numbers, request.readonly))

            def change(record: StreamRecord) -> StreamRecord:
                record = _same(record, before)
                parts = {n: record.partitions[n].with_readonly(request.readonly, now) for n in numbers}
                return record.with_partitions(parts).with_events(events)

            after = change(before)
            with self.repairs.after_errors(before):
                sources = await self._sources(before, after, numbers)
                await self._core.registry.change(
                    request.name, lambda r: with_sources(before, sources, change(r))
                )
        self._tell(request.name, events)
        await self.repairs.check(request.name, numbers)
        await self._core.agreement.reach(request.name)
        return api_pb2.SetStreamReadonlyResponse().SerializeToString()

    # Subjects

    async def _sources(
        self, before: StreamRecord, after: StreamRecord, numbers: Iterable[int]
    ) -> dict[int, str | None]:
        """Attach or detach partitions as their records changed; return their new sources by number.

        A partition that records nothing is detached again: an earlier change may have ended half-way.
        """
        sources: dict[int, str | None] = {}
        for number in numbers:
            was, is_now = before.partitions[number].records, after.partitions[number].records
            if not is_now:
                await self.repairs.hand_over(before, number, _CATCH_UP)
                sources[number] = None
            elif not was:
                sources[number] = await self._core.storage.attach(after, number)
        return sources


def _deleting(
    before: StreamRecord, record: StreamRecord, *, maker: str, events: tuple[RecordedEvent, ...]
) -> StreamRecord:
    return replace(_same(record, before), state=StreamPhase.DELETING, maker=maker).with_events(events)


def _ready(record: StreamRecord, *, made: StreamRecord) -> StreamRecord:
    if record.id != made.id or record.state is not StreamPhase.CREATING:
        raise _removed(made.name)
    return replace(made, state=StreamPhase.READY, never_ready=record.never_ready)


def _removed(name: str) -> RpcError:
    text = f"another gateway has removed stream {name!r} during its creation: retry"
    return RpcError(StatusCode.ABORTED, text)


def _same(record: StreamRecord, before: StreamRecord) -> StreamRecord:
    """Return the record, unless another gateway has deleted the stream, and perhaps created it again."""
    if record.state is not StreamPhase.READY or record.id != before.id:
        raise RpcError(StatusCode.NOT_FOUND, "No such stream")
    return record


def _chosen(record: StreamRecord, partitions: Iterable[int]) -> list[int]:
    numbers = sorted(set(partitions)) or list(range(len(record.partitions)))
    if not all(record.has_partition(number) for number in numbers):
        raise RpcError(StatusCode.NOT_FOUND, "No such partition")
    return numbers


def _check_not_reserved(name: str) -> None:
    if name in RESERVED:
        raise RpcError(StatusCode.INVALID_ARGUMENT, "Stream is reserved")
