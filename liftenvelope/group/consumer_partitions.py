"""What a group does about a consumer's partitions: they come and go, and how far each is gets committed."""

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

#: How much of a session timeout the last commit in a generation may take.
_LAST_COMMIT: Final = 0.5
#: How long JetStream has for one answer, in seconds: what was asked on a connection that was lost has none.
_ONE_TRY: Final = 2.5


class ConsumerPartitions:
    """The partitions of a consumer: the part of it that acts on what the group decides."""

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
        #: What is being given back: it is read no more, and can still be committed.
        self._leaving: dict[TopicPartition, PartitionReader] = {}
        #: What was given back, and is read on in case that it comes back.
        self._held: dict[TopicPartition, PartitionReader] = {}
        self._ready: deque[PartitionReader] = deque()
        #: What was handed out last: of each partition the reader, and the last offset.
        self._in_hand: list[tuple[PartitionReader, int]] = []
        #: What is to be committed: the offset that is to be read next.
        self._dirty: dict[TopicPartition, int] = {}
        #: What was handed out since, where only :meth:`GroupConsumer.commit` commits.
        self._handed_out: dict[TopicPartition, int] = {}
        #: When other tasks had a turn last, as far as the iteration knows.
        self._turned_at = 0.0
        #: Whether a task waits for messages.
        self._is_awaited = False
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._closing = False
        self._closer: asyncio.Task[object] | None = None
        self._gone = asyncio.Event()
        self._committing = asyncio.Lock()
        #: Held while one of the user's callbacks runs.
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
            raise UsageError("the consumer is not open: use it in an 'async with' block")
        return self._member

    def _fenced(self, key: TopicPartition, generation: int | None = None) -> MemberFencedError:
        if generation is not None and generation != self._running().session.generation:
            return StaleGenerationError(
                f"{key.topic}[{key.partition}] was {self._consumer_id!r}'s in generation {generation}, which "
                "is over; whoever has it now gets the message again"
            )
        return NotAssignedError(f"{key.topic}[{key.partition}] is not, or no more, {self._consumer_id!r}'s")

    # What the group decides

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
            await self._lose()  # by a defect alone: who registers has given everything back
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
        """The reader that had the partition until now, if it can go on where the group is."""
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
        """Whether this member knows where a partition is; a topic may have grown since it was started."""
        if key.partition < self._sources[key.topic].spec.partitions:
            return True
        self._options.notify(PartitionUnknown(self._options.group, self._consumer_id, *key))
        return False

    async def _give_back(self, timeout: float) -> None:
        """Stop reading, tell the user, and commit how far everything is."""
        # What is in the user's hands is not processed yet.
        readers, self._readers = self._readers, {}
        self._leaving = readers
        self._ready.clear()
        # Most partitions come back at once: their readers go on behind the scenes, and nothing is handed out.
        held = {key: reader for key, reader in readers.items() if reader.hold()}
        try:
            for key in readers.keys() - held.keys():
                await readers[key].close()
            await self._tell(self._options.on_revoked, readers)
            await self._commit_dirty(timeout)
        except (GroupError, CallTimeoutError, TransportError) as exc:
            self._options.notify(CommitFailed(self._options.group, self._consumer_id, exc))
        # Not if the task is cancelled meanwhile: then close() commits what is left.
        self._forget(readers)
        self._held = held

    async def _lose(self) -> None:
        """Everything is another's already: nothing can be committed."""
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
        """Commit where a partition begins, lest the next member begin later.

        Many partitions do so at once: those that wait while one commits find that it has done theirs as well,
        or do those of all that wait.
        """
        self._dirty.setdefault(reader.key, offset)
        await self._commit_dirty(self._options.timeout)

    # Commits

    def _settle_in_hand(self) -> None:
        """Count as processed what was handed out last."""
        held, self._in_hand = self._in_hand, []
        for reader, offset in held:
            self._processed(reader, offset)

    def _processed(self, reader: PartitionReader, offset: int) -> None:
        if self._readers.get(reader.key) is reader or self._leaving.get(reader.key) is reader:
            is_automatic = self._options.auto_commit_interval is not None
            (self._dirty if is_automatic else self._handed_out)[reader.key] = offset + 1

    async def _commit_dirty(self, timeout: float, keys: Iterable[TopicPartition] | None = None) -> None:
        """Commit what is to be committed.

        Raises:
            MemberFencedError: A partition is not this member's any more.
            GroupError, CallTimeoutError, TransportError: It could not be stored.
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
        """Have the one who iterates see what a task ended with."""
        if task.cancelled() or (failure := task.exception()) is None:
            return
        self._failure = self._failure or failure
        self._wake.set()
        self._settled.set()
