"""Bulk reads by direct requests, on a real server."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StreamSource

from liftenvelope import bulk
from liftenvelope.bulk import Access, Gap, RetentionError
from liftenvelope.bulk._jetstream import direct_read
from liftenvelope.bulk._jetstream.requests import JetStreamRequests
from liftenvelope.errors import (
    CallTimeoutError,
    ServerError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.testing import FaultProxy
from tests.integration.bulk_streams import (
    BulkThreads,
    by_bulk,
    by_nats_py,
    make_stream,
    numbered,
    offsets,
    publish,
    wait_for,
    with_jetstream,
)

MAPS = pa.map_(pa.string(), pa.binary())


def direct(url: str, stream: str, **options: Any) -> pa.Table:
    return bulk.read(url, stream, via="direct", **options).read_all()


def delete(url: str, stream: str, sequences: list[int]) -> None:
    async def work(js: JetStreamContext) -> None:
        for sequence in sequences:
            await js.delete_msg(stream, sequence)

    with_jetstream(url, work)


def test_rows_are_those_of_a_consumer(url: str, name: str) -> None:
    make_stream(url, name, allow_direct=True)
    table = pa.table(
        {
            "subject": [f"{name}.{i % 3}" for i in range(3_000)],
            "value": [bytes([i % 256]) * (i % 300) for i in range(3_000)],
            "headers": pa.array(
                [[("A", b"%d" % i), ("Nats-Subject", b"mine")] if i % 2 else [] for i in range(3_000)], MAPS
            ),
        }
    )
    bulk.write(url, name, table)
    expected = bulk.read(url, name, via="consumer").read_all()
    assert direct(url, name) == expected
    assert by_bulk(direct(url, name)) == by_nats_py(url, name, 3_000)
    options: dict[str, Any]
    for options in (
        {"start": 17, "stop": 2_345},
        {"start": "latest"},
        {"start": 2_999},
        {"start": 3_000},
        {"stop": 0},
        {"columns": ["offset", "timestamp"]},
        {"parallel": 3, "stop": 2_000, "columns": ["value"]},
        {"batch_rows": 7, "stop": 100},
        {"start": timedelta(hours=1)},
        {"start": datetime.now(UTC) + timedelta(hours=1)},
    ):
        one = bulk.read(url, name, via="consumer", **options).read_all()
        two = direct(url, name, **options)
        assert two.combine_chunks().sort_by(two.schema.names[0]) == one.combine_chunks().sort_by(
            one.schema.names[0]
        )
    middle = expected["timestamp"][1_500].as_py()
    assert direct(url, name, start=middle, columns=["timestamp"])["timestamp"][0].as_py() >= middle


def test_large_messages_and_few(url: str, name: str) -> None:
    make_stream(url, name, allow_direct=True)
    assert direct(url, name).num_rows == 0
    table = pa.table({"value": [b"", *(bytes([i]) * 1_000_000 for i in range(9))]})
    bulk.write(url, name, table.slice(0, 1), subject=f"{name}.x")
    assert offsets(direct(url, name)) == [0]
    bulk.write(url, name, table.slice(1), subject=f"{name}.x")
    assert direct(url, name)["value"].to_pylist() == table["value"].to_pylist()


def test_envelopes(url: str, name: str) -> None:
    make_stream(url, name, allow_direct=True)
    table = pa.table({"key": [b"k", None], "value": ["one", "two"]})
    bulk.write(url, name, table, subject=f"{name}.x", envelope=True)
    assert direct(url, name, envelope="strip", columns=["key", "value"]).to_pylist() == [
        {"key": b"k", "value": b"one"},
        {"key": None, "value": b"two"},
    ]


def test_holes(url: str, name: str) -> None:
    make_stream(url, name, allow_direct=True)
    publish(url, numbered(name, 20))
    delete(url, name, [5, 6, 11, 19, 20])
    gaps: list[Gap] = []
    assert offsets(direct(url, name, on_gap=gaps.append)) == [*range(4), *range(6, 10), *range(11, 18)]
    assert [(gap.start, gap.stop) for gap in gaps] == [(4, 6), (10, 11), (18, 20)]
    delete(url, name, list(range(1, 5)))
    with pytest.raises(RetentionError):
        direct(url, name, start=0)


def test_a_work_queue_is_read_beside_its_consumer(url: str, name: str) -> None:
    """It takes no second consumer; what is acked is gone, and the rest is read."""
    make_stream(url, name, allow_direct=True, retention=RetentionPolicy.WORK_QUEUE)
    publish(url, numbered(name, 300))

    async def take(js: JetStreamContext) -> None:
        consumer = await js.pull_subscribe("", "worker", stream=name)
        for message in await consumer.fetch(100, timeout=20):
            await message.ack_sync()

    with_jetstream(url, take)
    with pytest.raises(ServerError):
        bulk.read(url, name, via="consumer").read_all()
    assert offsets(bulk.read(url, name).read_all()) == list(range(100, 300))
    assert bulk.count(url, name) == 200
    assert bulk.count(url, name, start=150, stop=250) == 100
    assert offsets(bulk.read(url, name, start=timedelta(hours=1)).read_all()) == list(range(100, 300))


@contextmanager
def mirror_of_half(url: str, name: str) -> Iterator[None]:
    """A stream of 200 messages, and a mirror of the last 100 that may answer for it."""
    make_stream(url, name, allow_direct=True)
    publish(url, numbered(name, 200))

    async def mirror(js: JetStreamContext) -> None:
        source = StreamSource(name=name, opt_start_seq=101)
        await js.add_stream(name=f"{name}-mirror", mirror=source, mirror_direct=True, allow_direct=True)
        deadline = time.monotonic() + 60
        while (await js.stream_info(f"{name}-mirror")).state.messages < 100:
            assert time.monotonic() < deadline

    with_jetstream(url, mirror)
    yield

    async def drop(js: JetStreamContext) -> None:
        await js.delete_stream(f"{name}-mirror")

    with_jetstream(url, drop)  # a server with a mirror takes ten seconds to stop


def test_a_mirror_that_has_less(url: str, name: str) -> None:
    """It may answer for the stream; what it lacks is not taken for a hole."""
    with mirror_of_half(url, name):
        for _ in range(5):
            assert offsets(direct(url, name, access=Access(reconnect_wait=60))) == list(range(200))


@pytest.mark.parametrize("error", [CallTimeoutError, TransportError])
def test_hole_of_a_mirror_is_no_gap_while_the_leader_does_not_answer(
    url: str, name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAKE is the missing answer alone."""
    ask, unanswered = direct_read.next_stored, list[int]()

    def once(source: JetStreamRequests, place: dict[str, Any]) -> int | None:
        if not unanswered:
            unanswered.append(place["seq"])
            raise error("the leader did not answer")
        return ask(source, place)

    monkeypatch.setattr(direct_read, "next_stored", once)
    deadline = time.monotonic() + 60
    with mirror_of_half(url, name):
        while not unanswered:  # the mirror answers every other read
            assert time.monotonic() < deadline
            assert offsets(direct(url, name, access=Access(reconnect_wait=60))) == list(range(200))
    assert unanswered == [1]


@pytest.mark.parametrize("seed", range(4))
def test_over_spoilt_connections(url: str, name: str, seed: int) -> None:
    make_stream(url, name, allow_direct=True)
    table = pa.table({"value": [b"%d" % i + b"." * 900 for i in range(12_000)]})
    bulk.write(url, name, table, subject=f"{name}.x")
    chance = random.Random(seed)
    with FaultProxy(url) as proxy:

        def spoil(_: object) -> None:
            if chance.random() < 0.5:
                proxy.cut() if chance.random() < 0.5 else proxy.truncate(chance.randrange(500_000))

        access = Access(reconnect_wait=60, connect_timeout=10, timeout=20)
        reader = bulk.read(
            f"nats://{proxy.address}", name, via="direct", batch_rows=500, progress=spoil, access=access
        )
        assert reader.read_all()["value"].to_pylist() == table["value"].to_pylist()


def test_a_reader_that_is_dropped_ends_its_threads(url: str, name: str) -> None:
    make_stream(url, name, allow_direct=True)
    bulk.write(url, name, pa.table({"value": [b"x" * 1_000] * 20_000}), subject=f"{name}.x")
    threads, before = BulkThreads(), set(threading.enumerate())
    reader = bulk.read(url, name, via="direct", batch_rows=100)
    reader.read_next_batch()
    assert len(threads) > 0
    del reader
    wait_for("the end of the threads", lambda: set(threading.enumerate()) <= before)


def test_direct_read_without_permission_is_refused(url: str, name: str) -> None:
    make_stream(url, name)
    with pytest.raises(UsageError, match=f"via must be .* for {name}, got 'direct': set allow_direct=True"):
        direct(url, name)
    with pytest.raises(StreamNotFoundError):
        direct(url, "nothing")
    with pytest.raises(UsageError, match="via must be one of 'auto', 'consumer', 'direct', got 'soon'"):
        bulk.read(url, name, via="soon")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="via must be 'auto' for Liftbridge, got 'direct'"):
        bulk.read("127.0.0.1:1", name, via="direct")
