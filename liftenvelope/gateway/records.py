"""What the gateways know of a stream: a record in a bucket, written as JSON."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self

from liftenvelope.errors import InternalError
from liftenvelope.gateway.names import partition_stream, partition_subject

__all__ = ["PartitionRecord", "RecordedEvent", "StreamRecord", "StreamState"]


class StreamState(StrEnum):
    """Where a stream is in its life."""

    #: Its partitions are being made; nobody else sees it yet.
    CREATING = "creating"
    READY = "ready"
    #: Its partitions are being removed; nobody else sees it any more.
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """The state of a partition.

    Attributes:
        paused: Whether it records nothing until it is woken.
        readonly: Whether it takes no messages.
        source: The JetStream stream that it copies from, because that one records its subject. None for a
            partition that records its subject itself.
        paused_ns, first_paused_ns: When it was paused or woken last, and first.
        readonly_ns, first_readonly_ns: When it was made readonly or writable last, and first.
    """

    paused: bool = False
    readonly: bool = False
    source: str | None = None
    paused_ns: int = 0
    first_paused_ns: int = 0
    readonly_ns: int = 0
    first_readonly_ns: int = 0

    @property
    def records(self) -> bool:
        """Whether what is published on its subject is stored."""
        return not (self.paused or self.readonly)

    def with_paused(self, paused: bool, now_ns: int) -> Self:
        """Return it paused, or woken."""
        if paused == self.paused:
            return self
        return replace(self, paused=paused, paused_ns=now_ns, first_paused_ns=self.first_paused_ns or now_ns)

    def with_readonly(self, readonly: bool, now_ns: int) -> Self:
        """Return it readonly, or writable."""
        if readonly == self.readonly:
            return self
        first = self.first_readonly_ns or now_ns
        return replace(self, readonly=readonly, readonly_ns=now_ns, first_readonly_ns=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """What was done to a stream, for the activity stream: it stays in the record until that has it.

    Attributes:
        token: By what JetStream knows it again when it is published twice.
        gateway: Id of the gateway that did it, and is to publish it.
        run: Of that run of the gateway alone: it may come back with the same id.
        data: The event as protobuf, in hexadecimal digits; its id is not set yet.
    """

    token: str
    gateway: str
    run: str
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecord:
    """A stream.

    Attributes:
        name: Its name.
        subject: What it records; its partition i > 0 records ``subject.i``.
        id: Of this stream alone: another of the same name, later, has another one.
        maker: Id of the gateway that is making or removing it.
        owner: Common name of the certificate of the client that created it; empty for none.
        state: Where it is in its life.
        created_ns: When it was made.
        group: Its NATS queue group; empty for none.
        replicas: How many NATS servers keep each partition.
        resume_all: Whether a message for one paused partition wakes them all.
        settings: Of the request, the settings that were given, by their names in the API.
        jetstream: The JetStream stream that holds it, where that is another than of most streams.
        partitions: The partitions, in order.
        events: What the activity stream is yet to be told, in order.
    """

    name: str
    subject: str
    id: str
    maker: str = ""
    owner: str = ""
    state: StreamState = StreamState.READY
    created_ns: int = 0
    group: str = ""
    replicas: int = 1
    resume_all: bool = False
    settings: dict[str, int] = field(default_factory=dict)
    jetstream: str = ""
    partitions: tuple[PartitionRecord, ...] = (PartitionRecord(),)
    events: tuple[RecordedEvent, ...] = ()

    def to_json(self) -> bytes:
        """Return it as it is kept.

        Fields with their defaults are left out, so that 10,000 partitions fit into the 1 MiB of a message.
        """
        record = _without_defaults(self)
        record["state"] = self.state
        record["partitions"] = [_without_defaults(part) for part in self.partitions]
        if self.events:
            record["events"] = [asdict(event) for event in self.events]
        return json.dumps(record, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read one, also one in which all fields are written out.

        Raises:
            InternalError: It is none: something else writes into the bucket.
        """
        try:
            found: dict[str, Any] = json.loads(data)
            found["state"] = StreamState(found["state"])
            found["partitions"] = tuple(PartitionRecord(**part) for part in found["partitions"])
            found["events"] = tuple(RecordedEvent(**event) for event in found.get("events", ()))
            return cls(**found)
        except (ValueError, TypeError, KeyError, UnicodeDecodeError) as exc:
            raise InternalError(f"a stream's record can't be read: {exc}: {data[:80]!r}") from exc

    def setting(self, name: str) -> int:
        """Return a setting of the request, 0 if it was not given."""
        return self.settings.get(name, 0)

    @property
    def checks_offsets(self) -> bool:
        """Whether a message may say which offset it must get."""
        return bool(self.setting("optimisticConcurrencyControl"))

    def has_partition(self, number: int) -> bool:
        """Whether there is a partition of that number."""
        return 0 <= number < len(self.partitions)

    def subject_of(self, partition: int) -> str:
        """The subject that a partition records."""
        return partition_subject(self.subject, partition)

    def intake_of(self, partition: int) -> str:
        """What a subject is published under for JetStream to store it; empty if it is stored as it is.

        What raw NATS publishers send to a stream that checks offsets has to go through a gateway, since
        JetStream does not look into envelopes.
        """
        return f"_lift.checked.{self.id}.{partition}." if self.checks_offsets else ""

    def stream_of(self, partition: int) -> str:
        """The JetStream stream that holds a partition."""
        return self.jetstream or partition_stream(self.name, partition)

    def with_partitions(self, changed: dict[int, PartitionRecord]) -> Self:
        """Return it with some partitions changed."""
        partitions = (changed.get(number, part) for number, part in enumerate(self.partitions))
        return replace(self, partitions=tuple(partitions))

    def with_events(self, events: tuple[RecordedEvent, ...]) -> Self:
        """Return it with more to tell."""
        return replace(self, events=self.events + events)

    def without_event(self, token: str) -> Self:
        """Return it with an event told."""
        return replace(self, events=tuple(event for event in self.events if event.token != token))


def _without_defaults(record: PartitionRecord | StreamRecord) -> dict[str, Any]:
    """Return the fields of a record that do not have their defaults."""
    found = {}
    for one in fields(record):
        value = getattr(record, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value != default:
            found[one.name] = value
    return found
