"""Stream records: the state of a stream that the gateways share, stored as JSON in a bucket."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self

from liftenvelope.gateway._cluster.stored_json import check_fields, read_stored
from liftenvelope.gateway._protocol.names import partition_stream, partition_subject

__all__ = ["PartitionRecord", "RecordedEvent", "StreamPhase", "StreamRecord", "read_ids"]


class StreamPhase(StrEnum):
    """Life cycle state of a stream."""

    #: The partitions are being created; clients and other gateways do not see the stream yet.
    CREATING = "creating"
    READY = "ready"
    #: The partitions are being removed; clients and other gateways do not see the stream any more.
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """State of a partition.

    Times are in nanoseconds since 1970; 0 stands for never.

    Attributes:
        paused: Whether the partition records nothing until it is resumed. Default False.
        readonly: Whether the partition accepts no messages. Default False.
        source: Name of the JetStream stream that records the subject and from which the partition copies.
            None (the default) if the partition records its subject itself.
        paused_ns, first_paused_ns: Times of the last and of the first pause or resumption.
        readonly_ns, first_readonly_ns: Times of the last and of the first SetStreamReadonly.
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
        """True if messages published on the partition's subject are stored."""
        return not (self.paused or self.readonly)

    def with_paused(self, paused: bool, now_ns: int) -> Self:
        """Return a copy of the record that is paused or resumed at ``now_ns``."""
        if paused == self.paused:
            return self
        return replace(self, paused=paused, paused_ns=now_ns, first_paused_ns=self.first_paused_ns or now_ns)

    def with_readonly(self, readonly: bool, now_ns: int) -> Self:
        """Return a copy of the record that is made readonly or writable at ``now_ns``.

        As in Liftbridge, a change to what the partition already is counts as one.
        """
        first = self.first_readonly_ns or now_ns
        return replace(self, readonly=readonly, readonly_ns=now_ns, first_readonly_ns=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """Change of a stream that the activity stream does not have yet.

    The event stays in the stream's record until it is published, so that no event is lost if a gateway dies.

    Attributes:
        token: Message id by which JetStream drops duplicates if the event is published twice.
        gateway: Id of the gateway that made the change and has to publish the event.
        run: Id of that gateway's run: a restarted gateway may have the same gateway id.
        data: The event as protobuf in hexadecimal digits, without its id.
    """

    token: str
    gateway: str
    run: str
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecord:
    """State of a stream.

    Attributes:
        name: Name of the stream.
        subject: Subject that partition 0 records; partition i > 0 records ``subject.i``.
        id: Unique id: a later stream of the same name has another one.
        maker: Id of the gateway that creates or removes the stream. Default empty.
        owner: Common name of the certificate of the client that created the stream; empty (the default) for
            none.
        state: Life cycle state. Default ``READY``.
        created_ns: Creation time, in nanoseconds since 1970.
        group: NATS queue group; empty (the default) for none.
        replicas: Number of NATS servers that store each partition. Default 1.
        resume_all: Whether a message for one partition resumes all paused ones. Default False.
        settings: Settings given in the request, by their names in the API.
        jetstream: Name of the JetStream stream that holds the partition, if it is not the usual one; empty
            (the default) for the usual name.
        partitions: Partition records, in order. Default one partition.
        events: Events not yet published to the activity stream, in order.
        never_ready: Ids of the latest earlier streams of that name whose creation was undone. A gateway that
            was taken for dead may have left partitions of them. Default none.
    """

    name: str
    subject: str
    id: str
    maker: str = ""
    owner: str = ""
    state: StreamPhase = StreamPhase.READY
    created_ns: int = 0
    group: str = ""
    replicas: int = 1
    resume_all: bool = False
    settings: dict[str, int] = field(default_factory=dict)
    jetstream: str = ""
    partitions: tuple[PartitionRecord, ...] = (PartitionRecord(),)
    events: tuple[RecordedEvent, ...] = ()
    never_ready: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """Serialize the record as JSON for the bucket.

        Fields with default values are left out, so that 10,000 partitions fit into a message of 1 MiB.
        """
        record = _without_defaults(self)
        record["state"] = self.state
        record["partitions"] = [_without_defaults(part) for part in self.partitions]
        if self.events:
            record["events"] = [asdict(event) for event in self.events]
        return json.dumps(record, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Parse a record from JSON. Fields with default values may be present or left out.

        Raises:
            InternalError: The data is no record, so another program writes into the bucket.
        """
        return read_stored(cls._from_values, data, "a stream's record")

    @classmethod
    def _from_values(cls, found: dict[str, Any]) -> Self:
        parts = [check_fields(PartitionRecord, part) for part in found["partitions"]]
        events = [check_fields(RecordedEvent, event) for event in found.get("events", ())]
        found["state"] = StreamPhase(found["state"])
        found["partitions"] = tuple(PartitionRecord(**part) for part in parts)
        found["events"] = tuple(RecordedEvent(**event) for event in events)
        found["never_ready"] = read_ids(found.get("never_ready", ()))
        return cls(**check_fields(cls, found))

    def setting(self, name: str) -> int:
        """Return a setting of the request; 0 if the request did not give it."""
        return self.settings.get(name, 0)

    @property
    def checks_offsets(self) -> bool:
        """True if messages may carry an expected offset (optimistic concurrency control)."""
        return bool(self.setting("optimisticConcurrencyControl"))

    def has_partition(self, number: int) -> bool:
        """Return whether the stream has a partition of that number."""
        return 0 <= number < len(self.partitions)

    def to_resume(self, partition: int) -> list[int]:
        """Return the numbers of the paused partitions that a message for a partition resumes.

        If the stream was paused with ``resume_all``, these are all paused ones, also if that one is none of
        them.
        """
        woken = range(len(self.partitions)) if self.resume_all else [partition]
        return [number for number in woken if self.partitions[number].paused]

    def subject_of(self, partition: int) -> str:
        """Return the subject that a partition records."""
        return partition_subject(self.subject, partition)

    def intake_of(self, partition: int) -> str:
        """Return the prefix of the subject under which the gateway publishes; empty if there is none.

        If a stream checks offsets, messages of raw NATS publishers must go through a gateway, because
        JetStream does not read envelopes. JetStream then records only subjects with this prefix.
        """
        return f"_lift.checked.{self.id}.{partition}." if self.checks_offsets else ""

    def stream_of(self, partition: int) -> str:
        """Return the name of the JetStream stream that holds a partition."""
        return self.jetstream or partition_stream(self.name, partition)

    def with_partitions(self, changed: dict[int, PartitionRecord]) -> Self:
        """Return a copy of the record with some partitions replaced, by number."""
        partitions = (changed.get(number, part) for number, part in enumerate(self.partitions))
        return replace(self, partitions=tuple(partitions))

    def with_events(self, events: tuple[RecordedEvent, ...]) -> Self:
        """Return a copy of the record with events appended."""
        return replace(self, events=self.events + events)

    def without_event(self, token: str) -> Self:
        """Return a copy of the record without the event that has this token."""
        return replace(self, events=tuple(event for event in self.events if event.token != token))


def read_ids(found: Iterable[str]) -> tuple[str, ...]:
    """Return ids of records from parsed JSON.

    Raises:
        TypeError: One of them is no text.
    """
    ids = tuple(found)
    if not all(isinstance(one, str) for one in ids):
        raise TypeError(f"ids must be texts, got {ids!r:.40}")
    return ids


def _without_defaults(record: PartitionRecord | StreamRecord) -> dict[str, Any]:
    """Return the fields of a record whose values differ from their defaults."""
    found = {}
    for one in fields(record):
        value = getattr(record, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value != default:
            found[one.name] = value
    return found
