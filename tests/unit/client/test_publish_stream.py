"""Publish streams on a broker that is scripted: it ends a half-closed stream late, or answers late."""

from __future__ import annotations

import asyncio

import pytest

from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.client._sending.leader_check import until_served
from liftenvelope.envelope import Ack
from liftenvelope.rpc.server import ServerCall
from tests.unit.scripted_broker import client_of, scripted

pytestmark = pytest.mark.usefixtures("loop_errors")


async def test_message_for_a_half_closed_stream_goes_on_a_new_one() -> None:
    # Liftbridge 1.9.0 keeps a half-closed stream for 5 s while an ack is missing.
    half_closed = asyncio.Event()

    async def publish_async(call: ServerCall) -> None:
        async for data in call:
            request = api_pb2.PublishRequest.FromString(data)
            ack = api_pb2.Ack(stream=request.stream, correlationId=request.correlationId)
            answer = api_pb2.PublishResponse(correlationId=request.correlationId, ack=ack)
            await call.send([answer.SerializeToString()])
        half_closed.set()
        await asyncio.Event().wait()

    async with scripted() as (broker,):
        broker.log()
        broker.server.handlers["/proto.API/PublishAsync"] = publish_async
        async with client_of([broker], keep_alive_time=0.1, ack_wait=10.0) as client:
            for _ in range(3):
                assert isinstance(await client.publish("foo", b"v"), Ack)
                await half_closed.wait()
                half_closed.clear()


async def test_check_for_leaders_ends_at_its_deadline_between_two_partitions() -> None:
    deadline = Deadline(60.0)

    async def answer_late(call: ServerCall, request: bytes) -> bytes:
        deadline._end = 0.0
        return await broker._partition(call, request)

    async with scripted() as (broker,):
        for partition in range(3):
            broker.log(0, partition=partition)
        broker.always("FetchPartitionMetadata", answer_late)
        async with client_of([broker]) as client:
            asked = [("foo", partition) for partition in range(3)]
            await until_served(client._context.cluster, lambda: asked, deadline)
        assert broker.calls["FetchPartitionMetadata"] == 1
