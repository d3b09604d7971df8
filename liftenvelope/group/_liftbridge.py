"""Liftbridge streams as topics of groups over NATS, read with the Liftbridge client.

The server may be Liftbridge itself or a gateway. It knows nothing of the group: assignments and committed
offsets are with the coordinators. So one group may read Liftbridge and JetStream streams together.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from liftenvelope._checks import as_integer
from liftenvelope.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    PartitionPausedError,
    ReadonlyPartitionError,
    StreamDeletedError,
)
from liftenvelope.group._sources import SourceMessage
from liftenvelope.group._topics import beyond_the_end, replaced
from liftenvelope.group.state import TopicSpec, check_id, check_topics

if TYPE_CHECKING:
    # Only for typing: the caller owns the client, and the gateway imports this module but must not load the
    # client.
    from liftenvelope.client import Client, PartitionInfo, Subscription

__all__ = ["LiftbridgeFeed", "LiftbridgeTopic"]

#: Seconds between checks of a paused or read-only partition, which can be opened again.
_LOOK_AGAIN: Final = 1.0
#: Timeout in seconds of a metadata call, short because a paused partition has no leader to answer.
_INFO_TIMEOUT: Final = 3.0
#: Seconds to wait for the oldest message.
_PEEK_TIMEOUT: Final = 5.0


class LiftbridgeTopic:
    """A Liftbridge stream as a topic of a group; a :class:`TopicSource`.

    Offsets are Liftbridge's. A paused partition, or a read-only one that was read to its end, is checked
    again every second. If the stream is deleted, iterating raises :class:`StreamDeletedError`, or
    :class:`NoSuchStreamError` if it begins after that. If the committed offset is beyond the end, or the
    stream was deleted and created again, iterating raises :class:`OffsetOutOfRangeError` until the group is
    rewound.

    Args:
        client: A client of the servers; see :func:`liftenvelope.connect`. You own it; do not close it before
            the consumer.
        stream: Name of the stream.
        partitions: Number of partitions of the stream, the same for all members.
        name: Name of the topic in the group. Default: the name of the stream.
        resume: Resume paused partitions. Default false.

    Raises:
        GroupRequestError: A name or the number of partitions is malformed.

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
        self._created_ns = 0
        self._spec = TopicSpec(stream if name is None else name, as_integer("partitions", partitions))
        check_topics([self._spec])

    @classmethod
    async def of_stream(
        cls, client: Client, stream: str, *, name: str | None = None, resume: bool = False
    ) -> Self:
        """Return a topic with as many partitions as the stream has.

        Args:
            client: A client of the servers.
            stream: Name of the stream.
            name: Name of the topic. Default: the name of the stream.
            resume: Resume paused partitions.

        Raises:
            NoSuchStreamError: The stream does not exist.
            CallTimeoutError, TransportError: The servers could not be reached.
        """
        found = await client.fetch_metadata(streams=[stream])
        return cls(client, stream, found.partition_count(stream), name=name, resume=resume)

    def __repr__(self) -> str:
        return f"LiftbridgeTopic({self._stream!r}, {self._spec.partitions}, name={self._spec.name!r})"

    @property
    def spec(self) -> TopicSpec:
        """Name and number of partitions."""
        return self._spec

    async def bounds(self, partition: int) -> tuple[int, int]:
        """Return the oldest offset of a partition, and the offset of its next message.

        Raises:
            NotLeaderError: The partition has no leader: it is paused, or its servers are down.
            NoSuchStreamError, NoSuchPartitionError: The stream or the partition does not exist.
            CallTimeoutError, TransportError: The servers could not be reached.
        """
        await self._learn()
        info = await self._info(partition)
        end = info.newest_offset + 1
        oldest = await self._oldest(partition)
        # A message visible at the first call and missing at the second was removed: only newer ones are left.
        return min(info.high_watermark + 1 if oldest is None else oldest, end), end

    def created_ns(self, _partition: int, /) -> int:
        """Return when the stream was created, in ns since 1970; 0 before it was looked up."""
        return self._created_ns

    def is_restored(self, _partition: int, /) -> bool:
        """Return False: there are no backups of Liftbridge streams."""
        return False

    async def _learn(self) -> None:
        """Note when the stream was created."""
        found = (await self._client.fetch_metadata(streams=[self._stream])).get_stream(self._stream)
        if found is not None:  # otherwise reading it raises the error
            self._created_ns = found.created_ns

    async def _oldest(self, partition: int) -> int | None:
        """Return the offset of the oldest readable message; None if there is none.

        No call of the API returns this offset, so the message itself is read.
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
            text = f"{self._stream}[{partition}]: the oldest message did not come within {_PEEK_TIMEOUT:g} s"
            raise CallTimeoutError(text)
        return None if message is None else message.offset

    async def _info(self, partition: int) -> PartitionInfo:
        if self._resume:
            async with self._subscription(partition, None):
                pass  # resumes the partition, so that it has a leader
        return await self._client.fetch_partition_metadata(self._stream, partition, timeout=_INFO_TIMEOUT)

    async def lag(self, partition: int, offset: int) -> int:
        """Return the number of offsets from ``offset`` to the end; compaction may have removed some messages.

        Raises:
            LiftEnvelopeError: As for :meth:`bounds`.
        """
        return max((await self._info(partition)).newest_offset + 1 - offset, 0)

    async def open(self, partition: int, offset: int) -> LiftbridgeFeed:
        """Read a partition from an offset on, or from the oldest one if that offset is gone."""
        return LiftbridgeFeed(self, partition, offset)

    def _subscription(self, partition: int, offset: int | None) -> Subscription:
        return self._client.subscribe(
            self._stream, partition=partition, start="new" if offset is None else offset, resume=self._resume
        )

    async def _check(self, partition: int, offset: int) -> None:
        """Raise OffsetOutOfRangeError if the group's offset is beyond the end of a recreated stream."""
        await self._learn()
        newest = await self._newest(partition)
        if offset > newest + 1:
            raise beyond_the_end(self._stream, partition, offset, newest)

    async def _newest(self, partition: int) -> int:
        """Return the newest offset of a partition that has a leader."""
        info = await self._client.fetch_partition_metadata(self._stream, partition, timeout=_INFO_TIMEOUT)
        return info.newest_offset


class LiftbridgeFeed:
    """Reads one partition by a subscription, and by a new one after the partition was closed for a while."""

    def __init__(self, topic: LiftbridgeTopic, partition: int, offset: int) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        #: Creation time of the stream that is read, in ns since 1970; 0 before it is known.
        self._created_ns = 0
        self._subscription: Subscription | None = None

    async def next(self) -> SourceMessage:
        """Return the next message.

        Raises:
            StreamDeletedError, NoSuchStreamError: The stream is gone.
            OffsetOutOfRangeError: The offset is beyond the end of the stream, or the stream was deleted and
                created again.
            ConnectionClosedError: The client was closed.
            NotLeaderError, CallTimeoutError, TransportError: The servers could not be reached within the
                client's timeouts.
        """
        while True:
            try:
                message = await anext(self._subscription or await self._open(), None)
            except (PartitionPausedError, ReadonlyPartitionError):
                await self.close()
                await asyncio.sleep(_LOOK_AGAIN)
                continue
            except StreamDeletedError:
                await self._topic._learn()
                await self._check_same()
                raise
            if message is None:
                raise ConnectionClosedError("the Liftbridge client was closed before the consumer")
            self._offset = message.offset + 1
            size = len(message.value) + len(message.key)
            size += sum(len(name) + len(value) for name, value in message.headers.items())
            return SourceMessage(message.offset, message.value, message, size)

    async def _open(self) -> Subscription:
        self._subscription = self._topic._subscription(self._partition, self._offset)
        await self._subscription.open()
        await self._topic._check(self._partition, self._offset)
        await self._check_same()
        return self._subscription

    async def _check_same(self) -> None:
        """Raise OffsetOutOfRangeError if the topic now has a newer stream than the one that was read.

        At offset 0 nothing was read, so the feed may read the newer stream.
        """
        created_ns = self._topic.created_ns(self._partition)
        if self._offset and 0 < self._created_ns < created_ns:
            newest = await self._topic._newest(self._partition)
            raise replaced(self._topic.spec.name, self._partition, self._offset, newest)
        self._created_ns = max(created_ns, self._created_ns)

    async def close(self) -> None:
        """Stop reading."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()
