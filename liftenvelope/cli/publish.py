"""``liftenvelope publish``: publishes one message, or copies of it, and shows the acks."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from liftenvelope.cli._servers import CommandServers, json_option, on_servers
from liftenvelope.cli._terminal import echo_json, shown
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from liftenvelope.envelope import Ack
    from liftenvelope.jetstream import PubAck

__all__ = ["publish"]

#: Largest payload to read, in bytes: the largest message that NATS carries.
_LARGEST: Final = 64 * 1024 * 1024
#: Publishes a message and returns its ack in JSON's form; None if no ack was asked for.
_Send: TypeAlias = "Callable[[], Awaitable[dict[str, Any] | None]]"


@dataclass(frozen=True, kw_only=True)
class _Outgoing:
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
    ttl: str | None
    envelope: bool

    def refuse(self, reason: str, *names: str) -> None:
        """Raise ``UsageError`` if one of these options was given."""
        for name in names:
            if getattr(self, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} must be left out {reason}")

    @property
    def header_bytes(self) -> dict[str, bytes]:
        """Headers of an envelope."""
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


@click.command()
@click.argument("target", metavar="TARGET")
@click.argument("value", required=False)
@click.option("--file", "-f", "file", metavar="PATH", help="File with the value; - for standard input.")
@click.option("--key", "-k", help="Key of the message: with Liftbridge, or with --envelope.")
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="Header; may be repeated."
)
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="Number of copies.")
@click.option(
    "--envelope", is_flag=True, help="Publish a Liftbridge envelope on NATS, and wait for a server's ack."
)
@click.option(
    "--partition", "-p", type=click.IntRange(min=0), help="Liftbridge: partition.  [default: by the key]"
)
@click.option(
    "--ack-policy",
    type=click.Choice(["leader", "all", "none"]),
    help="Liftbridge: when the server acks.  [default: leader]",
)
@click.option(
    "--expected-offset", type=click.IntRange(min=0), help="Liftbridge: offset that the message must get."
)
@click.option("--message-id", metavar="ID", help="JetStream: id; a message with the same id is stored once.")
@click.option(
    "--expected-sequence",
    type=click.IntRange(min=0),
    help="JetStream: last sequence that the stream must have.",
)
@click.option("--ttl", metavar="SECONDS", help="JetStream: seconds until the message is deleted, or never.")
@json_option
@on_servers
async def publish(
    servers: CommandServers,
    target: str,
    value: str | None,
    file: str | None,
    headers: tuple[str, ...],
    count: int,
    key: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Publish a message and show its ack.

    TARGET is a subject of JetStream, a stream of Liftbridge, or with --envelope a subject that a Liftbridge
    stream records. The value is VALUE, a file, or standard input if both are left out or VALUE is -.
    """
    message = _Outgoing(
        target=target,
        value=_value(value, file),
        key=None if key is None else key.encode("utf-8", "surrogateescape"),
        headers=tuple(map(_header, headers)),
        **options,
    )
    for name in ("message_id", "expected_offset", "expected_sequence"):
        if count > 1 and getattr(message, name) is not None:
            raise UsageError(f"--count must be 1 with --{name.replace('_', '-')}, got {count}")
    async with _sender(servers, message) as send:
        acks = await _publish(send, count, as_json)
    if not as_json:
        click.echo(shown(_summary(acks, count)))


async def _publish(send: _Send, count: int, as_json: bool) -> list[dict[str, Any]]:
    """Publish copies one after the other, and return the first ack and the last one."""
    acks: list[dict[str, Any]] = []
    for number in range(count):
        try:
            ack = await send()
        except LiftEnvelopeError:
            if number:
                click.echo(f"Note: {number:,} of {count:,} messages were published before", err=True)
            raise
        if ack is not None:
            acks = [*acks[:1], ack]
            if as_json:
                echo_json(ack)
    return acks


def _value(value: str | None, file: str | None) -> bytes:
    """Return the value of the message.

    Raises:
        UsageError: Both an argument and a file are given, standard input is closed, or the value is larger
            than any server accepts.
    """
    if value is not None and file is not None:
        raise UsageError("VALUE and --file exclude each other; leave one of them out")
    if value is not None and value != "-":
        return value.encode("utf-8", "surrogateescape")
    if (file is None or file == "-") and sys.stdin is None:
        raise UsageError("VALUE or --file must be given, because standard input is closed")
    with click.open_file(file or "-", "rb") as source:
        found: bytes = source.read(_LARGEST + 1)
    if len(found) > _LARGEST:
        raise UsageError(f"the value must be at most {_LARGEST:,} bytes")
    return found


def _header(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not name or not found:
        raise UsageError(f"--header must be NAME=VALUE, got {text!r}")
    return name, value


@asynccontextmanager
async def _sender(servers: CommandServers, message: _Outgoing) -> AsyncIterator[_Send]:
    if message.envelope:
        servers.need("nats", "--envelope")
        async with _envelope_sender(servers, message) as send:
            yield send
    elif servers.is_jetstream:
        async with _jetstream_sender(servers, message) as send:
            yield send
    else:
        async with _liftbridge_sender(servers, message) as send:
            yield send


@asynccontextmanager
async def _jetstream_sender(servers: CommandServers, message: _Outgoing) -> AsyncIterator[_Send]:
    reason = "for JetStream: it is a setting of Liftbridge, or of --envelope"
    message.refuse(reason, "key", "partition", "ack_policy", "expected_offset")
    headers: dict[str, list[str]] = {}
    for name, value in message.headers:
        headers.setdefault(name, []).append(value)
    given: dict[str, Any] = {
        "message_id": message.message_id,
        "expected_last_sequence": message.expected_sequence,
        "ttl": _ttl(message.ttl),
    }
    options = {name: value for name, value in given.items() if value is not None}
    async with servers.jetstream() as js:

        async def send() -> dict[str, Any]:
            return _pub_ack(await js.publish(message.target, message.value, headers=headers, **options))

        yield send


def _ttl(text: str | None) -> float | str | None:
    if text is None or text == "never":
        return text
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--ttl must be a number of seconds or never, got {text!r}") from None


@asynccontextmanager
async def _envelope_sender(servers: CommandServers, message: _Outgoing) -> AsyncIterator[_Send]:
    from liftenvelope.envelope import new_message
    from liftenvelope.nats import AckInbox

    reason = "with --envelope: it is a setting of JetStream"
    message.refuse(reason, "message_id", "expected_sequence", "ttl")
    message.refuse("with --envelope: publish on the subject of the partition", "partition")
    async with servers.nats() as nc:
        if message.ack_policy == "none":

            async def send_only() -> None:
                await nc.publish(message.target, new_message(message.value, **message.envelope_options))
                await nc.flush()

            yield send_only
            return
        async with AckInbox(nc, timeout=servers.timeout) as inbox:

            async def send() -> dict[str, Any]:
                return _ack(await inbox.publish(message.target, message.value, **message.envelope_options))

            yield send


@asynccontextmanager
async def _liftbridge_sender(servers: CommandServers, message: _Outgoing) -> AsyncIterator[_Send]:
    message.refuse("for Liftbridge: it is a setting of JetStream", "message_id", "expected_sequence", "ttl")
    async with servers.liftbridge() as client:

        async def send() -> dict[str, Any] | None:
            ack = await client.publish(
                message.target, message.value, partition=message.partition, **message.envelope_options
            )
            return None if ack is None else _ack(ack)

        yield send


def _pub_ack(ack: PubAck) -> dict[str, Any]:
    found = {"stream": ack.stream, "sequence": ack.sequence, "duplicate": ack.duplicate}
    return {**found, **({} if ack.domain is None else {"domain": ack.domain})}


def _ack(ack: Ack) -> dict[str, Any]:
    """Return an ack in JSON's form."""
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


def _summary(acks: list[dict[str, Any]], count: int) -> str:
    if not acks:
        return f"published {count:,} message{'s' if count > 1 else ''} without waiting for an ack"
    first, last = acks[0], acks[-1]
    if count > 1:
        return f"stored {count:,} messages: the first in {_where(first)}, the last in {_where(last)}"
    if first.get("duplicate"):
        return f"not stored again: the message id is that of {_where(first)}"
    return f"stored in {_where(first)}"


def _where(ack: dict[str, Any]) -> str:
    if "sequence" in ack:
        return f"{ack['stream']}, sequence {ack['sequence']}"
    number = ack["partition"]
    place = f"partition {number}" if number is not None else f"subject {ack['subject']}"
    return f"{ack['stream']}, {place}, offset {ack['offset']}"
