"""Consumer groups: members share the partitions, and what was processed is not processed again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.errors import FencedError, NoCursorError, NoSuchStreamError, UsageError
from tests.conformance.actions import PATIENCE, eventually, fill, take
from tests.conformance.conftest import Server


async def soon(condition: Callable[[], bool]) -> None:
    """Poll until it is so, with a deadline."""

    async def is_so() -> bool:
        return condition()

    await eventually(is_so)


def all_of(name: str, partitions: int) -> set[tuple[str, int]]:
    return {(name, partition) for partition in range(partitions)}


async def fill_partitions(client: Client, name: str, partitions: int, count: int) -> None:
    for partition in range(partitions):
        await fill(client, name, count, partition=partition)


async def test_one_member_gets_all(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=3)
    await fill_partitions(client, name, 3, 5)
    async with client.consumer(name, [name], auto_offset="earliest", consumer_id="one") as consumer:
        found = await take(consumer, 15)
        assert set(consumer.assignment) == all_of(name, 3)
        assert (consumer.group, consumer.consumer_id) == (name, "one")
        group = (await client.fetch_metadata(groups=[name])).groups[name]
        assert (group.id, group.epoch) == (name, consumer.epoch)
    for partition in range(3):
        assert [m.offset for m in found if m.partition == partition] == [0, 1, 2, 3, 4]
    # A group goes with its last member.
    assert name not in (await client.fetch_metadata(groups=[name])).groups


async def test_streams_of_one_group(client: Client, name: str) -> None:
    streams = [f"{name}-a", f"{name}-b"]
    for stream in streams:
        await client.create_stream(stream, stream, partitions=2)
        await fill_partitions(client, stream, 2, 2)
    async with client.consumer(name, streams, auto_offset="earliest") as consumer:
        found = {(m.stream, m.partition, m.offset) for m in await take(consumer, 8)}
    assert found == {
        (stream, partition, offset) for stream in streams for partition in (0, 1) for offset in (0, 1)
    }


async def test_the_next_member_goes_on_where_the_last_one_was(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    await fill(client, name, 10)
    async with client.consumer(name, [name], auto_offset="earliest") as consumer:
        for message in await take(consumer, 4):
            await consumer.commit(message)
    async with client.consumer(name, [name], auto_offset="error") as consumer:
        assert [message.offset for message in await take(consumer, 6)] == [4, 5, 6, 7, 8, 9]


async def test_two_members_share(client: Client, server: Server, name: str) -> None:
    await client.create_stream(name, name, partitions=4)
    async with (
        liftenvelope.connect(server.addresses) as elsewhere,
        client.consumer(name, [name], auto_offset="earliest") as one,
        elsewhere.consumer(name, [name], auto_offset="earliest") as two,
    ):
        await soon(lambda: len(one.assignment) == len(two.assignment) == 2)
        assert one.assignment | two.assignment == all_of(name, 4)
        await fill_partitions(client, name, 4, 5)
        found = [*await take(one, 10), *await take(two, 10)]
    assert {(m.partition, m.offset) for m in found} == {(p, offset) for p in range(4) for offset in range(5)}


async def test_a_member_that_leaves_hands_its_partitions_over(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=2)
    await fill_partitions(client, name, 2, 6)
    async with client.consumer(name, [name], auto_offset="earliest") as one:
        async with client.consumer(name, [name], auto_offset="earliest") as two:
            await soon(lambda: len(one.assignment) == len(two.assignment) == 1)
            # Messages of before the group was divided may have been handed to nobody yet: read, and commit.
            first = [*await take(two, 3)]
            await two.commit()
        await soon(lambda: len(one.assignment) == 2)
        seen = {(m.partition, m.offset) for m in first}
        async with asyncio.timeout(PATIENCE):
            async for message in one:
                seen.add((message.partition, message.offset))
                if len(seen) == 12:
                    break
    assert seen == {(partition, offset) for partition in (0, 1) for offset in range(6)}


async def test_what_was_assigned_and_revoked_is_told(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=2)
    told: list[tuple[str, Any]] = []
    async with client.consumer(
        name,
        [name],
        on_assigned=lambda partitions: told.append(("assigned", sorted(partitions))),
        on_revoked=lambda partitions: told.append(("revoked", sorted(partitions))),
    ):
        await soon(lambda: bool(told))
    assert told == [("assigned", sorted(all_of(name, 2))), ("revoked", sorted(all_of(name, 2)))]


@pytest.mark.parametrize(
    ("auto_offset", "expected"), [("new", [3]), ("latest", [2, 3]), ("earliest", [0, 1, 2, 3])]
)
async def test_where_a_group_without_a_cursor_begins(
    client: Client, name: str, auto_offset: Any, expected: list[int]
) -> None:
    await client.create_stream(name, name)
    await fill(client, name, 3)
    async with client.consumer(name, [name], auto_offset=auto_offset) as consumer:
        await soon(lambda: consumer.position(name, 0) is not None)
        await fill(client, name, [b"later"])
        assert [message.offset for message in await take(consumer, len(expected))] == expected


async def test_a_group_that_must_have_a_cursor(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    with pytest.raises(NoCursorError, match=name):
        async with asyncio.timeout(PATIENCE), client.consumer(name, [name], auto_offset="error") as consumer:
            await anext(consumer)


async def test_pause_resume_and_seek(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    await fill(client, name, 5)
    async with client.consumer(name, [name], auto_offset="earliest") as consumer:
        assert [message.offset for message in await take(consumer, 5)] == [0, 1, 2, 3, 4]
        consumer.pause(name, 0)
        consumer.seek(name, 0, 1)
        waiting = asyncio.ensure_future(anext(consumer))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        consumer.resume(name, 0)
        async with asyncio.timeout(PATIENCE):
            assert (await waiting).offset == 1
        assert [message.offset for message in await take(consumer, 3)] == [2, 3, 4]
        with pytest.raises(FencedError, match=name):
            consumer.seek(name, 9, 0)


async def test_lag(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=2)
    await fill(client, name, 10, partition=0)
    async with client.consumer(name, [name], auto_offset="earliest") as consumer:
        for message in await take(consumer, 4):
            await consumer.commit(message)
        assert await consumer.lag() == {(name, 0): 6, (name, 1): 0}


async def test_what_makes_no_sense(client: Client, name: str) -> None:
    with pytest.raises(UsageError):
        client.consumer("", [name])
    with pytest.raises(UsageError):
        client.consumer("a,b", [name])
    with pytest.raises(UsageError, match="group"):
        client.consumer("\ud800", [name])
    with pytest.raises(UsageError, match="consumer_id"):
        client.consumer(name, [name], consumer_id="\ud800")
    with pytest.raises(UsageError):
        client.consumer(name, [])
    with pytest.raises(UsageError, match="sometimes"):
        client.consumer(name, [name], auto_offset="sometimes")  # type: ignore[arg-type]
    with pytest.raises(NoSuchStreamError, match=name):
        async with client.consumer(name, [name]):
            pass
