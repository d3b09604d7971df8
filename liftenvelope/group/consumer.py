"""Group consumer: iterates over the messages of the partitions that the group assigns to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from liftenvelope._checks import MAX_INT64, as_count, as_seconds
from liftenvelope.errors import (
    CallTimeoutError,
    GroupError,
    LiftEnvelopeError,
    TransportError,
    UsageError,
)
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.calls import DEFAULT_PREFIX
from liftenvelope.group.consumer_options import ConsumerOptions, PartitionsCallback, check_all_topics
from liftenvelope.group.consumer_reading import ConsumerReading
from liftenvelope.group.errors import UnknownMemberError
from liftenvelope.group.events import CommitFailed, GroupEventHandler
from liftenvelope.group.reader import GroupMessage, PartitionReader
from liftenvelope.group.topics import Topic
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from types import TracebackType

    from nats.aio.client import Client

__all__ = ["GroupConsumer"]


class GroupConsumer(ConsumerReading):
    """A member of a group, used with ``async with``, on your own NATS connection.

    Iterating yields the messages of every partition assigned to this member, in order within a partition. A
    message counts as processed when the next one is requested, or when it is passed to :meth:`commit`.
    Processed offsets are committed periodically, and before partitions move to other members. Each message is
    delivered at least once. Use a consumer from one task at a time.

    Args:
        nc: A connected nats-py client. You own it; do not close it before the consumer.
        group: Name of the group.
        topics: Topics to read: one or several :class:`JetStreamTopic`, :class:`LiftbridgeTopic`, or any
            :class:`TopicSource`.
        consumer_id: Id of this member, unique among the group's members. Default: a new one.
        session_timeout: Seconds of silence after which the member is removed, 0.1 to 3,600. Default: the
            group's.
        auto_commit_interval: Seconds between commits; None to commit only with :meth:`commit`. Default 5.
        auto_offset: Start of a partition without a committed offset: ``"new"`` (default) after the newest
            message at the first assignment, ``"earliest"`` at the oldest message, ``"latest"`` at the newest
            message, ``"error"`` raises. The start is committed before anything is read.
        assignor: Assignor of a group that this consumer creates. Default ``"sticky"``.
        ephemeral: Whether a group that this consumer creates is deleted, with its offsets, when its last
            member leaves.
        create: Create the group if it does not exist. Default true.
        prefetch: Messages of each partition to read ahead. Default 500.
        timeout: Seconds for a call. Default 10.
        on_assigned: Called with newly assigned partitions, before they are read.
        on_revoked: Called with partitions that move away, before the last commit; for partitions already
            lost, after the fact. Must return within half of the session timeout.
        prefix: Prefix of the coordinators' subjects. Default ``liftenvelope.groups``.
        on_event: Called with background events. Default: warns of those that need action.

    Raises:
        UsageError, GroupRequestError: An argument is malformed.

    Example::

        topic = JetStreamTopic.of_stream("ORDERS", ["orders.0", "orders.1"])
        async with GroupConsumer(nc, "billing", topic, auto_offset="earliest") as consumer:
            async for message in consumer:
                print(message.partition, message.offset, message.data)
    """

    def __init__(
        self,
        nc: Client,
        group: str,
        topics: Topic | Iterable[Topic],
        *,
        consumer_id: str | None = None,
        session_timeout: float | None = None,
        auto_commit_interval: float | None = 5.0,
        auto_offset: str = "new",
        assignor: str = "sticky",
        ephemeral: bool = False,
        create: bool = True,
        prefetch: int = 500,
        timeout: float = 10.0,
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        prefix: str = DEFAULT_PREFIX,
        on_event: GroupEventHandler | None = None,
    ) -> None:
        options = ConsumerOptions(
            group=group,
            topics=check_all_topics(topics),
            consumer_id=consumer_id,
            session_timeout=session_timeout,
            auto_commit_interval=auto_commit_interval,
            auto_offset=auto_offset,
            assignor=assignor,
            ephemeral=ephemeral,
            create=create,
            prefetch=prefetch,
            timeout=timeout,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_event=on_event,
        )
        super().__init__(nc, options, prefix)

    # Properties

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._options.group

    @property
    def consumer_id(self) -> str:
        """Id of this member."""
        return self._consumer_id

    @property
    def generation(self) -> int:
        """Group generation of this member's partitions; 0 for none."""
        return self._running().session.generation

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """Partitions that this member reads now."""
        return frozenset(self._readers)

    def position(self, topic: str, partition: int) -> int | None:
        """Return the offset of the next message to hand out, or a lower one; None if not known yet.

        Raises:
            NotAssignedError: The partition is not assigned to this member.
        """
        return self._reader(topic, partition).position

    async def lag(self, *, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the number of messages not yet handed out, for each assigned partition.

        Args:
            timeout: Seconds for the whole call. Default: the consumer's.

        Raises:
            CallTimeoutError: The call timed out.
            LiftEnvelopeError: A topic could not be read.
        """
        seconds = self._options.timeout if timeout is None else as_seconds("timeout", timeout)
        self._running()
        lags: dict[TopicPartition, int] = {}
        try:
            async with asyncio.timeout(seconds):
                for key, reader in list(self._readers.items()):
                    lags[key] = await self._sources[key.topic].lag(key.partition, await reader.begin())
        except TimeoutError as exc:
            raise CallTimeoutError(f"the lag could not be read within {seconds:g} s") from exc
        return lags

    # Lifecycle

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None:
            await self.close()
            return
        try:
            await self.close()
        except LiftEnvelopeError as failure:
            # The block's own error, such as a cancellation, must propagate unchanged.
            exc.add_note(f"group {self.group!r}: the last commit failed: {failure}")

    async def open(self) -> Self:
        """Join the group and start reading the assigned partitions. ``async with`` calls this.

        Raises:
            CallTimeoutError: The consumer could not join within ``timeout``. A dead member with the same
                consumer id blocks it for a session timeout.
            GroupError: The group refused the consumer.
            TransportError: The connection is closed.
        """
        if self._member is not None or self._closing:
            raise UsageError("a consumer can be opened only once; create a new one")
        self._member = self._make_member()
        try:
            self._spawn(self._member.keep())
            self._spawn(self._act())
            if self._options.auto_commit_interval is not None:
                self._spawn(self._commit_now_and_then(self._options.auto_commit_interval))
            await self._until_settled()
        except BaseException:
            await self.close()
            raise
        return self

    async def _until_settled(self) -> None:
        seconds = self._options.timeout
        try:
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        except TimeoutError as exc:
            raise CallTimeoutError(
                f"{self.consumer_id!r} could not join group {self.group!r} within {seconds:g} s; check that "
                f"a coordinator is running{Link(self._js.api.nc).refusal}"
            ) from exc
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise UnknownMemberError(f"{self.consumer_id!r} was closed while joining group {self.group!r}")

    async def close(self) -> None:
        """Stop reading, call ``on_revoked``, commit processed messages, and leave the group.

        The last message handed out counts as processed only if it was committed. Takes at most the consumer's
        ``timeout``, plus the time of ``on_revoked``. Further calls do nothing.

        Raises:
            LiftEnvelopeError: The processed offsets could not be committed. The consumer is closed anyway.
        """
        if self._closing:
            if self._closer is not asyncio.current_task():  # on_revoked may call close() too
                await self._gone.wait()
            return
        self._closing, self._closer = True, asyncio.current_task()
        self._wake.set()
        self._settled.set()
        try:
            await self._finish()
        finally:
            try:
                await self._end()
            finally:
                self._gone.set()

    async def _finish(self) -> None:
        member = self._member
        if member is None:
            return
        await self._until_told()
        # The first task keeps sending heartbeats until the last commit.
        await _cancel(self._tasks[1:])
        seconds = self._options.timeout / 2
        readers, self._readers = self._readers, {}
        self._leaving = {**self._leaving, **readers}
        for reader in readers.values():
            await reader.close()
        try:
            await self._tell(self._options.on_revoked, readers)
            if member.session.is_inside:
                await self._commit_dirty(seconds)
        finally:
            await _cancel(self._tasks[:1])
            try:
                await member.leave(seconds)
            except (GroupError, CallTimeoutError, TransportError) as exc:
                # The group notices after a session timeout.
                self._options.notify(CommitFailed(self.group, self.consumer_id, exc))

    async def _until_told(self) -> None:
        """Wait for a running callback to return, unless that callback is what closes the consumer."""
        if asyncio.current_task() in self._tasks:
            return
        with contextlib.suppress(TimeoutError):  # the callback may wait for a task that closes the consumer
            async with asyncio.timeout(self._options.timeout), self._telling:
                return

    async def _end(self) -> None:
        self._ready.clear()
        self._in_hand.clear()
        for reader in [*self._readers.values(), *self._leaving.values(), *self._held.values()]:
            await reader.close()
        self._readers, self._leaving, self._held = {}, {}, {}
        await _cancel(self._tasks)
        await self._js.close()

    # Commits and positions

    async def commit(
        self,
        messages: GroupMessage | Iterable[GroupMessage] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit processed messages now.

        Args:
            messages: One or several messages: they and all earlier messages of their partitions are
                processed, and their partitions are committed. None: all messages handed out are processed,
                and all partitions are committed.
            timeout: Seconds for the whole call. Default: the consumer's.

        Raises:
            MemberFencedError: A message's partition was reassigned, and the message will be redelivered; or
                this consumer is no longer a member, for example because it was closed.
            GroupError, CallTimeoutError, TransportError: The offsets could not be stored.
        """
        seconds = self._options.timeout if timeout is None else as_seconds("timeout", timeout)
        member = self._running()
        if self._gone.is_set():
            raise UnknownMemberError(f"{self.consumer_id!r} has left the group; commit before closing")
        if messages is not None:
            given = [messages] if isinstance(messages, GroupMessage) else list(messages)
            await self._commit_dirty(seconds, self._have_processed(given))
            return
        if not member.session.is_inside:
            text = f"{self.consumer_id!r} has lost its partitions, and is joining again"
            raise UnknownMemberError(f"{text}; uncommitted messages will be redelivered")
        self._settle_in_hand()
        self._dirty |= self._handed_out
        self._handed_out.clear()
        await self._commit_dirty(seconds)

    def _have_processed(self, messages: list[GroupMessage]) -> set[TopicPartition]:
        """Mark messages as processed and return their partitions."""
        ends: dict[TopicPartition, int] = {}
        for message in messages:
            key = TopicPartition(message.topic, message.partition)
            reader = self._readers.get(key) or self._leaving.get(key)
            if reader is None or reader.generation != message.generation:
                raise self._fenced(key, message.generation)
            ends[key] = max(ends.get(key, 0), message.offset + 1)
        for key, end in ends.items():
            self._in_hand = [held for held in self._in_hand if held[0].key != key or held[1] >= end]
            if self._handed_out.get(key, end) <= end:
                self._handed_out.pop(key, None)
            self._dirty[key] = max(self._dirty.get(key, 0), end)
        return set(ends)

    def pause(self, topic: str, partition: int) -> None:
        """Stop handing out messages of a partition. The partition stays assigned.

        Raises:
            NotAssignedError: The partition is not assigned to this member.
        """
        self._reader(topic, partition).paused = True

    def resume(self, topic: str, partition: int) -> None:
        """Resume handing out messages of a partition.

        Raises:
            NotAssignedError: The partition is not assigned to this member.
        """
        self._reader(topic, partition).paused = False

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue a partition at another offset, higher or lower.

        The committed offset follows with the next commit after a message from there.

        Args:
            topic: Name of the topic.
            partition: Number of the partition.
            offset: Offset of the next message to hand out; if there is no such message, the one after it is
                next. Beyond the end of the partition, iterating raises :class:`OffsetOutOfRangeError`.

        Raises:
            NotAssignedError: The partition is not assigned to this member.
            UsageError: The offset is negative.
        """
        offset = as_count("offset", offset, 0, MAX_INT64 - 1)
        reader = self._reader(topic, partition)
        self._dirty.pop(reader.key, None)
        self._handed_out.pop(reader.key, None)
        self._in_hand = [held for held in self._in_hand if held[0] is not reader]
        reader.seek(offset)

    def _reader(self, topic: str, partition: int) -> PartitionReader:
        self._running()
        key = TopicPartition(topic, partition)
        reader = self._readers.get(key)
        if reader is None:
            raise self._fenced(key)
        return reader


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end, except for the current task, such as a callback's."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
