"""Topics of groups: JetStream streams partitioned by subject or by stream, and custom sources.

:class:`JetStreamTopic` names a topic and the place of each of its partitions. Any other log that can be read
from an offset takes part as a :class:`TopicSource`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, TypeAlias

from liftenvelope.errors import (
    CallTimeoutError,
    GroupError,
    LiftEnvelopeError,
    MessageNotFoundError,
    OffsetOutOfRangeError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.group._sources import (
    FeedReconnectedError,
    ListFeed,
    PartitionFeed,
    SourceMessage,
    Taken,
    TopicSource,
    as_source_message,
)
from liftenvelope.group.bounds import Bounds, stream_bounds
from liftenvelope.group.errors import GroupRequestError, GroupUnavailableError
from liftenvelope.group.state import Place, TopicSpec, check_id
from liftenvelope.jetstream import (
    DeliverPolicy,
    JetStream,
    OrderedConsumer,
    OrderedReset,
    PullEvent,
    Reconnected,
    RetentionPolicy,
    Stream,
)
from liftenvelope.jetstream.api import DEFAULT_PREFIX, is_restored
from liftenvelope.jetstream.counting import at_sequence, count_from
from liftenvelope.jetstream.errors import StreamReplacedError
from liftenvelope.jetstream.message import Block
from liftenvelope.jetstream.names import check_filter, check_stream_name

__all__ = [
    "JetStreamFeed",
    "JetStreamTopic",
    "JetStreamTopicSource",
    "Topic",
    "Unread",
    "beyond_the_end",
    "end_of",
    "lag_of",
    "lists_of",
    "open_within",
    "replaced",
    "source_bounds",
    "source_of",
    "spec_of",
]

#: Seconds in which the consumers of readers are not asked after a request without an answer.
_ASKS_AGAIN: Final = 60.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _ns(moment: datetime) -> int:
    """Return a time in ns since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1_000


#: Tells how many messages a reader has still to hand out, as the consumer that it reads with counts them.
Unread: TypeAlias = Callable[[str], Awaitable[int | None]]


async def _unknown(_: str) -> None:
    return None


class Share(Protocol):
    """Bytes that one partition may have in flight."""

    @property
    def max_bytes(self) -> int:
        """Most bytes. It may change at any time."""


async def open_within(source: TopicSource, partition: int, offset: int, share: Share) -> PartitionFeed:
    """Open a partition from an offset on, with the share of a member's bytes if the source can keep to it."""
    if isinstance(source, JetStreamTopicSource):
        return await source._open(partition, offset, share)
    return await source.open(partition, offset)


def lists_of(feed: PartitionFeed) -> Callable[[int], Awaitable[Taken | list[Block]]]:
    """Return a function that returns several messages of a feed at once, if the feed can."""
    if isinstance(feed, JetStreamFeed):
        return feed.take

    async def taken(limit: int) -> Taken:
        messages = await feed.next_many(limit) if isinstance(feed, ListFeed) else [await feed.next()]
        return Taken([one.offset for one in messages], [as_source_message(one) for one in messages])

    return taken


async def lag_of(source: TopicSource, partition: int, offset: int, unread: Unread) -> int:
    """Return the number of messages in a partition from an offset on.

    Args:
        source: Topic of the partition.
        partition: Number of the partition.
        offset: Offset of the next message to hand out.
        unread: Returns the same number as the running reader knows it, which saves a consumer; None if it
            does not know. It gets the name of the stream's leader.
    """
    if isinstance(source, JetStreamTopicSource):
        return await source._lag(partition, offset, unread)
    return await source.lag(partition, offset)


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

    A consumer makes one for each of its topics, in the JetStream domain of its own server. Make one to read a
    topic of another domain.

    Args:
        js: JetStream.
        topic: The topic.
        prefetch: Most messages of a partition in flight. Default 5,000.

    Attributes:
        max_bytes: Most bytes in flight of a partition opened by :meth:`open`. A larger message is alone.
            Default 16 MiB. A consumer divides its own ``prefetch_bytes`` instead.
    """

    def __init__(self, js: JetStream, topic: JetStreamTopic, *, prefetch: int = 5_000) -> None:
        self.max_bytes = 16 * 1024 * 1024
        self._js = js
        self._topic = topic
        self._prefetch = prefetch
        #: Creation times of the streams in ns since 1970, by stream, as last heard of.
        self._created: dict[str, int] = {}
        #: Streams with messages that are older than themselves.
        self._restored: set[str] = set()
        #: Requests for the ends of streams, by stream.
        self._ends: dict[str, asyncio.Task[int]] = {}
        #: Time from which on the consumers of readers are asked: a request had no answer.
        self._asks_readers_at = 0.0

    @property
    def spec(self) -> TopicSpec:
        """Description of the topic for coordinators; without places if they are in another domain."""
        spec = self._topic.spec
        return spec if self._js.api.prefix == DEFAULT_PREFIX else TopicSpec(spec.name, spec.partitions)

    async def bounds(self, partition: int) -> tuple[int, int]:
        """Return the oldest offset of a partition, and the end of its stream."""
        place = self._topic.places[partition]
        return await stream_bounds(await self._stream(place.stream), place.subject)

    async def _stream(self, name: str) -> Stream:
        """Look a stream up, check its retention, and note when it was created."""
        stream = await self._js.stream(name)
        if (retention := stream.cached_info.config.retention) != RetentionPolicy.LIMITS:
            # Members read without acks, so with interest retention JetStream deletes what it delivers to
            # them, and stores nothing while there is no member. A work queue refuses such consumers.
            raise UsageError(
                f"stream {name!r} must have the retention {RetentionPolicy.LIMITS} to be read by a group, "
                f"got {retention}: read it with a durable consumer of JetStream, or change the stream"
            )
        created, oldest = stream.cached_info.created, stream.cached_info.state.first_ts
        if created is not None:
            self._created[name] = _ns(created)
            if oldest is not None and is_restored(_ns(created), _ns(oldest)):
                self._restored.add(name)
            else:
                self._restored.discard(name)
        return stream

    def created_ns(self, partition: int, /) -> int:
        """Return when the stream of a partition was created, in ns since 1970; 0 before it was looked up."""
        return self._created.get(self._topic.places[partition].stream, 0)

    def is_restored(self, partition: int, /) -> bool:
        """Return True if the stream has messages that are older than itself, from a backup or an origin.

        A stream that is restored from a backup, or mirrors another one, has the sequences of that one.
        Messages must be older by more than 5 s, because the clocks of two servers are compared.
        """
        return self._topic.places[partition].stream in self._restored

    async def end(self, partition: int) -> int:
        """Return the end of a partition's stream. Partitions that start together share one request."""
        stream = self._topic.places[partition].stream
        task = self._ends.get(stream)
        if task is None:
            task = self._ends[stream] = asyncio.create_task(self._find_end(stream))
            task.add_done_callback(lambda done: self._found_end(stream, done))
        return await asyncio.shield(task)

    async def _find_end(self, stream: str) -> int:
        return (await self._stream(stream)).cached_info.state.last_seq

    def _found_end(self, stream: str, task: asyncio.Task[int]) -> None:
        del self._ends[stream]
        if not task.cancelled():
            task.exception()  # retrieved here, because all callers may have been cancelled

    async def newest(self, partition: int) -> int:
        """Return the offset of a partition's newest message, or the end of its stream."""
        place = self._topic.places[partition]
        stream = await self._stream(place.stream)
        try:
            message = await stream.get_message(last_by_subject=place.subject or ">", direct=False)
        except MessageNotFoundError:
            return stream.cached_info.state.last_seq
        return message.sequence - 1

    async def lag(self, partition: int, offset: int) -> int:
        """Return the number of messages in a partition from an offset on, as JetStream counts them.

        Only messages of a subject, and those of a stream with gaps, are counted by a short-lived consumer.
        """
        return await self._lag(partition, offset, _unknown)

    async def _lag(self, partition: int, offset: int, unread: Unread) -> int:
        place = self._topic.places[partition]
        stream = await self._stream(place.stream)
        state = stream.cached_info.state
        if offset >= state.last_seq:
            return 0
        if not place.subject and state.messages == state.last_seq - state.first_seq + 1:
            return state.last_seq - max(offset, state.first_seq - 1)
        cluster = stream.cached_info.cluster
        known = None
        if time.monotonic() >= self._asks_readers_at:
            try:
                known = await unread("" if cluster is None else cluster.leader)
            except CallTimeoutError:  # a missing permission, which the server reports each time; an election
                self._asks_readers_at = time.monotonic() + _ASKS_AGAIN
        if known is not None:
            return known
        return await count_from(stream, at_sequence(offset + 1), (place.subject,) if place.subject else ())

    async def open(self, partition: int, offset: int) -> JetStreamFeed:
        """Read a partition from an offset on.

        Raises:
            OffsetOutOfRangeError: The stream ends before the offset: it was recreated, or has lost messages.
        """
        return await self._open(partition, offset, self)

    async def _open(self, partition: int, offset: int, share: Share) -> JetStreamFeed:
        place = self._topic.places[partition]
        stream = await self._stream(place.stream)
        end = stream.cached_info.state.last_seq
        if offset > end:
            raise beyond_the_end(place.stream, partition, offset, end - 1)
        consumer = stream.ordered_consumer(
            filter_subjects=[place.subject] if place.subject else [],
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=offset + 1,
        )
        feed = JetStreamFeed(share, consumer, self._prefetch, stream.cached_info.created)
        await feed.start()
        return feed


class JetStreamFeed:
    """Reads one partition with an ordered consumer, until that had to be recreated at the server.

    An ordered consumer continues after its last message. If the stream was deleted and created again, that
    place may be beyond the end, and the messages before it would be skipped. So the feed ends with a
    retriable error, and the next :meth:`JetStreamTopicSource.open` compares the place with the stream.
    """

    def __init__(
        self,
        share: Share,
        consumer: OrderedConsumer,
        prefetch: int,
        created: datetime | None,
    ) -> None:
        self._share = share
        self._stream = consumer.stream_name
        self._max_bytes = share.max_bytes
        self._feed = consumer.feed(
            max_messages=prefetch, max_bytes=self._max_bytes, on_event=self._on_event, created=created
        )
        self._reset: OrderedReset | None = None
        self._is_reconnected = False

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
        [block] = await self.take(1)
        message = block[0]
        return SourceMessage(block.last_sequence - 1, message.data, message)

    async def take(self, limit: int) -> list[Block]:
        """Wait for the next message; return it and those buffered behind it, at most ``limit``.

        Raises:
            TransportError: The consumer was recreated; open the partition again.
        """
        if self._max_bytes != self._share.max_bytes:
            self._max_bytes = self._share.max_bytes
            self._feed.limit_bytes(self._max_bytes)
        try:
            return await self._feed.next_blocks(limit)
        except StopAsyncIteration:
            reason = "the feed was closed" if self._reset is None else self._reset.reason
            kind = FeedReconnectedError if self._is_reconnected else TransportError
            raise kind(f"the feed of stream {self._stream!r} was interrupted: {reason}") from None
        except StreamReplacedError as exc:
            raise TransportError(str(exc)) from exc

    async def pending(self, leader: str) -> int | None:
        """Return the number of messages that :meth:`take` has not returned; None if that is not known."""
        return await self._feed.pending(leader)

    def _on_event(self, event: PullEvent) -> None:
        if isinstance(event, Reconnected):
            self._is_reconnected = True
        elif isinstance(event, OrderedReset):
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


def replaced(topic: str, partition: int, offset: int, newest: int) -> OffsetOutOfRangeError:
    """Return the error for a group whose offset belongs to an earlier stream of the same name."""
    return OffsetOutOfRangeError(
        f"the group is at offset {offset} of an earlier stream of {topic}[{partition}], which was deleted "
        f"and created again, and ends at {newest} now; rewind the group",
        topic,
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
