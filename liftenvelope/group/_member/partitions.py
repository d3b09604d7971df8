"""Partition assignment for a group consumer: starts and stops readers and commits offsets.

The lifecycle and the tasks are those of every consumer: see :mod:`liftenvelope.consumers.shell`. This module
adds the protocol of :mod:`liftenvelope.group._member.session`.

A partition's reader moves through these collections. Only the task in :meth:`GroupConsumerPartitions._act`
moves readers, one change at a time, except for closing.

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
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from liftenvelope._deadlines import Deadline
from liftenvelope._native import handout
from liftenvelope.consumers.locks import holding
from liftenvelope.consumers.shell import ConsumerShell, stop
from liftenvelope.errors import CallTimeoutError, GroupError, LiftEnvelopeError, TransportError
from liftenvelope.group._member.member import Assigned, GiveBack, GroupMember, Lost, creation_of
from liftenvelope.group._member.reader import GroupMessage, PartitionReader
from liftenvelope.group._requests import Commit
from liftenvelope.group._sources import content_of
from liftenvelope.group._topics import source_of
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.calls import GroupCalls
from liftenvelope.group.clock import time_since_boot
from liftenvelope.group.errors import MemberFencedError, NotAssignedError, StaleGenerationError
from liftenvelope.group.events import (
    CommitFailed,
    PartitionRefused,
    PartitionUnknown,
    PartitionUnreadable,
)
from liftenvelope.jetstream import JetStream
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.group._member.options import GroupConsumerOptions

__all__ = ["GroupConsumerPartitions"]

#: Fraction of the session timeout allowed for the last commit of a generation.
_LAST_COMMIT: Final = 0.5
#: Most seconds of one JetStream request: a request on a lost connection is never answered.
_ONE_TRY: Final = 2.5


class GroupConsumerPartitions(ConsumerShell[TopicPartition, GroupMember, PartitionReader, GroupMessage]):
    """Part of a consumer that carries out the assignments of the group."""

    def __init__(self, nc: Client, options: GroupConsumerOptions, prefix: str) -> None:
        super().__init__(options)
        self._options = options
        self._calls = GroupCalls(nc, prefix=prefix, timeout=options.timeout)
        self._js = JetStream(nc, timeout=min(options.timeout, _ONE_TRY))
        sources = [source_of(topic, self._js, options.prefetch) for topic in options.topics]
        self._sources = {source.spec.name: source for source in sources}
        self._nc = nc
        #: Readers given back that keep buffering, in case their partition is assigned again.
        self._held: dict[TopicPartition, PartitionReader] = {}
        #: Offsets to commit: the next offset to read, by partition. A buffer keeps that of messages processed
        #: since, for :meth:`_collect`.
        self._dirty: dict[TopicPartition, int] = {}
        #: True from a loss of partitions with uncommitted offsets until the next assignment.
        self._has_lost_progress = False
        #: Readers whose start may still come after a message that is published now; None between assignments.
        self._beginning: set[PartitionReader] | None = None
        self._committing = asyncio.Lock()
        #: Set while no reader commits starts.
        self._no_start = asyncio.Event()
        self._no_start.set()
        self._membership = self._make_member()
        self._hand: handout.HandOut[GroupMessage] = handout.HandOut(
            self._membership.session, time_since_boot, self._wait_for_one
        )

    @property
    def handed_out(self) -> dict[TopicPartition, Any]:
        """Message that was handed out last in each assigned partition, as the object of its source.

        Without the partitions of which none was handed out since they were assigned, or since a seek.
        """
        readers = list(self._readers.items())
        return {
            key: content_of(last)[1] for key, reader in readers if (last := reader.buffer.last) is not None
        }

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

    def _fenced(self, key: TopicPartition, generation: int) -> MemberFencedError:
        if generation != self._running().session.generation:
            return StaleGenerationError(
                f"{key.topic}[{key.partition}] was {self._consumer_id!r}'s in generation {generation}, "
                "which has ended; the message will be redelivered"
            )
        return self._not_assigned(key)

    def _not_assigned(self, key: TopicPartition) -> NotAssignedError:
        return NotAssignedError(f"{key.topic}[{key.partition}] is not assigned to {self._consumer_id!r}")

    # Assignment

    async def _act(self, member: GroupMember) -> None:
        while not self._closing:  # a callback that closes the consumer runs in this task
            change = await member.changes.get()
            if isinstance(change, Assigned):
                await self._assign(change)
                self._wake.set()
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
        self._has_lost_progress = False
        held, self._held = self._held, {}
        share = self._share_bytes(len(change.offsets))
        readers = {
            key: self._kept(held, key, change.generation, offset) or self._new_reader(key, change, offset)
            for key, offset in change.offsets.items()
            if self._can_read(key)
        }
        for reader in readers.values():
            reader.limit_bytes(share)
        self._readers.update(readers)
        await stop(held.values())
        await self._begin(readers)
        self._beginning = {reader for reader in readers.values() if reader.may_skip}

    def _share_bytes(self, partitions: int) -> int:
        """Divide ``prefetch_bytes``; return the bytes that one buffer may hold.

        A partition has at most three times as many: a buffer that is not yet full, the messages that are then
        added to it, and those that its feed has received meanwhile. A block is freed as a whole: a part of it
        that was handed out may still be there.
        """
        return max(self._options.prefetch_bytes // (3 * max(partitions, 1)), 1)

    def _kept(
        self, held: dict[TopicPartition, PartitionReader], key: TopicPartition, generation: int, offset: int
    ) -> PartitionReader | None:
        """Return the held reader of a partition, if it can continue at the committed offset."""
        if key in held and held[key].go_on(generation, offset):
            return held.pop(key)
        return None

    def _new_reader(self, key: TopicPartition, change: Assigned, offset: int) -> PartitionReader:
        return PartitionReader(
            self._sources[key.topic],
            key,
            change.generation,
            offset,
            created_ns=change.created_ns.get(key, 0),
            auto_offset=self._options.auto_offset,
            limit=self._options.prefetch,
            patience=self._options.timeout,
            on_ready=self._has_messages,
            on_refused=self._is_refused,
            on_unreadable=self._is_unreadable,
            on_begin=self._begins,
        )

    def _has_messages(self, reader: PartitionReader) -> None:
        self._hand.add(reader.buffer)

    def _is_refused(self, reader: PartitionReader, error: LiftEnvelopeError) -> None:
        self._options.notify(PartitionRefused(self._group, self._consumer_id, *reader.key, error))

    def _is_unreadable(self, reader: PartitionReader, error: LiftEnvelopeError) -> None:
        self._options.notify(PartitionUnreadable(self._group, self._consumer_id, *reader.key, error))

    def _interrupt(self) -> None:
        self._hand.until = 0.0
        super()._interrupt()

    async def _wait_for_one(self) -> GroupMessage:
        """Return the next message if it needs waiting or other work."""
        messages = await self._next(1, 0.0)
        if not messages:
            raise StopAsyncIteration
        return messages[0]

    def _can_read(self, key: TopicPartition) -> bool:
        """Return True if this member knows the partition; the topic may have grown since the start."""
        if key.partition < self._sources[key.topic].spec.partitions:
            return True
        self._options.notify(PartitionUnknown(self._group, self._consumer_id, *key))
        return False

    async def _give_back(self, timeout: float) -> None:
        """Stop reading, call ``on_revoked``, and commit all processed offsets."""
        # Messages in the user's hands are not processed yet.
        readers, self._readers, self._beginning = self._readers, {}, None
        self._forgive(readers.values())
        self._leaving = readers
        self._hand.clear()
        # Most partitions are assigned again at once, so their readers keep buffering without handing out.
        held = {key: reader for key, reader in readers.items() if reader.hold()}
        try:
            await stop([readers[key] for key in readers.keys() - held.keys()])
            await self._tell(self._on_revoked, readers)
            await self._commit_dirty(timeout)
        except (GroupError, CallTimeoutError, TransportError) as exc:
            self._has_lost_progress = self._has_uncommitted()
            self._options.notify(CommitFailed(self._group, self._consumer_id, exc))
        # Skipped if this task is cancelled: then close() commits the rest.
        self._drop(readers)
        self._held = held

    async def _lose(self) -> None:
        """Drop all partitions without a commit: other members may own them already."""
        self._has_lost_progress |= self._has_uncommitted()
        readers, self._readers, self._beginning = self._readers, {}, None
        self._forgive(readers.values())
        held, self._held = self._held, {}
        self._hand.clear()
        self._drop(readers)
        await stop([*readers.values(), *held.values()])
        await self._tell(self._on_revoked, readers)

    def _drop(self, readers: Mapping[TopicPartition, PartitionReader]) -> None:
        """Forget the offsets and the messages in hand of partitions that are gone."""
        self._leaving = {}
        for key, reader in readers.items():
            self._forget(key)
            reader.buffer.forget()

    def _forget(self, key: TopicPartition) -> None:
        self._dirty.pop(key, None)

    async def _begins(self, reader: PartitionReader, start: int | None) -> None:
        """Commit the start of a partition, so that no later member starts at a later offset."""
        if start is not None:
            self._dirty.setdefault(reader.key, start)
            await self._commit_start(reader.key)
        if self._beginning:
            self._beginning.discard(reader)
            if self._is_settled:
                self._wake.set()

    async def _commit_start(self, key: TopicPartition) -> None:
        """Commit the start of a partition, and those of all partitions that wait here.

        The waiting ones continue together. If each took the lock in turn, the last of a thousand would wait
        while the others open their feeds.
        """
        while key in self._dirty:
            if self._no_start.is_set():
                self._no_start.clear()
                try:
                    await self._commit_dirty(self._options.timeout)
                finally:
                    self._no_start.set()
                return
            await self._no_start.wait()

    @property
    def _is_settled(self) -> bool:
        """True once an assignment was carried out and no message published from now on is skipped."""
        return self._beginning is not None and not self._beginning

    def _why_unsettled(self, seconds: float) -> str:
        if self._beginning:
            reader = min(self._beginning, key=lambda reader: reader.key)
            reason = "" if reader.last_error is None else f": {reader.last_error}"
            what = f"{reader.key.topic}[{reader.key.partition}]"
            return f"the start of {what} could not be found and committed within {seconds:g} s{reason}"
        text = f"{self._consumer_id!r} could not join group {self._group!r} within {seconds:g} s"
        refusal, permission = self._membership.refusal, Link(self._nc).refusal(f"{self._calls.prefix}.>")
        if refusal is None or isinstance(refusal, CallTimeoutError):
            return f"{text}; check that a coordinator is running{permission}"
        return f"{text}: {refusal}{permission}"

    # Commits

    def _add_dirty(self, key: TopicPartition, end: int) -> None:
        self._dirty[key] = max(self._dirty.get(key, 0), end)

    def _collect(self) -> None:
        """Take the offsets of processed messages from the buffers, which keep them until a commit."""
        for key, reader in (self._readers | self._leaving).items():
            if (end := reader.buffer.processed()) is not None:
                self._add_dirty(key, end)

    def _has_uncommitted(self) -> bool:
        """Return True if offsets of processed messages, or of :meth:`commit`, are not committed.

        A start that is not committed is no progress: no message was handed out yet.
        """
        if self._options.auto_commit_interval is not None:
            self._collect()
        held = self._readers | self._leaving
        return any(key not in held or offset != held[key].start_offset for key, offset in self._dirty.items())

    async def _commit_dirty(self, timeout: float, keys: Iterable[TopicPartition] | None = None) -> None:
        """Commit pending offsets, of all partitions or of ``keys``.

        Raises:
            MemberFencedError: A partition is no longer assigned to this member.
            CallTimeoutError: The offsets were not stored in time, or another commit has not ended by then.
            GroupError, TransportError: The offsets could not be stored.
        """
        deadline = Deadline(timeout)
        text = f"the offsets were not committed in {timeout:g} s: an earlier commit has not ended"
        async with holding(self._committing, deadline, text):
            if self._options.auto_commit_interval is not None:
                self._collect()
            wanted = self._dirty.keys() if keys is None else self._dirty.keys() & set(keys)
            held = self._readers | self._leaving
            chosen = {
                key: Commit(key, self._dirty[key], held[key].rewound, held[key].created_ns)
                for key in wanted
                if key in held
            }
            if not chosen:
                return
            generation = next(held[key].buffer.generation for key in chosen)
            seeks = {key: held[key].seeks for key in chosen}
            outcome = await self._running().commit(generation, chosen.values(), deadline.left)
            failure: GroupError | None = None
            for key, commit in chosen.items():
                result = outcome.get(key)
                if isinstance(result, GroupError):
                    failure = failure or result
                    continue
                if self._dirty.get(key) == commit.offset:
                    del self._dirty[key]
                # If the user has sought meanwhile, the next commit may lower it again.
                if commit.rewind and held[key].seeks == seeks[key]:
                    held[key].rewound = False
            if failure is not None:
                raise failure

    async def _commit_now_and_then(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self._commit_dirty(self._options.timeout)
            except (GroupError, CallTimeoutError, TransportError) as exc:
                self._options.notify(CommitFailed(self._group, self._consumer_id, exc))
