"""What groups read: JetStream streams partitioned by subject or by stream, and more.

:class:`JetStreamTopic` names a topic and where each of its partitions is. Anything else that can be read from
an offset on takes part through a :class:`TopicSource`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable
from uuid import uuid4

from liftenvelope.errors import MessageNotFoundError, OffsetOutOfRangeError, UsageError, UsageTypeError
from liftenvelope.group.bounds import place_bounds
from liftenvelope.group.state import Place, TopicSpec, check_id
from liftenvelope.jetstream import AckPolicy, ConsumerConfig, DeliverPolicy, JetStream, Messages
from liftenvelope.jetstream._names import check_filter, check_stream_name

__all__ = [
    "JetStreamSource",
    "JetStreamTopic",
    "NewestSource",
    "PartitionFeed",
    "SourceMessage",
    "Topic",
    "TopicSource",
    "beyond_the_end",
    "newest_of",
    "source_of",
    "spec_of",
]

#: After how many seconds JetStream forgets a consumer that was made to count.
_LOOK: Final = 5.0


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """A message of a partition.

    Attributes:
        offset: Its offset, higher than that of the one before.
        data: Its payload.
        message: It, as its source has it.
    """

    offset: int
    data: bytes
    message: Any


class PartitionFeed(Protocol):
    """Reads one partition, in order. It survives lost connections, or ends by an error."""

    async def next(self) -> SourceMessage:
        """The next message, when there is one.

        Raises:
            LiftEnvelopeError: There is none to be had any more.
        """
        ...

    async def close(self) -> None:
        """Read no more."""
        ...


@runtime_checkable
class TopicSource(Protocol):
    """A topic that a group can read."""

    @property
    def spec(self) -> TopicSpec:
        """Its name and its partitions; without places where coordinators can't look at them."""
        ...

    async def bounds(self, partition: int) -> tuple[int, int]:
        """The oldest offset of a partition, and the one that its next message gets, or a lower one."""
        ...

    async def lag(self, partition: int, offset: int) -> int:
        """How many messages a partition has from an offset on."""
        ...

    async def open(self, partition: int, offset: int) -> PartitionFeed:
        """Read a partition from an offset on; where that is no more, from the oldest one on.

        Where the partition ends before the offset, it or its feed should raise
        :class:`liftenvelope.errors.OffsetOutOfRangeError`, lest what comes next be taken for read.
        """
        ...


@runtime_checkable
class NewestSource(TopicSource, Protocol):
    """A topic whose offsets have gaps, so that only it can tell where its newest message is."""

    async def newest(self, partition: int) -> int:
        """The offset of a partition's newest message; where it has none, the one that its next one gets."""
        ...


async def newest_of(source: TopicSource, partition: int) -> int:
    """The offset of a partition's newest message, or of its next one if it has none."""
    if isinstance(source, NewestSource):
        return await source.newest(partition)
    oldest, end = await source.bounds(partition)
    return max(end - 1, oldest)


@dataclass(frozen=True, slots=True)
class JetStreamTopic:
    """A topic that JetStream keeps.

    A message's offset is its stream sequence less one, as the gateway has it. Of a partition that shares its
    stream with others, the offsets have gaps.

    Attributes:
        name: Its name in the group. All members must mean the same by it.
        places: Where its partitions are: a stream, and what is the partition's in it, each.

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
            raise UsageError(f"topic {self.name!r} has no partitions")
        for place in self.places:
            check_stream_name(place.stream)
            if place.subject:
                check_filter(place.subject)
        if len(set(self.places)) < len(self.places):
            raise UsageError(f"topic {self.name!r} has two partitions in one place")

    @classmethod
    def of_stream(cls, stream: str, subjects: Sequence[str], *, name: str | None = None) -> JetStreamTopic:
        """Partitions of one stream: partition i is what matches the subject i.

        Args:
            stream: Name of the stream.
            subjects: One for each partition; wildcards are allowed. They must not overlap.
            name: Name of the topic. Default: that of the stream.

        Raises:
            UsageError: There are none, or one is no subject.
        """
        if isinstance(subjects, str):
            raise UsageTypeError(f"subjects must be a sequence of str, not {subjects!r}")
        return cls(stream if name is None else name, tuple(Place(stream, subject) for subject in subjects))

    @classmethod
    def of_streams(cls, name: str, streams: Sequence[str]) -> JetStreamTopic:
        """Partitions of which each has a stream of its own.

        Args:
            name: Name of the topic.
            streams: One for each partition.

        Raises:
            UsageError: There are none, or one is no name of a stream.
        """
        if isinstance(streams, str):
            raise UsageTypeError(f"streams must be a sequence of str, not {streams!r}")
        return cls(name, tuple(Place(stream) for stream in streams))

    @property
    def spec(self) -> TopicSpec:
        """What coordinators know of it."""
        return TopicSpec(self.name, len(self.places), self.places)


#: What a group can be told to read.
Topic: TypeAlias = JetStreamTopic | TopicSource


class JetStreamSource:
    """A :class:`JetStreamTopic` that is read through a connection.

    Args:
        js: JetStream.
        topic: The topic.
        prefetch: How many messages of a partition may be on their way.
    """

    def __init__(self, js: JetStream, topic: JetStreamTopic, *, prefetch: int = 500) -> None:
        self._js = js
        self._topic = topic
        self._prefetch = prefetch

    @property
    def spec(self) -> TopicSpec:
        """What coordinators know of it."""
        return self._topic.spec

    async def bounds(self, partition: int) -> tuple[int, int]:
        """The oldest offset of a partition, and the end of its stream."""
        return await place_bounds(self._js, self._topic.places[partition])

    async def newest(self, partition: int) -> int:
        """The offset of a partition's newest message, or the end of its stream."""
        place = self._topic.places[partition]
        stream = await self._js.stream(place.stream)
        try:
            message = await stream.get_message(last_by_subject=place.subject or ">", direct=False)
        except MessageNotFoundError:
            return stream.cached_info.state.last_seq
        return message.sequence - 1

    async def lag(self, partition: int, offset: int) -> int:
        """How many messages a partition has from an offset on, as JetStream counts them."""
        place = self._topic.places[partition]
        config = ConsumerConfig(
            name=f"lag-{uuid4().hex}",
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_LOOK,
            filter_subjects=(place.subject,) if place.subject else (),
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=offset + 1,
        )
        stream = await self._js.stream(place.stream)
        consumer = await stream.create_consumer(config)
        pending = consumer.cached_info.num_pending
        await stream.delete_consumer(consumer.name)
        return pending

    async def open(self, partition: int, offset: int) -> JetStreamFeed:
        """Read a partition from an offset on.

        Raises:
            OffsetOutOfRangeError: The stream ends before it: it was made anew, or has lost messages.
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
        messages = consumer.messages(max_messages=self._prefetch)
        await messages.__aenter__()
        return JetStreamFeed(messages)


class JetStreamFeed:
    """Reads one partition by an ordered consumer."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    async def next(self) -> SourceMessage:
        """The next message."""
        message = await self._messages.next()
        return SourceMessage(message.metadata.stream_sequence - 1, message.data, message)

    async def close(self) -> None:
        """Read no more."""
        self._messages.stop()


def beyond_the_end(stream: str, partition: int, offset: int, newest: int) -> OffsetOutOfRangeError:
    """What is raised where a group is further than a partition."""
    return OffsetOutOfRangeError(
        f"the group is at offset {offset} of {stream}[{partition}], which ends at {newest}: it has lost "
        "messages, or the stream was made anew; rewind the group",
        stream,
        partition,
        offset,
        newest,
    )


def source_of(topic: Topic, js: JetStream, prefetch: int) -> TopicSource:
    """How a topic is read."""
    return JetStreamSource(js, topic, prefetch=prefetch) if isinstance(topic, JetStreamTopic) else topic


def spec_of(topic: Topic) -> TopicSpec:
    """What coordinators know of a topic.

    Raises:
        UsageTypeError: It is none.
    """
    if not isinstance(topic, JetStreamTopic | TopicSource):
        raise UsageTypeError(f"a topic must be a JetStreamTopic or a TopicSource, not {topic!r}")
    return topic.spec
