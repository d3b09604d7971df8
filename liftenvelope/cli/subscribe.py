"""``liftenvelope subscribe``, also called ``tail``: shows the messages of a stream as they arrive."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import click

from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._options.lists import partitions_option
from liftenvelope.cli._options.places import NumberType, StartType
from liftenvelope.cli._output.received import print_json, print_message, print_raw
from liftenvelope.cli._streams.following import read_stream
from liftenvelope.errors import UsageError

__all__ = ["subscribe"]


@click.command()
@click.argument("stream")
@click.option(
    "--start",
    "-s",
    type=StartType("earliest", "latest", "new"),
    default="latest",
    show_default=True,
    help="First message: latest (the newest one), new (after it), earliest, -5 for the last five (of each "
    "partition), an offset (JetStream: a sequence), a time such as 2026-01-31T12:00, UTC, or an age such as "
    "1h.",
)
@click.option("--limit", "-n", type=NumberType(min=1), help="Number of messages after which to end.")
@click.option("--no-follow", is_flag=True, help="End after the newest message.")
@partitions_option("Liftbridge")
@click.option(
    "--subject", "subjects", multiple=True, help="JetStream: only this subject; wildcards; repeatable."
)
@click.option("--resume", is_flag=True, help="Liftbridge: wake paused partitions.")
@click.option("--raw", is_flag=True, help="Print payloads alone, as they are.")
@json_option
@on_servers
async def subscribe(
    servers: CommandServers,
    stream: str,
    limit: int | None,
    raw: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show the messages of STREAM as they arrive, until Ctrl-C.

    Envelopes in JetStream messages are opened.
    """
    if raw and as_json:
        raise UsageError("--raw and --json exclude each other; leave one of them out")
    show = print_raw if raw else print_json if as_json else print_message
    count = 0
    async with aclosing(read_stream(servers, stream, **options)) as messages:
        async for message in messages:
            show(message)
            count += 1
            if count == limit:
                return
