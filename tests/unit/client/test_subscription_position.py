"""Position of a subscription after its end, on scripted brokers: dropped messages are still to be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liftenvelope.client._reading.message_reader import MessageReader
from liftenvelope.errors import EnvelopeError
from liftenvelope.rpc.server import ServerCall
from liftenvelope.rpc.status import RpcError
from tests.unit.scripted_broker import HANDSHAKE, client_of, message, read, scripted, until

pytestmark = pytest.mark.usefixtures("loop_errors")


async def two_messages(reader: MessageReader, way: str) -> list[tuple[int, int]]:
    """Partition and offset of the next two messages, taken in one of the ways to take them."""
    async with asyncio.timeout(60):
        if way == "arrow_batches":
            batch = await anext(reader.arrow_batches(2, max_wait=60))
            partitions, offsets = batch.column("partition").to_pylist(), batch.column("offset").to_pylist()
            return list(zip(partitions, offsets, strict=True))
        if way == "batches":
            found = await anext(reader.batches(2, max_wait=60))
        else:
            found = [await anext(reader), await anext(reader)]
    return [(one.partition, one.offset) for one in found]


WAYS = pytest.mark.parametrize("way", ["iteration", "batches", "arrow_batches"])


@WAYS
async def test_position_after_the_block_is_the_next_message(way: str) -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(*range(10), chunk=10)
        async with client.subscribe("foo", start="earliest", stop="latest") as reader:
            assert await two_messages(reader, way) == [(0, 0), (0, 1)]
            assert reader.position == 2
        await reader.close()
        assert (reader.position, reader.positions) == (2, {("foo", 0): 2})
        assert await read(client, start=reader.position, stop="latest") == list(range(2, 10))


@WAYS
async def test_position_after_a_block_that_read_backwards(way: str) -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(*range(10), chunk=10)
        async with client.subscribe("foo", reverse=True) as reader:
            assert [offset for _, offset in await two_messages(reader, way)] == [9, 8]
            assert [offset for _, offset in await two_messages(reader, way)] == [7, 6]
        assert reader.position == 5
        assert await read(client, start=5, reverse=True) == [5, 4, 3, 2, 1, 0]


@WAYS
@pytest.mark.parametrize("reverse", [False, True])
async def test_positions_of_all_partitions_after_the_block(way: str, reverse: bool) -> None:
    options: dict[str, Any] = {"reverse": True} if reverse else {"stop": "latest"}
    async with scripted() as (broker,), client_of([broker]) as client:
        for partition in range(3):
            broker.log(*range(4), partition=partition, chunk=4)
        start = None if reverse else "earliest"
        async with client.subscribe("foo", partition="all", start=start, **options) as reader:
            await until(lambda: len(reader._ready) == 3)  # lists that nobody has asked for
            seen = await two_messages(reader, way)
        await reader.close()
        for (_, partition), position in reader.positions.items():
            assert position is not None
            rest = await read(client, partition=partition, start=max(position, 0), **options)
            seen += [(partition, offset) for offset in rest]
        assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(4)]


async def test_position_of_a_read_that_was_read_to_its_end() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(*range(3))
        async with client.subscribe("foo", start="earliest", stop="latest") as reader:
            assert [one.offset async for one in reader] == [0, 1, 2]
        assert reader.position == 3


async def test_position_while_messages_for_a_closed_batch_are_collected() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(*range(3))
        async with client.subscribe("foo", start="earliest") as reader:
            waiting = asyncio.ensure_future(anext(reader.batches(5, max_wait=60)))
            await until(lambda: reader._read.next_offset == 3)
        assert [one.offset for one in await waiting] == [0, 1, 2]
        assert reader.position == 3


@pytest.mark.parametrize("way", ["iteration", "arrow_batches"])
async def test_position_is_not_moved_by_messages_that_cannot_be_decoded(way: str) -> None:
    async def send(call: ServerCall, request: bytes) -> None:
        await call.send([HANDSHAKE])
        await call.send([message(1), b"\xff\xff\xff", message(3)])
        await asyncio.Event().wait()

    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(*range(4))
        broker.always("Subscribe", send)
        async with client.subscribe("foo", start="earliest") as reader:
            for _ in range(2):
                with pytest.raises((RpcError, EnvelopeError)):
                    await two_messages(reader, way)
        assert reader.position == 1


async def test_position_after_a_whole_reverse_read_is_unknown() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(*range(3))
        async with client.subscribe("foo", reverse=True) as reader:
            assert [one.offset async for one in reader] == [2, 1, 0]
            assert (reader.position, reader.positions) == (None, {("foo", 0): None})
        assert (reader.position, reader.positions) == (None, {("foo", 0): None})


async def test_position_after_a_reverse_read_down_to_its_stop_is_the_offset_below() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(*range(5))
        async with client.subscribe("foo", reverse=True, stop=2) as reader:
            assert [one.offset async for one in reader] == [4, 3, 2]
        assert reader.position == 1
        assert await read(client, start=1, reverse=True) == [1, 0]


async def test_position_of_a_reverse_read_of_an_empty_partition_is_unknown() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log()
        async with client.subscribe("foo", reverse=True) as reader:
            assert [one.offset async for one in reader] == []
        assert reader.position is None
