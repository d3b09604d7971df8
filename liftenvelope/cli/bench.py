"""``liftenvelope bench``: measures publishing and reading on the user's own servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import click

from liftenvelope._checks import as_seconds
from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._latencies import PERCENTILES, bars, buckets, percentile, shown_seconds
from liftenvelope.cli._options.lists import with_options
from liftenvelope.cli._options.places import DurationType, NumberType, SizeType, StartType
from liftenvelope.cli._output.terminal import echo_json, print_facts, print_table
from liftenvelope.cli._runs import RunFiles, SavedRun, compared, run_options
from liftenvelope.cli._streams.following import read_stream
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from liftenvelope.envelope import Ack
    from liftenvelope.jetstream import PubAck

__all__ = ["bench"]

_COUNT: Final = click.option(
    "--count", "-n", type=NumberType(min=1), default=10_000, show_default=True, help="Messages."
)
#: Publishes a message, and returns the future of its ack.
_Send: TypeAlias = Callable[
    [], "Awaitable[asyncio.Future[PubAck] | asyncio.Future[Ack | None] | asyncio.Future[Ack]]"
]
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

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.count / max(self.seconds, 1e-9)

    def percentiles(self) -> dict[str, float]:
        """Return the percentiles of the latencies by name; empty if they were not measured."""
        ordered = sorted(self.latencies)
        return {_name(percent): percentile(ordered, percent) for percent in PERCENTILES if ordered}

    def values(self) -> dict[str, float]:
        """Return the values to compare with those of other runs."""
        return {"rate": self.rate, **{f"latency {name}": one for name, one in self.percentiles().items()}}

    def show(self, title: str, as_json: bool, before: SavedRun | None) -> None:
        """Print rates, percentiles and a histogram, and changes since another run."""
        rate, ordered = self.rate, sorted(self.latencies)
        changes = {} if before is None else compared(self.values(), before.values)
        if as_json:
            facts = {"messages": self.count, "bytes": self.size, "seconds": self.seconds}
            rates = {"messages_per_second": rate, "bytes_per_second": self.size / max(self.seconds, 1e-9)}
            changed: dict[str, object] = {}
            if before is not None:
                changed = {"compared_with": before.at, "change_percent": changes}
            names = self.percentiles()
            echo_json({**facts, **rates, "failed": self.failed, "latency_seconds": names, **changed})
            return
        rates_shown = f"{rate:,.0f} messages/s, {self.size / max(self.seconds, 1e-9) / 1e6:,.1f} MB/s"
        facts_shown: dict[str, object] = {
            "messages": f"{self.count:,} in {shown_seconds(self.seconds)}",
            "rate": rates_shown,
            "failed": self.failed or None,
        }
        for percent in PERCENTILES if ordered else ():
            facts_shown[f"latency {_name(percent)}"] = shown_seconds(percentile(ordered, percent))
        for name, change in changes.items():
            facts_shown[name] = f"{facts_shown[name]}, {change:+.1f} %"
        facts_shown["compared with"] = None if before is None else f"the run of {before.at}"
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


_publishing_options: Final = with_options(
    _COUNT,
    click.option("--size", type=SizeType(), default=128, show_default=True, help="Bytes of each payload."),
    click.option(
        "--in-flight",
        type=NumberType(min=1),
        default=1_000,
        show_default=True,
        help="Messages that may wait for their acks at a time.",
    ),
    run_options,
    json_option,
)


@dataclass(frozen=True, kw_only=True)
class _BenchRun:
    """Options of a command that publishes.

    Attributes:
        target: Subject or stream.
        count: Number of messages.
        size: Bytes of each payload.
        in_flight: Messages that may wait for their acks.
        as_json: True to print JSON.
        files: Files of this run, and of the one to compare with.
    """

    target: str
    count: int
    size: int
    in_flight: int
    as_json: bool
    files: RunFiles

    @classmethod
    def of(cls, target: str, save: str | None, compare: str | None, no_history: bool, **options: Any) -> Self:
        """Return the options of a call."""
        files = RunFiles(save=save, compare=compare, no_history=no_history)
        return cls(target=target, files=files, **options)

    async def measure(
        self, kind: str, servers: CommandServers, opened: AbstractAsyncContextManager[_Send], **extra: object
    ) -> None:
        """Publish, print the values, save and compare them.

        Args:
            kind: What is measured; runs of different kinds are not compared.
            servers: Servers that take the messages.
            opened: Connects, and returns the function that publishes a message.
            extra: Further settings that comparable runs share.

        Raises:
            UsageError: The run to compare with had other parameters.
            LiftEnvelopeError: A message has no ack.
        """
        if not 0 <= self.size <= _LARGEST:
            raise UsageError(f"--size must be 0 to {_LARGEST:,} bytes, got {self.size}")
        parameters: dict[str, object] = {"kind": kind, "count": self.count, "size": self.size}
        parameters |= {"in_flight": self.in_flight, **extra}
        place = {"servers": servers.where, "target": self.target}
        self.files.check()
        before = self.files.before(parameters, place)
        async with opened as send:
            measured = await _publish(send, self.count, self.size)
        if measured.error is not None:
            measured.show(f"Published to {self.target}", self.as_json, None)
            raise LiftEnvelopeError(
                f"{measured.failed:,} of {self.count:,} messages failed: {measured.error}"
            )
        measured.show(f"Published to {self.target}", self.as_json, before)
        self.files.keep(parameters, place, measured.values())


@bench.command("pub")
@click.argument("target", metavar="TARGET")
@_publishing_options
@click.option(
    "--partition", "-p", type=NumberType(min=0), help="Liftbridge: partition.  [default: all in turn]"
)
@on_servers
async def bench_publishing(servers: CommandServers, partition: int | None, **options: Any) -> None:
    """Publish messages that are kept, and measure the time to each ack.

    TARGET is a subject of JetStream, or a stream of Liftbridge. The exit code is 1 if an ack is missing.
    """
    if partition is not None and servers.is_jetstream:
        servers.need("liftbridge", "--partition")
    run = _BenchRun.of(**options)
    opened = _publisher(servers, run.target, b"x" * min(run.size, _LARGEST), run.in_flight, partition)
    kind = "jetstream" if servers.is_jetstream else "liftbridge"
    await run.measure(kind, servers, opened, partition=partition)


@bench.command("js")
@click.argument("subject", metavar="SUBJECT")
@_publishing_options
@on_servers
async def bench_jetstream(servers: CommandServers, subject: str, **options: Any) -> None:
    """Publish to JetStream by publish_async, and measure the time to each ack.

    The messages are kept. The exit code is 1 if an ack is missing.
    """
    servers.need("nats", "bench js")
    run = _BenchRun.of(subject, **options)
    opened = _publisher(servers, subject, b"x" * min(run.size, _LARGEST), run.in_flight, None)
    await run.measure("jetstream", servers, opened, partition=None)


@bench.command("ack")
@click.argument("subject", metavar="SUBJECT")
@_publishing_options
@on_servers
async def bench_acks(servers: CommandServers, subject: str, **options: Any) -> None:
    """Publish envelopes on NATS, and measure the time to each ack in an AckInbox.

    SUBJECT is that of a stream of Liftbridge or a gateway on this NATS server. The messages are kept. The
    exit code is 1 if an ack is missing.
    """
    servers.need("nats", "bench ack")
    run = _BenchRun.of(subject, **options)
    opened = _envelopes(servers, subject, b"x" * min(run.size, _LARGEST), run.in_flight)
    await run.measure("envelopes", servers, opened)


@asynccontextmanager
async def _envelopes(
    servers: CommandServers, subject: str, payload: bytes, in_flight: int
) -> AsyncIterator[_Send]:
    from liftenvelope.nats import AckInbox

    async with (
        servers.nats() as nc,
        AckInbox(nc, timeout=servers.timeout, max_outstanding=in_flight) as inbox,
    ):

        async def send() -> asyncio.Future[Ack]:
            await inbox.capacity()
            return inbox.publish_nowait(subject, payload)

        yield send


@asynccontextmanager
async def _publisher(
    servers: CommandServers, target: str, payload: bytes, in_flight: int, partition: int | None
) -> AsyncIterator[_Send]:
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


async def _publish(send: _Send, count: int, size: int) -> _Measured:
    measured = _Measured()
    waiting: set[asyncio.Future[Any]] = set()

    def settle(future: asyncio.Future[Any], sent: float) -> None:
        waiting.discard(future)
        cancelled = LiftEnvelopeError("the wait for the ack was cancelled") if future.cancelled() else None
        error = cancelled or future.exception()
        if error is None:
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
    "--idle", type=DurationType(), default="5s", show_default=True, help="Silence after which to end."
)
@run_options
@json_option
@on_servers
async def bench_reading(
    servers: CommandServers, stream: str, count: int, start: Any, idle: float, as_json: bool, **files: Any
) -> None:
    """Read messages, and measure the rate.

    Latencies compare the clock of this machine with that of the servers. A run that ends early is not
    compared.
    """
    as_seconds("--idle", idle)
    kept = RunFiles(**files)
    kept.check()
    kind = "jetstream" if servers.is_jetstream else "liftbridge"
    parameters = {"kind": f"{kind} reading", "count": count, "start": str(start)}
    place = {"servers": servers.where, "target": stream}
    before = kept.before(parameters, place)
    measured = await _read(servers, stream, count, start, idle)
    is_whole = measured.count == count
    measured.show(f"Read from {stream}", as_json, before if is_whole else None)
    if is_whole:
        kept.keep(parameters, place, measured.values())
    else:
        text = f"Note: {measured.count:,} of {count:,} messages came before {idle:g} s of silence"
        click.echo(text, err=True)


async def _read(servers: CommandServers, stream: str, count: int, start: Any, idle: float) -> _Measured:
    """Read up to ``count`` messages, until none has come for ``idle`` seconds since the read began."""
    measured = _Measured()
    options: dict[str, Any] = {"partitions": (), "subjects": (), "resume": False, "no_follow": False}
    started = last = 0.0
    silence, loop = asyncio.timeout(None), asyncio.get_running_loop()

    def wait_no_longer() -> None:
        if measured.count or start != "new":
            silence.reschedule(loop.time() + idle)

    # The servers' own timeouts limit everything before: that they do not answer is an error, not a silence.
    messages = read_stream(servers, stream, start=start, on_begun=wait_no_longer, **options)
    async with aclosing(messages):
        try:
            async with silence:
                async for message in messages:
                    last = time.perf_counter()
                    started = started or last
                    measured.count += 1
                    measured.size += len(message.payload)
                    if start == "new":
                        measured.latencies.append(max(time.time_ns() - message.timestamp_ns, 0) / 1e9)
                    if measured.count == count:
                        break
                    wait_no_longer()
        except TimeoutError:
            if not silence.expired():
                raise
    measured.seconds = last - started
    return measured
