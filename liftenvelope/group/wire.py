"""Converts groups to protobuf messages and back: requests, answers, and records of the KV bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from google.protobuf.message import DecodeError

from liftenvelope._pb import groups_pb2 as pb
from liftenvelope.errors import GroupError
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.errors import CoordinatorDefectError, code_of, group_error
from liftenvelope.group.membership import Commit, Registered, Registration
from liftenvelope.group.state import GroupState, MemberState, Phase, Place, TopicSpec

__all__ = [
    "decode_group",
    "encode_group",
    "error_message",
    "group_message",
    "offset_messages",
    "raise_for",
    "read_commits",
    "read_offsets",
    "read_registration",
    "read_topics",
    "registered_message",
    "topic_messages",
]

_MS: Final = 1_000


def _ms(seconds: float) -> int:
    return round(seconds * _MS)


# Errors


def error_message(error: GroupError) -> pb.Error:
    """Encode an error."""
    return pb.Error(code=pb.ErrorCode.Name(code_of(error)), message=str(error))


def raise_for(error: pb.Error) -> None:
    """Raise the error of an answer, if it has one."""
    if error.code:
        raise group_error(error.code, error.message)


# Topics and offsets


def topic_messages(topics: Iterable[TopicSpec]) -> list[pb.Topic]:
    """Encode topics."""
    return [
        pb.Topic(
            name=spec.name,
            partitions=spec.partitions,
            places=[pb.Place(stream=place.stream, subject=place.subject) for place in spec.places],
        )
        for spec in topics
    ]


def read_topics(topics: Iterable[pb.Topic]) -> tuple[TopicSpec, ...]:
    """Decode topics, without checks."""
    return tuple(
        TopicSpec(
            topic.name, topic.partitions, tuple(Place(place.stream, place.subject) for place in topic.places)
        )
        for topic in topics
    )


def offset_messages(offsets: Mapping[TopicPartition, int | GroupError]) -> list[pb.PartitionOffset]:
    """Encode offsets, or the errors in their place."""
    return [
        pb.PartitionOffset(topic=topic, partition=partition, offset=offset)
        if isinstance(offset, int)
        else pb.PartitionOffset(topic=topic, partition=partition, offset=-1, error=error_message(offset))
        for (topic, partition), offset in offsets.items()
    ]


def read_offsets(offsets: Iterable[pb.PartitionOffset]) -> dict[TopicPartition, int | GroupError]:
    """Decode what :func:`offset_messages` encodes."""
    return {
        TopicPartition(one.topic, one.partition): group_error(one.error.code, one.error.message)
        if one.error.code
        else one.offset
        for one in offsets
    }


def read_commits(offsets: Iterable[pb.PartitionOffset]) -> list[Commit]:
    """Decode commits."""
    return [Commit(TopicPartition(one.topic, one.partition), one.offset, one.rewind) for one in offsets]


# Members


def read_registration(request: pb.RegisterConsumerRequest) -> Registration:
    """Decode a registration, without checks."""
    return Registration(
        consumer_id=request.consumer_id,
        client_id=request.client_id,
        topics=read_topics(request.topics),
        session_timeout=request.session_timeout_ms / _MS if request.session_timeout_ms else None,
        generation=request.generation,
    )


def registered_message(registered: Registered) -> pb.RegisterConsumerResponse:
    """Encode the answer to a registration."""
    answer = pb.RegisterConsumerResponse(
        generation=registered.generation,
        partitions=offset_messages(registered.assignment),
        session_timeout_ms=_ms(registered.session_timeout),
    )
    if registered.rebalancing:
        answer.error.code = pb.REBALANCING
        answer.error.message = "the group is rebalancing; give your partitions back and register again"
    return answer


def group_message(state: GroupState, subject: str) -> pb.Group:
    """Encode a group for a list; ``subject`` is its controller's."""
    return pb.Group(
        name=state.name,
        controller=pb.Controller(id=state.controller_id, subject=subject),
        session_timeout_ms=_ms(state.session_timeout),
        generation=state.generation,
        topics=topic_messages(state.topics.values()),
        members=[_member_message(member) for _, member in sorted(state.members.items())],
        ephemeral=state.ephemeral,
        assignor=state.assignor,
        phase=pb.Phase.Name(state.phase),
    )


def _member_message(member: MemberState) -> pb.Member:
    return pb.Member(
        consumer_id=member.consumer_id,
        client_id=member.client_id,
        topics=sorted(member.topics),
        assignment=[pb.TopicPartition(topic=t, partition=p) for t, p in sorted(member.assignment)],
        session_timeout_ms=_ms(member.session_timeout),
    )


# Records


def encode_group(state: GroupState) -> bytes:
    """Encode a group as a record."""
    record = pb.GroupRecord(
        name=state.name,
        session_timeout_ms=_ms(state.session_timeout),
        topics=topic_messages(state.topics.values()),
        ephemeral=state.ephemeral,
        assignor=state.assignor,
        immediate=state.immediate,
        generation=state.generation,
        phase=pb.Phase.Name(state.phase),
        members=[_member_record(member) for member in state.members.values()],
        controller_id=state.controller_id,
        controller_incarnation=state.controller_incarnation,
        rewound=[pb.TopicPartition(topic=t, partition=p) for t, p in sorted(state.rewound)],
    )
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in state.offsets.items():
        by_topic.setdefault(topic, {})[partition] = offset
    record.offsets.extend(pb.OffsetsRecord(topic=t, offsets=offsets) for t, offsets in by_topic.items())
    return record.SerializeToString()


def _member_record(member: MemberState) -> pb.MemberRecord:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(member.assignment):
        by_topic.setdefault(topic, []).append(partition)
    return pb.MemberRecord(
        consumer_id=member.consumer_id,
        client_id=member.client_id,
        topics=sorted(member.topics),
        session_timeout_ms=_ms(member.session_timeout),
        generation=member.generation,
        ready=member.ready,
        assignment=[pb.AssignedRecord(topic=t, partitions=numbers) for t, numbers in by_topic.items()],
    )


def decode_group(data: bytes) -> GroupState:
    """Decode a record.

    Raises:
        CoordinatorDefectError: The record is damaged.
    """
    try:
        record = pb.GroupRecord.FromString(data)
        phase = Phase(record.phase)
    except (DecodeError, ValueError) as exc:
        raise CoordinatorDefectError(f"can't decode a group's record: {exc}") from exc
    return GroupState(
        name=record.name,
        session_timeout=record.session_timeout_ms / _MS,
        topics={spec.name: spec for spec in read_topics(record.topics)},
        ephemeral=record.ephemeral,
        assignor=record.assignor,
        immediate=record.immediate,
        generation=record.generation,
        phase=phase,
        members={member.consumer_id: _member_state(member) for member in record.members},
        offsets={
            TopicPartition(one.topic, partition): offset
            for one in record.offsets
            for partition, offset in one.offsets.items()
        },
        rewound={TopicPartition(one.topic, one.partition) for one in record.rewound},
        controller_id=record.controller_id,
        controller_incarnation=record.controller_incarnation,
    )


def _member_state(record: pb.MemberRecord) -> MemberState:
    return MemberState(
        consumer_id=record.consumer_id,
        client_id=record.client_id,
        topics=frozenset(record.topics),
        session_timeout=record.session_timeout_ms / _MS,
        generation=record.generation,
        ready=record.ready,
        assignment=frozenset(
            TopicPartition(one.topic, partition) for one in record.assignment for partition in one.partitions
        ),
    )
