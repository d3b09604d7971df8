"""Connections of the tasks of a source, on real servers, without Spark."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
from liftenvelope.bulk.idle import IdleConnections
from liftenvelope.spark import _connection
from liftenvelope.spark._options import SourceOptions, source_options
from liftenvelope.spark._source_cores import BatchSource
from liftenvelope.testing import LiftbridgeCluster
from tests.integration.bulk_streams import connections, make_stream, monitored, wait_for

ROWS = 100
TASKS = 20


@pytest.fixture(autouse=True)
def _no_connections() -> Iterator[None]:
    """Other tests of the process have kept none."""
    _connection._IDLE.clear()
    yield
    _connection._IDLE.clear()


def fill(servers: str, name: str) -> None:
    subject = f"{name}.x" if servers.startswith("nats") else None
    bulk.write(servers, name, pa.table({"value": [b"%d" % i for i in range(ROWS)]}), subject=subject)


def options(servers: str, name: str, **given: object) -> SourceOptions:
    format_ = "jetstream" if servers.startswith("nats") else "liftbridge"
    asked = {"servers": servers, "subscribe": name, "minPartitions": TASKS, **given}
    return source_options(format_, asked, streaming=False)


def read(given: SourceOptions) -> list[int]:
    """Plan a batch query and run its tasks, as one worker does."""
    source = BatchSource(given)
    spans = source.spans()
    assert len(spans) >= TASKS
    return sorted(int(v) for span in spans for b in source.read(span) for v in b["value"].to_pylist())


def test_tasks_share_the_connection_for_requests(name: str) -> None:
    with monitored() as server:
        make_stream(server.url, name)
        fill(server.url, name)
        before = connections(server)
        for _ in range(2):
            assert read(options(server.url, name)) == [*range(ROWS)]
        # One to plan each query, one of each task to read, and one for the requests of all tasks.
        assert connections(server) - before == 2 * (1 + TASKS) + 1
        assert connections(server, "connections") == 1


def test_tasks_of_liftbridge_share_the_connection_for_requests(
    liftbridge_server: LiftbridgeCluster, name: str
) -> None:
    liftbridge_server.create_stream(name)
    address = liftbridge_server.addresses[0]
    fill(address, name)
    for _ in range(2):
        assert read(options(address, name)) == [*range(ROWS)]
    assert [len(idle) for _, idle in _connection._IDLE] == [1]


def test_kept_connection_ends_when_no_task_takes_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "IdleConnections", lambda: IdleConnections(0.01))
    with monitored() as server:
        make_stream(server.url, name)
        fill(server.url, name)
        assert read(options(server.url, name)) == [*range(ROWS)]
        wait_for("the connection to end", lambda: not connections(server, "connections"))


def test_kept_connection_that_is_dead_is_replaced(name: str) -> None:
    with monitored() as server:
        make_stream(server.url, name)
        fill(server.url, name)
        given = options(server.url, name)
        source = BatchSource(given)
        spans = source.spans()
        assert sum(batch.num_rows for batch in source.read(spans[0])) > 0
        server.kill()
        server.start()
        assert sum(batch.num_rows for span in spans for batch in source.read(span)) == ROWS
        assert connections(server, "connections") == 1


def test_tasks_of_another_user_open_their_own_connection(name: str) -> None:
    users = [{"user": user, "password": user} for user in ("ann", "bob")]
    accounts = {"A": {"jetstream": True, "users": users[:1]}, "B": {"jetstream": True, "users": users[1:]}}
    with monitored(accounts=accounts) as server:
        for user in ("ann", "bob"):
            url = f"nats://{user}:{user}@{server.address}"
            make_stream(url, name)
            fill(url, name)
            login = {"user": user, "password": user}
            assert read(options(server.url, name, **login)) == [*range(ROWS)]
        assert connections(server, "connections") == 2


def test_kept_connection_to_a_server_that_is_about_to_stop_is_not_used(name: str) -> None:
    with monitored() as server:
        make_stream(server.url, name)
        fill(server.url, name)
        assert read(options(server.url, name)) == [*range(ROWS)]
        ((_, idle),) = _connection._IDLE
        kept = idle.take()
        assert isinstance(kept, NatsSocket)
        with closing(kept):
            assert kept.is_usable()
            assert server.pid is not None
            os.kill(server.pid, signal.SIGUSR2)  # "lame duck mode"
            wait_for("the server to say so", lambda: not kept.is_usable())
            assert kept.leaving
