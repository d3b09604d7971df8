"""A stream that is shown as its messages arrive, from either kind of server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from liftenvelope.cli._connecting.servers import CommandServers
from liftenvelope.cli._output.received import from_jetstream
from liftenvelope.cli._streams.stored_messages import sequence_of_last, up_to_newest
from liftenvelope.errors import NotLeaderError, PartitionPausedError, ServerError
from liftenvelope.monitor.messages import Received, from_liftbridge

if TYPE_CHECKING:
    from liftenvelope.client import Client, Subscription
    from liftenvelope.envelope import Message
    from liftenvelope.jetstream import PullEvent, Stream

__all__ = ["read_stream"]


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


def read_stream(servers: CommandServers, name: str, **options: Any) -> AsyncGenerator[Received, None]:
    """Read a stream with the options of ``subscribe``; see its help. ``on_begun`` is for callers alone."""
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
