"""Bulk reads over connections that fail, and servers that go and come back: each row once, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest
from nats.js import JetStreamContext

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import Access, ReadLostError
from liftenvelope.errors import NoSuchPartitionError, NoSuchStreamError, OffsetOutOfRangeError
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, NatsServer, run_liftbridge, run_nats_server
from tests.faults.bulk_reads import LOGS, Log, run_seed
from tests.integration.bulk_streams import (
    BulkThreads,
    jetstream,
    make_stream,
    numbered,
    offsets,
    publish,
    with_jetstream,
)

COUNT = 3_000
SIZE = 500
#: Short enough that a stall is noticed in a test, long enough for a machine that is busy.
PATIENT = Access(stall_timeout=6.0, reconnect_wait=60.0, connect_timeout=10.0, timeout=20.0)
#: Of the hundred of `make soak`: among them is each kind of fault.
SEEDS = (3, 4, 5, 7, 14)
#: Messages and bytes of each: a read that is cut off after its first batch has not got all of them yet.
MORE_THAN_SOCKETS_HOLD = (20_000, 2_000)


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with jetstream() as server:
        make_stream(server.url, "log")
        publish(server.url, numbered("log", COUNT, SIZE))
        yield server


def read_all(url: str, stream: str, act: Callable[[int], None], access: Access) -> list[int]:
    """Offsets of a read in small batches, with something done between them; values are checked."""
    found: list[int] = []
    for batch in bulk.read(url, stream, batch_rows=50, access=access):
        part = batch["offset"].to_pylist()
        assert [int(value.split(b".")[0]) for value in batch["value"].to_pylist()] == part
        found += part
        act(len(found))
    return found


@pytest.mark.parametrize("make", LOGS.values(), ids=LOGS)
def test_some_seeds_of_the_campaign(make: Callable[[], AbstractContextManager[Log]]) -> None:
    with make() as log:
        for seed in SEEDS:
            run_seed(log, seed)


LARGE = 40 * 1024 * 1024


@contextmanager
def stall(proxy: FaultProxy) -> Iterator[None]:
    """Pass nothing on until somebody connects anew."""
    before = proxy.connections
    proxy.stall()

    def resume() -> None:
        deadline = time.monotonic() + 60
        while proxy.connections == before and time.monotonic() < deadline:
            time.sleep(0.05)
        proxy.resume()

    thread = threading.Thread(target=resume)
    thread.start()
    yield
    thread.join()


def test_a_stalled_connection_to_jetstream(nats: NatsServer, name: str) -> None:
    make_stream(nats.url, name)
    publish(nats.url, [(f"{name}.x", bytes(LARGE // 400), None)] * 400)
    with FaultProxy(nats.url) as proxy:
        reader = bulk.read(f"nats://{proxy.address}", name, batch_rows=10, access=PATIENT)
        found = offsets(reader.read_next_batch())
        with stall(proxy):
            found += offsets(reader.read_all())
        assert found == list(range(400))


def test_a_stalled_connection_to_liftbridge(liftbridge_server: LiftbridgeCluster, name: str) -> None:
    address = liftbridge_server.addresses[0]
    with liftenvelope.connect_blocking(address, ack_wait=60) as client:
        client.create_stream(name, name)
        client.publish_many(name, [bytes(LARGE // 400)] * 400, partition=0, max_in_flight=20)
    with FaultProxy(address) as proxy:
        access = replace(PATIENT, stall_timeout=3.0, address_map={address: proxy.address})
        reader = bulk.read(proxy.address, name, batch_rows=10, access=access)
        found = offsets(reader.read_next_batch())
        with stall(proxy):
            found += offsets(reader.read_all())
        assert found == list(range(400))


def test_a_jetstream_server_is_killed_and_comes_back() -> None:
    with jetstream() as server:
        make_stream(server.url, "log")
        publish(server.url, numbered("log", COUNT, SIZE))
        state: list[threading.Thread] = []

        def act(rows: int) -> None:
            if not state:
                server.kill()
                state.append(threading.Thread(target=server.start))
                state[0].start()

        assert read_all(server.url, "log", act, PATIENT) == list(range(COUNT))
        state[0].join()


@contextmanager
def liftbridge_with_log() -> Iterator[LiftbridgeCluster]:
    with run_liftbridge() as cluster:
        with liftenvelope.connect_blocking(cluster.addresses, ack_wait=60) as client:
            client.create_stream("log", "log")
            client.publish_many("log", [b"%d" % i + b"." * SIZE for i in range(COUNT)], partition=0)
        yield cluster


def test_a_liftbridge_server_is_killed_and_comes_back() -> None:
    with liftbridge_with_log() as cluster:
        state: list[threading.Thread] = []

        def restart() -> None:
            cluster.nodes[0].start()
            # After a kill the end of the log can be hidden until somebody publishes again; and a broker that
            # has just started knows no streams yet.
            deadline = time.monotonic() + 60
            with liftenvelope.connect_blocking(cluster.addresses, timeout=30, ack_wait=30) as client:
                while time.monotonic() < deadline:
                    try:
                        client.publish("log", b"wake", partition=0)
                    except (NoSuchStreamError, NoSuchPartitionError):
                        time.sleep(0.1)
                    else:
                        return

        def act(rows: int) -> None:
            if not state:
                cluster.nodes[0].kill()
                state.append(threading.Thread(target=restart))
                state[0].start()

        assert read_all(cluster.addresses[0], "log", act, PATIENT) == list(range(COUNT))
        state[0].join()


def test_a_server_that_does_not_come_back() -> None:
    with jetstream() as server:
        make_stream(server.url, "log")
        publish(server.url, numbered("log", *MORE_THAN_SOCKETS_HOLD))
        threads = BulkThreads()
        reader = bulk.read(server.url, "log", batch_rows=10, access=Access(reconnect_wait=0.5))
        first = reader.read_next_batch()
        server.kill()
        found = offsets(first)
        with pytest.raises(ReadLostError, match=r"not regained in 0\.5 s"):  # noqa: PT012 - after any batch
            for batch in reader:
                found += batch["offset"].to_pylist()
        assert found == list(range(len(found)))
        threads.wait_until_gone()


def test_a_stream_that_was_made_anew(nats: NatsServer, name: str) -> None:
    make_stream(nats.url, name)
    publish(nats.url, numbered(name, *MORE_THAN_SOCKETS_HOLD))
    with FaultProxy(nats.url) as proxy:
        reader = bulk.read(f"nats://{proxy.address}", name, batch_rows=10, access=PATIENT)
        reader.read_next_batch()

        async def delete(js: object) -> None:
            await js.delete_stream(name)  # type: ignore[attr-defined]

        with_jetstream(nats.url, delete)
        make_stream(nats.url, name)
        publish(nats.url, numbered(name, 5))
        proxy.cut()
        with pytest.raises(OffsetOutOfRangeError, match="made anew"):
            reader.read_all()


def test_longer_stream_that_was_made_anew_is_not_read_on(nats: NatsServer, name: str) -> None:
    """The new stream reaches the next offset, with another message."""
    make_stream(nats.url, name)
    publish(nats.url, numbered(name, *MORE_THAN_SOCKETS_HOLD))
    with FaultProxy(nats.url) as proxy:
        reader = bulk.read(f"nats://{proxy.address}", name, batch_rows=10, access=PATIENT)
        reader.read_next_batch()
        proxy.refuse()
        proxy.cut()

        async def delete(js: JetStreamContext) -> None:
            await js.delete_stream(name)

        with_jetstream(nats.url, delete)
        make_stream(nats.url, name, first_seq=MORE_THAN_SOCKETS_HOLD[0])
        publish(nats.url, numbered(name, 1))
        proxy.accept()
        with pytest.raises(OffsetOutOfRangeError, match="made anew while it was read"):
            reader.read_all()


def test_longer_liftbridge_stream_that_was_made_anew_is_not_read_on(
    liftbridge_server: LiftbridgeCluster, name: str
) -> None:
    address = liftbridge_server.addresses[0]
    with FaultProxy(address) as proxy, liftenvelope.connect_blocking(address, ack_wait=60) as client:

        def make(size: int) -> None:
            client.create_stream(name, name)
            client.publish_many(name, [bytes(size)] * 400, partition=0, max_in_flight=20)

        make(LARGE // 400)
        access = replace(PATIENT, address_map={address: proxy.address})
        reader = bulk.read(proxy.address, name, batch_rows=10, access=access)
        reader.read_next_batch()
        proxy.refuse()
        proxy.cut()
        client.delete_stream(name)
        make(1)
        proxy.accept()
        with pytest.raises(OffsetOutOfRangeError, match="made anew while it was read"):
            reader.read_all()


def test_a_slow_reader_misses_nothing(nats: NatsServer) -> None:
    found: list[int] = []
    for number, batch in enumerate(bulk.read(nats.url, "log", batch_rows=200)):
        if number in (1, 5):
            time.sleep(1.5)
        found += batch["offset"].to_pylist()
    assert found == list(range(COUNT))


def test_a_follower_survives_a_restart() -> None:
    with run_nats_server(jetstream=True) as server:
        make_stream(server.url, "log")
        reader = bulk.tail(server.url, "log", batch_seconds=0.05, access=PATIENT)
        publish(server.url, numbered("log", 1))
        assert reader.read_next_batch().num_rows == 1
        server.stop()
        server.start()
        publish(server.url, numbered("log", 1))
        assert reader.read_next_batch()["offset"].to_pylist() == [1]
