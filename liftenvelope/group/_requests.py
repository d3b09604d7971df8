"""Requests of members to a group, and the answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.state import TopicSpec

__all__ = ["Beat", "Commit", "Registered", "Registration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Registration of a consumer.

    Attributes:
        consumer_id: Id in the group.
        client_id: Id of the consumer process, which no other process, and no earlier run of this one, ever
            had.
        topics: Topics that the consumer reads.
        session_timeout: Seconds of silence after which the member is removed; None for the group's default.
        generation: Generation of the partitions that the consumer has given back; 0 if it never had any.
    """

    consumer_id: str
    client_id: str
    topics: tuple[TopicSpec, ...]
    session_timeout: float | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Registered:
    """Answer to a registration.

    Attributes:
        generation: Generation of the member's assignment; 0 if it has none yet.
        assignment: Partitions of the member, each with its start offset, -1 where nothing was committed.
        session_timeout: Seconds of silence after which the member is removed.
        rebalancing: The group is PREPARING, so the assignment is empty. The member must give its partitions
            back and register again, or has done so and must wait.
        created_ns: Creation times of the streams that the offsets belong to, in ns since 1970, as far as they
            are known.
    """

    generation: int
    assignment: dict[TopicPartition, int]
    session_timeout: float
    rebalancing: bool
    created_ns: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beat:
    """Answer to a heartbeat.

    Attributes:
        generation: Generation of the group.
        rebalancing: The group is PREPARING.
    """

    generation: int
    rebalancing: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Progress of a member in one partition.

    Attributes:
        partition: The partition.
        offset: Offset to read next.
        rewind: The offset may be lower than the committed one, because the member sought back.
        created_ns: Time when the stream of the partition was created, in ns since 1970; 0 if not known.
    """

    partition: TopicPartition
    offset: int
    rewind: bool = False
    created_ns: int = 0
