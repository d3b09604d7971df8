"""Commands about single messages and subjects: ``liftenvelope stream get``, ``rmm``, ``subjects``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._options.places import NumberType
from liftenvelope.cli._output.confirming import confirm, yes_option
from liftenvelope.cli._output.terminal import echo_json, print_table, report
from liftenvelope.errors import JetStreamError, UsageError

if TYPE_CHECKING:
    from liftenvelope.jetstream import StoredMessage
    from liftenvelope.monitor.messages import Received

__all__ = ["delete_message", "get_message", "list_subjects"]

_STREAM: Final = click.argument("name", metavar="STREAM")
#: Error numbers for a message that does not exist.
_NO_MESSAGE: Final = (10037, 10043, 10057)


@click.command("get")
@_STREAM
@click.argument("sequence", required=False, type=NumberType(min=1))
@click.option("--last-for", metavar="SUBJECT", help="The last message on a subject; wildcards are allowed.")
@click.option("--raw", is_flag=True, help="Print the payload alone.")
@json_option
@on_servers
async def get_message(
    servers: CommandServers,
    name: str,
    sequence: int | None,
    last_for: str | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Show one message of STREAM (JetStream): the one with SEQUENCE, or the last one on a subject."""
    from liftenvelope.cli._output.received import print_json, print_message, print_raw

    servers.need("nats", "stream get")
    if (sequence is None) == (last_for is None):
        raise UsageError("one of SEQUENCE and --last-for must be given")
    if raw and as_json:
        raise UsageError("--raw and --json exclude each other; leave one of them out")
    async with servers.jetstream() as js:
        stream = await js.stream(name)
        with _naming(name, sequence if sequence is not None else f"on {last_for!r}"):
            found = await stream.get_message(sequence, last_by_subject=last_for)
    (print_raw if raw else print_json if as_json else print_message)(_received(found))


@contextmanager
def _naming(stream: str, message: int | str) -> Iterator[None]:
    """Name the message in the error of a server that does not have it."""
    try:
        yield
    except JetStreamError as exc:
        if exc.err_code not in _NO_MESSAGE:
            raise
        text = f"stream {stream!r} has no message {message}: {exc.description}"
        raise type(exc)(exc.code, text, exc.err_code) from exc


def _received(message: StoredMessage) -> Received:
    from liftenvelope.monitor.messages import opened

    return opened(
        stream=message.stream,
        sequence=message.sequence,
        timestamp_ns=message.timestamp_ns,
        subject=message.subject,
        headers=message.headers.pairs,
        data=message.data,
    )


@click.command("rmm")
@_STREAM
@click.argument("sequence", type=NumberType(min=1))
@click.option("--erase", is_flag=True, help="Overwrite the message with random data as well.")
@yes_option
@json_option
@on_servers
async def delete_message(
    servers: CommandServers, name: str, sequence: int, erase: bool, yes: bool, as_json: bool
) -> None:
    """Delete the message with SEQUENCE from STREAM (JetStream)."""
    servers.need("nats", "stream rmm")
    confirm(f"Delete message {sequence} of stream {name!r}", yes=yes)
    async with servers.jetstream() as js:
        stream = await js.stream(name)
        with _naming(name, sequence):
            await stream.delete_message(sequence, secure=erase)
    report(f"deleted message {sequence} of {name}", as_json, stream=name, sequence=sequence, deleted=True)


@click.command("subjects")
@_STREAM
@click.option(
    "--filter", "pattern", default=">", metavar="SUBJECT", help="Only these; wildcards are allowed."
)
@json_option
@on_servers
async def list_subjects(servers: CommandServers, name: str, pattern: str, as_json: bool) -> None:
    """List the subjects of the messages in STREAM with their numbers of messages (JetStream)."""
    servers.need("nats", "stream subjects")
    async with servers.jetstream() as js:
        found = (await (await js.stream(name)).info(subjects_filter=pattern)).state.subjects
    rows = sorted((found or {}).items(), key=lambda one: (-one[1], one[0]))
    if as_json:
        echo_json(dict(rows))
    else:
        print_table(["subject", "messages"], rows)
