"""What a group is: plain values, as its controller keeps them and the KV bucket stores them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

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
]

DEFAULT_SESSION_TIMEOUT: Final = 10.0
#: In seconds. Below it a busy machine would fence its members; above it the dead would keep their partitions.
SHORTEST_SESSION: Final = 0.1
LONGEST_SESSION: Final = 3600.0
#: What one group may have, so that its record stays well below the largest NATS message.
MAX_MEMBERS: Final = 1_000
MAX_PARTITIONS: Final = 10_000
_LONGEST_NAME: Final = 255
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class Phase(IntEnum):
    """Where a group stands; the numbers are those of ``protos/groups.proto``."""

    #: Nobody is in it.
    EMPTY = 0
    #: It is about to change: members give back what they have, and register again.
    PREPARING = 1
    #: Every member knows its partitions, or can ask for them.
    STABLE = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where one partition is kept in JetStream.

    Attributes:
        stream: Name of the stream.
        subject: What is the partition's in it; empty for all of it.
    """

    stream: str
    subject: str = ""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What the group knows of a topic.

    Attributes:
        name: Its name.
        partitions: How many it has.
        places: Where they are, one each; none where the coordinator can't look at them.
    """

    name: str
    partitions: int
    places: tuple[Place, ...] = ()


@dataclass(slots=True)
class MemberState:
    """A member.

    Attributes:
        consumer_id: Its id in the group.
        client_id: Who it is: another process with the same consumer id has another one.
        topics: The topics that it reads.
        session_timeout: Seconds of silence after which it is taken for dead.
        generation: The generation of its assignment, 0 for none yet.
        ready: While the group is PREPARING: whether it has given its partitions back.
        assignment: The partitions that are its.
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
    """A group.

    Attributes:
        name: Its name.
        session_timeout: Seconds of silence after which members are taken for dead that don't say otherwise.
        topics: What is read, by name.
        ephemeral: Whether it goes with its last member.
        assignor: The name of what deals out the partitions.
        immediate: Whether partitions move without the members being asked first.
        generation: Counts the assignments. It never goes back, not even if the group is made anew.
        phase: Where it stands.
        members: By consumer id.
        offsets: The offset that is to be read next, of each partition that somebody committed.
        rewound: Partitions that were set back since the last assignment: commits of them don't count.
        controller_id: The coordinator that has the group.
        controller_incarnation: Which life of that coordinator.
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
    rewound: set[TopicPartition] = field(default_factory=set)
    controller_id: str = ""
    controller_incarnation: str = ""

    def knows(self, partition: TopicPartition) -> bool:
        """Whether there is such a partition."""
        spec = self.topics.get(partition.topic)
        return spec is not None and 0 <= partition.partition < spec.partitions


def check_id(what: str, value: object) -> str:
    """A name of a group, a consumer, a client or a topic.

    Raises:
        GroupRequestError: It is empty, longer than 255 bytes, or has a control character.
    """
    if not isinstance(value, str) or not value:
        raise GroupRequestError(f"{what}={value!r}: expected some text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise GroupRequestError(f"{what} {value!r} has a lone surrogate, which UTF-8 can't carry") from None
    if size > _LONGEST_NAME:
        raise GroupRequestError(f"{what} {value[:40]!r}... is longer than {_LONGEST_NAME} bytes")
    if _CONTROL.search(value):
        raise GroupRequestError(f"{what} {value!r} has a control character")
    return value


def check_session_timeout(seconds: object) -> float:
    """A session timeout, in seconds.

    Raises:
        GroupRequestError: It is no number from 0.1 to 3,600.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise GroupRequestError(f"session_timeout={seconds!r}: expected seconds")
    if not SHORTEST_SESSION <= seconds <= LONGEST_SESSION:
        raise GroupRequestError(
            f"session_timeout={seconds!r}: expected {SHORTEST_SESSION} to {LONGEST_SESSION:.0f} seconds"
        )
    return float(seconds)


def check_topics(topics: Iterable[TopicSpec]) -> dict[str, TopicSpec]:
    """Topics by their names.

    Raises:
        GroupRequestError: One has no sense, or stands there twice.
        GroupLimitError: They have too many partitions.
    """
    checked: dict[str, TopicSpec] = {}
    for spec in topics:
        check_id("topic", spec.name)
        if spec.name in checked:
            raise GroupRequestError(f"topic {spec.name!r} is given twice")
        if spec.partitions < 1:
            raise GroupRequestError(f"topic {spec.name!r}: {spec.partitions} partitions, expected 1 or more")
        if spec.places and len(spec.places) != spec.partitions:
            raise GroupRequestError(
                f"topic {spec.name!r}: {len(spec.places)} places for {spec.partitions} partitions"
            )
        checked[spec.name] = spec
    _check_size(checked)
    return checked


def merged_topics(known: Mapping[str, TopicSpec], new: Mapping[str, TopicSpec]) -> dict[str, TopicSpec]:
    """The topics of a group once somebody came who knows those of ``new``.

    A topic may have grown by partitions at its end; who knows fewer of them is behind, and does not count.

    Raises:
        TopicMismatchError: The two don't mean the same partitions by a name.
        GroupLimitError: There would be too many.
    """
    merged = dict(known)
    for name, spec in new.items():
        before = known.get(name)
        if before is None:
            merged[name] = spec
            continue
        common = min(before.partitions, spec.partitions)
        if before.places[:common] != spec.places[:common] or bool(before.places) != bool(spec.places):
            raise TopicMismatchError(
                f"topic {name!r}: the group knows its partitions in other places; use another name for it"
            )
        if spec.partitions > before.partitions:
            merged[name] = spec
    _check_size(merged)
    return merged


def _check_size(topics: Mapping[str, TopicSpec]) -> None:
    count = sum(spec.partitions for spec in topics.values())
    if count > MAX_PARTITIONS:
        raise GroupLimitError(f"{count} partitions: a group may have {MAX_PARTITIONS}")
