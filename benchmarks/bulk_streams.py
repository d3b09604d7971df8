"""Streams and tables that bulk reads and writes are measured with."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import nats
import pyarrow as pa

from liftenvelope.jetstream import JetStream, StorageType, StreamConfig

__all__ = ["make_stream", "rows"]


def make_stream(
    url: str, *, below: bool = False, storage: StorageType = StorageType.MEMORY, **config: Any
) -> str:
    """A stream, on the subject of its name or all below it; ``config`` is what else it has."""
    name = f"bench-{uuid4().hex[:8]}"
    subjects = (f"{name}.>",) if below else (name,)
    wanted = StreamConfig(name=name, subjects=subjects, storage=storage, **config)

    async def make() -> None:
        async with await nats.connect(url) as nc:
            await JetStream(nc).create_stream(wanted)

    asyncio.run(make())
    return name


def rows(count: int, size: int) -> pa.Table:
    """So many values of so many bytes."""
    return pa.table({"value": pa.array([b"x" * size] * count, pa.binary())})
