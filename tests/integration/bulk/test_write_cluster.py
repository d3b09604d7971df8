"""Bulk writes into a stream of three servers whose leader changes meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import nats
import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope.bulk import Access, Progress, WriteFailedError
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.jetstream import JetStream
from tests.integration.jetstream_cluster import make_replicated, three_servers

PATIENCE = 120
ACCESS = Access(timeout=10, reconnect_wait=60, connect_timeout=10)
ROWS = 60_000


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with three_servers() as servers:
        yield servers["n1"].url


def step_down(url: str, name: str) -> None:
    """Have another server lead the stream."""

    async def ask() -> None:
        async with await nats.connect(url) as nc:
            await JetStream(nc).api.request(f"STREAM.LEADER.STEPDOWN.{name}", timeout=5)

    with contextlib.suppress(LiftEnvelopeError):  # there is none just now
        asyncio.run(ask())


def stored(url: str, name: str, least: int) -> list[int]:
    """Return the values of the stream once its leader has at least ``least``."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            read = bulk.read(url, name, columns=["value"], access=ACCESS).read_all()
            if read.num_rows >= least:
                return [int(value) for value in read["value"].to_pylist()]
        except LiftEnvelopeError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(("mode", "ident"), [("fast", None), ("fast", "job"), ("atomic", None)])
def test_another_leader(url: str, name: str, mode: Any, ident: str | None) -> None:
    """The counts match the stored rows: no hole and no row twice, even without ids."""
    make_replicated(url, name, allow_atomic=True, allow_batched=True)
    helpers: list[threading.Thread] = []

    def disturb(progress: Progress) -> None:
        if progress.rows in (20_000, 40_000):
            helpers.append(threading.Thread(target=step_down, args=(url, name)))
            helpers[-1].start()

    table = pa.table({"value": [b"%d" % i for i in range(ROWS)]})
    acked, unknown = ROWS, 0
    try:
        bulk.write(
            url,
            name,
            table.to_reader(4_000),
            subject=f"{name}.x",
            mode=mode,
            message_id=ident,
            progress=disturb,
            access=ACCESS,
        )
    except WriteFailedError as failed:
        assert ident is None
        acked, unknown = failed.acked, failed.unknown
    for helper in helpers:
        helper.join()
    rows = stored(url, name, acked)
    assert rows == list(range(len(rows)))
    assert len(rows) <= acked + unknown
