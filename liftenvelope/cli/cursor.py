"""``liftenvelope cursor``: reads and sets cursors, the positions that Liftbridge stores for readers."""

from __future__ import annotations

from typing import Final

import click

from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._options.places import NumberType
from liftenvelope.cli._output.terminal import report
from liftenvelope.errors import NoCursorError, NoSuchPartitionError

__all__ = ["cursor"]

_CURSOR: Final = click.argument("cursor_id", metavar="CURSOR")
_STREAM: Final = click.argument("stream", metavar="STREAM")
_PARTITION: Final = click.option(
    "--partition",
    "-p",
    type=NumberType(min=0),
    default=0,
    show_default=True,
    help="Number of the partition.",
)


@click.group()
def cursor() -> None:
    """Read and set cursors: positions of readers (Liftbridge)."""


@cursor.command("get")
@_CURSOR
@_STREAM
@_PARTITION
@json_option
@on_servers
async def get_cursor(
    servers: CommandServers, cursor_id: str, stream: str, partition: int, as_json: bool
) -> None:
    """Print the offset that CURSOR has in STREAM. The exit code is 1 if there is none."""
    servers.need("liftbridge", "cursor get")
    async with servers.liftbridge() as client:
        offset = await client.fetch_cursor(cursor_id, stream, partition)
    if offset is None:
        raise NoCursorError(f"there is no cursor {cursor_id!r} in partition {partition} of {stream!r}")
    report(str(offset), as_json, cursor=cursor_id, stream=stream, partition=partition, offset=offset)


@cursor.command("set")
@_CURSOR
@_STREAM
@click.argument("offset", type=NumberType(min=0))
@_PARTITION
@json_option
@on_servers
async def set_cursor(
    servers: CommandServers, cursor_id: str, stream: str, offset: int, partition: int, as_json: bool
) -> None:
    """Set CURSOR to OFFSET, by convention that of the last processed message."""
    servers.need("liftbridge", "cursor set")
    async with servers.liftbridge() as client:
        # Servers store a cursor also for streams that do not exist.
        count = (await client.fetch_metadata(streams=[stream])).partition_count(stream)
        if partition >= count:
            raise NoSuchPartitionError(
                0, f"stream {stream!r} has no partition {partition}, but {count} from 0"
            )
        await client.set_cursor(cursor_id, stream, partition, offset)
    text = f"set cursor {cursor_id} to offset {offset} in partition {partition} of {stream}"
    report(text, as_json, cursor=cursor_id, stream=stream, partition=partition, offset=offset)


@cursor.command("rm")
@_CURSOR
@_STREAM
@_PARTITION
@json_option
@on_servers
async def delete_cursor(
    servers: CommandServers, cursor_id: str, stream: str, partition: int, as_json: bool
) -> None:
    """Delete CURSOR, which need not exist."""
    servers.need("liftbridge", "cursor rm")
    async with servers.liftbridge() as client:
        await client.reset_cursor(cursor_id, stream, partition)
    text = f"deleted cursor {cursor_id} of partition {partition} of {stream}"
    report(text, as_json, cursor=cursor_id, stream=stream, partition=partition, deleted=True)
