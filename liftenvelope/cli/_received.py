"""Messages that ``liftenvelope subscribe`` shows: their fields, as text for people and as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from liftenvelope.cli._terminal import as_json_bytes, echo_json, shown, shown_bytes, shown_time, time_text
from liftenvelope.envelope import is_envelope, unmarshal_message
from liftenvelope.errors import EnvelopeError

if TYPE_CHECKING:
    from liftenvelope import jetstream
    from liftenvelope.envelope import Message

__all__ = ["Received", "from_jetstream", "from_liftbridge", "print_raw"]


@dataclass(frozen=True, kw_only=True)
class Received:
    """Message of a stream.

    Attributes:
        stream: Name of the stream.
        offset: Offset; for JetStream, the sequence minus 1.
        partition: Number of the partition; None for JetStream.
        timestamp_ns: Time at which it was stored, in ns since 1970.
        subject: Subject.
        key: Key; empty for none.
        headers: Names and values, in order.
        value: Payload, or the value of an envelope.
        payload: Payload as it was stored.
        envelope: Fields of the envelope in a JetStream message; None if it is none.
        fault: What is wrong with a malformed envelope; empty if nothing is.
    """

    stream: str
    offset: int
    partition: int | None
    timestamp_ns: int
    subject: str
    key: bytes
    headers: Sequence[tuple[str, bytes]]
    value: bytes
    payload: bytes
    envelope: Message | None = None
    fault: str = ""

    def print(self) -> None:
        """Print the message for people."""
        number = f"offset {self.offset}" if self.partition is not None else f"sequence {self.offset + 1}"
        place = "" if self.partition is None else f"partition {self.partition}"
        key = f"key={shown_bytes(self.key)}" if self.key else ""
        words = (number, place, shown_time(self.timestamp_ns), shown(self.subject), key)
        click.secho("  ".join(filter(None, words)), bold=True)
        if self.envelope is not None:
            click.echo(f"  envelope: {_delivery(self.envelope)}")
        if self.fault:
            click.echo(f"  malformed envelope: {shown(self.fault)}")
        for name, value in self.headers:
            click.echo(f"  {shown(name)}: {shown_bytes(value)}")
        # Lines are indented, so that no value can look like the head of another message.
        text = shown_bytes(self.value, keep="\n\t") or "(empty)"
        click.echo("\n".join(f"    {line}".rstrip() for line in text.split("\n")))

    def print_json(self) -> None:
        """Print the message as one line of JSON, with the names of ``liftenvelope read``."""
        found: dict[str, Any] = {"stream": self.stream, "offset": self.offset}
        if self.partition is None:
            found["sequence"] = self.offset + 1
        else:
            found["partition"] = self.partition
        found |= {"timestamp": time_text(self.timestamp_ns), "subject": self.subject}
        if self.key:
            found |= as_json_bytes("key", self.key)
        found |= {"headers": _by_name(self.headers), **as_json_bytes("value", self.value)}
        if self.envelope is not None:
            found["envelope"] = {
                "ack_inbox": self.envelope.ack_inbox,
                "correlation_id": self.envelope.correlation_id,
                "ack_policy": self.envelope.ack_policy.name,
            }
        if self.fault:
            found["malformed_envelope"] = self.fault
        echo_json(found)


def print_raw(message: Received) -> None:
    """Print the payload as it is, and a line end. A terminal gets escapes in place of control characters."""
    if sys.stdout.isatty():
        click.echo(shown_bytes(message.payload, keep="\n\t"))
    else:
        click.echo(message.payload + os.linesep.encode(), nl=False)


def _delivery(envelope: Message) -> str:
    words = {"ack inbox": envelope.ack_inbox, "correlation id": envelope.correlation_id}
    given = [f"{name} {value}" for name, value in words.items() if value]
    return shown(", ".join([*given, f"ack policy {envelope.ack_policy.name}"]))


def _by_name(headers: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
    """Return headers by name: text, ``{"base64": ...}``, or a list of these for a repeated name."""
    found: dict[str, list[Any]] = {}
    for name, value in headers:
        text = as_json_bytes("text", value)
        found.setdefault(name, []).append(text.get("text", {"base64": text.get("text_base64")}))
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def from_liftbridge(message: Message) -> Received:
    """Return a message of Liftbridge or the gateway."""
    return Received(
        stream=message.stream,
        offset=message.offset,
        partition=message.partition,
        timestamp_ns=message.timestamp_ns,
        subject=message.subject,
        key=message.key,
        headers=tuple(message.headers.items()),
        value=message.value,
        payload=message.value,
    )


def from_jetstream(message: jetstream.Message) -> Received:
    """Return a message of JetStream, with the envelope in it opened."""
    origin, envelope, fault = message.metadata, None, ""
    headers = [(name, value.encode()) for name, value in message.headers.pairs]
    if is_envelope(message.data):
        try:
            envelope = unmarshal_message(message.data)
            headers += envelope.headers.items()
        except EnvelopeError as exc:
            fault = str(exc)
    return Received(
        stream=origin.stream,
        offset=origin.stream_sequence - 1,
        partition=None,
        timestamp_ns=origin.timestamp_ns,
        subject=message.subject,
        key=b"" if envelope is None else envelope.key,
        headers=headers,
        value=message.data if envelope is None else envelope.value,
        payload=message.data,
        envelope=envelope,
        fault=fault,
    )
