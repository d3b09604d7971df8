"""Rewinds whose offset bounds can't be found: the caller gets an answer all the same."""

from __future__ import annotations

import asyncio
from typing import Any

from nats.aio.client import Client

from liftenvelope._pb import groups_pb2 as pb
from liftenvelope.group import (
    CoordinatorDefectError,
    GroupClient,
    GroupRequestError,
    TopicPartition,
    TopicSpec,
)
from liftenvelope.group.calls import GroupCalls

from .play import PATIENCE, coordinator


async def create(nc: Client, name: str, *places: pb.Place) -> None:
    """Create a group with a topic of two partitions, without the checks of the client."""
    topic = pb.Topic(name="t", partitions=2, places=places)
    request = pb.CreateGroupRequest(name="g", session_timeout_ms=10_000, topics=[topic])
    calls = GroupCalls(nc, prefix=name, timeout=PATIENCE)
    await calls.any("CreateGroup", request, pb.CreateGroupResponse)


async def test_rewind_of_a_malformed_place_is_refused(nc: Client, name: str) -> None:
    async with coordinator(nc, bucket=name, prefix=name):
        await create(nc, name, pb.Place(stream="white space"), pb.Place(stream="S", subject="white space"))
        client = GroupClient(nc, prefix=name, timeout=PATIENCE)
        outcome = await client.rewind("g", {("t", 0): 1, ("t", 1): 1})
        assert [type(error) for error in outcome.values()] == [GroupRequestError, GroupRequestError]
        assert "has a malformed place: stream name must not have white space" in str(
            outcome[TopicPartition("t", 0)]
        )


async def test_bounds_that_fail_are_an_answer(nc: Client, name: str) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    async def bounds(_: TopicSpec, partition: int) -> tuple[int, int]:
        if partition:
            raise LookupError("of the function")
        return 3, 9

    async with coordinator(nc, bucket=name, prefix=name, bounds=bounds):
        await create(nc, name)
        client = GroupClient(nc, prefix=name, timeout=PATIENCE)
        outcome = await client.rewind("g", {("t", 0): 1, ("t", 1): 1})
        assert outcome[TopicPartition("t", 0)] == 3
        assert isinstance(outcome[TopicPartition("t", 1)], CoordinatorDefectError)
    assert [str(failure["exception"]) for failure in failures] == ["of the function"]
