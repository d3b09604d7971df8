"""Groups: heartbeats with many members, recovery after a death, and the speed of reading.

The members of the first two are real ones, but for the reading; the coordinator has a process of its own.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from statistics import quantiles
from time import perf_counter, process_time
from typing import Any
from uuid import uuid4

import nats
import pytest
from google.protobuf.message import Message
from nats.aio.client import Client
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import processor_time
from benchmarks.report import Report, Row
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope import bulk
from liftenvelope.group import (
    Coordinator,
    GroupClient,
    GroupConsumer,
    GroupEvent,
    GroupMessage,
    JetStreamTopic,
    TopicSpec,
)
from liftenvelope.group._member.member import Assigned, GiveBack, GroupMember
from liftenvelope.group._serving import SERVICE
from liftenvelope.group.calls import GroupCalls
from liftenvelope.jetstream import JetStream, StorageType, StreamConfig
from liftenvelope.jetstream import Message as JetStreamMessage
from liftenvelope.nats import accelerate
from liftenvelope.testing import NatsServer, run_nats_server

#: What the issue asks for, in seconds.
HEARTBEAT, AFTER_SESSION = 0.050, 1.0
PATIENCE = 120.0
PARTITIONS = 64
VALUE = b"x" * 100


def quiet(_: GroupEvent) -> None:
    """Ignore events: a fenced member shows in the figures."""


class TimedCalls(GroupCalls):
    """Calls of which the heartbeats are timed."""

    def __init__(self, nc: Client) -> None:
        super().__init__(nc, timeout=PATIENCE)
        self.taken: list[float] = []

    async def _ask(
        self, subject: str, request: Message, kind: Any, timeout: float, *, passing: bool = False
    ) -> Any:
        began = perf_counter()
        try:
            return await super()._ask(subject, request, kind, timeout, passing=passing)
        finally:
            if subject.endswith(".Heartbeat"):
                self.taken.append(perf_counter() - began)


class BenchMember:
    """A member that gives everything back as soon as it is asked to."""

    def __init__(self, nc: Client, calls: GroupCalls, group: str, number: int) -> None:
        self.member = GroupMember(
            nc,
            calls,
            group,
            f"m{number}",
            f"client-{number}",
            [TopicSpec("t", PARTITIONS)],
            session_timeout=None,
            creation=None,
            on_event=quiet,
        )
        self.generation = 0
        self._tasks = [asyncio.create_task(work) for work in (self.member.keep(), self._act())]

    async def _act(self) -> None:
        while True:
            change = await self.member.changes.get()
            if isinstance(change, Assigned):
                self.generation = change.generation
            elif isinstance(change, GiveBack):
                self.member.given_back()

    async def die(self) -> None:
        """Fall silent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


class Crowd:
    """Many members in many groups."""

    def __init__(self, url: str, groups: int, members: int, session: float) -> None:
        self.url, self.session = url, session
        self.names = [f"g{number}" for number in range(groups)]
        self.each = members // groups
        self.groups: dict[str, list[BenchMember]] = {}
        self.calls: list[TimedCalls] = []

    async def gather(self) -> float:
        """Have them all come at once; return how long it takes until every group is whole."""
        self.connections = [await nats.connect(self.url) for _ in range(10)]
        self.calls = [TimedCalls(nc) for nc in self.connections]
        client = GroupClient(self.connections[0], timeout=PATIENCE)
        for name in self.names:
            await client.create_group(name, session_timeout=self.session)
        began = perf_counter()
        for place, name in enumerate(self.names):
            nc, calls = self.connections[place % 10], self.calls[place % 10]
            self.groups[name] = [BenchMember(nc, calls, name, number) for number in range(self.each)]
        await self.whole()
        return perf_counter() - began

    async def whole(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not all(self.is_whole(name) for name in self.names):
                await asyncio.sleep(0.005)

    def is_whole(self, name: str) -> bool:
        generations = {member.generation for member in self.groups[name]}
        return len(generations) == 1 and 0 not in generations

    async def p99(self, seconds: float) -> tuple[float, float, int]:
        """Return the p99 of heartbeats and of bare requests in some seconds, and the count of heartbeats."""
        # A member has a process of its own in earnest. One for all of them would stand still for 130 ms
        # now and then, to look for garbage among the objects of a thousand, which says nothing of heartbeats.
        gc.collect()
        gc.freeze()
        for calls in self.calls:
            calls.taken.clear()
        bare: list[float] = []
        ends = perf_counter() + seconds
        while perf_counter() < ends:
            began = perf_counter()
            await self.connections[0].request(f"$SRV.PING.{SERVICE}", timeout=PATIENCE)
            bare.append(perf_counter() - began)
            await asyncio.sleep(0.01)
        gc.unfreeze()
        taken = [one for calls in self.calls for one in calls.taken]
        return quantiles(taken, n=100)[98], quantiles(bare, n=100)[98], len(taken)

    async def after_a_death(self) -> float:
        """From the death of a member until all others of its group have its partitions."""
        name = self.names[0]
        before = self.groups[name][0].generation
        victim = self.groups[name].pop()
        began = perf_counter()
        await victim.die()
        async with asyncio.timeout(PATIENCE):
            while not (self.is_whole(name) and self.groups[name][0].generation > before):
                await asyncio.sleep(0.005)
        return perf_counter() - began

    async def go(self) -> None:
        for members in self.groups.values():
            await asyncio.gather(*(member.die() for member in members))
        for nc in self.connections:
            await nc.close()


class Child:
    """A coordinator in a process of its own."""

    def __init__(self, server: NatsServer, process: subprocess.Popen[bytes]) -> None:
        self.url, self._process = server.url, process
        assert self._line() == b"ready\n"

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def processor_time(self) -> float:
        """Return the processor time in seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return float(self._line())


@pytest.fixture
def coordinator(report: Report) -> Iterator[Child]:
    with run_nats_server(jetstream=True) as running:
        report.versions["nats-server"] = running.version
        arguments = [sys.executable, "-m", "benchmarks.bench_group", running.url]
        root = Path(__file__).resolve().parents[1]
        pipe = subprocess.PIPE
        with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, cwd=root) as process:
            yield Child(running, process)
            process.kill()


def test_groups(
    benchmark: BenchmarkFixture, loop: asyncio.Runner, report: Report, coordinator: Child
) -> None:
    quick = bool(benchmark.disabled)
    groups, members, session = (4, 40, 2.0) if quick else (50, 1_000, 10.0)
    crowd = Crowd(coordinator.url, groups, members, session)
    whole = loop.run(crowd.gather())
    print(f"\n{members} members in {groups} groups: all groups whole {whole:.2f} s after all came at once")
    before = coordinator.processor_time()
    p99, bare, count = benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: loop.run(crowd.p99(2.0 if quick else 20.0)), rounds=1
    )
    each = (coordinator.processor_time() - before) / count
    deaths = max(loop.run(crowd.after_a_death()) for _ in range(1 if quick else 3))
    loop.run(crowd.go())
    print(f"heartbeat p99 {1_000 * p99:.1f} ms, of bare requests meanwhile {1_000 * bare:.1f} ms")
    print(
        f"processor time of the coordinator {1e6 * each:.0f} µs for a heartbeat, with all else that it does"
    )
    print(f"whole {deaths:.2f} s after a death, session {session:g} s")
    if not quick:
        limit = (
            f"The coordinator takes {1e6 * each:.0f} µs of a processor for each; the rest is waiting. "
            f"Bare requests, one at a time, had a p99 of {1_000 * bare:.1f} ms meanwhile."
        )
        row(report, f"heartbeat, p99, {members} members in {groups} groups", p99, HEARTBEAT, limit)
        row(
            report,
            f"group whole after a death, session timeout {session:g} s",
            deaths,
            session + AFTER_SESSION,
        )


class Readings:
    """Rounds that read a stream from its start, each by a new consumer on an accelerated connection."""

    def __init__(self, loop: asyncio.Runner, url: str, count: int, clock: Callable[[], float]) -> None:
        self._loop, self._url, self._count, self._clock = loop, url, count, clock
        self._name = f"bench-{uuid4().hex[:8]}"
        loop.run(self._fill())

    async def _fill(self) -> None:
        async with await nats.connect(self._url) as nc, JetStream(nc, timeout=PATIENCE) as js:
            await js.create_stream(StreamConfig(name=self._name, storage=StorageType.MEMORY))
            for _ in range(self._count):
                await js.publish_async(self._name, VALUE)
            await js.publish_async_complete()

    def by_group(self, read: Callable[[GroupConsumer, int], Awaitable[None]]) -> Round:
        """A group consumer, which is the only member of a new group."""

        async def run(nc: Client) -> float:
            topic = JetStreamTopic.of_streams("bench", [self._name])
            async with GroupConsumer(
                nc, uuid4().hex, topic, auto_offset="earliest", timeout=PATIENCE
            ) as consumer:
                began = self._clock()
                await read(consumer, self._count)
                return (self._clock() - began) / self._count

        return lambda: self._loop.run(self._connected(run))

    def ordered(self) -> float:
        """``messages()`` of an ordered consumer."""

        async def run(nc: Client) -> float:
            async with JetStream(nc, timeout=PATIENCE) as js:
                stream = await js.stream(self._name)
                async with stream.ordered_consumer().messages() as messages:
                    began = self._clock()
                    await read_singly(messages, self._count)
                    return (self._clock() - began) / self._count

        return self._loop.run(self._connected(run))

    def by_bulk(self) -> float:
        """``bulk.read`` on a connection of its own."""
        began = self._clock()
        assert sum(batch.num_rows for batch in bulk.read(self._url, self._name)) == self._count
        return (self._clock() - began) / self._count

    async def _connected(self, run: Callable[[Client], Awaitable[float]]) -> float:
        async with await nats.connect(self._url) as nc, asyncio.timeout(PATIENCE):
            with accelerate(nc):
                return await run(nc)


async def read_singly(
    messages: AsyncIterator[GroupMessage] | AsyncIterator[JetStreamMessage], count: int
) -> None:
    """Iterate over so many messages."""
    found = 0
    async for _ in messages:
        found += 1
        if found == count:
            return


async def read_batches(consumer: GroupConsumer, count: int) -> None:
    """Read so many messages in lists."""
    found = 0
    async for messages in consumer.batches():
        found += len(messages)
        if found == count:
            return


async def read_columns(consumer: GroupConsumer, count: int) -> None:
    """Read so many messages as Arrow."""
    found = 0
    async for batch in consumer.arrow_batches(max_wait=0.1):
        found += batch.num_rows
        if found == count:
            return


#: Ways to read so many messages of a group consumer, each with the peer and the target.
WAYS = {
    "async for": (read_singly, "ordered messages()", 0.9),
    "batches()": (read_batches, "ordered messages()", 0.9),
    "arrow_batches()": (read_columns, "bulk.read", 0.8),
}
_MESSAGE_LIMIT = (
    "From the received bytes to the user, a message of async for takes 0.29 us, one of batches() 0.24, "
    "one of messages() 0.23. The rest is the event loop's and the kernel's: each list goes from the feed to "
    "the reader of its partition and from there to the user, and a limit in bytes lets one pull be open at "
    "a time. To begin takes 2.6 ms, where messages() takes 0.4."
)
_COLUMNS_LIMIT = (
    "From the received bytes to its columns, a message takes 0.12 us of processor time. Of 0.6 us in all, "
    "half is in the interpreter, for the event loop and three tasks between the socket and the batch, and a "
    "quarter in the kernel. bulk.read takes 0.25 us: it blocks, and needs no task."
)


@pytest.mark.parametrize("clock", [perf_counter, processor_time.own])
@pytest.mark.parametrize("way", WAYS)
def test_reading(
    loop: asyncio.Runner, compare: Comparison, coordinator: Child, way: str, clock: Callable[[], float]
) -> None:
    readings = Readings(loop, coordinator.url, compare.amount(50_000, 500), clock)
    read, peer, target = WAYS[way]
    by_peer = readings.ordered if peer == "ordered messages()" else readings.by_bulk
    is_wall = clock is perf_counter
    compare(
        f"GroupConsumer, 100 B, {way}" + ("" if is_wall else ", processor time"),
        readings.by_group(read),
        Peer(peer, by_peer, target, _COLUMNS_LIMIT if peer == "bulk.read" else _MESSAGE_LIMIT),
        rate=is_wall,
        rounds=5,
    )


def row(report: Report, what: str, ours: float, asked: float, limit: str = "") -> None:
    """A figure beside what is asked for."""
    report.rows.append(
        Row(what, ours, "what is asked for", asked, asked / ours, asked / ours, False, 1.0, limit)
    )


async def coordinate(url: str) -> None:
    async with Coordinator(await nats.connect(url)):
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(process_time(), flush=True)


if __name__ == "__main__":
    asyncio.run(coordinate(sys.argv[1]))
