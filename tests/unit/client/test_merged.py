"""All partitions as one reader, on brokers that are scripted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liftenvelope.client._events import SubscriptionLost
from liftenvelope.errors import (
    StreamDeletedError,
)
from liftenvelope.rpc.server import ServerCall
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import (
    HANDSHAKE,
    ScriptedBroker,
    answers,
    client_of,
    fill,
    message,
    offsets,
    scripted,
    stall,
    until,
)

pytestmark = pytest.mark.usefixtures("loop_errors")


class TestMerged:
    def prepared(self, broker: ScriptedBroker) -> None:
        for partition in range(3):
            broker.log(*range(4), partition=partition)

    async def test_all_partitions(self) -> None:
        async with scripted() as (broker,):
            self.prepared(broker)
            async with (
                client_of([broker]) as client,
                client.subscribe("foo", partition="all", start="earliest", stop="latest") as reader,
            ):
                found = [(m.partition, m.offset) async for m in reader]
                assert (await reader.next(), reader.finished) == (None, True)
        assert sorted(found) == [(p, n) for p in range(3) for n in range(4)]
        for partition in range(3):
            assert [n for p, n in found if p == partition] == [0, 1, 2, 3]

    async def test_one_stalls(self) -> None:
        async with scripted() as (broker,):
            self.prepared(broker)
            broker.next("Subscribe", answers(HANDSHAKE, stay=True))
            async with (
                client_of([broker]) as client,
                client.subscribe("foo", partition="all", start="earliest", stop="latest") as reader,
            ):
                found = []
                async with asyncio.timeout(60):
                    for _ in range(8):
                        got = await reader.next()
                        assert got is not None
                        found.append(got.partition)
                assert sorted(found.count(partition) for partition in range(3)) == [0, 4, 4]
                assert not reader.finished

    @pytest.mark.parametrize("start", ["earliest", 0])
    async def test_one_fails(self, start: Any) -> None:
        gone = RpcError(StatusCode.NOT_FOUND, "commit log was deleted")
        async with scripted() as (broker,):
            self.prepared(broker)
            broker.next("Subscribe", answers(HANDSHAKE, message(0), error=gone))
            async with (
                client_of([broker]) as client,
                client.subscribe("foo", partition="all", start=start) as reader,
            ):
                for _ in range(2):
                    with pytest.raises(StreamDeletedError):
                        await fill([], reader)

    async def test_one_can_not_be_opened(self) -> None:
        async with scripted() as (broker,):
            self.prepared(broker)
            broker.next("Subscribe", answers(HANDSHAKE, stay=True), RpcError(StatusCode.INTERNAL, "no"))
            async with client_of([broker]) as client:
                before = set(client._context.open_resources)
                with pytest.raises(RpcError, match="no"):
                    await client.subscribe("foo", partition="all", start="earliest").open()
                assert client._context.open_resources == before

    async def test_partitions_are_opened_at_the_same_time(self) -> None:
        all_came = asyncio.Barrier(3)

        async def wait_for_the_others(call: ServerCall, request: bytes) -> None:
            await all_came.wait()
            await broker._subscribe(call, request)

        async with scripted() as (broker,):
            self.prepared(broker)
            broker.always("Subscribe", wait_for_the_others)
            async with (
                client_of([broker]) as client,
                client.subscribe("foo", partition="all", start=0) as reader,
            ):
                assert len(await offsets(reader, 12)) == 12
                assert len(broker.read("FetchMetadata")) < 5

    async def test_opening_is_cancelled_while_all_wait(self) -> None:
        async with scripted() as (broker,):
            self.prepared(broker)
            broker.always("Subscribe", stall)
            async with client_of([broker]) as client:
                before = set(client._context.open_resources)
                opening = asyncio.create_task(client.subscribe("foo", partition="all", start=0).open())
                await until(lambda: len(broker.read("Subscribe")) == 3)
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening
                assert client._context.open_resources == before

    async def test_a_handler_that_fails_does_not_look_like_the_end(self) -> None:
        class BrokenError(Exception):
            pass

        def fail(event: Any) -> None:
            if isinstance(event, SubscriptionLost):
                raise BrokenError

        async with scripted() as (broker,):
            self.prepared(broker)
            async with (
                client_of([broker], on_event=fail) as client,
                client.subscribe("foo", partition="all", start="earliest") as reader,
            ):
                assert len(await offsets(reader, 12)) == 12
                broker.drop()
                with pytest.raises(BrokenError):
                    await reader.next()

    async def test_is_fair(self) -> None:
        async with scripted() as (broker,):
            for partition in range(2):
                broker.log(*range(300), partition=partition, chunk=10)
            async with (
                client_of([broker]) as client,
                client.subscribe("foo", partition="all", start="earliest") as reader,
            ):
                found = []
                for _ in range(400):
                    got = await reader.next()
                    assert got is not None
                    found.append(got.partition)
        assert min(found.count(0), found.count(1)) >= 100

    async def test_positions(self) -> None:
        async with scripted() as (broker,):
            self.prepared(broker)
            async with (
                client_of([broker]) as client,
                client.subscribe("foo", partition="all", start="earliest", stop="latest") as reader,
            ):
                seen = {("foo", partition): 0 for partition in range(3)}
                for _ in range(12):
                    got = await reader.next()
                    assert got is not None
                    seen["foo", got.partition] = got.offset + 1
                    assert reader.positions == seen

    async def test_positions_backwards(self) -> None:
        async with scripted() as (broker,):
            self.prepared(broker)
            async with (
                client_of([broker]) as client,
                client.subscribe("foo", partition="all", reverse=True) as reader,
            ):
                seen: dict[tuple[str, int], int | None] = {("foo", partition): 3 for partition in range(3)}
                for _ in range(12):
                    got = await reader.next()
                    assert got is not None
                    seen["foo", got.partition] = got.offset - 1 if got.offset else None
                    assert reader.positions == seen
                assert await reader.next() is None

    async def test_close_while_another_task_reads(self) -> None:
        async with scripted() as (broker,):
            self.prepared(broker)
            client = await client_of([broker])
            reader = await client.subscribe("foo", partition="all").open()
            waiting = asyncio.create_task(anext(reader))
            await asyncio.sleep(0.01)
            await reader.close()
            await reader.close()
            with pytest.raises(StopAsyncIteration):
                await waiting
            assert reader not in client._context.open_resources
            await client.close()

    async def test_lists_cancelled_half_way(self) -> None:
        async with scripted() as (broker,):
            self.prepared(broker)
            async with (
                client_of([broker]) as client,
                client.subscribe("foo", partition="all", start="earliest") as reader,
            ):
                waiting = asyncio.ensure_future(anext(reader.batches(1000, max_wait=60)))
                await until(lambda: all(part._read.next_offset == 4 for part in reader._parts))
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                assert len(await offsets(reader, 12)) == 12
