"""Bulk reads on real servers, beside nats.go, nats-py, go-liftbridge and grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final
from uuid import uuid4

import grpc
import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks import processor_time
from benchmarks.bulk_streams import make_stream, rows
from benchmarks.go_peers import GoPeers
from benchmarks.report import Report
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope import bulk
from liftenvelope._pb import api_pb2
from liftenvelope.bulk.writing import write
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer


def _read_bulk(
    url: str, stream: str, count: int, clock: Callable[[], float], parallel: int | None = None
) -> Round:
    def run() -> float:
        began = clock()
        assert sum(batch.num_rows for batch in bulk.read(url, stream, parallel=parallel)) == count
        return (clock() - began) / count

    return run


def _server_time(pid: int | None, read: Round, count: int) -> Round:
    """The processor time that a server takes for each message that is read from it."""

    def run() -> float:
        before = processor_time.of_process(pid)
        read()
        return (processor_time.of_process(pid) - before) / count

    return run


def _by_nats_py(url: str, stream: str, count: int, clock: Callable[[], float]) -> Round:
    async def read() -> float:
        async with await nats.connect(url) as nc:
            config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=30)
            consumer = await nc.jetstream().pull_subscribe(stream, stream=stream, config=config)
            began, found = clock(), 0
            while found < count:
                found += len(await consumer.fetch(min(1000, count - found), timeout=20))
            took = clock() - began
            await consumer.unsubscribe()
            return took / count

    return lambda: asyncio.run(read())


def _by_nats_go(go: GoPeers, report: Report, url: str, stream: str, count: int, size: int) -> Round:
    async def consumer() -> str:
        async with await nats.connect(url) as nc:
            config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=60)
            return (await nc.jetstream().add_consumer(stream, config)).name

    def run() -> float:
        flags = {"url": url, "stream": stream, "consumer": asyncio.run(consumer()), "n": count, "size": size}
        found = go.run("jetconsume", **flags)
        assert (found["read"], found["wrong"]) == (count, 0)
        report.versions["nats.go"] = found["client"]
        return 1 / float(found["messages_per_s"])

    return run


#: What keeps a read from being any faster: the rows of processor time say by how much.
_BY_NATS: Final = (
    "The server is the limit: it serves one consumer in one thread, and takes several times the processor "
    "time of the reader for each message (see the row of that)."
)
_BY_LIFTBRIDGE: Final = (
    "The server is the limit: it serves a subscription in one thread, and takes some ten times the processor "
    "time of the reader for each message (see the row of that); parallel=2 has it use two."
)


@pytest.mark.parametrize("size", [100, 1024])
def test_read_jetstream(
    compare: Comparison, jetstream: NatsServer, go: GoPeers, report: Report, size: int
) -> None:
    count, url = compare.amount(200_000, 500), jetstream.url
    stream = make_stream(url)
    write(url, stream, rows(count, size), subject=stream)
    compare(
        f"bulk.read, JetStream, {size:,} B",
        _read_bulk(url, stream, count, perf_counter),
        Peer("nats.go Messages", _by_nats_go(go, report, url, stream, count, size), 1.2, _BY_NATS),
        Peer("nats-py fetch(1000)", _by_nats_py(url, stream, count // 4, perf_counter), 15, _BY_NATS),
        rate=True,
        rounds=5,
    )


@pytest.mark.parametrize("size", [100, 1024])
def test_read_jetstream_processor_time(compare: Comparison, jetstream: NatsServer, size: int) -> None:
    count, url = compare.amount(100_000, 500), jetstream.url
    stream = make_stream(url)
    write(url, stream, rows(count, size), subject=stream)
    ours = _read_bulk(url, stream, count, processor_time.own)
    compare(
        f"bulk.read, JetStream, {size:,} B, processor time of the reader",
        ours,
        Peer("nats-py fetch(1000)", _by_nats_py(url, stream, count // 4, processor_time.own), 20),
        Peer("nats-server meanwhile", _server_time(jetstream.pid, ours, count)),
        rounds=3,
    )


def _by_grpcio(address: str, stream: str, count: int, clock: Callable[[], float]) -> Round:
    def run() -> float:
        request = api_pb2.SubscribeRequest(stream=stream, startPosition=api_pb2.EARLIEST)
        with grpc.insecure_channel(address) as channel:
            subscribe: Any = channel.unary_stream(
                "/proto.API/Subscribe", lambda message: message, api_pb2.Message.FromString
            )
            call = subscribe(request.SerializeToString())
            next(call)
            began = clock()
            for _ in range(count):
                next(call)
            took = clock() - began
            call.cancel()
        return took / count

    return run


def _by_go_liftbridge(go: GoPeers, report: Report, address: str, stream: str, count: int) -> Round:
    def run() -> float:
        found = go.run("consume", addr=address, stream=stream, n=count)
        report.versions["go-liftbridge"] = found["client"]
        return float(found["seconds"]) / count

    return run


def test_read_liftbridge(
    compare: Comparison, liftbridge: LiftbridgeCluster, go: GoPeers, report: Report
) -> None:
    count, address = compare.amount(100_000, 500), liftbridge.addresses[0]
    stream = f"bench-{uuid4().hex[:8]}"
    liftbridge.create_stream(stream)
    write(address, stream, rows(count, 256), partition=0)
    compare(
        "bulk.read, Liftbridge, 256 B",
        _read_bulk(address, stream, count, perf_counter),
        Peer("go-liftbridge", _by_go_liftbridge(go, report, address, stream, count), 1.2, _BY_LIFTBRIDGE),
        Peer("grpcio", _by_grpcio(address, stream, count // 2, perf_counter), 8, _BY_LIFTBRIDGE),
        rate=True,
        rounds=5,
    )
    liftbridge.delete_stream(stream)


@pytest.mark.parametrize("kind", ["JetStream", "Liftbridge"])
def test_read_in_two_threads(
    compare: Comparison, jetstream: NatsServer, liftbridge: LiftbridgeCluster, kind: str
) -> None:
    count = compare.amount(100_000, 500)
    if kind == "JetStream":
        url, stream = jetstream.url, make_stream(jetstream.url)
        write(url, stream, rows(count, 256), subject=stream)
    else:
        url, stream = liftbridge.addresses[0], f"bench-{uuid4().hex[:8]}"
        liftbridge.create_stream(stream)
        write(url, stream, rows(count, 256), partition=0)
    compare(
        f"bulk.read(parallel=2), {kind}, 256 B",
        _read_bulk(url, stream, count, perf_counter, parallel=2),
        Peer("one thread", _read_bulk(url, stream, count, perf_counter)),
        rate=True,
        rounds=5,
    )


def test_read_gateway(compare: Comparison, gateway: GatewayCluster, liftbridge: LiftbridgeCluster) -> None:
    """The same messages from both."""
    count, stream = compare.amount(100_000, 500), f"bench-{uuid4().hex[:8]}"
    for cluster in (gateway, liftbridge):
        cluster.create_stream(stream)
        write(cluster.addresses[0], stream, rows(count, 256), partition=0)
    compare(
        "bulk.read, gateway, 256 B",
        _read_bulk(gateway.addresses[0], stream, count, perf_counter),
        Peer("bulk.read, Liftbridge", _read_bulk(liftbridge.addresses[0], stream, count, perf_counter), 1),
        rate=True,
        rounds=5,
    )
    for cluster in (gateway, liftbridge):
        cluster.delete_stream(stream)


def test_read_liftbridge_processor_time(compare: Comparison, liftbridge: LiftbridgeCluster) -> None:
    count, address = compare.amount(100_000, 500), liftbridge.addresses[0]
    stream = f"bench-{uuid4().hex[:8]}"
    liftbridge.create_stream(stream)
    write(address, stream, rows(count, 256), partition=0)
    ours = _read_bulk(address, stream, count, processor_time.own)
    compare(
        "bulk.read, Liftbridge, 256 B, processor time of the reader",
        ours,
        Peer("grpcio", _by_grpcio(address, stream, count // 4, processor_time.own), 20),
        Peer("Liftbridge meanwhile", _server_time(liftbridge.nodes[0].pid, ours, count)),
        rounds=3,
    )
    liftbridge.delete_stream(stream)
