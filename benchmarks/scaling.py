"""How the cost of a message grows: ``python -m benchmarks.scaling`` writes RESULTS-SCALING.md.

Each line takes one thing from small to large, partitions or subscribers or bytes or outstanding acks, and
shows the processor time of our process for each message. What stays level is linear in the number of
messages. Processor time hardly depends on what else the machine does; servers have processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Final
from uuid import uuid4

import nats

import liftenvelope
from benchmarks.bulk_streams import make_stream, rows
from benchmarks.processor_time import own
from benchmarks.report import Report
from liftenvelope import bulk
from liftenvelope.correlation import PendingAcks
from liftenvelope.jetstream import DeliverPolicy, JetStream
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.testing import LiftbridgeCluster, NatsServer, run_liftbridge, run_nats_server

PAGE: Final = Path(__file__).parent / "RESULTS-SCALING.md"
#: Seconds for one measurement; more than that means that something hangs.
PATIENCE: Final = 600.0
SIZE: Final = 100
PARTITIONS: Final = (1, 4, 16, 64)
SUBSCRIBERS: Final = (1, 10, 100, 1_000)
SIZES: Final = (100, 1_000, 10_000, 100_000, 1_000_000)
OUTSTANDING: Final = (1_000, 10_000, 100_000, 1_000_000)
#: Bytes that a measurement of sizes moves, and the most messages of it.
VOLUME: Final = 200_000_000
MOST: Final = 100_000


@dataclass(frozen=True)
class Line:
    """One measured line of the page.

    Attributes:
        what: What was measured.
        steps: The sizes, in ascending order.
        costs: Cost of a message at each step, in seconds, or in bytes of memory.
        unit: ``ns`` or ``B``.
    """

    what: str
    steps: tuple[int, ...]
    costs: tuple[float, ...]
    unit: str = "ns"

    @property
    def growth(self) -> float:
        """Cost at the largest step as a multiple of the cost at the smallest."""
        return self.costs[-1] / self.costs[0]

    def cells(self) -> list[str]:
        """Return the row of the table."""
        scale = 1e9 if self.unit == "ns" else 1.0
        return [self.what, *(f"{cost * scale:,.0f} {self.unit}" for cost in self.costs), f"{self.growth:.2f}"]


class Servers:
    """The servers of a run, with an event loop for the asynchronous parts."""

    def __init__(self, liftbridge: LiftbridgeCluster, jetstream: NatsServer, part: float) -> None:
        self.liftbridge, self.jetstream, self._part = liftbridge, jetstream, part

    @property
    def url(self) -> str:
        """URL of the Liftbridge server."""
        return f"liftbridge://{self.liftbridge.addresses[0]}"

    def amount(self, count: int) -> int:
        """Number of messages in place of ``count``; at least 10."""
        return max(int(count * self._part), 10)

    def run(self, work: Coroutine[Any, Any, float]) -> float:
        """Run a measurement and return its result."""
        return asyncio.run(asyncio.wait_for(work, PATIENCE))

    @contextmanager
    def stream(self, partitions: int = 1) -> Iterator[str]:
        """A stream of the Liftbridge server while the block runs."""
        name = f"scaling-{uuid4().hex[:8]}"
        self.liftbridge.create_stream(name, partitions=partitions)
        yield name
        self.liftbridge.delete_stream(name)


def cost_of(work: Callable[[], object], count: int) -> float:
    """Return the processor time of this process for each of ``count`` messages, in seconds."""
    gc.collect()
    began = own()
    work()
    return (own() - began) / count


# Partitions


def published_to_partitions(servers: Servers, partitions: int) -> float:
    """``EnvelopePublisher.publish_batch`` with acks, over the partitions."""
    count = servers.amount(100_000)
    values, where = [b"x" * SIZE] * count, [row % partitions for row in range(count)]

    async def publish(stream: str) -> float:
        async with await nats.connect(servers.liftbridge.nats_url) as nc, AckInbox(nc) as inbox:
            publisher = EnvelopePublisher(nc, stream, inbox=inbox, partitions=partitions, timeout=PATIENCE)
            gc.collect()
            began = own()
            summary = await publisher.publish_batch(values, partitions=where)
            assert (await summary).ok
            return (own() - began) / count

    with servers.stream(partitions) as stream:
        return servers.run(publish(stream))


def read_from_partitions(servers: Servers, partitions: int) -> float:
    """``bulk.read`` of all partitions of a Liftbridge stream, with as many messages in each."""
    return _read(servers, partitions, servers.amount(20_000)) / servers.amount(20_000)


def read_small_partitions(servers: Servers, partitions: int) -> float:
    """Cost of ``bulk.read`` for each partition, with ten messages in each."""
    return _read(servers, partitions, 10)


def _read(servers: Servers, partitions: int, each: int) -> float:
    """Return the processor time of a read for each partition."""
    with servers.stream(partitions) as stream:
        for partition in range(partitions):
            bulk.write(servers.url, stream, rows(each, SIZE), partition=partition)

        def read() -> None:
            found = sum(batch.num_rows for batch in bulk.read(servers.url, stream))
            assert found == each * partitions

        return cost_of(read, partitions)


# Subscribers


async def _ready(consumer: Any, stack: AsyncExitStack, wanted: int) -> asyncio.Task[None]:
    messages = await stack.enter_async_context(consumer.messages())

    async def take() -> None:
        for _ in range(wanted):
            await anext(messages)

    return asyncio.create_task(take())


def delivered_to_consumers(servers: Servers, subscribers: int) -> float:
    """``messages()`` of ordered consumers that all read the same new messages, on one connection."""
    each = max(servers.amount(100_000) // subscribers, 10)

    async def deliver() -> float:
        url = servers.jetstream.url
        name = await asyncio.to_thread(make_stream, url)
        async with await nats.connect(url) as nc, await nats.connect(url) as other, AsyncExitStack() as stack:
            stream = await JetStream(nc).stream(name)
            takers = [
                await _ready(stream.ordered_consumer(deliver_policy=DeliverPolicy.NEW), stack, each)
                for _ in range(subscribers)
            ]
            gc.collect()
            began = own()
            for _ in range(each):
                await other.publish(name, b"x" * SIZE)
            await other.flush()
            await asyncio.gather(*takers)
            return (own() - began) / (each * subscribers)

    return servers.run(deliver())


def delivered_to_subscriptions(servers: Servers, subscribers: int) -> float:
    """``subscribe`` of the Liftbridge client, all of one partition, on one connection."""
    each = max(servers.amount(100_000) // subscribers, 10)

    async def deliver(stream: str) -> float:
        async with liftenvelope.connect(servers.liftbridge.addresses) as client, AsyncExitStack() as stack:
            feeds = [
                await stack.enter_async_context(client.subscribe(stream, start="new"))
                for _ in range(subscribers)
            ]

            async def take(feed: Any) -> None:
                for _ in range(each):
                    await anext(feed)

            gc.collect()
            began = own()
            taking = asyncio.gather(*map(take, feeds))
            summary = await client.publish_many(stream, [b"x" * SIZE] * each, timeout=PATIENCE)
            assert summary.ok
            await taking
            return (own() - began) / (each * subscribers)

    with servers.stream() as stream:
        return servers.run(deliver(stream))


# Sizes


def published_sizes(servers: Servers, size: int) -> float:
    """``publish_async`` into JetStream, 1,000 outstanding: the cost of a KiB."""
    count = servers.amount(min(VOLUME // size, MOST))

    async def publish() -> float:
        url = servers.jetstream.url
        name = await asyncio.to_thread(make_stream, url)
        async with await nats.connect(url) as nc:
            stream, value = JetStream(nc, max_outstanding=1_000), b"x" * size
            gc.collect()
            began = own()
            for _ in range(count):
                await stream.publish_async(name, value)
            await stream.publish_async_complete(PATIENCE)
            spent = own() - began
            await stream.delete_stream(name)
            return spent / (count * size / 1024)

    return servers.run(publish())


def read_sizes(servers: Servers, size: int) -> float:
    """``bulk.read`` from JetStream: the cost of a KiB."""
    count = servers.amount(min(VOLUME // size, MOST))
    name = make_stream(servers.jetstream.url)
    bulk.write(servers.jetstream.url, name, rows(count, size), subject=name)

    def read() -> None:
        found = sum(batch.num_rows for batch in bulk.read(servers.jetstream.url, name))
        assert found == count

    return cost_of(read, count) / (size / 1024)


# Outstanding acks


def pending(_: Servers, outstanding: int) -> float:
    """Register and resolve in :class:`PendingAcks`, without I/O."""
    table = PendingAcks()
    acks = [SimpleNamespace(correlation_id="") for _ in range(outstanding)]

    def work() -> None:
        for ack in acks:
            ack.correlation_id = table.register(deadline=1e9)
        for ack in acks:
            assert table.resolve(ack) is not None  # type: ignore[arg-type]

    return cost_of(work, outstanding)


def pending_memory(_: Servers, outstanding: int) -> float:
    """Memory of one entry of :class:`PendingAcks`, in bytes, its id included."""
    tracemalloc.start()
    table = PendingAcks()
    before, _peak = tracemalloc.get_traced_memory()
    table.register_many(outstanding, deadline=1e9)
    after, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert table.stats.outstanding == outstanding
    return (after - before) / outstanding


def acked(servers: Servers, outstanding: int) -> float:
    """``AckInbox.publish_nowait`` into Liftbridge, as many at once as may be outstanding."""
    count = servers.amount(100_000)

    async def publish(stream: str) -> float:
        async with (
            await nats.connect(servers.liftbridge.nats_url) as nc,
            AckInbox(nc, max_outstanding=outstanding, timeout=PATIENCE) as inbox,
        ):
            value = b"x" * SIZE
            gc.collect()
            began = own()
            futures = [inbox.publish_nowait(stream, value) for _ in range(count)]
            await asyncio.gather(*futures)
            return (own() - began) / count

    with servers.stream() as stream:
        return servers.run(publish(stream))


@dataclass(frozen=True)
class Table:
    """One table of the page.

    Attributes:
        title: Its heading.
        column: What the number above a column counts.
        steps: Those numbers, in ascending order.
        measurements: The function that measures each line, and the unit of its cost.
    """

    title: str
    column: str
    steps: tuple[int, ...]
    measurements: Mapping[str, tuple[Callable[[Servers, int], float], str]]


TABLES: Final = (
    Table(
        "Partitions",
        "partitions of the stream",
        PARTITIONS,
        {
            "`publish_batch` with acks, Liftbridge": (published_to_partitions, "ns"),
            "`bulk.read`, Liftbridge, 20,000 messages in each partition": (read_from_partitions, "ns"),
            "`bulk.read`, Liftbridge, cost of a partition with ten messages": (read_small_partitions, "ns"),
        },
    ),
    Table(
        "Subscribers",
        "subscribers to the same messages on one connection; the number of deliveries stays the same, and "
        "the cost includes publishing",
        SUBSCRIBERS,
        {
            "`messages()` of ordered consumers, JetStream": (delivered_to_consumers, "ns"),
            "`subscribe`, Liftbridge": (delivered_to_subscriptions, "ns"),
        },
    ),
    Table(
        "Message sizes",
        "bytes in a message; cost of each KiB",
        SIZES,
        {
            "`publish_async`, JetStream": (published_sizes, "ns"),
            "`bulk.read`, JetStream": (read_sizes, "ns"),
        },
    ),
    Table(
        "Outstanding acks",
        "publishes that wait for their acks at once",
        OUTSTANDING,
        {
            "`PendingAcks`, register and resolve": (pending, "ns"),
            "`PendingAcks`, memory of an entry": (pending_memory, "B"),
        },
    ),
    Table(
        "Publishes in flight",
        "publishes in flight at most; the number of messages stays the same",
        OUTSTANDING[:3],
        {"`AckInbox.publish_nowait`, Liftbridge": (acked, "ns")},
    ),
)


def measured(servers: Servers, rounds: int) -> Iterator[tuple[Table, list[Line]]]:
    """Measure each table and yield it with its lines."""
    for table in TABLES:
        lines = []
        for what, (measure, unit) in table.measurements.items():
            costs = [median(measure(servers, step) for _ in range(rounds)) for step in table.steps]
            lines.append(Line(what, table.steps, tuple(costs), unit))
            print(" ".join(lines[-1].cells()), flush=True)
        yield table, lines


def page(servers: Servers, rounds: int) -> str:
    """Measure everything and return the page."""
    text = [
        "# How the cost of a message grows",
        "",
        "Written by `python -m benchmarks.scaling`. Each figure is the processor time of our process for one",
        f"message, as a median of {rounds} rounds, with 100-byte messages unless the table says otherwise.",
        "Connections and subscriptions are made before the measurement. The last column is the cost at the",
        "largest step as a multiple of the cost at the smallest: 1 means that a message costs the same.",
        "",
    ]
    for table, lines in measured(servers, rounds):
        heads = [f"{step:,}" for step in table.steps]
        text += [f"## {table.title}", "", f"Columns: {table.column}.", ""]
        text += [_row([table.title.lower(), *heads, "growth"]), _row(["---"] * (len(heads) + 2))]
        text += [*(_row(line.cells()) for line in lines), ""]
    return "\n".join([*text, "## Machine", "", *(f"- {line}" for line in Report().machine() if line), ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each figure (%(default)s)")
    parser.add_argument("--part", type=float, default=1.0, help="share of the messages (%(default)s)")
    parser.add_argument("--out", type=Path, default=PAGE, help="where the page goes (%(default)s)")
    options = parser.parse_args()
    with run_liftbridge() as liftbridge, run_nats_server(jetstream=True) as jetstream:
        text = page(Servers(liftbridge, jetstream, options.part), options.rounds)
    options.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
