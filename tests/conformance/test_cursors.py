"""Cursors: stored, fetched, reset; and the checkpointer that keeps them."""

from __future__ import annotations

import asyncio

import pytest

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.client.positions import Cursor
from liftenvelope.errors import CursorsUnavailableError, UsageError
from liftenvelope.testing import run_liftbridge
from tests.conformance.actions import SOON, new_stream, read_offsets, take


async def test_set_fetch_and_reset(client: Client, name: str) -> None:
    assert await client.fetch_cursor("reader", name, 0) is None
    for offset in (5, 6, 0, 2**63 - 1):
        await client.set_cursor("reader", name, 0, offset)
        assert await client.fetch_cursor("reader", name, 0) == offset
    # A server keeps -1 as any other offset; as a cursor it stands for none.
    await client.reset_cursor("reader", name, 0)
    assert await client.fetch_cursor("reader", name, 0) is None
    await client.reset_cursor("reader", name, 0)


async def test_each_reader_stream_and_partition_has_its_own(client: Client, name: str) -> None:
    places = [
        (reader, stream, partition)
        for reader in "ab"
        for stream in (name, f"{name}.x")
        for partition in (0, 1)
    ]
    for offset, place in enumerate(places):
        await client.set_cursor(*place, offset)
    assert [await client.fetch_cursor(*place) for place in places] == list(range(len(places)))


async def test_the_stream_need_not_exist_and_may_be_made_anew(client: Client, name: str) -> None:
    await client.set_cursor("reader", name, 7, 3)
    await new_stream(client, name, 2)
    await client.delete_stream(name)
    assert await client.fetch_cursor("reader", name, 7) == 3


@pytest.mark.parametrize("cursor_id", ["reader ü", "a.b", "a b", "x" * 500])
async def test_odd_ids(client: Client, name: str, cursor_id: str) -> None:
    await client.set_cursor(cursor_id, name, 0, 4)
    assert await client.fetch_cursor(cursor_id, name, 0) == 4


@pytest.mark.parametrize(
    ("cursor_id", "suffix", "partition", "offset"),
    [
        ("", "", 0, 0),
        ("a,b", "", 0, 0),
        ("\ud800", "", 0, 0),
        ("a", ",b", 0, 0),
        ("a", "", -1, 0),
        ("a", "", 0, -1),
        ("a", "", 0, 2**63),
    ],
)
async def test_what_makes_no_sense_is_refused_here(
    client: Client, name: str, cursor_id: str, suffix: str, partition: int, offset: int
) -> None:
    # With commas two cursors would be one: the server puts none of them in quotes.
    with pytest.raises(UsageError):
        await client.set_cursor(cursor_id, name + suffix, partition, offset)


async def test_many_at_once(client: Client, name: str) -> None:
    await asyncio.gather(*(client.set_cursor(f"r{n}", name, 0, n) for n in range(50)))
    found = await asyncio.gather(*(client.fetch_cursor(f"r{n}", name, 0) for n in range(50)))
    assert found == list(range(50))


async def test_another_client_finds_it(client: Client, name: str) -> None:
    await client.set_cursor("reader", name, 0, 9)
    async with liftenvelope.connect(client._context.options.seeds) as other:
        assert await other.fetch_cursor("reader", name, 0) == 9


async def test_a_reader_goes_on_where_it_was(client: Client, name: str) -> None:
    await new_stream(client, name, 10)
    async with client.checkpointer("reader", name, every_messages=3, every_seconds=60) as checkpoints:
        start = await checkpoints.start(0)
        async with client.subscribe(name, start=start) as messages:
            for message in await take(messages, 5):
                checkpoints.processed(message)
    assert await client.fetch_cursor("reader", name, 0) == 4
    async with client.checkpointer("reader", name) as checkpoints:
        assert await checkpoints.start(0) == 5
        assert await checkpoints.lag(0) == 5
    assert await read_offsets(client, name, start=Cursor("reader"), stop="latest") == [5, 6, 7, 8, 9]


async def test_a_checkpoint_never_goes_back(client: Client, name: str) -> None:
    await new_stream(client, name, 10)
    await client.set_cursor("reader", name, 0, 8)
    async with client.checkpointer("reader", name) as checkpoints:
        checkpoints.processed(0, 3)
        await checkpoints.flush()
        assert await client.fetch_cursor("reader", name, 0) == 8
        await checkpoints.reset(0)
    assert await client.fetch_cursor("reader", name, 0) is None


@pytest.mark.liftbridge_only
async def test_a_server_that_keeps_no_cursors(name: str) -> None:
    with run_liftbridge(config={"cursors.stream.partitions": 0}) as cluster:
        async with liftenvelope.connect(cluster.addresses) as client:
            with pytest.raises(CursorsUnavailableError, match="keeps no cursors") as info:
                await client.set_cursor("reader", name, 0, 1, timeout=SOON)
            assert info.value.retriable
