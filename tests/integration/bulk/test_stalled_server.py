"""Reads that are dropped while their JetStream server says nothing."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from liftenvelope import bulk
from liftenvelope.bulk import Access
from liftenvelope.bulk._jetstream.requests import JetStreamRequests
from liftenvelope.testing import FaultProxy
from tests.integration.bulk_streams import BulkThreads, make_stream, publish, wait_for

#: Limits that no test waits for.
PATIENT = Access(timeout=3_600, connect_timeout=3_600)


def drop(readers: list[pa.RecordBatchReader], threads: BulkThreads) -> None:
    dropping = threading.Thread(target=readers.clear, daemon=True)
    dropping.start()
    dropping.join(60)
    assert not dropping.is_alive()
    threads.wait_until_gone()


def test_tail_that_asks_a_stalled_server_for_the_oldest_message_is_dropped(url: str, name: str) -> None:
    make_stream(url, name)
    publish(url, [(f"{name}.other", b"", None)] * 400)
    threads, is_asking, ask = BulkThreads(), threading.Event(), JetStreamRequests.oldest_at
    with FaultProxy(url) as proxy:

        def stall_and_ask(source: JetStreamRequests) -> Any:
            proxy.stall()
            is_asking.set()
            return ask(source)

        reader = bulk.tail(f"nats://{proxy.address}", name, subjects=f"{name}.wanted", access=PATIENT)
        with patch.object(JetStreamRequests, "oldest_at", stall_and_ask):
            publish(url, [(f"{name}.other", b"", None), (f"{name}.wanted", b"", None)])
            assert is_asking.wait(60)
            readers = [reader]
            del reader
            drop(readers, threads)


def test_tail_that_awaits_the_greeting_of_a_stalled_server_is_dropped(url: str, name: str) -> None:
    make_stream(url, name)
    publish(url, [(f"{name}.one", b"", None)])
    threads = BulkThreads()
    with FaultProxy(url) as proxy:
        reader = bulk.tail(f"nats://{proxy.address}", name, start="earliest", access=PATIENT)
        assert reader.read_next_batch().num_rows == 1
        proxy.stall()
        proxy.cut()
        wait_for("a new connection", lambda: proxy.open_connections)
        readers = [reader]
        del reader
        drop(readers, threads)
