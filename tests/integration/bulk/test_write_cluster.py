"""Bulk writes into a stream of three servers whose leader changes meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
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
from liftenvelope.testing import FaultProxy, NatsServer
from tests.integration.jetstream_cluster import make_replicated, three_servers

PATIENCE = 120
ACCESS = Access(timeout=10, reconnect_wait=60, connect_timeout=10)
ROWS = 60_000


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, NatsServer]]:
    with three_servers() as running:
        yield running


@pytest.fixture(scope="module")
def url(servers: dict[str, NatsServer]) -> str:
    return servers["n1"].url


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


def leader_of(url: str, name: str) -> str:
    async def ask() -> str:
        async with await nats.connect(url) as nc:
            info = await (await JetStream(nc).stream(name)).info()
            assert info.cluster is not None
            assert info.cluster.leader is not None
            return info.cluster.leader

    return asyncio.run(ask())


def test_rows_sent_again_while_the_stream_has_not_decided_about_them(
    servers: dict[str, NatsServer], url: str, name: str
) -> None:
    """Its followers are stopped for a while. Until they go on, it refuses a row with the same message id."""
    make_replicated(url, name)
    leader = leader_of(url, name)
    followers = [server.pid for node, server in servers.items() if node != leader and server.pid is not None]
    faults: list[threading.Thread] = []
    with FaultProxy(servers[leader].url) as proxy:

        def cut_while_they_are_stopped() -> None:
            time.sleep(1)
            proxy.cut()
            time.sleep(2)
            for pid in followers:
                os.kill(pid, signal.SIGCONT)

        def stop(progress: Progress) -> None:
            if progress.rows >= 8_000 and not faults:
                for pid in followers:
                    os.kill(pid, signal.SIGSTOP)
                faults.append(threading.Thread(target=cut_while_they_are_stopped))
                faults[-1].start()

        table = pa.table({"value": [b"%d" % i for i in range(20_000)]})
        done = bulk.write(
            f"nats://{proxy.address}",
            name,
            table.to_reader(4_000),
            subject=f"{name}.x",
            mode="pipelined",
            message_id="job",
            progress=stop,
            access=ACCESS,
        )
        faults[-1].join()
    assert done.acked == 20_000
    assert sorted(stored(url, name, 20_000)) == [*range(20_000)]
