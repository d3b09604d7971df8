"""Sources of topics: the protocols of logs that a group can read from an offset on, and their messages."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from liftenvelope.errors import TransportError
from liftenvelope.group.state import TopicSpec
from liftenvelope.jetstream import Message

__all__ = [
    "DatedSource",
    "FeedReconnectedError",
    "ListFeed",
    "NewestSource",
    "PartitionFeed",
    "SourceMessage",
    "Taken",
    "TopicSource",
    "as_source_message",
    "content_of",
    "continues",
    "created_of",
    "newest_of",
]


class FeedReconnectedError(TransportError):
    """A feed ended because its connection was lost. The connection is back: open the feed again."""


class SourceMessage(NamedTuple):
    """A message of a partition.

    Attributes:
        offset: Offset of the message, higher than that of the previous message.
        data: Payload.
        message: Message object of the source.
        size: Bytes that the message counts for ``prefetch_bytes``; 0 (default) for those of the payload.
    """

    offset: int
    data: bytes
    message: Any
    size: int = 0


class PartitionFeed(Protocol):
    """Reads one partition in order. It survives lost connections, or raises an error."""

    async def next(self) -> SourceMessage:
        """Wait for the next message and return it.

        Raises:
            LiftEnvelopeError: The partition can't be read any more.
        """
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


@runtime_checkable
class ListFeed(PartitionFeed, Protocol):
    """A feed that returns several messages at once, which costs less for each."""

    async def next_many(self, limit: int) -> list[SourceMessage]:
        """Wait for the next message; return it and those that need no waiting, at most ``limit``.

        A cancelled call must not lose messages that a later call would skip.

        Raises:
            LiftEnvelopeError: As for :meth:`next`.
        """
        ...


class Taken(NamedTuple):
    """Messages of a partition in two lists, without an object of their own for each.

    Attributes:
        offsets: Offsets, in increasing order.
        messages: The messages.
    """

    offsets: list[int]
    messages: list[SourceMessage]


def content_of(one: Message | SourceMessage) -> tuple[bytes, Any]:
    """Return the payload and the message object of the source."""
    return (one.data, one.message) if isinstance(one, SourceMessage) else (one.data, one)


def as_source_message(one: Any) -> SourceMessage:
    """Return a message of a source with classes of its own as one of ours."""
    return one if isinstance(one, SourceMessage) else SourceMessage(one.offset, one.data, one)


@runtime_checkable
class TopicSource(Protocol):
    """A topic that a group can read."""

    @property
    def spec(self) -> TopicSpec:
        """Name and partitions of the topic; without places if coordinators can't read it."""
        ...

    async def bounds(self, partition: int) -> tuple[int, int]:
        """Return the oldest offset of a partition, and the offset of its next message, or a lower one."""
        ...

    async def lag(self, partition: int, offset: int) -> int:
        """Return the number of messages in a partition from an offset on."""
        ...

    async def open(self, partition: int, offset: int) -> PartitionFeed:
        """Read a partition from an offset on, or from the oldest one if that offset is gone.

        If the offset is beyond the end of the partition, this method or the feed should raise
        :class:`liftenvelope.errors.OffsetOutOfRangeError`. Otherwise new messages below the offset would be
        skipped.
        """
        ...


@runtime_checkable
class NewestSource(TopicSource, Protocol):
    """A topic whose offsets have gaps, so that only its source knows its newest message."""

    async def newest(self, partition: int) -> int:
        """Return the offset of a partition's newest message, or of its next one if the partition is empty."""
        ...


@runtime_checkable
class DatedSource(TopicSource, Protocol):
    """A topic that knows when its streams were created.

    The group keeps the time with the committed offset, which means nothing in another stream of that name.
    """

    def created_ns(self, partition: int, /) -> int:
        """Return when the stream of a partition was created, in ns since 1970; 0 if that is not known.

        It must be known after :meth:`bounds` and after the first message of a feed.
        """
        ...

    def is_restored(self, partition: int, /) -> bool:
        """Return True if the stream has messages that are older than itself: offsets of before are valid."""
        ...


def continues(source: TopicSource, partition: int, created_ns: int) -> bool:
    """Return True if offsets of the stream that was created at this time, 0 if not known, are still valid."""
    if not isinstance(source, DatedSource) or not created_ns:
        return True
    return source.created_ns(partition) <= created_ns or source.is_restored(partition)


def created_of(source: TopicSource, partition: int) -> int:
    """Return when the stream of a partition was created, in ns since 1970; 0 if that is not known."""
    return source.created_ns(partition) if isinstance(source, DatedSource) else 0


async def newest_of(source: TopicSource, partition: int) -> int:
    """Return the offset of a partition's newest message, or of its next one if the partition is empty."""
    if isinstance(source, NewestSource):
        return await source.newest(partition)
    oldest, end = await source.bounds(partition)
    return max(end - 1, oldest)
