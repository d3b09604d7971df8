"""Names that a client has used: their tables are bounded."""

from __future__ import annotations

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.client._recent import MOST_NAMES, note
from liftenvelope.client._sending import publish_stream
from liftenvelope.envelope import Ack
from liftenvelope.rpc.server import ServerCall
from tests.unit.scripted_broker import client_of, scripted

pytestmark = pytest.mark.usefixtures("loop_errors")


def test_table_keeps_its_newest_keys() -> None:
    table: dict[int, int] = {}
    for key in range(1000):
        note(table, key, -key, most=10)
        assert len(table) <= 10
        assert list(table) == list(range(key + 1 - len(table), key + 1))
        assert table[key] == -key


def test_key_that_is_noted_again_outlives_others() -> None:
    table: dict[str, None] = {}
    for number in range(1000):
        note(table, "used", None, most=10)
        note(table, f"once {number}", None, most=10)
        assert "used" in table


async def test_partitions_of_streams_used_once_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_stream, "MOST_NAMES", 10)

    async def publish_async(call: ServerCall) -> None:
        async for data in call:
            request = api_pb2.PublishRequest.FromString(data)
            if request.value == b"waits":
                continue
            ack = api_pb2.Ack(stream=request.stream, correlationId=request.correlationId)
            answer = api_pb2.PublishResponse(correlationId=request.correlationId, ack=ack)
            await call.send([answer.SerializeToString()])

    async with scripted() as (broker,):
        broker.server.handlers["/proto.API/PublishAsync"] = publish_async
        for number in range(100):
            broker.log(stream=f"s{number}")
        async with client_of([broker], ack_wait=60.0) as client:
            streams = client._publisher.streams
            streams._tidy_at = 10
            waiting = await client.publish_async("s0", b"waits")
            for number in range(1, 100):
                assert isinstance(await client.publish(f"s{number}", b"v"), Ack)
                assert len(streams._pins) <= 10
                assert ("s0", 0) in streams._pins  # its message is in flight
            waiting.cancel()


async def test_names_of_streams_used_once_are_not_kept() -> None:
    async with scripted() as (broker,), client_of([broker], metadata_max_age=0.001) as client:
        for number in range(2 * MOST_NAMES):
            broker.streams[f"s{number}"] = [broker.id]
            if number % 1000 == 999:
                names = [f"s{one}" for one in range(number - 999, number + 1)]
                await client.fetch_metadata(streams=names)
        seen = client._context.cluster._seen
        assert len(seen) <= MOST_NAMES
        assert f"s{2 * MOST_NAMES - 1}" in seen
