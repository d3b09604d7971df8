"""Message of ``liftenvelope publish``: its options, and its ack in JSON's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.envelope import Ack
    from liftenvelope.jetstream import PubAck

__all__ = ["Outgoing", "facts_of"]


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """Message of the command line. The options of the other kind of servers are None."""

    target: str
    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, str], ...]
    partition: int | None
    ack_policy: str | None
    expected_offset: int | None
    message_id: str | None
    expected_sequence: int | None
    ttl: float | str | None
    envelope: bool

    def refuse(self, reason: str, *names: str) -> None:
        """Raise ``UsageError`` if one of these options was given."""
        for name in names:
            if getattr(self, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} must be left out {reason}")

    @property
    def header_bytes(self) -> dict[str, bytes]:
        """Headers of an envelope.

        Raises:
            UsageError: A name is repeated, but envelopes have one value for each.
        """
        names = [name for name, _ in self.headers]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(
                    f"--header must be given once for each name with Liftbridge, got {name!r} twice"
                )
        return {name: value.encode("utf-8", "surrogateescape") for name, value in self.headers}

    @property
    def envelope_options(self) -> dict[str, Any]:
        """Options that both ways of publishing to Liftbridge have."""
        from liftenvelope.types import AckPolicy

        policy = AckPolicy[(self.ack_policy or "leader").upper()]
        expected = -1 if self.expected_offset is None else self.expected_offset
        return {
            "key": self.key,
            "headers": self.header_bytes,
            "ack_policy": policy,
            "expected_offset": expected,
        }

    def check_for_jetstream(self) -> None:
        """Raise ``UsageError`` if an option of Liftbridge was given."""
        reason = "for JetStream: it is a setting of Liftbridge, or of --envelope"
        self.refuse(reason, "key", "partition", "ack_policy", "expected_offset")

    def check_for_envelopes(self) -> None:
        """Raise ``UsageError`` if an option that envelopes on NATS don't have was given."""
        self.refuse("with --envelope: it is a setting of JetStream", "message_id", "expected_sequence", "ttl")
        self.refuse("with --envelope: publish on the subject of the partition", "partition")

    def check_for_liftbridge(self) -> None:
        """Raise ``UsageError`` if an option of JetStream was given."""
        reason = "for Liftbridge: it is a setting of JetStream"
        self.refuse(reason, "message_id", "expected_sequence", "ttl")

    @property
    def jetstream_options(self) -> dict[str, Any]:
        """Options for publishing to JetStream."""
        headers: dict[str, list[str]] = {}
        for name, value in self.headers:
            headers.setdefault(name, []).append(value)
        given: dict[str, Any] = {
            "message_id": self.message_id,
            "expected_last_sequence": self.expected_sequence,
            "ttl": self.ttl,
        }
        return {"headers": headers, **{name: value for name, value in given.items() if value is not None}}


def facts_of(ack: Ack | PubAck) -> dict[str, Any]:
    """Return an ack in JSON's form."""
    from liftenvelope.envelope import Ack

    return _ack_facts(ack) if isinstance(ack, Ack) else _pub_ack_facts(ack)


def _pub_ack_facts(ack: PubAck) -> dict[str, Any]:
    """Return an ack of JetStream in JSON's form."""
    found = {"stream": ack.stream, "sequence": ack.sequence, "duplicate": ack.duplicate}
    return {**found, **({} if ack.domain is None else {"domain": ack.domain})}


def _ack_facts(ack: Ack) -> dict[str, Any]:
    """Return an ack of an envelope in JSON's form."""
    return {
        "stream": ack.stream,
        "partition": _partition(ack.partition_subject, ack.msg_subject),
        "offset": ack.offset,
        "subject": ack.msg_subject,
        "correlation_id": ack.correlation_id,
        "received_ns": ack.reception_timestamp_ns,
        "committed_ns": ack.commit_timestamp_ns,
    }


def _partition(stream: str, message: str) -> int | None:
    """Return the number of a partition by the subjects in an ack; None if they do not tell.

    Partition 0 records the subject of its stream, partition N the same with ``.N`` added. With wildcards, the
    subject of a message may end in a number in any partition.

    Args:
        stream: Subject of the stream.
        message: Subject of the message.
    """
    if message == stream:
        return 0
    tail = message.removeprefix(f"{stream}.")
    return int(tail) if tail != message and tail.isascii() and tail.isdigit() else None
