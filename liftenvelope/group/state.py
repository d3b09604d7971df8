"""State of a group: plain values that its controller keeps in memory and the KV bucket stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from liftenvelope._checks import MAX_INT64, is_encodable
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.errors import GroupLimitError, GroupRequestError, TopicMismatchError

__all__ = [
    "DEFAULT_SESSION_TIMEOUT",
    "LONGEST_SESSION",
    "MAX_MEMBERS",
    "MAX_PARTITIONS",
    "SHORTEST_SESSION",
    "GroupState",
    "MemberState",
    "Phase",
    "Place",
    "TopicSpec",
    "check_id",
    "check_session_timeout",
    "check_topics",
    "merged_topics",
    "name_of",
    "offset_error",
]

DEFAULT_SESSION_TIMEOUT: Final = 10.0
#: In seconds. Below it a busy machine would lose its members; above it dead members would keep partitions.
SHORTEST_SESSION: Final = 0.1
LONGEST_SESSION: Final = 3600.0
#: Limits of one group, so that its record stays well below the largest NATS message.
MAX_MEMBERS: Final = 1_000
MAX_PARTITIONS: Final = 10_000
_LONGEST_NAME: Final = 255
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class Phase(IntEnum):
    """Phase of a group, with the numbers of ``protos/groups.proto``."""

    #: The group has no members.
    EMPTY = 0
    #: Rebalancing: members give their partitions back and register again.
    PREPARING = 1
    #: Every member has its partitions, or can ask for them.
    STABLE = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Location of one partition in JetStream.

    Attributes:
        stream: Name of the stream.
        subject: Subject of the partition in the stream; empty for the whole stream.
    """

    stream: str
    subject: str = ""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as the group knows it.

    Attributes:
        name: Name of the topic.
        partitions: Number of partitions.
        places: Place of each partition; empty if the coordinator can't read the topic.
    """

    name: str
    partitions: int
    places: tuple[Place, ...] = ()


@dataclass(slots=True)
class MemberState:
    """A member of a group.

    Attributes:
        consumer_id: Id in the group.
        client_id: Id of the consumer process. Another process with the same consumer id has another one.
        topics: Topics that the member reads.
        session_timeout: Seconds of silence after which the member is removed.
        generation: Generation of the assignment; 0 for none yet.
        ready: While the group is PREPARING: the member has given its partitions back.
        assignment: Partitions of the member.
    """

    consumer_id: str
    client_id: str
    topics: frozenset[str]
    session_timeout: float
    generation: int = 0
    ready: bool = False
    assignment: frozenset[TopicPartition] = frozenset()


@dataclass(slots=True)
class GroupState:
    """State of a group.

    Attributes:
        name: Name of the group.
        session_timeout: Default session timeout of members, in seconds.
        topics: Topics of the group, by name.
        ephemeral: Delete the group when its last member leaves.
        assignor: Name of the assignor.
        immediate: Move partitions without asking the members first.
        generation: Number of the assignment. It never decreases, not even if the group is deleted and created
            again.
        phase: Phase of the group.
        members: Members by consumer id.
        offsets: Offset to read next, of each partition with a commit.
        created_ns: Creation times of the streams that these offsets belong to, in ns since 1970, as far as
            members have told.
        rewound: Partitions that were rewound since the last assignment; their commits are ignored.
        controller_id: Id of the controller, a coordinator.
        controller_incarnation: Incarnation of that coordinator.
        offsets_revision: In a record: revision up to which ``offsets`` includes the offset keys. 0 in records
            of versions without offset keys.
    """

    name: str
    session_timeout: float = DEFAULT_SESSION_TIMEOUT
    topics: dict[str, TopicSpec] = field(default_factory=dict)
    ephemeral: bool = False
    assignor: str = "sticky"
    immediate: bool = False
    generation: int = 0
    phase: Phase = Phase.EMPTY
    members: dict[str, MemberState] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    created_ns: dict[TopicPartition, int] = field(default_factory=dict)
    rewound: set[TopicPartition] = field(default_factory=set)
    controller_id: str = ""
    controller_incarnation: str = ""
    offsets_revision: int = 0

    def is_read_by_others(self, consumer_id: str) -> Callable[[str], bool]:
        """Return a function that returns True if a member other than this one reads a topic."""
        members = self.members.items()
        return lambda topic: any(topic in one.topics for name, one in members if name != consumer_id)

    def knows(self, partition: TopicPartition) -> bool:
        """Return True if the group has the partition."""
        spec = self.topics.get(partition.topic)
        return spec is not None and 0 <= partition.partition < spec.partitions


def check_id(what: str, value: object) -> str:
    """Check the name of a group, consumer, client or topic, and return it.

    Raises:
        GroupRequestError: The name is empty, longer than 255 bytes, or has a control character.
    """
    if not isinstance(value, str) or not value:
        raise GroupRequestError(f"{what} must be a str that is not empty, got {value!r}")
    if not is_encodable(value):
        text = f"{what} must not contain a lone surrogate, which UTF-8 cannot encode, got {value!r}"
        raise GroupRequestError(text)
    if (size := len(value.encode())) > _LONGEST_NAME:
        text = f"{what} must be at most {_LONGEST_NAME} bytes, got {size}: {value[:40]!r}..."
        raise GroupRequestError(text)
    if _CONTROL.search(value):
        raise GroupRequestError(f"{what} must not contain control characters, got {value!r}")
    return value


def name_of(partition: TopicPartition) -> str:
    """Return a partition as in error texts, such as ``orders[0]``."""
    return f"{partition.topic}[{partition.partition}]"


def offset_error(partition: TopicPartition, offset: int) -> GroupRequestError | None:
    """Return the error for an offset that a partition can't have; None for one that it can."""
    if 0 <= offset <= MAX_INT64:
        return None
    return GroupRequestError(f"the offset of {name_of(partition)} must be 0 to 2**63 - 1, got {offset}")


def check_session_timeout(seconds: object) -> float:
    """Check a session timeout in seconds and return it as a float.

    Raises:
        GroupRequestError: The timeout is not a number from 0.1 to 3,600.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise GroupRequestError(f"session_timeout must be a number of seconds, got {seconds!r}")
    if not SHORTEST_SESSION <= seconds <= LONGEST_SESSION:
        limits = f"{SHORTEST_SESSION} to {LONGEST_SESSION:.0f} seconds"
        raise GroupRequestError(f"session_timeout must be {limits}, got {seconds!r}")
    return float(seconds)


def check_topics(topics: Iterable[TopicSpec]) -> dict[str, TopicSpec]:
    """Check topics and return them by name.

    Raises:
        GroupRequestError: A topic is malformed, or a name is repeated.
        GroupLimitError: The topics have too many partitions.
    """
    checked: dict[str, TopicSpec] = {}
    for spec in topics:
        check_id("topic", spec.name)
        if spec.name in checked:
            raise GroupRequestError(f"topic {spec.name!r} is given twice; leave one out")
        if spec.partitions < 1:
            text = f"topic {spec.name!r} must have at least 1 partition"
            raise GroupRequestError(f"{text}, got {spec.partitions}")
        if spec.places and len(spec.places) != spec.partitions:
            raise GroupRequestError(
                f"topic {spec.name!r} must have a place for each of {spec.partitions} partitions, "
                f"got {len(spec.places)}"
            )
        checked[spec.name] = spec
    _check_size(checked)
    return checked


def merged_topics(
    known: Mapping[str, TopicSpec], new: Mapping[str, TopicSpec], is_read: Callable[[str], bool]
) -> dict[str, TopicSpec]:
    """Return the topics of a group after a member with the topics ``new`` has joined.

    A topic may grow by partitions at its end. A member that knows fewer partitions is behind, and changes
    nothing. A topic that no other member reads loses its places if the member gives none: earlier versions
    stored those of topics in other JetStream domains.

    Args:
        known: Topics of the group.
        new: Topics of the member.
        is_read: Returns True if another member reads a topic.

    Raises:
        TopicMismatchError: The group and the member have different partitions for the same name.
        GroupLimitError: The group would have too many partitions.
    """
    merged = dict(known)
    for name, spec in new.items():
        before = known.get(name)
        if before is None:
            merged[name] = spec
            continue
        if before is spec:
            continue  # the usual case: comparing thousands of places would take a millisecond
        if before.places and not spec.places and before.partitions == spec.partitions and not is_read(name):
            merged[name] = spec
            continue
        common = min(before.partitions, spec.partitions)
        if before.places[:common] != spec.places[:common] or bool(before.places) != bool(spec.places):
            raise TopicMismatchError(
                f"topic {name!r} has partitions in other places in this group; use another name for it"
            )
        if spec.partitions > before.partitions:
            merged[name] = spec
    _check_size(merged)
    return merged


def _check_size(topics: Mapping[str, TopicSpec]) -> None:
    count = sum(spec.partitions for spec in topics.values())
    if count > MAX_PARTITIONS:
        raise GroupLimitError(f"a group may have at most {MAX_PARTITIONS} partitions, got {count}")
