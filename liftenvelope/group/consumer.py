"""A member of a group: an iteration over the messages of the partitions that the group gives it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from liftenvelope.errors import (
    CallTimeoutError,
    GroupError,
    LiftEnvelopeError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.calls import DEFAULT_PREFIX
from liftenvelope.group.consumer_options import ConsumerOptions, PartitionsCallback, check_all_topics
from liftenvelope.group.consumer_reading import ConsumerReading
from liftenvelope.group.errors import UnknownMemberError
from liftenvelope.group.events import CommitFailed, GroupEventHandler
from liftenvelope.group.reader import GroupMessage, PartitionReader
from liftenvelope.group.topics import Topic
from liftenvelope.nats._link import Link
from liftenvelope.nats._outcomes import positive

if TYPE_CHECKING:
    from types import TracebackType

    from nats.aio.client import Client

__all__ = ["GroupConsumer"]


class GroupConsumer(ConsumerReading):
    """A member of a group, used with ``async with``, on a NATS connection that you already have.

    Iterating gives the messages of every partition that the group has given to this member: those of one
    partition in order. A message counts as processed when the next one is asked for, or when it is passed to
    :meth:`commit`; what is processed is committed now and then, and before partitions go to others. Each
    message is delivered at least once. For one task at a time.

    Args:
        nc: A connected nats-py client. It stays yours, and must not be closed before the consumer.
        group: Name of the group.
        topics: What is read: :class:`JetStreamTopic`, :class:`LiftbridgeTopic`, or any :class:`TopicSource`;
            one or several.
        consumer_id: This member's id in the group, which no other living member may have. Default: a new one.
        session_timeout: Seconds of silence after which the member is taken for dead, 0.1 to 3,600. Default:
            the group's.
        auto_commit_interval: Seconds between two commits; None for :meth:`commit` alone. Default 5.
        auto_offset: Where a partition begins of which nothing was committed: ``"new"`` (default) with what
            comes from the first assignment on, ``"earliest"`` with the oldest message, ``"latest"`` with the
            newest one there is, ``"error"`` not at all. That place is committed before anything is read.
        assignor: Of a group that has to be made: what deals out the partitions. Default ``"sticky"``.
        ephemeral: Of a group that has to be made: whether it goes, with its offsets, with its last member.
        create: Whether a group that is not there is made. Default true.
        prefetch: How many messages of each partition are read ahead. Default 500.
        timeout: How long a call may take in seconds. Default 10.
        on_assigned: Called with the partitions that the member has got, before they are read.
        on_revoked: Called with those that go, before the last commit; of partitions that are lost already,
            after the fact. It has to be done within half of the session timeout.
        prefix: What the coordinators' subjects begin with. Default ``liftenvelope.groups``.
        on_event: Called with what happens in the background.

    Raises:
        UsageError, GroupRequestError: An argument makes no sense.

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

    # What it is

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
        """The group's generation that this member has its partitions in, 0 for none."""
        return self._running().session.generation

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member reads now."""
        return frozenset(self._readers)

    def position(self, topic: str, partition: int) -> int | None:
        """The offset that is handed out next, or a lower one; None where it is not known yet.

        Raises:
            NotAssignedError: The partition is not this member's.
        """
        return self._reader(topic, partition).position

    async def lag(self, *, timeout: float | None = None) -> dict[TopicPartition, int]:
        """How many messages of each of its partitions have not been handed out yet.

        Args:
            timeout: Seconds for all of it. Default: the consumer's.

        Raises:
            CallTimeoutError: That took longer.
            LiftEnvelopeError: A topic could not be asked.
        """
        seconds = self._options.timeout if timeout is None else positive("timeout", timeout)
        self._running()
        lags: dict[TopicPartition, int] = {}
        try:
            async with asyncio.timeout(seconds):
                for key, reader in list(self._readers.items()):
                    lags[key] = await self._sources[key.topic].lag(key.partition, await reader.begin())
        except TimeoutError as exc:
            raise CallTimeoutError(f"the lag was not known within {seconds} s") from exc
        return lags

    # Its life

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
            # The block's own error goes on, and must not be replaced: a cancellation, for one.
            exc.add_note(f"group {self.group!r}: the last commit failed: {failure}")

    async def open(self) -> Self:
        """Join the group, and begin to read what it assigns; ``async with`` does it.

        Raises:
            CallTimeoutError: The group did not take the consumer in the consumer's ``timeout``; a member that
                died with the same consumer id is in the way for a session timeout.
            GroupError: The group does not take it.
            TransportError: The connection is closed.
        """
        if self._member is not None or self._closing:
            raise UsageError("a consumer can be opened only once, and not after it was closed")
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
                f"group {self.group!r} did not take {self.consumer_id!r} in within {seconds} s: "
                f"is a coordinator running?{Link(self._js.api.nc).refusal}"
            ) from exc
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise UnknownMemberError(f"{self.consumer_id!r} was closed while it joined group {self.group!r}")

    async def close(self) -> None:
        """Stop reading, call ``on_revoked``, commit what was processed, and leave the group.

        The message that was handed out last counts as processed only if it was committed. Closing twice is
        fine. It takes no longer than the consumer's ``timeout``, besides the time of ``on_revoked``.

        Raises:
            LiftEnvelopeError: What was processed could not be committed. It is closed all the same.
        """
        if self._closing:
            if self._closer is not asyncio.current_task():  # as it is where on_revoked closes it as well
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
        # The first task goes on telling the group that this member lives.
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
                # The group finds out by itself, a session timeout later.
                self._options.notify(CommitFailed(self.group, self.consumer_id, exc))

    async def _until_told(self) -> None:
        """Let a callback that runs come to its end, unless it is that which closes the consumer."""
        if asyncio.current_task() in self._tasks:
            return
        with contextlib.suppress(TimeoutError):  # it may wait for a task that closes the consumer
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

    # What the user does about partitions

    async def commit(
        self,
        messages: GroupMessage | Iterable[GroupMessage] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit now what was processed.

        Args:
            messages: One or several: they and all before them in their partitions are processed, and those
                partitions are committed. None: everything that was handed out is processed, and all
                partitions are committed.
            timeout: Seconds for all of it. Default: the consumer's.

        Raises:
            MemberFencedError: A message's partition is another member's by now, who gets it again; or this
                member is none any more, for one because the consumer was closed.
            GroupError, CallTimeoutError, TransportError: It could not be stored.
        """
        seconds = self._options.timeout if timeout is None else positive("timeout", timeout)
        member = self._running()
        if self._gone.is_set():
            raise UnknownMemberError(f"{self.consumer_id!r} has left: commit before the consumer is closed")
        if messages is not None:
            given = [messages] if isinstance(messages, GroupMessage) else list(messages)
            await self._commit_dirty(seconds, self._have_processed(given))
            return
        if not member.session.is_inside:
            raise UnknownMemberError(f"{self.consumer_id!r} has lost its place, and is registering anew")
        self._settle_in_hand()
        self._dirty |= self._handed_out
        self._handed_out.clear()
        await self._commit_dirty(seconds)

    def _have_processed(self, messages: list[GroupMessage]) -> set[TopicPartition]:
        """Take note that messages are processed, and return their partitions."""
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
        """Hand out no messages of a partition for the time being. It stays this member's.

        Raises:
            NotAssignedError: The partition is not this member's.
        """
        self._reader(topic, partition).paused = True

    def resume(self, topic: str, partition: int) -> None:
        """Hand out messages of a partition again.

        Raises:
            NotAssignedError: The partition is not this member's.
        """
        self._reader(topic, partition).paused = False

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on with a partition at another offset, also at a lower one.

        What is committed follows with the next commit after a message from there.

        Args:
            topic: Name of the topic.
            partition: Number of the partition.
            offset: Of the message that is handed out next; if there is none, of the next one after it. Beyond
                the end of the partition the iteration ends by an :class:`OffsetOutOfRangeError`.

        Raises:
            NotAssignedError: The partition is not this member's.
            UsageError: The offset is negative.
        """
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise UsageTypeError(f"offset must be an int, not {offset!r}")
        if not 0 <= offset < 2**63 - 1:
            raise UsageError(f"offset={offset!r}: expected 0 or more, below 2**63 - 1")
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
    """Cancel tasks and wait for their end; but not for the task that this runs in, such as a callback's."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
