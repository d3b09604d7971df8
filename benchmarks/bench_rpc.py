"""The gRPC transport on a real Liftbridge server, beside Google's gRPC on the same server.

Messages are compared as they come, undecoded: what decoding adds is measured with the codec.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from benchmarks.report import Report
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope._pb import api_pb2
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.testing import LiftbridgeCluster

SUBSCRIBE, METADATA = "/proto.API/Subscribe", "/proto.API/FetchMetadata"
# Measured on an AMD EPYC with a timer around each part. On a Xeon the ratio is 1.0.
UNARY_LIMIT = (
    "Of a blocking call, h2, which is written in Python, takes 45 % of the time, the socket 15 %, and the "
    "wait for the server 30 %. grpcio makes and reads its frames in C."
)
PATIENCE = 120.0


@pytest.fixture
def stream(liftbridge: LiftbridgeCluster) -> Iterator[str]:
    name = f"bench-{uuid4().hex[:8]}"
    liftbridge.create_stream(name)
    yield name
    liftbridge.delete_stream(name)


@pytest.fixture
def channel(loop: asyncio.Runner, liftbridge: LiftbridgeCluster) -> Iterator[Channel]:
    channel = loop.run(Channel.connect(liftbridge.addresses[0]))
    yield channel
    loop.run(channel.close())


@pytest.fixture
def google(loop: asyncio.Runner, liftbridge: LiftbridgeCluster, report: Report) -> Iterator[grpc.aio.Channel]:
    report.versions["grpcio"] = grpc.__version__

    async def make() -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(liftbridge.addresses[0])

    channel = loop.run(make())
    yield channel
    loop.run(channel.close())


async def _fill(channel: Channel, stream: str, count: int) -> None:
    """Publish so many messages of 256 bytes, and wait until all are acked."""
    request = api_pb2.PublishRequest(
        stream=stream, value=b"x" * 256, correlationId="fill"
    ).SerializeToString()
    async with channel.bidi("/proto.API/PublishAsync") as call:
        acked = 0
        for start in range(0, count, 1_000):
            sent = min(1_000, count - start)
            await call.send([request] * sent)
            while acked < start + sent:
                acked += len(await call.receive() or ())


def _request(stream: str) -> bytes:
    return api_pb2.SubscribeRequest(stream=stream, startPosition=api_pb2.EARLIEST).SerializeToString()


def _subscriptions(
    loop: asyncio.Runner, channel: Channel, stream: str, count: int
) -> tuple[Callable[[], float], Callable[[], float]]:
    """Rounds of ours that read so many messages: in lists, and one by one. Timed from the handshake on."""

    async def lists() -> float:
        async with channel.server_stream(SUBSCRIBE, _request(stream)) as call:
            # The first message is empty: it says that the subscription stands.
            read = len(await call.receive() or ()) - 1
            began = perf_counter()
            while read < count:
                read += len(await call.receive() or ())
            return (perf_counter() - began) / count

    async def one_by_one() -> float:
        async with channel.server_stream(SUBSCRIBE, _request(stream)) as call:
            await anext(call)
            began, read = perf_counter(), 0
            async for _ in call:
                read += 1
                if read == count:
                    break
            return (perf_counter() - began) / count

    return _round(loop, lists), _round(loop, one_by_one)


def _round(loop: asyncio.Runner, make: Any) -> Round:
    return lambda: loop.run(asyncio.wait_for(make(), PATIENCE))


def _google_subscription(loop: asyncio.Runner, google: grpc.aio.Channel, stream: str, count: int) -> Round:
    async def run() -> float:
        call = google.unary_stream(SUBSCRIBE)(_request(stream))
        await call.read()
        began = perf_counter()
        for _ in range(count):
            await call.read()
        took = perf_counter() - began
        call.cancel()
        return took / count

    return _round(loop, run)


def _blocking_subscription(channel: BlockingChannel, stream: str, count: int) -> Round:
    def run() -> float:
        with channel.server_stream(SUBSCRIBE, _request(stream)) as call:
            next(call)
            began = perf_counter()
            for _, _ in zip(range(count), call, strict=False):
                pass
            return (perf_counter() - began) / count

    return run


@pytest.mark.parametrize("one_by_one", [False, True])
def test_subscribe(
    loop: asyncio.Runner,
    compare: Comparison,
    channel: Channel,
    google: grpc.aio.Channel,
    stream: str,
    one_by_one: bool,
) -> None:
    count = compare.amount(100_000, 500)
    loop.run(_fill(channel, stream, count))
    ours = _subscriptions(loop, channel, stream, count)[one_by_one]
    what = f"subscribe, 256 B, undecoded, {'async for' if one_by_one else 'in lists'}"
    peer = Peer("grpc.aio", _google_subscription(loop, google, stream, count), target=5.0)
    compare(what, ours, peer, rate=True, rounds=5)


def test_subscribe_blocking(
    loop: asyncio.Runner, compare: Comparison, channel: Channel, liftbridge: LiftbridgeCluster, stream: str
) -> None:
    count = compare.amount(100_000, 500)
    loop.run(_fill(channel, stream, count))
    address = liftbridge.addresses[0]

    with BlockingChannel(address) as blocking, grpc.insecure_channel(address) as google:

        def theirs() -> float:
            call = google.unary_stream(SUBSCRIBE)(_request(stream))
            next(call)
            began = perf_counter()
            for _ in range(count):
                next(call)
            took = perf_counter() - began
            call.cancel()
            return took / count

        ours = _blocking_subscription(blocking, stream, count)
        compare(
            "subscribe, 256 B, undecoded, blocking", ours, Peer("grpcio", theirs, 5.0), rate=True, rounds=5
        )


def _p50(call: Callable[[], object], count: int) -> Round:
    def run() -> float:
        times = []
        for _ in range(count):
            began = perf_counter()
            call()
            times.append(perf_counter() - began)
        return median(times)

    return run


def test_unary_blocking(compare: Comparison, liftbridge: LiftbridgeCluster) -> None:
    count, address = compare.amount(1_000, 5), liftbridge.addresses[0]
    with BlockingChannel(address) as ours, grpc.insecure_channel(address) as google:
        theirs = google.unary_unary(METADATA)
        compare(
            "FetchMetadata, p50, blocking",
            _p50(lambda: ours.unary(METADATA, b"", timeout=60.0), count),
            Peer("grpcio", _p50(lambda: theirs(b"", timeout=60.0), count), 1.0, UNARY_LIMIT),
        )


def test_unary_aio(
    loop: asyncio.Runner, compare: Comparison, channel: Channel, google: grpc.aio.Channel
) -> None:
    count = compare.amount(1_000, 5)

    def rounds_of(make: Callable[[], Any]) -> Round:
        async def run() -> float:
            times = []
            for _ in range(count):
                began = perf_counter()
                await make()
                times.append(perf_counter() - began)
            return median(times)

        return _round(loop, run)

    theirs = google.unary_unary(METADATA)
    compare(
        "FetchMetadata, p50, asyncio",
        rounds_of(lambda: channel.unary(METADATA, b"", timeout=60.0)),
        Peer("grpc.aio", rounds_of(lambda: theirs(b"", timeout=60.0)), 1.0, UNARY_LIMIT),
    )
