"""Bulk reads of a stream of three servers, of which two have only a part of it yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import nats
import pytest

from liftenvelope import bulk
from liftenvelope.jetstream import JetStream
from tests.integration.bulk_streams import BulkThreads, publish
from tests.integration.jetstream_cluster import make_replicated, three_servers
from tests.integration.restored import COUNT, ROUNDS, restores


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with three_servers() as servers:
        yield servers["n1"].url


def test_reads_and_counts_are_whole_while_the_replicas_are_filled(
    url: str, name: str, tmp_path: Path
) -> None:
    """Before reads asked the leader, one restore in three was read or counted short."""
    for later in restores(url, name, tmp_path):
        for subject in (None, f"{name}.1"):
            wanted = [i for i in range(COUNT + 1) if subject is None or (i % 3 == 1 and i < COUNT)]
            found = bulk.read(url, name, subjects=subject, columns=["offset"]).read_all()
            assert found["offset"].to_pylist() == wanted
            assert bulk.count(url, name, subjects=subject) == len(wanted)
        found = bulk.read(url, name, start=later, columns=["offset"]).read_all()
        assert found["offset"].to_pylist() == [COUNT]
        assert bulk.read(url, name, start=COUNT - 5).read_all().num_rows == 6


def test_filtered_tail_reads_from_the_leader(url: str, name: str) -> None:
    """A consumer elsewhere would take messages for lost, or miss lost ones, while its server lags."""
    make_replicated(url, name)
    publish(url, [(f"{name}.{i % 3}", b"", None) for i in range(30)])

    async def servers() -> tuple[str, list[str]]:
        async with await nats.connect(url) as nc:
            stream = await JetStream(nc).stream(name)
            cluster, found = stream.cached_info.cluster, [one.cluster async for one in stream.consumers()]
            assert cluster is not None
            return cluster.leader, ["" if one is None else one.leader for one in found]

    for _ in range(ROUNDS):
        threads = BulkThreads()
        with patch("liftenvelope.bulk._jetstream.filter_choice.server_pays", lambda *_: True):
            reader = bulk.tail(url, name, subjects=f"{name}.1", start="earliest", batch_seconds=0.05)
        assert reader.read_next_batch()["offset"].to_pylist() == list(range(1, 30, 3))
        while True:  # consumers that were replaced are deleted in the background
            leader, found = asyncio.run(servers())
            if found == [leader]:
                break
        del reader
        threads.wait_until_gone()
