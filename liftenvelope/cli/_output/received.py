"""Messages that ``liftenvelope subscribe`` shows: their fields, as text for people and as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from liftenvelope.cli._output.terminal import (
    as_json_bytes,
    echo_json,
    shown,
    shown_bytes,
    shown_time,
    time_text,
)
from liftenvelope.monitor.messages import Received, opened

if TYPE_CHECKING:
    from liftenvelope import jetstream
    from liftenvelope.envelope import Message

__all__ = ["from_jetstream", "print_json", "print_message", "print_raw"]


def print_message(message: Received, *more: str) -> None:
    """Print the message for people, with more words in its first line."""
    number = f"offset {message.offset}" if message.partition is not None else f"sequence {message.offset + 1}"
    place = "" if message.partition is None else f"partition {message.partition}"
    key = f"key={shown_bytes(message.key)}" if message.key else ""
    words = (number, place, shown_time(message.timestamp_ns), shown(message.subject), key, *more)
    click.secho("  ".join(filter(None, words)), bold=True)
    if message.envelope is not None:
        click.echo(f"  envelope: {_delivery(message.envelope)}")
    if message.fault:
        click.echo(f"  malformed envelope: {shown(message.fault)}")
    for name, value in message.headers:
        click.echo(f"  {shown(name)}: {shown_bytes(value)}")
    # Lines are indented, so that no value can look like the head of another message.
    text = shown_bytes(message.value, keep="\n\t") or "(empty)"
    click.echo("\n".join(f"    {line}".rstrip() for line in text.split("\n")))


def print_json(message: Received, **more: object) -> None:
    """Print the message as one line of JSON, with the names of ``liftenvelope read``, and more fields."""
    found: dict[str, Any] = {"stream": message.stream, "offset": message.offset}
    if message.partition is None:
        found["sequence"] = message.offset + 1
    else:
        found["partition"] = message.partition
    found |= {"timestamp": time_text(message.timestamp_ns), "subject": message.subject}
    if message.key:
        found |= as_json_bytes("key", message.key)
    found |= {"headers": _by_name(message.headers), **as_json_bytes("value", message.value)}
    if message.envelope is not None:
        found["envelope"] = {
            "ack_inbox": message.envelope.ack_inbox,
            "correlation_id": message.envelope.correlation_id,
            "ack_policy": message.envelope.ack_policy.name,
        }
    if message.fault:
        found["malformed_envelope"] = message.fault
    echo_json({**found, **more})


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


def from_jetstream(message: jetstream.Message) -> Received:
    """Return a message of JetStream, with the envelope in it opened."""
    origin = message.metadata
    return opened(
        stream=origin.stream,
        sequence=origin.stream_sequence,
        timestamp_ns=origin.timestamp_ns,
        subject=message.subject,
        headers=message.headers.pairs,
        data=message.data,
    )
