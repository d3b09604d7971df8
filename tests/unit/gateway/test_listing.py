"""Metadata of all streams: built in slices, and kept for the streams that have not changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from liftenvelope._pb import api_pb2
from liftenvelope.gateway._calls.listing import StreamListing
from liftenvelope.gateway._cluster.brokers import Broker
from liftenvelope.gateway._cluster.records import PartitionRecord, StreamRecord
from liftenvelope.gateway._partitions.storage import PartitionState


class Registry(list[StreamRecord]):
    """Records without a bucket."""

    changes = 0


class Bench:
    """A listing of streams, and the partitions that it has described."""

    def __init__(self, *partitions: int) -> None:
        self.registry = Registry(record(f"s{number}", count) for number, count in enumerate(partitions))
        self.alive = {"a": Broker("a", "host", 1)}
        self.described: list[tuple[str, int]] = []
        brokers = cast(Any, SimpleNamespace(alive=self.alive))
        self.listing = StreamListing(cast(Any, self.registry), brokers, self.describe)

    def describe(
        self, out: api_pb2.PartitionMetadata, record: StreamRecord, number: int, state: PartitionState | None
    ) -> None:
        self.described.append((record.name, number))
        out.id, out.leader = number, "a"
        out.newestOffset = -1 if state is None else state.newest

    async def response(self, newest: dict[str, int]) -> api_pb2.FetchMetadataResponse:
        states = {name: PartitionState(0, offset, 1, 1, 1, 1) for name, offset in newest.items()}
        return api_pb2.FetchMetadataResponse.FromString(await self.listing.response(states))


def record(name: str, partitions: int) -> StreamRecord:
    return StreamRecord(
        name=name,
        subject=name,
        id=name,
        maker="a",
        partitions=tuple(PartitionRecord() for _ in range(partitions)),
    )


async def test_other_tasks_run_while_many_partitions_are_described() -> None:
    bench, turns = Bench(1_000, *[1] * 1_000), 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(take_turns())
    found = await bench.response({})
    task.cancel()
    assert turns >= 10
    assert sum(len(stream.partitions) for stream in found.streamMetadata) == 2_000
    [broker] = found.brokers
    assert (broker.id, broker.partitionCount, broker.leaderCount) == ("a", 2_000, 2_000)


async def test_only_what_has_changed_is_described_again() -> None:
    bench = Bench(2, 1, 1)
    states = {bench.registry[1].stream_of(0): 7}
    before = await bench.response(states)
    bench.described.clear()
    assert await bench.response(states) == before
    assert bench.described == []
    found = await bench.response({bench.registry[1].stream_of(0): 8})
    assert bench.described == [("s1", 0)]
    assert [stream.partitions[0].newestOffset for stream in found.streamMetadata] == [-1, 8, -1]
    bench.described.clear()
    bench.registry[0] = replace(bench.registry[0])
    bench.registry.pop(2)
    bench.registry.changes += 1
    found = await bench.response({bench.registry[1].stream_of(0): 8})
    assert bench.described == [("s0", 0), ("s0", 1)]
    assert [stream.name for stream in found.streamMetadata] == ["s0", "s1"]
    bench.described.clear()
    bench.alive["b"] = Broker("b", "host", 2)
    assert len((await bench.response({})).brokers) == 2
    assert len(bench.described) == 3


async def test_answer_is_built_again_if_the_gateways_change_meanwhile() -> None:
    bench = Bench(1_000)
    building = asyncio.create_task(bench.response({}))
    await asyncio.sleep(0)
    assert 0 < len(bench.described) < 1_000
    bench.alive["b"] = Broker("b", "host", 2)
    assert len((await building).brokers) == 2
    assert len(bench.described) == 2_000
    assert len((await bench.response({})).brokers) == 2
    assert len(bench.described) == 2_000


async def test_answer_from_during_many_changes_of_the_gateways_is_not_kept() -> None:
    bench = Bench(1_000)
    building = asyncio.create_task(bench.response({}))
    while not building.done():
        bench.alive["b"] = Broker("b", "host", len(bench.described))
        await asyncio.sleep(0)
    assert len((await building).brokers) == 2
    assert len(bench.described) == 3_000
    bench.described.clear()
    await bench.response({})
    assert len(bench.described) == 1_000


async def test_gateway_that_comes_back_meanwhile_makes_the_answer_built_again() -> None:
    bench = Bench(200, 200)
    building = asyncio.create_task(bench.response({}))
    await asyncio.sleep(0)
    gateway = bench.alive.pop("a")
    await asyncio.sleep(0)
    bench.alive["a"] = gateway
    await building
    assert bench.described.count(("s1", 0)) == 2


async def test_calls_with_short_deadlines_complete_an_answer_together() -> None:
    bench = Bench(*[100] * 10)
    for _ in range(5):
        building = asyncio.create_task(bench.response({}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        building.cancel()
        await asyncio.gather(building, return_exceptions=True)
    await bench.response({})
    assert len(bench.described) == 1_000


async def test_call_during_a_build_sees_changes_from_before_it() -> None:
    bench = Bench(1_000)
    building = asyncio.create_task(bench.response({}))
    await asyncio.sleep(0)
    bench.registry.append(record("new", 1))
    bench.registry.changes += 1
    found = await bench.response({})
    assert [stream.name for stream in found.streamMetadata] == ["s0", "new"]
    await building
