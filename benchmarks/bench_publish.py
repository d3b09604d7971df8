"""Publishing and acks on real servers, beside nats-py and the Go client on the same servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import nullcontext
from statistics import median
from time import perf_counter
from typing import Any, TypeVar
from uuid import uuid4

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from benchmarks.go_peers import GoPeers
from benchmarks.report import Report
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope.envelope import Ack, marshal_ack, new_message
from liftenvelope.nats import AckFuture, AckInbox, BatchAcks, BatchSummary, EnvelopePublisher, accelerate
from liftenvelope.testing import LiftbridgeCluster, NatsServer

T = TypeVar("T")

VALUE, SUBJECT = b"x" * 256, "bench.publish"
#: Ready made, byte for byte what the publisher makes of the value.
PAYLOAD = new_message(VALUE)
#: What limits acked publishing, by whether the connection is accelerated.
ACKED_LIMITS = {
    False: (
        "nats-py's parser takes half of the time to read the acks: a message of publish_batch takes "
        "6.1 us of CPU here and 2.3 on an accelerated connection, one of publish_nowait 8.6 and 5.1."
    ),
    True: (
        "Liftbridge takes 4.4 to 7.6 us of CPU for a message and nats-server 2, our client 2.0 by "
        "publish_batch and 4.2 by publish_nowait, go-liftbridge 7 to 8."
    ),
}
#: What limits an AckInbox on a plain connection.
_INBOX_LIMIT = (
    "An ack takes 5.3 to 5.6 us of CPU, where one for nats-py's empty callback takes 4.2 to 4.3. Both share "
    "nats-py's parser, which takes most of that; ours skips its queue and task."
)
#: How long a round may take; more than that means that something hangs.
PATIENCE = 120.0


@pytest.fixture
def nc(loop: asyncio.Runner, plain_nats: NatsServer) -> Iterator[Client]:
    """A connection to a server without Liftbridge."""
    yield from _connection(loop, plain_nats.url)


@pytest.fixture
def lb_nc(loop: asyncio.Runner, liftbridge: LiftbridgeCluster) -> Iterator[Client]:
    """A connection to the server that Liftbridge uses."""
    yield from _connection(loop, liftbridge.nats_url)


@pytest.fixture
def stream(liftbridge: LiftbridgeCluster) -> Iterator[str]:
    """A stream of its own, on the subject of the same name."""
    name = f"bench-{uuid4().hex[:8]}"
    liftbridge.create_stream(name)
    yield name
    liftbridge.delete_stream(name)


def _connection(loop: asyncio.Runner, url: str) -> Iterator[Client]:
    client = loop.run(nats.connect(url))
    yield client
    loop.run(client.close())


def _round(loop: asyncio.Runner, make: Callable[[], Coroutine[Any, Any, float]]) -> Round:
    return lambda: loop.run(asyncio.wait_for(make(), PATIENCE))


async def _true_barrier(nc: Client) -> None:
    """The first PING of nats-py overtakes what it has buffered; the second does not."""
    await nc.flush()
    await nc.flush()


async def _seconds(work: Awaitable[None], flush: Callable[[], Awaitable[None]], count: int) -> float:
    began = perf_counter()
    await work
    await flush()
    return (perf_counter() - began) / count


# Without acks


def test_publish_batch(
    compare: Comparison, loop: asyncio.Runner, nc: Client, go: GoPeers, plain_nats: NatsServer
) -> None:
    count = compare.amount(200_000, 500)
    values, publisher = [VALUE] * count, EnvelopePublisher(nc, SUBJECT)

    async def ours() -> None:
        await publisher.publish_batch(values)

    async def theirs() -> None:
        await _publish_ready_made(nc, count)

    loop.run(_check_delivery(nc, ours, publisher.flush, count))
    loop.run(_check_delivery(nc, theirs, lambda: _true_barrier(nc), count))
    flags = {"url": plain_nats.url, "subject": SUBJECT, "payload": PAYLOAD.hex(), "n": count}
    compare(
        "publish_batch, 256 B, no acks",
        _round(loop, lambda: _seconds(ours(), publisher.flush, count)),
        Peer(
            "nats-py publish, ready made",
            _round(loop, lambda: _seconds(theirs(), lambda: _true_barrier(nc), count)),
            5,
        ),
        Peer("nats.go Publish, ready made", lambda: 1 / float(go.run("natspub", **flags)["msgs_per_s"])),
        rate=True,
    )


def test_publish_one_by_one(compare: Comparison, loop: asyncio.Runner, nc: Client) -> None:
    count = compare.amount(100_000, 500)
    publisher = EnvelopePublisher(nc, SUBJECT)

    async def ours() -> None:
        for _ in range(count):
            await publisher.publish(VALUE)

    async def theirs() -> None:
        await _publish_ready_made(nc, count)

    loop.run(_check_delivery(nc, ours, publisher.flush, count))
    compare(
        "publish one by one, 256 B, no acks",
        _round(loop, lambda: _seconds(ours(), publisher.flush, count)),
        Peer(
            "nats-py publish, ready made",
            _round(loop, lambda: _seconds(theirs(), lambda: _true_barrier(nc), count)),
            0.9,
            "Ours are encoded one by one; the other's one envelope is ready made.",
        ),
        rate=True,
    )


async def _publish_ready_made(nc: Client, count: int) -> None:
    for _ in range(count):
        await nc.publish(SUBJECT, PAYLOAD)


async def _all_received(nc: Client, sub: Subscription, in_msgs: int) -> None:
    """Wait until the connection has counted so many messages, and the callback has had its own."""
    async with asyncio.timeout(PATIENCE):
        while nc.stats["in_msgs"] < in_msgs or sub.pending_msgs:  # nats-py has no event for it
            await asyncio.sleep(0.001)


async def _check_delivery(
    nc: Client, publish: Callable[[], Awaitable[None]], flush: Callable[[], Awaitable[None]], count: int
) -> None:
    """Every message arrives, each with the payload that both sides are to send."""
    seen: list[bytes] = []

    async def note(msg: Msg) -> None:
        seen.append(msg.data)

    before = nc.stats["in_msgs"]
    sub = await nc.subscribe(SUBJECT, cb=note, pending_msgs_limit=0, pending_bytes_limit=0)
    await publish()
    await flush()
    await _all_received(nc, sub, before + count)
    await sub.unsubscribe()
    assert len(seen) == count
    assert set(seen) == {PAYLOAD}


# With acks, on Liftbridge


@pytest.mark.parametrize(
    ("window", "accelerated", "target"),
    [(1_000, False, 1.1), (10_000, False, 1.2), (1_000, True, 1.3), (10_000, True, 1.5)],
)
def test_acked_publishing(
    compare: Comparison,
    loop: asyncio.Runner,
    lb_nc: Client,
    liftbridge: LiftbridgeCluster,
    stream: str,
    go: GoPeers,
    report: Report,
    window: int,
    accelerated: bool,
    target: float,
) -> None:
    count = compare.amount(100_000, 500)
    values = [VALUE] * count
    flags = {
        "addr": liftbridge.addresses[0],
        "stream": stream,
        "size": len(VALUE),
        "n": count,
        "window": window,
    }

    async def ours() -> float:
        acceleration = accelerate(lb_nc) if accelerated else nullcontext()
        async with AckInbox(lb_nc, max_outstanding=window, timeout=PATIENCE) as inbox:
            publisher = EnvelopePublisher(lb_nc, stream, inbox=inbox, timeout=PATIENCE)
            with acceleration:
                began = perf_counter()
                acks = await publisher.publish_batch(values)
                summary = await acks
                seconds = perf_counter() - began
        assert summary.ok
        assert sorted(summary.offsets) == list(range(min(summary.offsets), min(summary.offsets) + count))
        return seconds / count

    def theirs() -> float:
        found = go.run("publish", **flags)
        assert (found["acked"], found["lost"], found["errors"], found["hung"]) == (count, 0, 0, False)
        report.versions["go-liftbridge"] = found["client"]
        return 1 / float(found["acked_per_s"])

    compare(
        f"acked publish_batch, 256 B, {window:,} outstanding{', accelerated' if accelerated else ''}",
        _round(loop, ours),
        Peer("go-liftbridge PublishAsync", theirs, target, ACKED_LIMITS[accelerated]),
        rate=True,
        rounds=7,
    )


@pytest.mark.parametrize(("accelerated", "target"), [(False, 1.1), (True, 1.6)], ids=["plain", "accelerated"])
def test_publish_nowait(
    compare: Comparison,
    loop: asyncio.Runner,
    lb_nc: Client,
    liftbridge: LiftbridgeCluster,
    stream: str,
    go: GoPeers,
    accelerated: bool,
    target: float,
) -> None:
    count, window = compare.amount(50_000, 500), 1_000
    flags = {
        "addr": liftbridge.addresses[0],
        "stream": stream,
        "size": len(VALUE),
        "n": count,
        "window": window,
    }

    async def ours() -> float:
        async with AckInbox(lb_nc, max_outstanding=window, timeout=PATIENCE) as inbox:
            with accelerate(lb_nc) if accelerated else nullcontext():
                futures, began = [], perf_counter()
                for _ in range(count):
                    await inbox.capacity()
                    futures.append(inbox.publish_nowait(stream, VALUE))
                offsets = [(await future).offset for future in futures]
                seconds = perf_counter() - began
        assert offsets == list(range(offsets[0], offsets[0] + count))
        return seconds / count

    def theirs() -> float:
        found = go.run("publish", **flags)
        assert (found["acked"], found["lost"], found["errors"], found["hung"]) == (count, 0, 0, False)
        return 1 / float(found["acked_per_s"])

    compare(
        f"AckInbox.publish_nowait, 256 B, {window:,} outstanding{', accelerated' if accelerated else ''}",
        _round(loop, ours),
        Peer("go-liftbridge PublishAsync", theirs, target, ACKED_LIMITS[accelerated]),
        rate=True,
        rounds=7,
    )


def test_acked_latency(
    compare: Comparison,
    loop: asyncio.Runner,
    lb_nc: Client,
    liftbridge: LiftbridgeCluster,
    stream: str,
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
        async with AckInbox(lb_nc, timeout=PATIENCE) as inbox:
            for _ in range(count):
                began = perf_counter()
                ack = await inbox.publish(stream, VALUE)
                taken.append(perf_counter() - began)
                assert ack.stream == stream
        return median(taken)

    def theirs() -> float:
        found = go.run("publish", **flags)
        assert (found["acked"], found["lost"], found["errors"]) == (count, 0, 0)
        return float(found["p50_us"]) * 1e-6

    compare(
        "one acked publish, 256 B, p50",
        _round(loop, ours),
        Peer("go-liftbridge Publish, p50", theirs, 1),
    )


# The inbox alone

ACKS = "bench.acks"


@pytest.mark.parametrize(
    ("own_ids", "accelerated"),
    [(False, False), (True, False), (False, True)],
    ids=["generated", "own", "accelerated"],
)
def test_ack_inbox(
    compare: Comparison,
    loop: asyncio.Runner,
    nc: Client,
    plain_nats: NatsServer,
    own_ids: bool,
    accelerated: bool,
) -> None:
    count = compare.amount(200_000 if own_ids else 1_000_000, 2_000)
    own = [f"{i:010x}" for i in range(count)]
    ready_made = _ack_frames(own)

    async def register(inbox: AckInbox) -> tuple[BatchAcks, list[str]]:
        batch = BatchAcks(count, [b"bench"], None)
        return batch, inbox.register_batch(batch, 0, count, own if own_ids else None, 2 * PATIENCE)

    def ours() -> float:
        inbox = loop.run(_started(nc))
        batch, ids = loop.run(register(inbox))
        with accelerate(nc) if accelerated else nullcontext():
            taken, summary = _timed(loop, plain_nats, _ack_frames(ids), lambda: _all_of(batch))
        assert summary.ok
        assert list(summary.offsets) == list(range(count))
        loop.run(inbox.close())
        return taken / count

    how = "accelerated" if accelerated else "own ids" if own_ids else "at most 1.5 of its time"
    compare(
        f"AckInbox, {count:,} acks of a batch, {how}",
        ours,
        Peer(
            "nats-py, empty callback",
            lambda: _deliver(loop, nc, plain_nats, ready_made, count),
            None if own_ids else 2 if accelerated else 1 / 1.5,
            "" if accelerated else _INBOX_LIMIT,
        ),
        rate=True,
        rounds=5 if own_ids else 3,
    )


def test_ack_inbox_futures(
    compare: Comparison, loop: asyncio.Runner, nc: Client, plain_nats: NatsServer
) -> None:
    count = compare.amount(200_000, 2_000)
    ready_made = _ack_frames([f"{i:010x}" for i in range(count)])

    async def expect(inbox: AckInbox) -> list[AckFuture]:
        return [inbox.expect(timeout=2 * PATIENCE) for _ in range(count)]

    async def all_of(futures: list[AckFuture]) -> list[int]:
        return [(await future).offset for future in futures]

    def ours() -> float:
        inbox = loop.run(_started(nc))
        futures = loop.run(expect(inbox))
        frames = _ack_frames([future.correlation_id for future in futures])
        taken, offsets = _timed(loop, plain_nats, frames, lambda: all_of(futures))
        assert offsets == list(range(count))
        loop.run(inbox.close())
        return taken / count

    compare(
        f"AckInbox, {count:,} acks, a future each",
        ours,
        Peer("nats-py, empty callback", lambda: _deliver(loop, nc, plain_nats, ready_made, count)),
        rate=True,
        rounds=5,
    )


async def _started(nc: Client) -> AckInbox:
    inbox = await AckInbox(nc, subject=ACKS).start()
    await _true_barrier(nc)
    return inbox


async def _all_of(batch: BatchAcks) -> BatchSummary:
    return await batch


def _ack_frames(ids: list[str]) -> bytes:
    """Ready-made acks with these ids, as one plain publisher sends them."""
    acks = (
        marshal_ack(
            Ack(
                stream="bench",
                partition_subject="bench.publish",
                msg_subject="bench.publish",
                offset=i,
                ack_inbox=ACKS,
                correlation_id=id_,
                reception_timestamp_ns=1_700_000_000_123_456_789,
                commit_timestamp_ns=1_700_000_000_123_556_789,
            )
        )
        for i, id_ in enumerate(ids)
    )
    return b"".join(b"PUB %b %d\r\n%b\r\n" % (ACKS.encode(), len(ack), ack) for ack in acks)


def _timed(
    loop: asyncio.Runner, server: NatsServer, frames: bytes, receive: Callable[[], Coroutine[Any, Any, T]]
) -> tuple[float, T]:
    """Seconds until a coroutine has received all of the frames, and what it returns.

    They are sent while no event loop runs, and wait in the server: what is timed is a client that never waits
    for a message, and that shares its core with nobody.
    """
    with (
        socket.create_connection(("127.0.0.1", server.port)) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(b'CONNECT {"verbose": false}\r\n')
        connection.sendall(frames)
        connection.sendall(b"PING\r\n")
        while answers.readline() != b"PONG\r\n":
            pass
    began = perf_counter()
    result = loop.run(asyncio.wait_for(receive(), PATIENCE))
    return perf_counter() - began, result


def _deliver(loop: asyncio.Runner, nc: Client, server: NatsServer, frames: bytes, count: int) -> float:
    async def empty(msg: Msg) -> None:
        pass

    async def subscribe() -> Subscription:
        sub = await nc.subscribe(ACKS, cb=empty, pending_msgs_limit=0, pending_bytes_limit=0)
        await _true_barrier(nc)
        return sub

    sub, before = loop.run(subscribe()), nc.stats["in_msgs"]

    taken, _ = _timed(loop, server, frames, lambda: _all_received(nc, sub, before + count))
    loop.run(sub.unsubscribe())
    return taken / count
