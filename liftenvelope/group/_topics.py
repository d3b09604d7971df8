"""Topics of groups: JetStream streams partitioned by subject or by stream, and custom sources.

:class:`JetStreamTopic` names a topic and the place of each of its partitions. Any other log that can be read
from an offset takes part as a :class:`TopicSource`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from liftenvelope.errors import (
    GroupError,
    LiftEnvelopeError,
    MessageNotFoundError,
    OffsetOutOfRangeError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.group.bounds import Bounds, place_bounds
from liftenvelope.group.errors import GroupRequestError, GroupUnavailableError
from liftenvelope.group.state import Place, TopicSpec, check_id
from liftenvelope.jetstream import (
    DeliverPolicy,
    JetStream,
    Message,
    OrderedConsumer,
    OrderedReset,
    PullEvent,
)
from liftenvelope.jetstream.counting import at_sequence, count_from
from liftenvelope.jetstream.errors import StreamReplacedError
from liftenvelope.jetstream.names import check_filter, check_stream_name

__all__ = [
    "JetStreamTopic",
    "JetStreamTopicSource",
    "ListFeed",
    "NewestSource",
    "PartitionFeed",
    "SourceMessage",
    "Taken",
    "Topic",
    "TopicSource",
    "beyond_the_end",
    "content_of",
    "end_of",
    "lists_of",
    "newest_of",
    "source_bounds",
    "source_of",
    "spec_of",
]


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
        messages: Messages of JetStream as they are, and those of other sources as :class:`SourceMessage`.
    """

    offsets: list[int]
    messages: list[Any]


def content_of(one: Message | SourceMessage) -> tuple[bytes, Any]:
    """Return the payload and the message object of the source."""
    return (one.data, one.message) if isinstance(one, SourceMessage) else (one.data, one)


def lists_of(feed: PartitionFeed) -> Callable[[int], Awaitable[Taken]]:
    """Return a function that returns several messages of a feed at once, if the feed can."""
    if isinstance(feed, JetStreamFeed):
        return feed.take

    async def taken(limit: int) -> Taken:
        messages = await feed.next_many(limit) if isinstance(feed, ListFeed) else [await feed.next()]
        return Taken([one.offset for one in messages], [_as_source_message(one) for one in messages])

    return taken


def _as_source_message(one: Any) -> SourceMessage:
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


async def newest_of(source: TopicSource, partition: int) -> int:
    """Return the offset of a partition's newest message, or of its next one if the partition is empty."""
    if isinstance(source, NewestSource):
        return await source.newest(partition)
    oldest, end = await source.bounds(partition)
    return max(end - 1, oldest)


async def end_of(source: TopicSource, partition: int) -> int:
    """Return the offset of a partition's next message, or a lower one."""
    if isinstance(source, JetStreamTopicSource):
        return await source.end(partition)
    return (await source.bounds(partition))[1]


def source_bounds(sources: Iterable[TopicSource], others: Bounds) -> Bounds:
    """Return bounds that ask these sources for their topics, and ``others`` for the rest."""
    known = {source.spec.name: source for source in sources}

    async def bounds(spec: TopicSpec, partition: int) -> tuple[int, int]:
        source = known.get(spec.name)
        if source is None or spec.places:
            return await others(spec, partition)
        try:
            return await source.bounds(partition)
        except GroupError:
            raise
        except LiftEnvelopeError as exc:
            kind = GroupUnavailableError if exc.retriable else GroupRequestError
            raise kind(f"can't read the offsets of topic {spec.name!r}: {exc}") from exc

    return bounds


@dataclass(frozen=True, slots=True)
class JetStreamTopic:
    """A topic in JetStream.

    The offset of a message is its stream sequence minus one, as in the gateway. If partitions share a stream,
    their offsets have gaps.

    Attributes:
        name: Name of the topic in the group, the same for all members.
        places: Place of each partition: a stream, and optionally a subject in it.

    Example:
        >>> JetStreamTopic.of_stream("ORDERS", ["orders.0", "orders.1"]).spec.partitions
        2
        >>> JetStreamTopic.of_streams("orders", ["ORDERS-0", "ORDERS-1"]).places[1]
        Place(stream='ORDERS-1', subject='')
    """

    name: str
    places: tuple[Place, ...]

    def __post_init__(self) -> None:
        check_id("topic", self.name)
        if not self.places:
            raise UsageError(f"topic {self.name!r} must have at least one partition, got none")
        for place in self.places:
            check_stream_name(place.stream)
            if place.subject:
                check_filter(place.subject)
        if len(set(self.places)) < len(self.places):
            raise UsageError(f"topic {self.name!r} must have a different place for each partition")

    @classmethod
    def of_stream(cls, stream: str, subjects: Sequence[str], *, name: str | None = None) -> JetStreamTopic:
        """Return a topic whose partitions share a stream: partition i has the messages of subject i.

        Args:
            stream: Name of the stream.
            subjects: One subject for each partition. Wildcards are allowed. The subjects must not overlap.
            name: Name of the topic. Default: the name of the stream.

        Raises:
            UsageError: There is no subject, or one is malformed.
        """
        if isinstance(subjects, str):
            raise UsageTypeError(f"subjects must be a sequence of str, got {subjects!r}")
        return cls(stream if name is None else name, tuple(Place(stream, subject) for subject in subjects))

    @classmethod
    def of_streams(cls, name: str, streams: Sequence[str]) -> JetStreamTopic:
        """Return a topic whose partitions each have a stream of their own.

        Args:
            name: Name of the topic.
            streams: One stream for each partition.

        Raises:
            UsageError: There is no stream, or a name is malformed.
        """
        if isinstance(streams, str):
            raise UsageTypeError(f"streams must be a sequence of str, got {streams!r}")
        return cls(name, tuple(Place(stream) for stream in streams))

    @property
    def spec(self) -> TopicSpec:
        """Description of the topic for coordinators."""
        return TopicSpec(self.name, len(self.places), self.places)


#: A topic for a group to read.
Topic: TypeAlias = JetStreamTopic | TopicSource


class JetStreamTopicSource:
    """Reads a :class:`JetStreamTopic` through a connection.

    Args:
        js: JetStream.
        topic: The topic.
        prefetch: Most messages of a partition in flight.

    Attributes:
        max_bytes: Most bytes of a partition in flight. A larger message is alone. Default 16 MiB.
    """

    def __init__(self, js: JetStream, topic: JetStreamTopic, *, prefetch: int = 500) -> None:
        self.max_bytes = 16 * 1024 * 1024
        self._js = js
        self._topic = topic
        self._prefetch = prefetch
        #: Requests for the ends of streams, by stream.
        self._ends: dict[str, asyncio.Task[int]] = {}

    @property
    def spec(self) -> TopicSpec:
        """Description of the topic for coordinators."""
        return self._topic.spec

    async def bounds(self, partition: int) -> tuple[int, int]:
        """Return the oldest offset of a partition, and the end of its stream."""
        return await place_bounds(self._js, self._topic.places[partition])

    async def end(self, partition: int) -> int:
        """Return the end of a partition's stream. Partitions that start together share one request."""
        stream = self._topic.places[partition].stream
        task = self._ends.get(stream)
        if task is None:
            task = self._ends[stream] = asyncio.create_task(self._find_end(stream))
            task.add_done_callback(lambda done: self._found_end(stream, done))
        return await asyncio.shield(task)

    async def _find_end(self, stream: str) -> int:
        return (await self._js.stream(stream)).cached_info.state.last_seq

    def _found_end(self, stream: str, task: asyncio.Task[int]) -> None:
        del self._ends[stream]
        if not task.cancelled():
            task.exception()  # retrieved here, because all callers may have been cancelled

    async def newest(self, partition: int) -> int:
        """Return the offset of a partition's newest message, or the end of its stream."""
        place = self._topic.places[partition]
        stream = await self._js.stream(place.stream)
        try:
            message = await stream.get_message(last_by_subject=place.subject or ">", direct=False)
        except MessageNotFoundError:
            return stream.cached_info.state.last_seq
        return message.sequence - 1

    async def lag(self, partition: int, offset: int) -> int:
        """Return the number of messages in a partition from an offset on, as JetStream counts them."""
        place = self._topic.places[partition]
        stream = await self._js.stream(place.stream)
        return await count_from(stream, at_sequence(offset + 1), (place.subject,) if place.subject else ())

    async def open(self, partition: int, offset: int) -> JetStreamFeed:
        """Read a partition from an offset on.

        Raises:
            OffsetOutOfRangeError: The stream ends before the offset: it was recreated, or has lost messages.
        """
        place = self._topic.places[partition]
        stream = await self._js.stream(place.stream)
        end = stream.cached_info.state.last_seq
        if offset > end:
            raise beyond_the_end(place.stream, partition, offset, end - 1)
        consumer = stream.ordered_consumer(
            filter_subjects=[place.subject] if place.subject else [],
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=offset + 1,
        )
        feed = JetStreamFeed(self, consumer, self._prefetch)
        await feed.start()
        return feed


class JetStreamFeed:
    """Reads one partition with an ordered consumer, until that had to be recreated at the server.

    An ordered consumer continues after its last message. If the stream was deleted and created again, that
    place may be beyond the end, and the messages before it would be skipped. So the feed ends with a
    retriable error, and the next :meth:`JetStreamTopicSource.open` compares the place with the stream.
    """

    def __init__(self, source: JetStreamTopicSource, consumer: OrderedConsumer, prefetch: int) -> None:
        self._source = source
        self._stream = consumer.stream_name
        self._max_bytes = source.max_bytes
        self._feed = consumer.feed(max_messages=prefetch, max_bytes=self._max_bytes, on_event=self._on_event)
        self._reset: OrderedReset | None = None

    async def start(self) -> None:
        """Start reading."""
        try:
            await self._feed.start()
        except BaseException:
            self._feed.stop()
            raise

    async def next(self) -> SourceMessage:
        """Wait for the next message and return it.

        Raises:
            TransportError: The consumer was recreated; open the partition again.
        """
        [offset], [message] = await self.take(1)
        return SourceMessage(offset, message.data, message)

    async def take(self, limit: int) -> Taken:
        """Wait for the next message; return it and those buffered behind it, at most ``limit``.

        Raises:
            TransportError: The consumer was recreated; open the partition again.
        """
        if self._max_bytes != self._source.max_bytes:
            self._max_bytes = self._source.max_bytes
            self._feed.limit_bytes(self._max_bytes)
        try:
            sequences, messages = await self._feed.next_many(limit)
        except StopAsyncIteration:
            reason = "the feed was closed" if self._reset is None else self._reset.reason
            raise TransportError(f"the feed of stream {self._stream!r} was interrupted: {reason}") from None
        except StreamReplacedError as exc:
            raise TransportError(str(exc)) from exc
        return Taken([sequence - 1 for sequence in sequences], messages)

    def _on_event(self, event: PullEvent) -> None:
        if isinstance(event, OrderedReset):
            self._reset = event
            self._feed.stop()

    async def close(self) -> None:
        """Stop reading."""
        self._feed.stop()


def beyond_the_end(stream: str, partition: int, offset: int, newest: int) -> OffsetOutOfRangeError:
    """Return the error for a group whose offset is beyond the end of a partition."""
    return OffsetOutOfRangeError(
        f"the group is at offset {offset} of {stream}[{partition}], which ends at {newest}: the stream "
        "has lost messages, or was recreated; rewind the group",
        stream,
        partition,
        offset,
        newest,
    )


def source_of(topic: Topic, js: JetStream, prefetch: int) -> TopicSource:
    """Return the source that reads a topic."""
    return JetStreamTopicSource(js, topic, prefetch=prefetch) if isinstance(topic, JetStreamTopic) else topic


def spec_of(topic: Topic) -> TopicSpec:
    """Return the description of a topic for coordinators.

    Raises:
        UsageTypeError: The value is not a topic.
    """
    if not isinstance(topic, JetStreamTopic | TopicSource):
        raise UsageTypeError(f"topics must be JetStreamTopic or TopicSource, got {topic!r}")
    return topic.spec
