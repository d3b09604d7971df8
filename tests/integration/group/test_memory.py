"""Memory of a member that reads ahead: bounded in bytes, whatever the sizes of the messages."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections import defaultdict
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.group import GroupConsumer, JetStreamTopicSource
from liftenvelope.jetstream import JetStream
from liftenvelope.nats import accelerate

from .play import LONG, PATIENCE, Play, coordinator, eventually, quiet

KIB, MIB = 1024, 1024 * 1024


async def until_full(js: JetStream, stream: str, consumer: GroupConsumer) -> None:
    """Wait until all readers wait for room, and no pull is open at the server."""
    found = await js.stream(stream)
    async with asyncio.timeout(PATIENCE):
        while True:
            infos = [info async for info in found.consumers()]
            readers = consumer._readers.values()
            if all(one.buffer.wants_room for one in readers) and not any(one.num_waiting for one in infos):
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("is_accelerated", [False, True])
@pytest.mark.parametrize(("partitions", "size"), [(1, 256 * KIB), (2, 100 * KIB), (4, 900 * KIB)])
async def test_member_reads_ahead_no_more_than_its_bytes(
    nc: Client, name: str, partitions: int, size: int, is_accelerated: bool
) -> None:
    """A limit of 6 MiB, and four times as much to read; or messages larger than a share of it.

    The coordinator is in this process, and would also hold the groups of other tests in its bucket.
    """
    play = await Play(nc, name, partitions=partitions, session=LONG).create()
    most = 6 * MIB
    for number in range(4 * most // size):
        await play.js.publish(play.subjects[number % partitions], bytes(size))
    if is_accelerated:
        accelerate(nc)
    async with coordinator(nc, lease=LONG, bucket=name, prefix=name):
        tracemalloc.start()
        try:
            async with play.consumer("a", prefix=name, prefetch_bytes=most) as consumer:
                await until_full(play.js, name, consumer)
                await nc.flush()
                held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert size < held < most + 2 * partitions * size + MIB


async def test_partition_with_messages_larger_than_its_share_is_read_to_its_end(play: Play) -> None:
    """Messages of each size: below the share, above it, and such that a pull is full to the byte."""
    sizes = [1, 700, 20 * KIB, 3 * KIB, 3 * KIB, 3 * KIB, 50, 30 * KIB, 2, 2, 2] * 8
    for size in sizes:
        await play.js.publish(play.subjects[0], bytes(size))
    async with play.consumer("a", prefetch_bytes=96 * KIB) as consumer, asyncio.timeout(PATIENCE):
        found = [len((await anext(consumer)).data) for _ in sizes]
    assert found == sizes


async def test_shares_of_a_partition_that_stays_follow_the_number_of_partitions(play: Play) -> None:
    await play.publish(4)
    async with play.consumer("a", prefetch_bytes=12 * MIB) as consumer:
        await eventually(lambda: consumer.buffered == 4)
        assert [one.buffer.max_bytes for one in consumer._readers.values()] == [MIB] * 4
        kept = set(consumer._readers.values())
        async with play.consumer("b"):
            await eventually(lambda: len(consumer.assignment) == 2)
            assert set(consumer._readers.values()) <= kept
            assert [one.buffer.max_bytes for one in consumer._readers.values()] == [2 * MIB] * 2


async def test_two_members_that_read_one_source_have_shares_of_their_own(play: Play) -> None:
    source = JetStreamTopicSource(play.js, play.topic)
    settings: dict[str, Any] = {"session_timeout": LONG, "timeout": PATIENCE, "on_event": quiet}
    pulled: defaultdict[str, set[int]] = defaultdict(set)  # by consumer at the server; it may pull again

    async def note(msg: Msg) -> None:
        pulled[msg.subject].add(json.loads(msg.data)["max_bytes"])

    await play.nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{play.name}.>", cb=note)
    async with GroupConsumer(play.nc, f"{play.name}-a", source, prefetch_bytes=48 * MIB, **settings) as large:
        await eventually(lambda: len(pulled) >= 4)
        async with GroupConsumer(play.nc, f"{play.name}-b", source, prefetch_bytes=12 * MIB, **settings):
            await eventually(lambda: len(pulled) >= 8)
            for key in large.assignment:  # each partition is opened anew
                large.seek(*key, 0)
            await eventually(lambda: len(pulled) >= 12)
    assert list(pulled.values()) == [{4 * MIB}] * 4 + [{MIB}] * 4 + [{4 * MIB}] * 4
