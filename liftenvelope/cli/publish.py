"""``liftenvelope publish``: publishes one message, or copies of it, and shows the acks."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._options.lists import input_option
from liftenvelope.cli._options.places import DurationType, NumberType, SizeType
from liftenvelope.cli._output.terminal import counted, echo_json, shown
from liftenvelope.cli._publishing.line_publishing import LineOptions, publish_lines
from liftenvelope.cli._publishing.lines import open_bytes
from liftenvelope.cli._publishing.outgoing import Outgoing, facts_of
from liftenvelope.cli._publishing.senders import Send, open_sender
from liftenvelope.errors import LiftEnvelopeError, UsageError

__all__ = ["publish"]

#: Largest payload to read, in bytes: the largest message that NATS carries.
_LARGEST: Final = 64 * 1024 * 1024
#: Options of one message.
_ONCE: Final = ("message_id", "expected_offset", "expected_sequence")
_LINE_OPTIONS: Final = ("key_delimiter", "max_line_bytes", "in_flight")
_LINE_BYTES: Final = 1024 * 1024
_IN_FLIGHT: Final = 1_000


@click.command()
@click.argument("target", metavar="TARGET")
@click.argument("value", required=False)
@input_option("the value")
@click.option("--key", "-k", help="Key of the message: with Liftbridge, or with --envelope.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="Header; repeatable.")
@click.option("--count", type=NumberType(min=1), default=1, show_default=True, help="Number of copies.")
@click.option(
    "--lines", is_flag=True, help="Publish each line of the file or of standard input as a message."
)
@click.option(
    "--key-delimiter",
    "-K",
    metavar="TEXT",
    help="With --lines: text between the key and the value of a line.",
)
@click.option(
    "--max-line-bytes",
    type=SizeType(),
    metavar="SIZE",
    help="With --lines: maximum length of a line.  [default: 1MiB]",
)
@click.option(
    "--in-flight",
    type=NumberType(min=1),
    help="With --lines: lines that may wait for their acks at a time.  [default: 1000]",
)
@click.option(
    "--envelope", is_flag=True, help="Publish a Liftbridge envelope on NATS, and wait for a server's ack."
)
@click.option(
    "--partition", "-p", type=NumberType(min=0), help="Liftbridge: partition.  [default: by the key]"
)
@click.option(
    "--ack-policy",
    type=click.Choice(["leader", "all", "none"]),
    help="Liftbridge: when the server acks.  [default: leader]",
)
@click.option(
    "--expected-offset", type=NumberType(min=0), help="Liftbridge: offset that the message must get."
)
@click.option("--message-id", metavar="ID", help="JetStream: id; a message with the same id is stored once.")
@click.option(
    "--expected-sequence",
    type=NumberType(min=0),
    help="JetStream: last sequence that the stream must have.",
)
@click.option(
    "--ttl",
    type=DurationType("never"),
    help="JetStream: time until the message is deleted, from 1s on, or never.",
)
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
    lines: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Publish a message and show its ack.

    TARGET is a subject of JetStream, a stream of Liftbridge, or with --envelope a subject that a Liftbridge
    stream records. The value is VALUE, a file, or standard input if both are left out or VALUE is -.

    With --lines, each line of the file or of standard input is a message. Publishing ends at the first line
    that is not acked, and the exit code is then 1.
    """
    line_options = {name: options.pop(name) for name in _LINE_OPTIONS}
    message = Outgoing(
        target=target,
        value=b"" if lines else _value(value, file),
        key=None if key is None else key.encode("utf-8", "surrogateescape"),
        headers=tuple(map(_header, headers)),
        **options,
    )
    if lines:
        _check_lines(message, value, count)
        found = _line_options(message, as_json, **line_options)
        with open_bytes(file) as source:
            await publish_lines(servers, message, source, found)
        return
    for name, given in line_options.items():
        if given is not None:
            raise UsageError(f"--{name.replace('_', '-')} needs --lines")
    for name in _ONCE:
        if count > 1 and getattr(message, name) is not None:
            raise UsageError(f"--count must be 1 with --{name.replace('_', '-')}, got {count}")
    async with open_sender(servers, message) as send:
        acks = await _publish(send, message, count, as_json)
    if not as_json:
        click.echo(shown(_summary(acks, count)))


def _check_lines(message: Outgoing, value: str | None, count: int) -> None:
    """Raise ``UsageError`` if an option for a single message was given with ``--lines``."""
    if value not in (None, "-"):
        raise UsageError("VALUE must be left out with --lines: the values are the lines")
    if count > 1:
        raise UsageError(f"--count must be 1 with --lines, got {count}")
    message.refuse("with --lines: it is a setting of one message", *_ONCE)
    if message.ack_policy == "none":
        raise UsageError("--ack-policy must be leader or all with --lines, got none")


def _line_options(
    message: Outgoing,
    as_json: bool,
    *,
    key_delimiter: str | None,
    max_line_bytes: int | None,
    in_flight: int | None,
) -> LineOptions:
    if key_delimiter == "":
        raise UsageError("--key-delimiter must not be empty")
    if key_delimiter is not None and message.key is not None:
        raise UsageError("--key and --key-delimiter exclude each other; leave one of them out")
    if max_line_bytes is not None and not 1 <= max_line_bytes <= _LARGEST:
        raise UsageError(f"--max-line-bytes must be 1 to {_LARGEST:,} bytes, got {max_line_bytes}")
    return LineOptions(
        key_delimiter=None if key_delimiter is None else key_delimiter.encode("utf-8", "surrogateescape"),
        max_line_bytes=_LINE_BYTES if max_line_bytes is None else max_line_bytes,
        in_flight=_IN_FLIGHT if in_flight is None else in_flight,
        as_json=as_json,
    )


async def _publish(send: Send, message: Outgoing, count: int, as_json: bool) -> list[dict[str, Any]]:
    """Publish copies one after the other, and return the first ack and the last one."""
    acks: list[dict[str, Any]] = []
    for number in range(count):
        try:
            ack = await (await send(message.value, message.key))
        except LiftEnvelopeError:
            if number:
                click.echo(f"Note: {number:,} of {count:,} messages were published before", err=True)
            raise
        if ack is not None:
            facts = facts_of(ack)
            acks = [*acks[:1], facts]
            if as_json:
                echo_json(facts)
            _check_offset(message.expected_offset, facts)
    return acks


def _check_offset(expected: int | None, facts: dict[str, Any]) -> None:
    """Raise LiftEnvelopeError if the stream checks no expected offsets and stored the message at another."""
    offset = facts.get("offset")
    if expected not in (None, offset):
        text = f"the message was stored at offset {offset}, not at {expected}: the stream checks none"
        raise LiftEnvelopeError(f"{text}. See stream create --optimistic-concurrency")


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
    found = bytearray()
    with open_bytes(file) as source:
        while len(found) <= _LARGEST and (chunk := source.read(_LARGEST + 1 - len(found))):
            found += chunk
    if len(found) > _LARGEST:
        raise UsageError(f"the value must be at most {_LARGEST:,} bytes")
    return bytes(found)


def _header(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not name or not found:
        raise UsageError(f"--header must be NAME=VALUE, got {text!r}")
    return name, value


def _summary(acks: list[dict[str, Any]], count: int) -> str:
    if not acks:
        return f"published {counted(count, 'message')} without waiting for an ack"
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
