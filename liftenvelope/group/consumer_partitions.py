"""Partition assignment for a group consumer: starts and stops readers and commits offsets.

A partition's reader moves through these collections. Only the task in :meth:`ConsumerPartitions._act` moves
readers, one change at a time, except for closing.

==========  ===========================================  =========================  ==========================
collection  meaning                                      messages are handed out    commits are accepted
==========  ===========================================  =========================  ==========================
_readers    assigned in the current generation           yes                        yes
_leaving    being given back; the last commit may run    no                         yes, in the old generation
_held       given back, but likely to be assigned again  no, only buffered          no
==========  ===========================================  =========================  ==========================

Invariant: a message is only handed out while the member owns its partition, and an offset is only committed
with the generation in which the message was handed out. The controller refuses any other commit, so a member
that lost a partition can't overwrite the progress of its successor.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from liftenvelope.errors import CallTimeoutError, GroupError, TransportError, UsageError
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.calls import GroupCalls
from liftenvelope.group.errors import MemberFencedError, NotAssignedError, StaleGenerationError
from liftenvelope.group.events import CommitFailed, PartitionUnknown
from liftenvelope.group.member import Assigned, GiveBack, GroupMember, Lost, creation_of
from liftenvelope.group.reader import PartitionReader
from liftenvelope.group.topics import source_of
from liftenvelope.jetstream import JetStream

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.group.consumer_options import ConsumerOptions, PartitionsCallback

__all__ = ["ConsumerPartitions"]

#: Fraction of the session timeout allowed for the last commit of a generation.
_LAST_COMMIT: Final = 0.5
#: Most seconds of one JetStream request: a request on a lost connection is never answered.
_ONE_TRY: Final = 2.5


class ConsumerPartitions:
    """Part of a consumer that carries out the assignments of the group."""

    def __init__(self, nc: Client, options: ConsumerOptions, prefix: str) -> None:
        self._options = options
        self._consumer_id = options.consumer_id or f"consumer-{uuid4().hex}"
        self._calls = GroupCalls(nc, prefix=prefix, timeout=options.timeout)
        self._js = JetStream(nc, timeout=min(options.timeout, _ONE_TRY))
        sources = [source_of(topic, self._js, options.prefetch) for topic in options.topics]
        self._sources = {source.spec.name: source for source in sources}
        self._nc = nc
        self._member: GroupMember | None = None
        self._readers: dict[TopicPartition, PartitionReader] = {}
        #: Readers being given back: no longer read from, but their offsets can still be committed.
        self._leaving: dict[TopicPartition, PartitionReader] = {}
        #: Readers given back that keep buffering, in case their partition is assigned again.
        self._held: dict[TopicPartition, PartitionReader] = {}
        self._ready: deque[PartitionReader] = deque()
        #: Messages handed out last: reader and last offset of each partition.
        self._in_hand: list[tuple[PartitionReader, int]] = []
        #: Offsets to commit: the next offset to read, by partition.
        self._dirty: dict[TopicPartition, int] = {}
        #: Offsets handed out since, if only :meth:`GroupConsumer.commit` commits.
        self._handed_out: dict[TopicPartition, int] = {}
        #: Time since boot when other tasks last had a turn, as far as the iteration knows.
        self._turned_at = 0.0
        #: True while a task waits for messages.
        self._is_awaited = False
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._closing = False
        self._closer: asyncio.Task[object] | None = None
        self._gone = asyncio.Event()
        self._committing = asyncio.Lock()
        #: Held while a user callback runs.
        self._telling = asyncio.Lock()

    def _make_member(self) -> GroupMember:
        options = self._options
        specs = [source.spec for source in self._sources.values()]
        creation = creation_of(
            options.group, options.session_timeout, specs, options.assignor, options.ephemeral
        )
        return GroupMember(
            self._nc,
            self._calls,
            options.group,
            self._consumer_id,
            uuid4().hex,
            specs,
            session_timeout=options.session_timeout,
            creation=creation if options.create else None,
            on_event=options.notify,
        )

    def _running(self) -> GroupMember:
        if self._member is None:
            raise UsageError("the consumer is not open; use it in an 'async with' block")
        return self._member

    def _fenced(self, key: TopicPartition, generation: int | None = None) -> MemberFencedError:
        if generation is not None and generation != self._running().session.generation:
            return StaleGenerationError(
                f"{key.topic}[{key.partition}] was {self._consumer_id!r}'s in generation {generation}, "
                "which has ended; the message will be redelivered"
            )
        return NotAssignedError(f"{key.topic}[{key.partition}] is not assigned to {self._consumer_id!r}")

    # Assignment

    async def _act(self) -> None:
        member = self._running()
        while True:
            change = await member.changes.get()
            if isinstance(change, Assigned):
                await self._assign(change)
                self._settled.set()
            elif isinstance(change, GiveBack):
                await self._give_back(_LAST_COMMIT * member.session.session_timeout)
                member.given_back()
            else:
                assert isinstance(change, Lost)
                await self._lose()

    async def _assign(self, change: Assigned) -> None:
        if self._closing:
            return
        if self._readers:
            await self._lose()  # only after a defect: a member gives everything back before it registers
        held, self._held = self._held, {}
        readers = {
            key: self._kept(held, key, change.generation, offset)
            or self._new_reader(key, change.generation, offset)
            for key, offset in change.offsets.items()
            if self._can_read(key)
        }
        self._readers.update(readers)
        for reader in held.values():
            await reader.close()
        await self._tell(self._options.on_assigned, readers)
        for reader in readers.values():
            reader.start(self._task_done)

    def _kept(
        self, held: dict[TopicPartition, PartitionReader], key: TopicPartition, generation: int, offset: int
    ) -> PartitionReader | None:
        """Return the held reader of a partition, if it can continue at the committed offset."""
        if key in held and held[key].go_on(generation, offset):
            return held.pop(key)
        return None

    def _new_reader(self, key: TopicPartition, generation: int, offset: int) -> PartitionReader:
        return PartitionReader(
            self._sources[key.topic],
            key,
            generation,
            offset,
            auto_offset=self._options.auto_offset,
            limit=self._options.prefetch,
            on_ready=self._has_messages,
            keep_start=self._keep_start,
        )

    def _can_read(self, key: TopicPartition) -> bool:
        """Return True if this member knows the partition; the topic may have grown since the start."""
        if key.partition < self._sources[key.topic].spec.partitions:
            return True
        self._options.notify(PartitionUnknown(self._options.group, self._consumer_id, *key))
        return False

    async def _give_back(self, timeout: float) -> None:
        """Stop reading, call ``on_revoked``, and commit all processed offsets."""
        # Messages in the user's hands are not processed yet.
        readers, self._readers = self._readers, {}
        self._leaving = readers
        self._ready.clear()
        # Most partitions are assigned again at once, so their readers keep buffering without handing out.
        held = {key: reader for key, reader in readers.items() if reader.hold()}
        try:
            for key in readers.keys() - held.keys():
                await readers[key].close()
            await self._tell(self._options.on_revoked, readers)
            await self._commit_dirty(timeout)
        except (GroupError, CallTimeoutError, TransportError) as exc:
            self._options.notify(CommitFailed(self._options.group, self._consumer_id, exc))
        # Skipped if this task is cancelled: then close() commits the rest.
        self._forget(readers)
        self._held = held

    async def _lose(self) -> None:
        """Drop all partitions without a commit: other members may own them already."""
        readers, self._readers = self._readers, {}
        held, self._held = self._held, {}
        self._ready.clear()
        self._forget(readers)
        for reader in [*readers.values(), *held.values()]:
            await reader.close()
        await self._tell(self._options.on_revoked, readers)

    def _forget(self, readers: Mapping[TopicPartition, PartitionReader]) -> None:
        self._leaving = {}
        for key in readers:
            self._dirty.pop(key, None)
            self._handed_out.pop(key, None)
        gone = set(map(id, readers.values()))
        self._in_hand = [held for held in self._in_hand if id(held[0]) not in gone]

    async def _tell(self, callback: PartitionsCallback | None, keys: Iterable[TopicPartition]) -> None:
        partitions = sorted(keys)
        if callback is None or not partitions:
            return
        async with self._telling:
            outcome = callback(partitions)
            if inspect.isawaitable(outcome):
                await outcome

    def _has_messages(self, reader: PartitionReader) -> None:
        if reader not in self._ready:
            self._ready.append(reader)
        self._wake.set()

    async def _keep_start(self, reader: PartitionReader, offset: int) -> None:
        """Commit the start of a partition, so that no later member starts at a later offset.

        Many partitions start at once. A caller that waits for the lock finds its start committed by the
        previous holder, or commits the starts of all waiting callers.
        """
        self._dirty.setdefault(reader.key, offset)
        await self._commit_dirty(self._options.timeout)

    # Commits

    def _settle_in_hand(self) -> None:
        """Mark the messages handed out last as processed."""
        held, self._in_hand = self._in_hand, []
        for reader, offset in held:
            self._processed(reader, offset)

    def _processed(self, reader: PartitionReader, offset: int) -> None:
        if self._readers.get(reader.key) is reader or self._leaving.get(reader.key) is reader:
            is_automatic = self._options.auto_commit_interval is not None
            (self._dirty if is_automatic else self._handed_out)[reader.key] = offset + 1

    async def _commit_dirty(self, timeout: float, keys: Iterable[TopicPartition] | None = None) -> None:
        """Commit pending offsets, of all partitions or of ``keys``.

        Raises:
            MemberFencedError: A partition is no longer assigned to this member.
            GroupError, CallTimeoutError, TransportError: The offsets could not be stored.
        """
        async with self._committing:
            wanted = self._dirty.keys() if keys is None else self._dirty.keys() & set(keys)
            held = {**self._readers, **self._leaving}
            chosen = {key: (self._dirty[key], held[key].rewound) for key in wanted if key in held}
            if not chosen:
                return
            generation = next(held[key].generation for key in chosen)
            outcome = await self._running().commit(generation, chosen, timeout)
            failure: GroupError | None = None
            for key, (offset, rewound) in chosen.items():
                result = outcome.get(key)
                if isinstance(result, GroupError):
                    failure = failure or result
                    continue
                if self._dirty.get(key) == offset:
                    del self._dirty[key]
                if rewound:
                    held[key].rewound = False
            if failure is not None:
                raise failure

    async def _commit_now_and_then(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self._commit_dirty(self._options.timeout)
            except (GroupError, CallTimeoutError, TransportError) as exc:
                self._options.notify(CommitFailed(self._options.group, self._consumer_id, exc))

    # Tasks

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._task_done)
        self._tasks.append(task)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        """Pass the failure of a task to the iterating task."""
        if task.cancelled() or (failure := task.exception()) is None:
            return
        self._failure = self._failure or failure
        self._wake.set()
        self._settled.set()
