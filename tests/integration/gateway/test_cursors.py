"""Cursors in a bucket: what is kept, what is refused, and that every gateway sees the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from liftenvelope._pb import api_pb2
from liftenvelope.errors import InternalError
from liftenvelope.gateway import Limits
from liftenvelope.gateway._clients.quotas import Quotas
from liftenvelope.gateway._readers.cursors import CursorService, cursor_key
from liftenvelope.jetstream.context import JetStream
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect, until


@pytest.fixture
async def js(jetstream_server: NatsServer) -> AsyncIterator[JetStream]:
    async with JetStream(await connect(jetstream_server.url)) as context:
        yield context


@pytest.fixture
async def cursors(js: JetStream) -> CursorService:
    return await started(js)


async def started(js: JetStream) -> CursorService:
    return await CursorService.open(js, Limits(), Quotas(Limits()))


async def put(cursors: CursorService, cursor_id: str, stream: str, partition: int, offset: int) -> None:
    request = api_pb2.SetCursorRequest(cursorId=cursor_id, stream=stream, partition=partition, offset=offset)
    await cursors.set(request.SerializeToString())


async def get(cursors: CursorService, cursor_id: str, stream: str, partition: int) -> int:
    request = api_pb2.FetchCursorRequest(cursorId=cursor_id, stream=stream, partition=partition)
    answer = await cursors.fetch(request.SerializeToString())
    return api_pb2.FetchCursorResponse.FromString(answer).offset


async def test_any_offset_is_kept(cursors: CursorService, name: str) -> None:
    assert await get(cursors, "r", name, 0) == -1
    for offset in (0, 5, 4, 2**63 - 1, -1, -(2**63)):
        await put(cursors, "r", name, 0, offset)
        assert await get(cursors, "r", name, 0) == offset


async def test_names_of_every_kind_are_kept_apart(cursors: CursorService, name: str) -> None:
    ids = ["a", "a.b", "a=2Eb", "A", "ü", " ", "*", ">", "$", "x" * 500, "x" * 501, "a/b", "a\nb", "0"]
    places = [(ident, f"{name}{suffix}", part) for ident in ids for suffix in ("", ".0") for part in (0, 1)]
    for offset, place in enumerate(places):
        await put(cursors, *place, offset)
    assert [await get(cursors, *place) for place in places] == list(range(len(places)))


async def test_what_one_gateway_sets_another_finds(cursors: CursorService, js: JetStream, name: str) -> None:
    other = await started(js)
    for offset in range(20):
        await put(cursors, "r", name, 0, offset)
        assert await get(other, "r", name, 0) == offset


async def test_many_at_once(cursors: CursorService, name: str) -> None:
    await asyncio.gather(*(put(cursors, f"r{n}", name, 0, n) for n in range(200)))
    assert await asyncio.gather(*(get(cursors, f"r{n}", name, 0) for n in range(200))) == list(range(200))


@pytest.mark.parametrize("is_stored", [True, False])
async def test_last_of_overlapping_calls_determines_the_offset_after_a_restart(
    cursors: CursorService, js: JetStream, name: str, is_stored: bool
) -> None:
    if is_stored:
        await put(cursors, "r", name, 0, 4)
    restarted = await started(js)
    await asyncio.gather(*(put(restarted, "r", name, 0, offset) for offset in range(5, 15)))
    assert await get(restarted, "r", name, 0) == 14


async def test_call_that_starts_after_the_first_check_does_not_overtake_earlier_calls(
    cursors: CursorService, js: JetStream, name: str
) -> None:
    await put(cursors, "r", name, 0, 4)
    restarted = await started(js)
    first, *later = [asyncio.create_task(put(restarted, "r", name, 0, offset)) for offset in range(5, 15)]
    await first
    await asyncio.gather(put(restarted, "r", name, 0, 15), *later)
    assert await get(restarted, "r", name, 0) == 15


async def test_offset_that_is_sent_again_does_not_overwrite_a_newer_one(
    cursors: CursorService, js: JetStream, name: str
) -> None:
    await put(cursors, "r", name, 0, 4)
    bucket = (await js.stream("KV_lift_cursors")).cached_info.config
    await js.delete_stream(bucket.name)
    first = asyncio.create_task(put(cursors, "r", name, 0, 5))
    await until(lambda: js._retries)  # nothing took it, as while the bucket has no leader
    await js.create_stream(bucket)
    second = asyncio.create_task(put(cursors, "r", name, 0, 6))
    await asyncio.wait([first, second])  # the first may have failed before the bucket was there
    assert second.exception() is None
    assert await get(cursors, "r", name, 0) == 6


@pytest.mark.parametrize(
    ("cursor_id", "stream", "partition", "reason"),
    [
        ("", "s", 0, "No cursorId provided"),
        ("r", "", 0, "No stream provided"),
        ("a,b", "s", 0, "comma"),
        ("a", "b,s", 0, "comma"),
        ("a", "s", -1, "partition must be at least 0, got -1"),
    ],
)
async def test_what_is_refused(
    cursors: CursorService, cursor_id: str, stream: str, partition: int, reason: str
) -> None:
    for call in (put(cursors, cursor_id, stream, partition, 1), get(cursors, cursor_id, stream, partition)):
        with pytest.raises(RpcError, match=reason) as info:
            await call
        assert info.value.code == StatusCode.INVALID_ARGUMENT


async def test_a_value_of_somebody_elses(cursors: CursorService, js: JetStream, name: str) -> None:
    subject = f"$KV.lift_cursors.{cursor_key('r', name, 0)}"
    await js.publish(subject, b"seven")
    with pytest.raises(InternalError, match="seven"):
        await get(cursors, "r", name, 0)
    await js.publish(subject, b"", headers={"KV-Operation": "DEL"})
    assert await get(cursors, "r", name, 0) == -1


async def test_a_kill_of_the_nats_server_takes_no_cursor_back(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        client: Client = await connect(server.url)
        async with JetStream(client) as js:
            cursors = await started(js)
            for offset in range(50):
                await put(cursors, "r", name, 0, offset)
            server.kill()
            server.start()
            async with asyncio.timeout(60):
                while not client.stats["reconnects"] or not client.is_connected:
                    await asyncio.sleep(0.01)
            assert await get(cursors, "r", name, 0) == 49
        await client.close()
