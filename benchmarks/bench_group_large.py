"""The largest group: 10,000 partitions, and 1,000 members.

A commit that writes what changed is compared with one that writes the whole record, as coordinators do with
servers that check no guards. A rebalance is held against a bound: how long it keeps the event loop busy.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from statistics import median
from time import perf_counter, process_time

import nats
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.report import Bound, Report
from benchmarks.rounds import Comparison, Peer
from liftenvelope.group import Coordinator, Phase
from liftenvelope.group._controller.host import GroupHost
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.directory import Definition
from liftenvelope.group.membership import Commit, Group, Registration
from liftenvelope.group.state import Place, TopicSpec
from liftenvelope.testing import NatsServer

#: Longest time for which a rebalance may keep the event loop busy, in seconds.
BLOCK = 0.050
BLOCK_LIMIT = (
    "The calls of the thousand members come in one turn of the loop, and take most of it. The coordinator's "
    "own steps take 36 ms at most."
)
#: How many times as fast a commit must be as one that writes the record.
COMMIT = 10.0
PATIENCE = 120.0
#: Seconds between two looks at the clock.
TICK = 0.0005
#: Partitions of one commit.
EACH = 10

names = (f"g{number}" for number in count())


@dataclass
class LargeGroup:
    """A group whose members call its host in the same process."""

    coordinator: Coordinator
    host: GroupHost
    topics: tuple[TopicSpec, ...]
    #: Topics that a member reads.
    each: int
    offsets: count[int] = field(default_factory=lambda: count(1))

    def registration(self, number: int) -> Registration:
        known = self.host.group.state.members.get(f"consumer-{number:04}")
        return Registration(
            consumer_id=f"consumer-{number:04}",
            client_id=f"client-{number}",
            topics=tuple(Random(number).sample(self.topics, self.each)),
            generation=known.generation if known is not None else 0,
        )

    async def fill(self, members: int) -> None:
        """Let the first members join in one step, and commit their starts."""

        def join(group: Group, now: float) -> None:
            for _ in range(2):  # join, then give everything back
                for number in range(members):
                    group.register(self.registration(number), now)

        def commit(group: Group, _: float) -> None:
            for name, member in group.state.members.items():
                group.commit(name, member.generation, [Commit(one, 0) for one in member.assignment])

        await self.host.run(join)
        await self.host.run(commit)
        assert self.host.group.state.phase is Phase.STABLE

    async def double(self, members: int) -> None:
        """Let as many more join, and the first ones give back, each by a call of its own."""

        async def member(number: int) -> None:
            answer = await self.host.register(self.registration(number), PATIENCE)
            if answer.rebalancing:
                answer = await self.host.register(self.registration(number), PATIENCE)
            assert not answer.rebalancing

        await asyncio.gather(*(member(number) for number in (*range(members, 2 * members), *range(members))))

    async def commit(self, partitions: int, *, apart: bool) -> None:
        """Commit one member's next offsets, apart from the record or with it."""
        self.coordinator._store.has_guards = apart
        offset = next(self.offsets)
        first = offset * EACH % partitions
        commits = [Commit(TopicPartition("orders", first + number), offset) for number in range(EACH)]
        state = self.host.group.state
        owner = next(iter(state.members))
        outcome = await self.host.run(lambda group, _: group.commit(owner, state.generation, commits))
        assert set(outcome.values()) == {offset}


@asynccontextmanager
async def large_group(url: str, partitions: int, topics: int = 1, each: int = 1) -> AsyncIterator[LargeGroup]:
    nc, name = await nats.connect(url), next(names)
    # A bucket of its own: the coordinator would take over the groups of earlier rounds meanwhile.
    async with Coordinator(nc, bucket=name, timeout=PATIENCE, lease=PATIENCE) as coordinator:
        await coordinator.directory.create(Definition(name=name, session_timeout=3_600.0))
        host = await coordinator.directory.host(name)
        yield LargeGroup(coordinator, host, tuple(_topics(partitions, topics)), each)
    await nc.close()


def _topics(partitions: int, topics: int) -> Iterator[TopicSpec]:
    for number in range(topics):
        name = f"orders{number or ''}"
        places = tuple(Place(name.upper(), f"{name}.{place}") for place in range(partitions // topics))
        yield TopicSpec(name, len(places), places)


async def longest_block(work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Return the most processor time, and the longest time, in which the event loop did nothing else."""
    blocks: list[tuple[float, float]] = []

    async def tick() -> None:
        before = process_time(), perf_counter()
        while True:
            await asyncio.sleep(TICK)
            now = process_time(), perf_counter()
            blocks.append((now[0] - before[0], now[1] - before[1] - TICK))
            before = now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(TICK)
    await work()
    await asyncio.sleep(TICK)
    ticking.cancel()
    return max(used for used, _ in blocks), max(taken for _, taken in blocks)


@pytest.mark.parametrize(
    ("clock", "what"), [(perf_counter, ""), (process_time, ", processor time of the coordinator")]
)
def test_commit(
    compare: Comparison, loop: asyncio.Runner, jetstream: NatsServer, clock: Callable[[], float], what: str
) -> None:
    partitions, turns = compare.amount(10_000, 100), compare.amount(20, 1)
    entered = large_group(jetstream.url, partitions)
    group = loop.run(entered.__aenter__())
    loop.run(group.fill(1))

    async def commits(apart: bool) -> float:
        began = clock()
        for _ in range(turns):
            await group.commit(partitions, apart=apart)
        return (clock() - began) / turns

    compare(
        f"commit of {EACH} partitions in a group of {partitions:,}{what}",
        lambda: loop.run(commits(apart=True)),
        Peer("the whole record", lambda: loop.run(commits(apart=False)), COMMIT),
    )
    loop.run(entered.__aexit__(None, None, None))


@pytest.mark.parametrize(
    ("topics", "each", "reading"), [(1, 1, ""), (100, 20, ", each member reads 20 of 100 topics")]
)
def test_rebalance(
    benchmark: BenchmarkFixture,
    report: Report,
    loop: asyncio.Runner,
    jetstream: NatsServer,
    topics: int,
    each: int,
    reading: str,
) -> None:
    partitions, members, rounds = (100, 5, 1) if benchmark.disabled else (10_000, 500, 5)

    async def run() -> tuple[float, float]:
        async with large_group(jetstream.url, partitions, topics, each) as group:
            await group.fill(members)
            # A coordinator's process does not have pytest's objects, among which the collector would look for
            # garbage for 100 ms.
            gc.collect()
            gc.freeze()
            found = await longest_block(lambda: group.double(members))
            gc.unfreeze()
            loads = [len(member.assignment) for member in group.host.group.state.members.values()]
            read = {name for member in group.host.group.state.members.values() for name in member.topics}
            assert sum(loads) == sum(spec.partitions for spec in group.topics if spec.name in read)
            assert each != topics or set(loads) == {partitions // (2 * members)}
            return found

    found: list[tuple[float, float]] = []
    benchmark.pedantic(lambda: found.append(loop.run(run())), rounds=rounds)  # type: ignore[no-untyped-call]
    used, taken = median(one for one, _ in found), median(one for _, one in found)
    what = f"{members} -> {2 * members:,} members x {partitions:,} partitions{reading}"
    what = f"{what}, longest block of the loop"
    print(f"\n{what}: {1_000 * used:.1f} ms of a processor, {1_000 * taken:.1f} ms")
    if not benchmark.disabled:
        report.bounds.append(Bound(f"{what}, processor time", 1_000 * used, 1_000 * BLOCK, "ms", BLOCK_LIMIT))
