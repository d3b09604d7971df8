"""Tails of some subjects of a mirror, which gets messages late, with the times of its origin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from nats.js import JetStreamContext
from nats.js.api import ExternalStream, StreamSource

from liftenvelope import bulk
from liftenvelope.bulk import RetentionError
from liftenvelope.bulk._jetstream.consumer_read import ConsumerRead
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port
from tests.integration.bulk_streams import make_stream, publish, wait_for, with_jetstream


@contextmanager
def hub_and_leaf(folder: Path) -> Iterator[tuple[NatsServer, FaultProxy, NatsServer]]:
    """A hub, a proxy, and a leaf node behind the proxy; each server has a JetStream domain of its own."""
    port = free_port()
    hub = {
        "server_name": "h",
        "jetstream": {"domain": "hub", "store_dir": str(folder / "hub")},
        "leafnodes": {"listen": f"127.0.0.1:{port}"},
    }
    with (
        run_nats_server(jetstream=True, config=hub) as origin,
        FaultProxy(f"nats://127.0.0.1:{port}") as proxy,
    ):
        leaf = {
            "server_name": "l",
            "jetstream": {"domain": "leaf", "store_dir": str(folder / "leaf")},
            "leafnodes": {"remotes": [{"url": f"nats://{proxy.address}"}]},
        }
        with run_nats_server(jetstream=True, config=leaf) as server:
            yield origin, proxy, server


def make_mirror(url: str, of: StreamSource, *, max_msgs: int) -> None:
    async def work(js: JetStreamContext) -> None:
        await js.add_stream(name="COPY", mirror=of, max_msgs=max_msgs)

    with_jetstream(url, work)


@contextmanager
def filtered_tail(url: str) -> Iterator[tuple[pa.RecordBatchReader, Callable[[int], None]]]:
    """Yield a tail that the server filters, and a function that waits for a number of heartbeats."""
    beats, told = threading.Semaphore(0), ConsumerRead._nothing_pending

    def note(read: ConsumerRead, at: float) -> None:
        told(read, at)
        beats.release()

    def wait(times: int) -> None:
        while beats.acquire(blocking=False):
            pass
        for _ in range(times):
            assert beats.acquire(timeout=60)

    with (
        patch("liftenvelope.bulk._jetstream.filter_choice.server_pays", lambda *_: True),
        patch.object(ConsumerRead, "_nothing_pending", note),
    ):
        yield bulk.tail(url, "COPY", subjects="ORIGIN.wanted", start="earliest", batch_seconds=0.05), wait


def test_tail_notices_what_retention_took_while_the_mirror_caught_up(tmp_path: Path) -> None:
    """Nothing is pending at the mirror until it gets the messages of the last seconds, all at once."""
    with hub_and_leaf(tmp_path) as (hub, proxy, leaf):
        make_stream(hub.url, "ORIGIN")
        make_mirror(leaf.url, StreamSource("ORIGIN", external=ExternalStream(api="$JS.hub.API")), max_msgs=40)
        with filtered_tail(leaf.url) as (reader, wait_for_heartbeats):
            publish(hub.url, [("ORIGIN.wanted", b"", None)])
            assert reader.read_next_batch()["offset"].to_pylist() == [0]
            proxy.stall("to_client")
            publish(
                hub.url, [(f"ORIGIN.{'other' if at % 5 else 'wanted'}", b"", None) for at in range(5_000)]
            )
            wait_for_heartbeats(4)
            proxy.resume("to_client")
            with pytest.raises(RetentionError):
                wait_for("the last row", lambda: reader.read_next_batch()["offset"][-1].as_py() == 4_996)


def test_tail_of_a_rare_subject_of_a_mirror_outlives_retention(server: NatsServer) -> None:
    make_stream(server.url, "ORIGIN")
    make_mirror(server.url, StreamSource("ORIGIN"), max_msgs=10)
    with filtered_tail(server.url) as (reader, wait_for_heartbeats):
        publish(server.url, [("ORIGIN.wanted", b"", None)])
        assert reader.read_next_batch()["offset"].to_pylist() == [0]
        for _ in range(4):
            publish(server.url, [("ORIGIN.other", b"", None)] * 5)
            wait_for_heartbeats(4)
        publish(server.url, [("ORIGIN.wanted", b"", None)])
        assert reader.read_next_batch()["offset"].to_pylist() == [21]
