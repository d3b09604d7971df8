"""Group consumer: iterates over the messages of the partitions that the group assigns to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Final, Literal, Self

from liftenvelope._checks import MAX_INT64, MOST_BATCH_BYTES, as_count, as_seconds
from liftenvelope.consumers.shell import TURN, stop
from liftenvelope.consumers.tasks import cancel
from liftenvelope.errors import CallTimeoutError, GroupError, TransportError
from liftenvelope.group._member.options import GroupConsumerOptions, PartitionsCallback, check_all_topics
from liftenvelope.group._member.partitions import GroupConsumerPartitions
from liftenvelope.group._member.pieces import handed_out
from liftenvelope.group._member.reader import GroupMessage, PartitionReader
from liftenvelope.group._topics import Topic
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.calls import DEFAULT_PREFIX
from liftenvelope.group.clock import time_since_boot
from liftenvelope.group.errors import UnknownMemberError
from liftenvelope.group.events import GroupEventHandler, LeaveFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from nats.aio.client import Client

    from liftenvelope.group._member.member import GroupMember
    from liftenvelope.payload import PayloadChoice

__all__ = ["GroupConsumer"]

#: Seconds between checks of a member that has messages but may have lost its partitions.
_LOOK: Final = 0.05


class GroupConsumer(GroupConsumerPartitions):
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
        prefetch: Messages of each partition to read ahead. A list of :meth:`batches` has at most this many
            messages of one partition. Default 5,000.
        prefetch_bytes: Bytes of all partitions to read ahead, in equal shares. However small its share is, a
            partition reads one or two messages ahead. Default 64 MiB.
        timeout: Seconds for a call, and to wait for a deleted stream to be created again before the
            iteration raises its error. Default 10.
        on_assigned: Called with newly assigned partitions, before they are read.
        on_revoked: Called with partitions that move away, before the last commit; for partitions already
            lost, after the fact. Must return within half of the session timeout.
        prefix: Prefix of the coordinators' subjects. Default ``liftenvelope.groups``.
        on_event: Called with background events; its exceptions go to the loop's handler. Default: warns.

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
        prefetch: int = 5_000,
        prefetch_bytes: int = 64 * 1024 * 1024,
        timeout: float = 10.0,
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        prefix: str = DEFAULT_PREFIX,
        on_event: GroupEventHandler | None = None,
    ) -> None:
        options = GroupConsumerOptions(
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
            prefetch_bytes=prefetch_bytes,
            timeout=timeout,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_event=on_event,
        )
        super().__init__(nc, options, prefix)
        #: Time since boot when other tasks last had a turn, as far as the iteration knows.
        self._turned_at = 0.0
        #: Messages and bytes that the iteration waits for, once it has some; None if any wake it.
        self._awaited: tuple[int, int] | None = None

    # Properties

    @property
    def nc(self) -> Client:
        """NATS connection of the member."""
        return self._nc

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics that the member reads."""
        return tuple(topic.spec.name for topic in self._options.topics)

    @property
    def generation(self) -> int:
        """Group generation of this member's partitions; 0 for none."""
        return self._running().session.generation

    def position(self, topic: str, partition: int) -> int | None:
        """Return the offset of the next message to hand out, or a lower one; None if not known yet.

        Raises:
            NotAssignedError: The partition is not assigned to this member.
        """
        return self._reader(TopicPartition(topic, partition)).position

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
                    lags[key] = await reader.lag()
        except TimeoutError as exc:
            raise CallTimeoutError(f"the lag could not be read within {seconds:g} s") from exc
        return lags

    # Lifecycle

    async def open(self) -> Self:
        """Join the group and start reading the assigned partitions. ``async with`` calls this.

        With ``auto_offset`` "new" or "latest" it returns once the start of every assigned partition is
        committed: messages published after that are read.

        Raises:
            CallTimeoutError: The consumer could not join, or a start could not be committed, within
                ``timeout``. A dead member with the same consumer id blocks it for a session timeout.
            GroupError: The group refused the consumer.
            LiftEnvelopeError: A partition can't be read; for example, its stream does not exist.
            TransportError: The connection is closed.
        """
        await self._open(self._membership)
        return self

    async def _join(self, member: GroupMember) -> None:
        self._spawn(member.keep())
        self._spawn(self._act(member))
        if self._options.auto_commit_interval is not None:
            self._spawn(self._commit_now_and_then(self._options.auto_commit_interval))
        await self._until_settled()

    async def _until_settled(self) -> None:
        seconds = self._options.timeout
        try:
            async with asyncio.timeout(seconds):
                while not self._is_settled and not self._closing and self._failure is None:
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError as exc:
            raise CallTimeoutError(self._why_unsettled(seconds)) from exc
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise UnknownMemberError(f"{self.consumer_id!r} was closed while joining group {self.group!r}")

    async def _give_all_back(self) -> None:
        member = self._running()
        await self._until_told()
        # The first task keeps sending heartbeats until the last commit.
        await cancel(self._tasks[1:])
        seconds = self._options.timeout / 2
        readers, self._readers = self._readers, {}
        self._leaving |= readers
        await stop(readers.values())
        try:
            await self._tell(self._on_revoked, readers)
            if member.session.is_inside:
                await self._commit_dirty(seconds)
            elif self._has_lost_progress or self._has_uncommitted():
                text = (
                    f"{self.consumer_id!r} lost its partitions before all processed messages were committed"
                )
                raise UnknownMemberError(f"{text}; they will be redelivered")
        finally:
            await cancel(self._tasks[:1])
            if member.may_be_member:
                await self._leave(member, seconds)

    async def _leave(self, member: GroupMember, timeout: float) -> None:
        try:
            await member.leave(timeout)
        except (GroupError, CallTimeoutError, TransportError) as exc:
            self._options.notify(LeaveFailed(self.group, self.consumer_id, exc))

    async def _until_told(self) -> None:
        """Wait for a running callback to return, unless that callback is what closes the consumer."""
        if asyncio.current_task() in self._tasks:
            return
        with contextlib.suppress(TimeoutError):  # the callback may wait for a task that closes the consumer
            async with asyncio.timeout(self._options.timeout):
                await self._told.wait()

    async def _end(self) -> None:
        self._hand.clear()
        self._leaving |= self._held
        self._held = {}
        try:
            await super()._end()
        finally:
            self._leaving = {}
            self._hand.settle()  # drops the batches in hand: nothing is committed any more
            await self._js.close()

    # Messages

    def __aiter__(self) -> AsyncIterator[GroupMessage]:
        # A subclass may have messages of its own.
        return self._hand if type(self).__anext__ is GroupConsumer.__anext__ else self

    async def __anext__(self) -> GroupMessage:
        return await anext(self._hand)

    async def arrow_batches(
        self,
        max_rows: int = 65_536,
        *,
        max_wait: float = 1.0,
        max_bytes: int = 64 * 1024 * 1024,
        payload: PayloadChoice = None,
        on_bad: Literal["fail", "column"] = "fail",
    ) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over Arrow record batches of messages. Needs the ``[arrow]`` extra.

        A batch counts as processed when the next one is asked for, or with ``commit()``.

        Args:
            max_rows: Most messages of a batch. A batch has at most ``prefetch`` messages of one partition;
                for large batches, raise ``prefetch`` and ``prefetch_bytes`` too.
            max_wait: Seconds to wait for more after the first message of a batch.
            max_bytes: Most bytes of values in a batch; a larger message is alone. Default 64 MiB.
            payload: Format of the values, which replaces the column ``value`` by typed columns, as for
                :func:`liftenvelope.bulk.read`. A schema that is not given is that of the first batch. A
                message of ``"arrow"`` becomes a batch of its own, and messages that were decoded together
                count as processed with the last of them.
            on_bad: ``"fail"`` (default) or ``"column"``, as for :func:`liftenvelope.bulk.read`.

        Yields:
            Batches of at least one row, with the columns of ``liftenvelope.group._member.rows.SCHEMA``.

        Raises:
            UsageError: An argument is malformed, or another task waits.
            BadPayloadError: A message does not fit the payload. The rows of the messages before it were
                yielded, and count as processed. If more are asked for, this message is the next one of
                its partition.
            MissingExtraError: pyarrow is not installed.
            LiftEnvelopeError: Any error that iterating would raise.
        """
        as_count("max_rows", max_rows, most=MAX_INT64)
        as_seconds("max_wait", max_wait, zero=True)
        as_count("max_bytes", max_bytes, most=MOST_BATCH_BYTES)
        from liftenvelope.group._member.rows import SCHEMA, rows_of
        from liftenvelope.payload.typed_rows import typed_rows

        typed = typed_rows(payload, on_bad, SCHEMA, "topic")
        while await self._wait_for(max_rows, max_wait, max_bytes):
            parts = self._hand.peek(max_rows, max_bytes)
            batch = rows_of(parts)
            pieces = ((batch.num_rows, [batch]),) if typed is None else typed.pieces(batch)
            for rows in handed_out(self._hand, parts, pieces, self._may_hand_out):
                yield rows

    def _may_hand_out(self) -> bool:
        return self._running().owns and self._failure is None and not self._closing

    async def _next(self, limit: int, max_wait: float) -> list[GroupMessage]:
        """Return the next messages; an empty list only after the end."""
        if not await self._wait_for(limit, max_wait):
            return []
        return self._hand.take_messages(limit)

    async def _wait_for(self, limit: int, max_wait: float, max_bytes: int = MAX_INT64) -> bool:
        """Settle, and wait until messages can be taken; return False after the end.

        Messages are taken from a buffer in the same step, without an await, as the check that the member
        still owns the partition. So no message is handed out after the ownership ended, and a cancelled call
        loses none.
        """
        member, hand = self._running(), self._hand
        self._check_alone()
        hand.until = 0.0  # a second task that asks for a message while this one waits must come here
        hand.settle()
        if time_since_boot() - self._turned_at > TURN:
            # A caller that never awaits must not starve heartbeats.
            await self._rest(0.0)
        until: float | None = None
        while True:
            if self._failure is not None:
                await self._reconsider()
            self._check()
            if self._closing:
                return False
            if member.owns and hand.gives():
                now = time_since_boot()
                until = now + max_wait if until is None else until
                if now >= until or self._has_enough(limit, max_bytes):
                    hand.until = self._turned_at + TURN
                    return True
            self._awaited = None if until is None else (limit, max_bytes)
            await self._rest(self._patience(until))

    async def _reconsider(self) -> None:
        """Forget the errors of readers that the group replaces, as it does after a rewind.

        The call that rewinds returns before the members have given their partitions back.
        """
        if self._closing or None in self._failures:
            return
        self._is_awaited = True
        try:
            keeps = await self._running().confirm()
        finally:
            self._is_awaited = False
        if not keeps:
            self._forgive(self._readers.values())

    async def _rest(self, timeout: float | None) -> None:
        """Wait for messages, and give other tasks a turn."""
        await self._until_woken(timeout)
        self._turned_at = time_since_boot()

    def _patience(self, until: float | None) -> float | None:
        """Return the seconds to wait for messages, for more of them, or to own the partitions again."""
        if not self._hand.turns:
            return None
        if until is None or not self._running().owns:
            return _LOOK
        return max(until - time_since_boot(), 0.0)

    def _has_messages(self, reader: PartitionReader) -> None:
        super()._has_messages(reader)
        # A batch comes in some ten lists, and to wake the iterating task costs as much as ten messages.
        if self._awaited is None or self._has_enough(*self._awaited):
            self._wake.set()

    def _has_enough(self, limit: int, max_bytes: int) -> bool:
        """Return True if waiting adds nothing: the list is full, or a partition's buffer is."""
        turns = self._hand.turns
        return (
            limit == 1
            or any(not buffer.room for buffer in turns)
            or sum(buffer.waiting for buffer in turns) >= limit
            or sum(buffer.size for buffer in turns) >= max_bytes
        )

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
        self._hand.settle()
        self._collect()
        await self._commit_dirty(seconds)

    def _have_processed(self, messages: list[GroupMessage]) -> set[TopicPartition]:
        """Mark messages as processed and return their partitions."""
        found: dict[TopicPartition, PartitionReader] = {}
        ends: dict[TopicPartition, int] = {}
        for message in messages:
            key = TopicPartition(message.topic, message.partition)
            reader = self._readers.get(key) or self._leaving.get(key)
            if reader is None or reader.buffer.generation != message.generation:
                raise self._fenced(key, message.generation)
            found[key] = reader
            ends[key] = max(ends.get(key, 0), message.offset + 1)
        for key, end in ends.items():
            found[key].buffer.settle_until(end)
            self._add_dirty(key, end)
        return set(ends)

    def pause(self, topic: str, partition: int) -> None:
        """Stop handing out messages of a partition. The partition stays assigned.

        Raises:
            NotAssignedError: The partition is not assigned to this member.
        """
        self._reader(TopicPartition(topic, partition)).paused = True

    def resume(self, topic: str, partition: int) -> None:
        """Resume handing out messages of a partition.

        Raises:
            NotAssignedError: The partition is not assigned to this member.
        """
        self._reader(TopicPartition(topic, partition)).paused = False

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
        self._seek(TopicPartition(topic, partition), offset)
