"""The Liftbridge client on a real server, beside go-liftbridge and gufo_liftbridge on the same server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

import pytest

import liftenvelope
from benchmarks import gufo_peer
from benchmarks.go_peers import GoPeers
from benchmarks.report import Report
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope.client import Client
from liftenvelope.testing import LiftbridgeCluster

VALUE = b"x" * 256
#: How long a round may take; more than that means that something hangs.
PATIENCE = 120.0
# What limits ours where a target is missed.
_SERVER = "The server is what limits it: a reader that decodes nothing gets some 235,000/s of it."
_THREADS = (
    "The server is most of the limit: a reader that decodes nothing gets some 235,000/s of it. Ours takes "
    "1.1 us of CPU for a message and async for 0.8: a visit to the loop's thread, for each 150 to 200 "
    "messages, takes the difference."
)
_PUBLISHING = (
    "The servers: with 1,000 in flight Liftbridge takes 10 to 13 us of CPU for a message and "
    "nats-server 3 to 4, our client 3.4 to 4.1, go-liftbridge 8 to 10; with 100 they take 16 to 19, 4 "
    "to 5, 5.5 and 10 to 11."
)


@pytest.fixture
def stream(liftbridge: LiftbridgeCluster) -> Iterator[str]:
    """A stream of its own, on the subject of the same name."""
    name = f"bench-{uuid4().hex[:8]}"
    liftbridge.create_stream(name)
    yield name
    liftbridge.delete_stream(name)


@pytest.fixture
def client(loop: asyncio.Runner, liftbridge: LiftbridgeCluster, report: Report) -> Iterator[Client]:
    async def make() -> Client:
        return await liftenvelope.connect(liftbridge.addresses)

    report.versions["gufo_liftbridge"] = gufo_peer.VERSION
    client = loop.run(make())
    yield client
    loop.run(client.close())


def _round(loop: asyncio.Runner, make: Callable[[], Coroutine[Any, Any, float]]) -> Round:
    return lambda: loop.run(asyncio.wait_for(make(), PATIENCE))


# Reading. All are timed from their first message on, and read the same messages.


@pytest.fixture
def filled(loop: asyncio.Runner, compare: Comparison, client: Client, stream: str) -> tuple[str, int]:
    """A stream and how many messages are in it."""
    count = compare.amount(100_000, 500)

    async def fill() -> None:
        await client.publish_many(stream, (VALUE for _ in range(count)), max_in_flight=10_000)

    loop.run(fill())
    return stream, count


def _go_consumer(go: GoPeers, report: Report, address: str, stream: str, count: int) -> Round:
    def run() -> float:
        found = go.run("consume", addr=address, stream=stream, n=count)
        report.versions["go-liftbridge"] = found["client"]
        return float(found["seconds"]) / count

    return run


def _gufo_consumer(loop: asyncio.Runner, address: str, stream: str, count: int) -> Round:
    async def run() -> float:
        return await gufo_peer.read(address, stream, count) / count

    return _round(loop, run)


def test_subscribe(
    compare: Comparison,
    loop: asyncio.Runner,
    client: Client,
    filled: tuple[str, int],
    liftbridge: LiftbridgeCluster,
    go: GoPeers,
    report: Report,
) -> None:
    (stream, count), address = filled, liftbridge.addresses[0]

    async def ours() -> float:
        async with client.subscribe(stream, start="earliest") as messages:
            began, read = 0.0, 0
            async for message in messages:
                if not read:
                    began = perf_counter()
                assert message.offset == read
                read += 1
                if read == count:
                    break
            return (perf_counter() - began) / count

    compare(
        "subscribe, 256 B, async for",
        _round(loop, ours),
        Peer("go-liftbridge", _go_consumer(go, report, address, stream, count), 1),
        Peer("gufo_liftbridge", _gufo_consumer(loop, address, stream, count), 5),
        rate=True,
        rounds=5,
    )


def test_subscribe_arrow(
    compare: Comparison,
    loop: asyncio.Runner,
    client: Client,
    filled: tuple[str, int],
    liftbridge: LiftbridgeCluster,
    go: GoPeers,
    report: Report,
) -> None:
    (stream, count), address = filled, liftbridge.addresses[0]

    async def ours() -> float:
        async with client.subscribe(stream, start=0, stop=count - 1) as messages:
            began, read = perf_counter(), 0
            async for batch in messages.arrow_batches():
                read += batch.num_rows
            assert read == count
            return (perf_counter() - began) / count

    compare(
        "subscribe, 256 B, arrow_batches",
        _round(loop, ours),
        Peer("go-liftbridge", _go_consumer(go, report, address, stream, count), 1.2, _SERVER),
        rate=True,
        rounds=5,
    )


def test_subscribe_blocking(
    compare: Comparison,
    filled: tuple[str, int],
    liftbridge: LiftbridgeCluster,
    go: GoPeers,
    report: Report,
) -> None:
    (stream, count), address = filled, liftbridge.addresses[0]
    with liftenvelope.connect_blocking(address) as client:

        def ours() -> float:
            with client.subscribe(stream, start="earliest") as messages:
                began = 0.0
                for read, message in enumerate(messages):
                    if not read:
                        began = perf_counter()
                    assert message.offset == read
                    if read + 1 == count:
                        break
                return (perf_counter() - began) / count

        compare(
            "subscribe, 256 B, blocking",
            ours,
            Peer("go-liftbridge", _go_consumer(go, report, address, stream, count), 1.2, _THREADS),
            rate=True,
            rounds=5,
        )


# Publishing


@pytest.mark.parametrize("window", [100, 1_000])
def test_publish_many(
    compare: Comparison,
    loop: asyncio.Runner,
    client: Client,
    stream: str,
    liftbridge: LiftbridgeCluster,
    go: GoPeers,
    report: Report,
    window: int,
) -> None:
    count, address = compare.amount(50_000, 500), liftbridge.addresses[0]
    flags = {"addr": address, "stream": stream, "size": len(VALUE), "n": count, "window": window}

    async def ours() -> float:
        began = perf_counter()
        summary = await client.publish_many(
            stream, (VALUE for _ in range(count)), max_in_flight=window, timeout=PATIENCE
        )
        took = perf_counter() - began
        assert (summary.acked, summary.failures) == (count, {})
        return took / count

    async def gufo() -> float:
        return await gufo_peer.publish_bulk(address, stream, count) / count

    def theirs() -> float:
        found = go.run("publish", **flags)
        assert (found["acked"], found["lost"], found["errors"], found["hung"]) == (count, 0, 0, False)
        report.versions["go-liftbridge"] = found["client"]
        return 1 / float(found["acked_per_s"])

    compare(
        f"publish_many, 256 B, leader acks, {window:,} in flight",
        _round(loop, ours),
        Peer("go-liftbridge PublishAsync", theirs, 1.2, _PUBLISHING),
        Peer("gufo_liftbridge publish_bulk", _round(loop, gufo), 6, _PUBLISHING),
        rate=True,
        rounds=5,
    )


def test_publish_latency(
    compare: Comparison,
    loop: asyncio.Runner,
    client: Client,
    stream: str,
    liftbridge: LiftbridgeCluster,
    go: GoPeers,
) -> None:
    count = compare.amount(2_000, 20)
    flags = {
        "addr": liftbridge.addresses[0],
        "stream": stream,
        "size": len(VALUE),
        "n": count,
        "sync": "true",
    }

    async def ours() -> float:
        taken = []
        for _ in range(count):
            began = perf_counter()
            ack = await client.publish(stream, VALUE)
            taken.append(perf_counter() - began)
            assert ack is not None
        return median(taken)

    def theirs() -> float:
        found = go.run("publish", **flags)
        assert (found["acked"], found["lost"], found["errors"]) == (count, 0, 0)
        return float(found["p50_us"]) * 1e-6

    compare(
        "publish one, leader ack, p50: at most 1.5 of Go's time",
        _round(loop, ours),
        Peer("go-liftbridge Publish, p50", theirs, 1 / 1.5),
    )
