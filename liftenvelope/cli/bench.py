"""``liftenvelope bench``: measures publishing and reading on the user's own servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope.cli._latencies import PERCENTILES, bars, buckets, percentile, shown_seconds
from liftenvelope.cli._places import SizeType, StartType
from liftenvelope.cli._servers import CommandServers, json_option, on_servers
from liftenvelope.cli._terminal import echo_json, print_facts, print_table
from liftenvelope.cli.subscribe import read_stream
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from liftenvelope.envelope import Ack
    from liftenvelope.jetstream import PubAck

__all__ = ["bench"]

_COUNT: Final = click.option(
    "--count", "-n", type=click.IntRange(min=1), default=10_000, show_default=True, help="Messages."
)
#: Largest payload: the largest message that NATS carries.
_LARGEST: Final = 64 * 1024 * 1024


@dataclass
class _Measured:
    """Outcome of a run.

    Attributes:
        count: Number of messages.
        size: Bytes of all payloads.
        seconds: Duration.
        latencies: Seconds of each message; empty if they were not measured.
        failed: Number of messages without an ack.
        error: First error.
    """

    count: int = 0
    size: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    failed: int = 0
    error: BaseException | None = None

    def show(self, title: str, as_json: bool) -> None:
        """Print rates, percentiles and a histogram."""
        rate, ordered = self.count / max(self.seconds, 1e-9), sorted(self.latencies)
        if as_json:
            names = {_name(percent): percentile(ordered, percent) for percent in PERCENTILES if ordered}
            facts = {"messages": self.count, "bytes": self.size, "seconds": self.seconds}
            rates = {"messages_per_second": rate, "bytes_per_second": self.size / max(self.seconds, 1e-9)}
            echo_json({**facts, **rates, "failed": self.failed, "latency_seconds": names})
            return
        rates_shown = f"{rate:,.0f} messages/s, {self.size / max(self.seconds, 1e-9) / 1e6:,.1f} MB/s"
        facts_shown: dict[str, object] = {
            "messages": f"{self.count:,} in {shown_seconds(self.seconds)}",
            "rate": rates_shown,
            "failed": self.failed or None,
        }
        for percent in PERCENTILES if ordered else ():
            facts_shown[f"latency {_name(percent)}"] = shown_seconds(percentile(ordered, percent))
        print_facts(title, facts_shown)
        if ordered:
            found = buckets(ordered)
            drawn = bars([count for _, count in found])
            rows = [
                (f"<= {shown_seconds(bound)}", count, bar)
                for (bound, count), bar in zip(found, drawn, strict=True)
            ]
            click.echo()
            print_table(["latency", "messages", ""], rows)


def _name(percent: float) -> str:
    return "max" if percent == 100 else f"p{percent:g}"


@click.group()
def bench() -> None:
    """Measure publishing and reading on your servers."""


@bench.command("pub")
@click.argument("target", metavar="TARGET")
@_COUNT
@click.option("--size", type=SizeType(), default=128, show_default=True, help="Bytes of each payload.")
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    help="Messages that may wait for their acks at a time.",
)
@click.option(
    "--partition", "-p", type=click.IntRange(min=0), help="Liftbridge: partition.  [default: all in turn]"
)
@json_option
@on_servers
async def bench_publishing(
    servers: CommandServers,
    target: str,
    count: int,
    size: int,
    in_flight: int,
    partition: int | None,
    as_json: bool,
) -> None:
    """Publish messages that are kept, and measure the time to each ack.

    TARGET is a subject of JetStream, or a stream of Liftbridge. The exit code is 1 if an ack is missing.
    """
    if not 0 <= size <= _LARGEST:
        raise UsageError(f"--size must be 0 to {_LARGEST:,} bytes, got {size}")
    if partition is not None and servers.is_jetstream:
        servers.need("liftbridge", "--partition")
    async with _publisher(servers, target, b"x" * size, in_flight, partition) as send:
        measured = await _publish(send, count, size)
    measured.show(f"Published to {target}", as_json)
    if measured.error is not None:
        raise LiftEnvelopeError(f"{measured.failed:,} of {count:,} messages failed: {measured.error}")


@asynccontextmanager
async def _publisher(
    servers: CommandServers, target: str, payload: bytes, in_flight: int, partition: int | None
) -> AsyncIterator[Callable[[], Awaitable[asyncio.Future[PubAck] | asyncio.Future[Ack | None]]]]:
    if servers.is_jetstream:
        async with servers.jetstream(max_outstanding=in_flight) as js:
            yield lambda: js.publish_async(target, payload)
        return
    options: dict[str, Any] = {
        "partition": partition,
        "partitioner": "round_robin",
        "max_outstanding": in_flight,
    }
    async with servers.liftbridge() as client:
        yield lambda: client.publish_async(target, payload, **options)


async def _publish(
    send: Callable[[], Awaitable[asyncio.Future[PubAck] | asyncio.Future[Ack | None]]], count: int, size: int
) -> _Measured:
    measured = _Measured()
    waiting: set[asyncio.Future[Any]] = set()

    def settle(future: asyncio.Future[Any], sent: float) -> None:
        waiting.discard(future)
        if future.cancelled() or (error := future.exception()) is None:
            measured.latencies.append(time.perf_counter() - sent)
            return
        measured.failed += 1
        measured.error = measured.error or error

    started = time.perf_counter()
    for _ in range(count):
        sent = time.perf_counter()
        future = await send()
        waiting.add(future)
        future.add_done_callback(lambda done, sent=sent: settle(done, sent))  # type: ignore[misc]
        if measured.error is not None:
            break  # those that follow would fail as well, and each would take its time
    while waiting:
        await asyncio.wait(set(waiting))
    await asyncio.sleep(0)  # the callbacks of the last ones
    measured.seconds = time.perf_counter() - started
    measured.count = len(measured.latencies)
    measured.size = measured.count * size
    return measured


@bench.command("sub")
@click.argument("stream")
@_COUNT
@click.option(
    "--start",
    "-s",
    type=StartType("earliest", "latest", "new"),
    default="earliest",
    show_default=True,
    help="First message, as in subscribe. With new, the latency from storing to reading is measured too.",
)
@click.option(
    "--idle", type=float, default=5.0, show_default=True, help="Seconds of silence after which to end."
)
@json_option
@on_servers
async def bench_reading(
    servers: CommandServers, stream: str, count: int, start: Any, idle: float, as_json: bool
) -> None:
    """Read messages, and measure the rate.

    Latencies compare the clock of this machine with that of the servers.
    """
    measured = _Measured()
    options: dict[str, Any] = {"partitions": (), "subjects": (), "resume": False, "no_follow": False}
    started = last = 0.0
    messages = read_stream(servers, stream, start=start, **options)
    with suppress(TimeoutError, StopAsyncIteration):
        while measured.count < count:
            async with asyncio.timeout(idle if measured.count or start != "new" else None):
                message = await anext(messages)
            last = time.perf_counter()
            started = started or last
            measured.count += 1
            measured.size += len(message.payload)
            if start == "new":
                measured.latencies.append(max(time.time_ns() - message.timestamp_ns, 0) / 1e9)
    await messages.aclose()
    measured.seconds = last - started
    measured.show(f"Read from {stream}", as_json)
