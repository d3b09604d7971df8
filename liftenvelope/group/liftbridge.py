"""Liftbridge streams as topics of groups over NATS: read through the Liftbridge client, dealt out over NATS.

The server may be Liftbridge's own or a gateway. It knows nothing of the group: who reads what, and how far
everybody is, stands with the coordinators. So a group may read Liftbridge and JetStream streams together.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from liftenvelope.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    PartitionPausedError,
    ReadonlyPartitionError,
    UsageError,
)
from liftenvelope.group.state import TopicSpec, check_id, check_topics
from liftenvelope.group.topics import SourceMessage, beyond_the_end

if TYPE_CHECKING:
    # For its type alone: the client is the caller's, and the gateway, which must not load it, imports this.
    from liftenvelope.client import Client, PartitionInfo, Subscription

__all__ = ["LiftbridgeFeed", "LiftbridgeTopic"]

#: A paused or read-only partition can be opened again: it is looked at so many seconds apart.
_LOOK_AGAIN: Final = 1.0
#: How long the leader of a partition is asked; a paused one has none, so this is not waited for very long.
_INFO_TIMEOUT: Final = 3.0
#: How long the oldest message may take to come.
_PEEK_TIMEOUT: Final = 5.0


class LiftbridgeTopic:
    """A Liftbridge stream that a group reads; a :class:`TopicSource`.

    Offsets are Liftbridge's. A paused partition, or a read-only one of which all was read, is looked at again
    every second. A stream that is deleted ends the iteration by a :class:`StreamDeletedError`; a group that
    is further than the stream, since the stream was made anew, by an :class:`OffsetOutOfRangeError`, until it
    is rewound.

    Args:
        client: A client of the servers; see :func:`liftenvelope.connect`. It stays yours, and must not be
            closed before the consumer.
        stream: Name of the stream.
        partitions: How many partitions the stream has: all members must mean the same by it.
        name: Name of the topic in the group. Default: that of the stream.
        resume: Whether to wake partitions that are paused. Default false.

    Raises:
        GroupRequestError: A name or the number makes no sense.

    Example::

        topic = await LiftbridgeTopic.of_stream(client, "orders")
        async with GroupConsumer(nc, "billing", topic, auto_offset="earliest") as consumer:
            async for message in consumer:
                print(message.partition, message.offset, message.data)
    """

    def __init__(
        self, client: Client, stream: str, partitions: int, *, name: str | None = None, resume: bool = False
    ) -> None:
        self._client = client
        self._stream = check_id("stream", stream)
        self._resume = resume
        if isinstance(partitions, bool) or not isinstance(partitions, int):
            raise UsageError(f"partitions={partitions!r}: expected an int")
        self._spec = TopicSpec(stream if name is None else name, partitions)
        check_topics([self._spec])

    @classmethod
    async def of_stream(
        cls, client: Client, stream: str, *, name: str | None = None, resume: bool = False
    ) -> Self:
        """The topic of a stream with as many partitions as it has.

        Args:
            client: A client of the servers.
            stream: Name of the stream.
            name: Name of the topic. Default: that of the stream.
            resume: Whether to wake partitions that are paused.

        Raises:
            NoSuchStreamError: There is no such stream.
            CallTimeoutError, TransportError: The servers could not be asked.
        """
        found = await client.fetch_metadata(streams=[stream])
        return cls(client, stream, found.partition_count(stream), name=name, resume=resume)

    def __repr__(self) -> str:
        return f"LiftbridgeTopic({self._stream!r}, {self._spec.partitions}, name={self._spec.name!r})"

    @property
    def spec(self) -> TopicSpec:
        """Its name and its partitions."""
        return self._spec

    async def bounds(self, partition: int) -> tuple[int, int]:
        """The oldest offset of a partition, and the one that its next message gets.

        Raises:
            NotLeaderError: Nobody leads the partition: it is paused, or its servers are down.
            NoSuchStreamError, NoSuchPartitionError: There is none.
            CallTimeoutError, TransportError: The servers could not be asked.
        """
        info = await self._info(partition)
        end = info.newest_offset + 1
        oldest = await self._oldest(partition)
        # What could be seen when it was asked, and is not there now, was removed: only what is newer is left.
        return min(info.high_watermark + 1 if oldest is None else oldest, end), end

    async def _oldest(self, partition: int) -> int | None:
        """The offset of the oldest message that can be read; None if there is none.

        No call of the API tells it, so that the message is asked for itself.
        """
        reading = self._client.subscribe(
            self._stream, partition=partition, start="earliest", stop="latest", resume=self._resume
        )
        try:
            async with reading:
                message = await reading.next(_PEEK_TIMEOUT)
        except ReadonlyPartitionError:
            return None
        if message is None and not reading.finished:
            raise CallTimeoutError(f"{self._stream}[{partition}]: its oldest message did not come in time")
        return None if message is None else message.offset

    async def _info(self, partition: int) -> PartitionInfo:
        if self._resume:
            async with self._subscription(partition, None):
                pass  # it is awake now, and has a leader
        return await self._client.fetch_partition_metadata(self._stream, partition, timeout=_INFO_TIMEOUT)

    async def lag(self, partition: int, offset: int) -> int:
        """How many offsets a partition has from one on; compaction may have taken some of the messages.

        Raises:
            LiftEnvelopeError: As for :meth:`bounds`.
        """
        return max((await self._info(partition)).newest_offset + 1 - offset, 0)

    async def open(self, partition: int, offset: int) -> LiftbridgeFeed:
        """Read a partition from an offset on; where that is no more, from the oldest one on."""
        return LiftbridgeFeed(self, partition, offset)

    def _subscription(self, partition: int, offset: int | None) -> Subscription:
        return self._client.subscribe(
            self._stream, partition=partition, start="new" if offset is None else offset, resume=self._resume
        )

    async def _check(self, partition: int, offset: int) -> None:
        """Make sure that what the group has read was not an earlier stream of that name."""
        info = await self._client.fetch_partition_metadata(self._stream, partition, timeout=_INFO_TIMEOUT)
        if offset > info.newest_offset + 1:
            raise beyond_the_end(self._stream, partition, offset, info.newest_offset)


class LiftbridgeFeed:
    """Reads one partition by a subscription; by another one where the partition was closed for a while."""

    def __init__(self, topic: LiftbridgeTopic, partition: int, offset: int) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._subscription: Subscription | None = None

    async def next(self) -> SourceMessage:
        """The next message.

        Raises:
            StreamDeletedError, NoSuchStreamError: The stream is gone.
            OffsetOutOfRangeError: It is not the stream that the group has read.
            ConnectionClosedError: The client was closed.
            NotLeaderError, CallTimeoutError, TransportError: The servers could not be reached in the time
                that the client has for it.
        """
        while True:
            try:
                message = await anext(self._subscription or await self._open(), None)
            except (PartitionPausedError, ReadonlyPartitionError):
                await self.close()
                await asyncio.sleep(_LOOK_AGAIN)
                continue
            if message is None:
                raise ConnectionClosedError("the Liftbridge client was closed: its topics can't be read")
            self._offset = message.offset + 1
            return SourceMessage(message.offset, message.value, message)

    async def _open(self) -> Subscription:
        self._subscription = self._topic._subscription(self._partition, self._offset)
        await self._subscription.open()
        await self._topic._check(self._partition, self._offset)
        return self._subscription

    async def close(self) -> None:
        """Read no more."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()
