"""Partition assignment for a consumer: starts and stops readers and stores their offsets.

A partition is in ``_readers`` from assignment to revocation, then in ``_leaving`` until its final checkpoint.
After a revocation the member may still store its last offsets, but only if no larger offset is stored. The
callback ``on_revoked`` runs between the two: readers have stopped, and processed messages still count.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Collection, Iterable
from typing import TYPE_CHECKING
from uuid import uuid4

from liftenvelope._deadlines import Deadline
from liftenvelope.client.checkpointer import CheckpointWriter
from liftenvelope.client.checkpoints import Checkpoints
from liftenvelope.client.consumer_member import GroupMember
from liftenvelope.client.consumer_reader import PartitionReader
from liftenvelope.client.events import CheckpointFailed
from liftenvelope.errors import FencedError, LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from liftenvelope.client.consumer_options import ConsumerOptions, PartitionsCallback
    from liftenvelope.client.membership import Change, StreamPartition
    from liftenvelope.client.subscribing import SubscribeMixin

__all__ = ["ConsumerPartitions"]


class ConsumerPartitions:
    """Base of :class:`Consumer` that applies the group's assignment changes to partition readers."""

    def __init__(self, client: SubscribeMixin, options: ConsumerOptions) -> None:
        self._client = client
        self._options = options
        self._consumer_id = options.consumer_id or f"consumer-{uuid4().hex}"
        self._member: GroupMember | None = None
        self._writer: CheckpointWriter[StreamPartition] | None = None
        self._checkpoints = Checkpoints["StreamPartition"](None, options.auto_commit_interval)
        self._readers: dict[StreamPartition, PartitionReader] = {}
        #: Revoked partitions before their final checkpoint.
        self._leaving: dict[StreamPartition, PartitionReader] = {}
        self._ready: deque[PartitionReader] = deque()
        self._in_hand: list[tuple[PartitionReader, int]] = []
        self._wake = asyncio.Event()
        self._is_waiting = False
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._closing = False
        self._closer: asyncio.Task[object] | None = None
        self._gone = asyncio.Event()

    def _not_ours(self, stream: str, partition: int) -> FencedError:
        return FencedError(f"{stream}[{partition}] is not assigned to consumer {self._consumer_id!r}")

    def _running(self) -> GroupMember:
        if self._member is None:
            raise UsageError("the consumer is not open: use it in a 'with' block")
        return self._member

    # Assignment

    async def _act(self) -> None:
        member = self._running()
        while not self._closing:
            await self._apply(await member.changes.get())

    async def _apply(self, change: Change) -> None:
        if change.revoked:
            try:
                await self._give_up(change.revoked, self._client._options.timeout)
            except LiftEnvelopeError as exc:
                for (stream, partition), offset in self._checkpoints.pending(change.revoked):
                    event = CheckpointFailed(self._options.cursor_id, stream, partition, offset, exc)
                    self._client._options.notify(event)
            # Skipped if the task is cancelled above: then close() stores what is left.
            for key in change.revoked:
                self._leaving.pop(key, None)
                self._checkpoints.forget(key)
        if change.assigned and not self._closing:
            readers = {key: self._make_reader(key) for key in change.assigned}
            self._readers.update(readers)
            await self._tell(self._options.on_assigned, change.assigned)
            for reader in readers.values():
                reader.start(self._task_done)

    async def _give_up(self, keys: Collection[StreamPartition], timeout: float) -> None:
        """Stop the readers of partitions, call ``on_revoked``, and store the processed offsets."""
        readers = {key: self._readers.pop(key) for key in keys if key in self._readers}
        self._leaving.update(readers)
        for reader in readers.values():
            reader.stop()
        for reader in readers.values():
            await reader.close()
        try:
            await self._tell(self._options.on_revoked, sorted(readers))
        finally:
            for reader in readers.values():
                reader.is_live = False
        assert self._writer is not None
        await self._writer.flush(keys, timeout)

    async def _tell(self, callback: PartitionsCallback | None, keys: Iterable[StreamPartition]) -> None:
        partitions = list(keys)
        if callback is None or not partitions:
            return
        outcome = callback(partitions)
        if inspect.isawaitable(outcome):
            await outcome

    def _make_reader(self, key: StreamPartition) -> PartitionReader:
        return PartitionReader(
            self._client,
            self._running(),
            key,
            cursor_id=self._options.cursor_id,
            auto_offset=self._options.auto_offset,
            resume=self._options.resume,
            on_ready=self._has_messages,
            on_start=self._has_started,
        )

    def _has_messages(self, reader: PartitionReader) -> None:
        self._ready.append(reader)
        self._wake.set()

    def _has_started(self, reader: PartitionReader, last: int | None) -> None:
        self._checkpoints.forget(reader.key)
        if last is not None:
            self._checkpoints.stored(reader.key, last, asyncio.get_running_loop().time())

    # Checkpoints

    async def _allowed(
        self, chosen: list[tuple[StreamPartition, int]], deadline: Deadline
    ) -> list[tuple[StreamPartition, int]]:
        """Return the offsets that may be stored: partitions assigned in the current epoch, or just revoked.

        A revoked partition may have a new owner already. That is safe, because an offset is stored only if no
        larger one is: see ``_raise_cursor``.
        """
        mine: frozenset[StreamPartition] = frozenset()
        if any(key not in self._leaving for key, _ in chosen):
            mine = await self._running().confirm(deadline)
        return [(key, offset) for key, offset in chosen if key in mine or key in self._leaving]

    async def _store(self, key: StreamPartition, offset: int, deadline: Deadline) -> int:
        reader = self._readers.get(key)
        name = (self._options.cursor_id, *key)
        if reader is None or not reader.rewound:
            return await self._client._raise_cursor(name, offset, deadline)
        seeks = reader.seeks
        await self._client._write_cursor(name, offset, deadline)
        reader.rewound = reader.seeks != seeks
        return offset

    def _report(self, key: StreamPartition, offset: int, error: LiftEnvelopeError) -> None:
        self._client._options.notify(CheckpointFailed(self._options.cursor_id, *key, offset, error))

    async def _before(self, reader: PartitionReader, timeout: float | None) -> int:
        """Return the offset before the first one to read: from the reader's start, or from the cursor."""
        if reader.first is not None:
            return reader.first - 1
        stored = await self._client.fetch_cursor(self._options.cursor_id, *reader.key, timeout=timeout)
        return -1 if stored is None else stored

    # Tasks

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._task_done)
        self._tasks.append(task)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        """Keep a task's failure, so that the next iteration raises it."""
        if task.cancelled() or (failure := task.exception()) is None:
            return
        self._failure = self._failure or failure
        self._wake.set()
