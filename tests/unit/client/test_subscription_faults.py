"""Subscriptions on brokers that are scripted: what servers, readers and the clock can do wrong."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from liftenvelope.client._reading import subscribe_call, subscription
from liftenvelope.client.positions import Cursor
from liftenvelope.errors import (
    CallTimeoutError,
    StreamDeletedError,
    TransportError,
)
from liftenvelope.rpc.server import ServerCall
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import (
    HANDSHAKE,
    answers,
    client_of,
    message,
    offsets,
    read,
    scripted,
    stall,
    until,
)

pytestmark = pytest.mark.usefixtures("loop_errors")


class TestHandshake:
    async def test_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subscribe_call, "HANDSHAKE_TIMEOUT", 0.05)
        async with scripted() as (broker,):
            broker.log(0, 1)
            broker.next("Subscribe", stall)
            async with client_of([broker]) as client:
                assert await read(client, start="earliest", stop="latest") == [0, 1]
            assert broker.calls["Subscribe"] >= 2  # more if an answer takes longer than the patched timeout

    async def test_late(self) -> None:
        go_on = asyncio.Event()

        async def late(call: Any, request: bytes) -> None:
            await go_on.wait()
            await call.send([HANDSHAKE, message(0), message(1)])
            await asyncio.Event().wait()

        async with scripted() as (broker,):
            broker.log(0, 1)
            broker.next("Subscribe", late)
            async with client_of([broker]) as client:
                reading = asyncio.create_task(read(client, start="earliest", stop="latest"))
                await until(lambda: broker.calls["Subscribe"])
                await asyncio.wait([reading], timeout=0.1)
                assert not reading.done()
                go_on.set()
                assert await reading == [0, 1]
            assert broker.calls["Subscribe"] == 1

    async def test_missing_for_good(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subscribe_call, "HANDSHAKE_TIMEOUT", 0.05)
        async with scripted() as (broker,):
            broker.log(0, 1)
            broker.always("Subscribe", stall)
            async with client_of([broker], timeout=2.0) as client:
                # The client fetches metadata before each further attempt: the deadline may pass meanwhile.
                with pytest.raises(CallTimeoutError, match=r"did not stand|FetchMetadata was not answered"):
                    await read(client, start="earliest")
            assert broker.calls["Subscribe"] > 1

    async def test_reason_is_told_if_the_last_attempt_has_little_time(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            broker.next("Subscribe", RpcError(StatusCode.UNAVAILABLE, "the leader is gone"))
            broker.next("Subscribe", stall)
            # Less than a handshake may take, and more than a busy machine keeps the first answer waiting.
            async with client_of([broker], timeout=4.0) as client:
                with pytest.raises(RpcError, match="the leader is gone"):
                    await read(client, start="earliest")

    async def test_attempt_that_had_time_says_more_than_an_earlier_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (subscribe_call, subscription):
            monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT", 0.2)
        async with scripted() as (broker,):
            broker.log(0)
            broker.next("Subscribe", RpcError(StatusCode.UNAVAILABLE, "the leader is gone"))
            broker.always("Subscribe", stall)
            async with client_of([broker], timeout=3.0) as client:
                with pytest.raises(CallTimeoutError, match=r"did not stand|FetchMetadata was not answered"):
                    await read(client, start="earliest")

    async def test_ended_before(self) -> None:
        async with scripted() as (broker,):
            broker.log(0, 1)
            broker.next("Subscribe", answers())
            async with client_of([broker]) as client:
                assert await read(client, start="earliest", stop="latest") == [0, 1]

    @pytest.mark.parametrize("first", [message(0), b"\xff\xff\xff"], ids=["message", "garbage"])
    async def test_wrong(self, first: bytes) -> None:
        async with scripted() as (broker,):
            broker.log(0, 1)
            broker.next("Subscribe", answers(first, stay=True))
            async with client_of([broker]) as client:
                with pytest.raises(RpcError, match="before its handshake"):
                    await read(client, start="earliest")

    async def test_handshake_and_messages_may_come_in_one_frame(self) -> None:
        async def at_once(call: Any, request: bytes) -> None:
            await call.send([HANDSHAKE, *map(message, range(4))])
            await asyncio.Event().wait()

        async with scripted() as (broker,):
            broker.log(*range(4))
            broker.next("Subscribe", at_once)
            async with client_of([broker]) as client:
                assert await read(client, start="earliest", stop="latest") == [0, 1, 2, 3]

    async def test_cancelled_open_closes_the_subscription(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            broker.always("Subscribe", stall)
            async with client_of([broker]) as client:
                reader = client.subscribe("foo")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await reader.open()
                assert (reader.closed, reader in client._context.open_resources) == (True, False)


@pytest.mark.parametrize("start", ["earliest", "latest", Cursor("me")], ids=["earliest", "latest", "cursor"])
async def test_stream_created_again_just_before_is_read_although_a_broker_knew_the_earlier_one(
    start: Any,
) -> None:
    async with scripted() as (broker,):
        broker.log(*range(3))
        broker.log(stream="__cursors")
        broker.created_ns = 2

        async def answer_late(call: ServerCall, request: bytes) -> bytes:
            answer = broker.metadata(request)
            for stream in answer.streamMetadata:
                if stream.name == "foo":
                    stream.creationTimestamp = 1
                    broker.always("FetchMetadata", broker._metadata)
            return answer.SerializeToString()

        broker.always("FetchMetadata", answer_late)
        broker.next("Subscribe", RpcError(StatusCode.FAILED_PRECONDITION, "Server not partition leader"))
        async with client_of([broker]) as client:
            found = await read(client, start=start, stop=2)
    assert found == ([2] if start == "latest" else [0, 1, 2])


class TestMalformed:
    @pytest.mark.parametrize("place", [0, 1, 2])
    async def test_messages_end_the_read(self, place: int) -> None:
        payloads = [message(0), message(1), message(2)]
        payloads[place] = b"\xff\xff\xff"

        async def at_once(call: Any, request: bytes) -> None:
            await call.send([HANDSHAKE])
            await call.send(payloads)
            await call.send([message(3)])
            await asyncio.Event().wait()

        async with scripted() as (broker,):
            broker.log(*range(4))
            broker.always("Subscribe", at_once)
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                for _ in range(3):  # and message 3 is never taken for the next one
                    with pytest.raises(RpcError, match="invalid message"):
                        await reader.next()

    async def test_malformed_message_in_a_batch_is_an_error(self) -> None:
        async def at_once(call: Any, request: bytes) -> None:
            await call.send([HANDSHAKE])
            await call.send([message(0), b"\xff\xff\xff", message(2)])
            await asyncio.Event().wait()

        async with scripted() as (broker,):
            broker.log(*range(4))
            broker.always("Subscribe", at_once)
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                for _ in range(2):
                    with pytest.raises(RpcError, match="invalid message"):
                        await anext(reader.batches())

    async def test_oversized_message_is_an_error(self) -> None:
        async with scripted() as (broker,):
            broker.log(0, 1, size=5000)
            async with client_of([broker], max_message_bytes=4000) as client:
                with pytest.raises(RpcError) as caught:
                    await read(client, start="earliest", stop="latest")
                assert caught.value.code == StatusCode.RESOURCE_EXHAUSTED


class TestSlowReader:
    async def test_holds_the_server_back(self) -> None:
        sent = 0

        async def flood(call: Any, request: bytes) -> None:
            nonlocal sent
            await call.send([HANDSHAKE])
            for offset in range(400):
                await call.send([message(offset, value=bytes(20_000))])
                sent += 1

        async with scripted() as (broker,):
            broker.log(*range(400))
            broker.next("Subscribe", flood)
            async with (
                client_of([broker], prefetch_bytes=200_000) as client,
                client.subscribe("foo", start="earliest", stop=399) as reader,
            ):
                assert await offsets(reader, 1) == [0]
                before = -1
                while before != sent:  # until nothing moves any more
                    before = sent
                    await asyncio.sleep(0.1)
                # Its own buffer of 256 KiB, the window, and what was taken: not all of the 8 MB.
                assert 0 < sent < 60
                assert await offsets(reader, 399) == list(range(1, 400))

    async def test_gets_messages_larger_than_what_may_be_sent_ahead(self) -> None:
        async with scripted() as (broker,):
            broker.log(0, 1, 2, size=300_000)
            async with client_of([broker], prefetch_bytes=1000) as client:
                assert await read(client, start="earliest", stop="latest") == [0, 1, 2]


class TestCancellation:
    async def test_cancelling_next_loses_no_message(self) -> None:
        async with scripted() as (broker,):
            log = broker.log()
            async with client_of([broker]) as client, client.subscribe("foo") as reader:
                found: list[int] = []
                attempts = itertools.count()
                async with asyncio.timeout(60):
                    while len(found) < 60:
                        if len(found) > log.newest:
                            log.add(1)
                        waiting = asyncio.create_task(reader.next())
                        for _ in range(next(attempts) % 7):
                            await asyncio.sleep(0)
                        waiting.cancel()
                        await asyncio.wait([waiting])
                        if not waiting.cancelled() and (got := waiting.result()) is not None:
                            found.append(got.offset)
                assert found == list(range(60))

    @pytest.mark.parametrize("method", ["batches", "arrow_batches"])
    async def test_cancelling_batches_loses_no_message(self, method: str) -> None:
        async with scripted() as (broker,):
            log = broker.log(*range(5))
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                waiting = asyncio.create_task(anext(getattr(reader, method)(1000, max_wait=60)))
                await until(lambda: reader._read.next_offset == 5)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                assert reader.position == 0
                log.add(1)
                assert await offsets(reader, 6) == list(range(6))

    async def test_ways_to_read_mix(self) -> None:
        async with scripted() as (broker,):
            broker.log(*range(30), chunk=7)
            async with (
                client_of([broker]) as client,
                client.subscribe("foo", start="earliest", stop="latest") as reader,
            ):
                found = await offsets(reader, 2)
                assert reader.position == 2
                found += [m.offset for m in await anext(reader.batches(4))]
                assert reader.position == 6
                found += await offsets(reader, 1)
                batch = await anext(reader.arrow_batches(10))
                found += batch.column("offset").to_pylist()
                assert reader.position == len(found)
                found += [m.offset async for m in reader]
                assert found == list(range(30))
                assert [m async for m in reader] == []

    async def test_lists_are_as_long_as_was_said(self) -> None:
        async with scripted() as (broker,):
            broker.log(*range(23), chunk=5)
            async with (
                client_of([broker]) as client,
                client.subscribe("foo", start="earliest", stop="latest") as reader,
            ):
                lists = [[m.offset for m in one] async for one in reader.batches(4, max_wait=5)]
        assert [len(one) for one in lists] == [4, 4, 4, 4, 4, 3]
        assert [offset for one in lists for offset in one] == list(range(23))

    async def test_an_error_comes_after_the_messages_before_it(self) -> None:
        gone = RpcError(StatusCode.NOT_FOUND, "commit log was deleted")
        async with scripted() as (broker,):
            broker.log(*range(5))
            broker.next("Subscribe", answers(HANDSHAKE, message(0), message(1), error=gone))
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                lists = reader.batches(max_wait=5)
                assert [m.offset for m in await anext(lists)] == [0, 1]
                with pytest.raises(StreamDeletedError):
                    await anext(lists)


class TestClose:
    async def test_while_another_task_reads(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            async with client_of([broker]) as client, client.subscribe("foo") as reader:
                waiting = asyncio.create_task(anext(reader))
                await asyncio.sleep(0.01)
                await reader.close()
                await reader.close()
                with pytest.raises(StopAsyncIteration):
                    await waiting
                assert (await reader.next(), reader.finished) == (None, True)

    async def test_tells_the_server(self) -> None:
        ended = asyncio.Event()

        async def note(call: Any, request: bytes) -> None:
            await call.send([HANDSHAKE])
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with scripted() as (broker,):
            broker.log(0)
            broker.always("Subscribe", note)
            async with client_of([broker]) as client:
                async with client.subscribe("foo"):
                    pass
                async with asyncio.timeout(60):
                    await ended.wait()

    async def test_closing_the_client_ends_a_waiting_reader(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            before = asyncio.all_tasks()
            client = await client_of([broker])
            reader = await client.subscribe("foo").open()
            waiting = asyncio.create_task(reader.next())
            await asyncio.sleep(0.01)
            await client.close()
            assert await waiting is None
            await client.close()
            mine = {task for task in asyncio.all_tasks() - before if not task.get_name().startswith("serve")}
            assert mine == set()
            with pytest.raises(TransportError, match="the client is closed"):
                await client.subscribe("foo").open()

    @pytest.mark.parametrize("whole", [False, True], ids=["subscription", "client"])
    async def test_while_it_is_made_again(self, whole: bool) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            before = asyncio.all_tasks()
            client = await client_of([broker], resubscribe_wait=60)
            reader = await client.subscribe("foo").open()
            waiting = asyncio.create_task(reader.next())
            await asyncio.sleep(0)
            broker.always("Subscribe", stall)
            broker.drop()
            await until(lambda: broker.calls["Subscribe"] == 2)
            begun = asyncio.get_running_loop().time()
            await (client if whole else reader).close()
            assert await waiting is None
            assert asyncio.get_running_loop().time() - begun < 30
            await client.close()
            mine = {task for task in asyncio.all_tasks() - before if not task.get_name().startswith("serve")}
            assert mine == set()

    @pytest.mark.parametrize("partition", [0, "all"])
    async def test_while_it_is_opened(self, partition: Any) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            broker.always("Subscribe", stall)
            client = await client_of([broker], timeout=30.0)
            opening = asyncio.create_task(client.subscribe("foo", partition=partition).open())
            await until(lambda: broker.calls["Subscribe"])
            async with asyncio.timeout(20):
                await client.close()
                with pytest.raises(TransportError):
                    await opening

    async def test_closing_a_reader_whose_recovery_failed_is_silent(self) -> None:
        async with scripted() as (broker,):
            log = broker.log(*range(3))
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                assert await offsets(reader, 3) == [0, 1, 2]
                log.offsets = []
                broker.drop()
                while (recovery := reader._work) is None:  # until it has seen the end of the connection
                    assert await reader.next(0.001) is None
                await until(recovery.done)  # by an error that nobody is there to be told
