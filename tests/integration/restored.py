"""A stream of three servers right after a restore: two of them have only a part of it yet."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import nats

from liftenvelope import bulk
from liftenvelope.jetstream import JetStream
from tests.integration.bulk_streams import publish
from tests.integration.jetstream_cluster import make_replicated

#: Number of messages on three subjects, before the last one.
COUNT = 3_000
#: Number of restores. A consumer is placed at random, so only some of those made after them lag.
ROUNDS = 6


def restores(url: str, name: str, folder: Path) -> Iterator[datetime]:
    """Yield a time before the last message after each restore of a stream."""
    make_replicated(url, name)
    publish(url, [(f"{name}.{i % 3}", os.urandom(10_000), None) for i in range(COUNT)])
    late = datetime.now(UTC)
    publish(url, [(f"{name}.0", b"", None)])
    bulk.backup(url, name, folder)
    for _ in range(ROUNDS):
        asyncio.run(_delete(url, name))
        bulk.restore_backup(folder, url)
        yield late


async def _delete(url: str, name: str) -> None:
    async with await nats.connect(url) as nc:
        await JetStream(nc).delete_stream(name, timeout=30)
