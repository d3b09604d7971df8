"""Commands on a stream of three servers, of which two have only a part of it yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from liftenvelope.cli._groups.nats import NatsGroups
from liftenvelope.group import Coordinator, GroupConsumer, JetStreamTopic
from liftenvelope.jetstream import JetStream
from tests.integration.cli.commands import lines_of
from tests.integration.jetstream_cluster import three_servers
from tests.integration.restored import COUNT, restores


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with three_servers() as servers:
        yield servers["n1"].url


def test_reads_are_whole_while_the_replicas_are_filled(url: str, name: str, tmp_path: Path) -> None:
    for _ in restores(url, name, tmp_path):
        for subject in ("1", "2"):
            filtered = ("--subject", f"{name}.{subject}")
            found = lines_of("tail", name, "--start", "earliest", "--no-follow", *filtered, "--url", url)
            assert [one["sequence"] for one in found] == [
                i + 1 for i in range(COUNT) if i % 3 == int(subject)
            ]


def test_reads_begin_where_the_leader_says_while_the_replicas_are_filled(
    url: str, name: str, tmp_path: Path
) -> None:
    for late in restores(url, name, tmp_path):
        for start in ("latest", late.isoformat()):
            found = lines_of("tail", name, "--start", start, "--limit", "1", "--url", url)
            assert [one["sequence"] for one in found] == [COUNT + 1]


async def test_group_is_reset_to_a_time_of_the_leader_while_the_replicas_are_filled(
    url: str, name: str, tmp_path: Path
) -> None:
    topic = JetStreamTopic.of_stream(name, [f"{name}.0", f"{name}.1"])
    rounds = restores(url, name, tmp_path)
    await asyncio.to_thread(next, rounds)
    async with await nats.connect(url) as nc, Coordinator(nc), JetStream(nc) as js:
        async with GroupConsumer(nc, name, topic, auto_offset="earliest") as consumer:
            await anext(aiter(consumer))
        groups = NatsGroups(js, 60.0)
        rows = (await groups.describe(name, ())).partitions
        while late := await asyncio.to_thread(next, rounds, None):
            for _ in range(8):
                assert [one.new for one in await groups.plan(rows, late)] == [COUNT, COUNT + 1]
