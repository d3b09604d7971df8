"""``liftenvelope subscribe``, also called ``tail``: shows the messages of a stream as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from liftenvelope.cli._places import StartType
from liftenvelope.cli._received import from_jetstream, print_json, print_message, print_raw
from liftenvelope.cli._servers import CommandServers, json_option, on_servers
from liftenvelope.cli._stored_messages import sequence_of_last, up_to_newest
from liftenvelope.errors import NotLeaderError, PartitionPausedError, ServerError, UsageError
from liftenvelope.monitor.messages import Received, from_liftbridge

if TYPE_CHECKING:
    from liftenvelope.client import Client, Subscription
    from liftenvelope.envelope import Message
    from liftenvelope.jetstream import PullEvent, Stream

__all__ = ["read_stream", "subscribe"]


@dataclass(frozen=True, kw_only=True)
class _ReadOptions:
    """Options of the command that choose messages, and a function to call once reading has begun."""

    start: Any
    no_follow: bool
    partitions: tuple[int, ...]
    subjects: tuple[str, ...]
    resume: bool
    on_begun: Callable[[], None] | None = None

    def begun(self) -> None:
        """Tell that the servers have accepted the read: only messages are waited for from now on."""
        if self.on_begun is not None:
            self.on_begun()


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
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Number of messages after which to end.")
@click.option("--no-follow", is_flag=True, help="End after the newest message.")
@click.option(
    "--partition",
    "-p",
    "partitions",
    multiple=True,
    type=click.IntRange(min=0),
    help="Liftbridge: partition; repeatable.  [default: all]",
)
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


def read_stream(servers: CommandServers, name: str, **options: Any) -> AsyncGenerator[Received, None]:
    """Read a stream with the options of the command; see its help. ``on_begun`` is for callers alone."""
    read = _jetstream if servers.is_jetstream else _liftbridge
    return read(servers, name, _ReadOptions(**options))


async def _jetstream(
    servers: CommandServers,
    name: str,
    options: _ReadOptions,
) -> AsyncGenerator[Received, None]:
    if options.partitions or options.resume:
        servers.need("liftbridge", "--partition" if options.partitions else "--resume")
    from liftenvelope.nats import accelerate

    async with servers.jetstream() as js:
        accelerate(js.api.nc)  # nats-py keeps one value of a header that is repeated
        stream = await js.stream(name)
        start = await _place_of(stream, options.start, options.subjects)
        if options.no_follow:
            async with aclosing(up_to_newest(stream, start, options.subjects)) as stored:
                async for message in stored:
                    yield from_jetstream(message)
            return
        consumer = stream.ordered_consumer(filter_subjects=options.subjects, **start)
        async with consumer.messages(on_event=_note) as messages:
            options.begun()
            async for message in messages:
                if message.metadata.stream_sequence < start.get("opt_start_seq", 0):
                    continue  # before 2.11, a replica that lags begins with older ones
                yield from_jetstream(message)


async def _place_of(stream: Stream, start: Any, subjects: Sequence[str]) -> dict[str, Any]:
    """Return the part of a consumer's configuration that begins at the start of the command line.

    The leader resolves it to a sequence: on a replica that lags, older messages would come first.
    """
    from liftenvelope.jetstream import DeliverPolicy
    from liftenvelope.jetstream.counting import at_sequence, first_sequence

    if isinstance(start, int):
        return at_sequence(max(start, 1) if start >= 0 else await sequence_of_last(stream, -start, subjects))
    place: dict[str, Any]
    if isinstance(start, str):
        words = {"earliest": DeliverPolicy.ALL, "latest": DeliverPolicy.LAST, "new": DeliverPolicy.NEW}
        place = {"deliver_policy": words[start]}
    else:
        moment = datetime.now(UTC) - start if isinstance(start, timedelta) else start
        place = {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": moment}
    return place if start == "earliest" else at_sequence(await first_sequence(stream, place, subjects))


def _note(event: PullEvent) -> None:
    """Tell the user of a lost connection, which explains a pause."""
    from liftenvelope.jetstream import Disconnected, Reconnected

    if isinstance(event, Disconnected | Reconnected):
        what = "lost, reconnecting" if isinstance(event, Disconnected) else "back"
        click.echo(f"Note: the connection is {what}", err=True)


async def _liftbridge(
    servers: CommandServers,
    name: str,
    options: _ReadOptions,
) -> AsyncGenerator[Received, None]:
    if options.subjects:
        servers.need("nats", "--subject")
    async with servers.liftbridge() as client, AsyncExitStack() as stack:
        count = (await client.fetch_metadata(streams=[name])).partition_count(name)
        numbers = sorted(set(options.partitions)) or range(count)
        start, resume = options.start, options.resume
        reads = []
        for number in numbers:
            place = await _last(client, name, number, -start) if _is_back(start) else start
            stop = "latest" if options.no_follow else None
            read = client.subscribe(name, partition=number, start=place, stop=stop, resume=resume)
            try:
                reads.append(await stack.enter_async_context(read))
            except (NotLeaderError, PartitionPausedError) as exc:
                raise await _closed(client, name, number, exc) from exc
        options.begun()
        async with aclosing(_merged(reads)) as messages:
            async for message in messages:
                yield from_liftbridge(message)


async def _closed(client: Client, stream: str, number: int, error: ServerError) -> ServerError:
    """Return the error for a partition that can't be read, such as a paused one, which has no leader."""
    found = (await client.fetch_metadata(streams=[stream])).get_stream(stream)
    known = None if found is None else found.partitions.get(number)
    if not isinstance(error, PartitionPausedError) and (known is None or not known.paused):
        return error
    text = f"partition {number} of {stream!r} is paused: wake it by --resume, or by a publish"
    return PartitionPausedError(0, text)


def _is_back(start: object) -> bool:
    return isinstance(start, int) and start < 0


async def _last(client: Client, stream: str, partition: int, count: int) -> str | int:
    """Return the start of the last messages of a partition, if none was removed from between them."""
    newest = (await client.fetch_partition_metadata(stream, partition)).newest_offset
    return newest - count + 1 if newest >= count else "earliest"


async def _merged(reads: Sequence[Subscription]) -> AsyncGenerator[Message, None]:
    """Iterate over the messages of several partitions; end with the last one, or with the first error."""

    async def following(read: Subscription) -> Message | None:
        return await anext(read, None)

    waiting = {asyncio.create_task(following(read)): read for read in reads}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                read, message = waiting.pop(task), task.result()
                if message is not None:
                    waiting[asyncio.create_task(following(read))] = read
                    yield message
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
