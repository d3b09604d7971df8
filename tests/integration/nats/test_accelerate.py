"""nats-py behaves alike with and without acceleration. Every test runs in both ways.

On each connection a direct subscription takes what is published below the test's name, so that its messages
stand between those of nats-py's own subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import nats.errors
import pytest
import trustme
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.nats import accelerate
from liftenvelope.nats.receiving import subscribe_direct
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.handled import handled
from tests.integration.certificates import trusting
from tests.integration.conftest import connect, until

Connect = Callable[..., Awaitable[Client]]


class Watch:
    """Payloads that the direct subscriptions of a test have received."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.calls = 0

    def take(self, messages: list[tuple[str, bytes, bytes | None, bytes]]) -> None:
        self.calls += 1
        self.payloads += [payload for _, _, _, payload in messages]


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture(params=["plain", "accelerated"])
async def open_connection(
    request: pytest.FixtureRequest, nats_server: NatsServer, name: str, watch: Watch
) -> AsyncIterator[Connect]:
    """Makes connections: accelerated ones in one of two runs."""
    clients: list[Client] = []

    async def open_one(url: str = nats_server.url, *, watched: bool = True, **options: Any) -> Client:
        client = await connect(url, **options)
        clients.append(client)
        if request.param == "accelerated":
            assert accelerate(client).active
        if watched:
            await subscribe_direct(client, f"{name}.>", watch.take)
            await handled(client)
        return client

    yield open_one
    for client in clients:
        if not client.is_closed:
            await client.close()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


async def test_callback_next_msg_and_iterator(open_connection: Connect, name: str, watch: Watch) -> None:
    nc, seen = await open_connection(), []

    async def note(msg: Msg) -> None:
        seen.append((msg.subject, msg.reply, msg.headers, msg.data))

    await nc.subscribe(f"{name}.*", cb=note)
    by_hand = await nc.subscribe(f"{name}.a")
    iterated = await nc.subscribe(f"{name}.a")
    for payload in numbered(500):
        await nc.publish(f"{name}.a", payload, reply="r")
    await nc.publish(f"{name}.b", b"")
    assert [(await by_hand.next_msg(timeout=60)).data for _ in range(500)] == numbered(500)
    read = []
    async for msg in iterated.messages:
        read.append(msg.data)
        if len(read) == 500:
            break
    assert read == numbered(500)
    await until(lambda: len(seen) == 501)
    assert seen[:500] == [(f"{name}.a", "r", None, payload) for payload in numbered(500)]
    assert seen[500] == (f"{name}.b", "", None, b"")
    await until(lambda: len(watch.payloads) == 501)
    assert watch.payloads == [*numbered(500), b""]


async def test_queue_group(open_connection: Connect, name: str) -> None:
    nc, shares = await open_connection(), ([], [])  # type: tuple[Client, tuple[list[bytes], list[bytes]]]

    async def first(msg: Msg) -> None:
        shares[0].append(msg.data)

    async def second(msg: Msg) -> None:
        shares[1].append(msg.data)

    await nc.subscribe(f"{name}.q", queue="workers", cb=first)
    await nc.subscribe(f"{name}.q", queue="workers", cb=second)
    for payload in numbered(300):
        await nc.publish(f"{name}.q", payload)
    await until(lambda: len(shares[0]) + len(shares[1]) == 300)
    assert sorted(shares[0] + shares[1]) == sorted(numbered(300))
    assert shares[0]
    assert shares[1]


@pytest.mark.parametrize(
    "headers", [{"A": "b"}, {"A": "", "B-c": "x: y"}, {"Status": "409"}, {"K": "v" * 5000}]
)
async def test_headers(open_connection: Connect, name: str, headers: dict[str, str]) -> None:
    nc = await open_connection()
    sub = await nc.subscribe(f"{name}.h")
    for payload in (b"", b"x", b"NATS/1.0\r\n\r\n"):
        await nc.publish(f"{name}.h", payload, headers=headers)
        msg = await sub.next_msg(timeout=60)
        assert (msg.headers, msg.data) == (headers, payload)


@pytest.mark.parametrize(
    ("block", "status", "description"),
    [
        # Captured from nats-server 2.15.1, but for the first one, which lacks the Nats-Subject that it adds.
        (b"NATS/1.0 503\r\n\r\n", "503", None),
        (b"NATS/1.0 404 No Messages\r\n\r\n", "404", "No Messages"),
        (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\nNats-Last-Stream: 7\r\n\r\n",
            "100",
            "Idle Heartbeat",
        ),
    ],
)
async def test_statuses(
    open_connection: Connect,
    name: str,
    nats_server: NatsServer,
    block: bytes,
    status: str,
    description: str | None,
) -> None:
    nc = await open_connection()
    sub = await nc.subscribe(f"{name}.s")
    await handled(nc)
    _, writer = await asyncio.open_connection("127.0.0.1", nats_server.port)
    writer.write(b'CONNECT {"headers": true, "verbose": false}\r\n')
    writer.write(b"HPUB %b.s %d %d\r\n%b\r\n" % (name.encode(), len(block), len(block), block))
    msg = await sub.next_msg(timeout=60)
    assert msg.headers is not None
    assert (msg.headers["Status"], msg.headers.get("Description"), msg.data) == (status, description, b"")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("old_style", [False, True])
async def test_request_and_reply(open_connection: Connect, name: str, old_style: bool) -> None:
    nc = await open_connection()

    async def answer(msg: Msg) -> None:
        await msg.respond(b"to " + msg.data)

    await nc.subscribe(f"{name}.service", cb=answer)
    answers = await asyncio.gather(
        *(
            nc.request(f"{name}.service", payload, timeout=60, old_style=old_style)
            for payload in numbered(100)
        )
    )
    assert [msg.data for msg in answers] == [b"to " + payload for payload in numbered(100)]


async def test_no_responders_and_no_answer(open_connection: Connect, name: str) -> None:
    nc = await open_connection()
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request(f"nobody-{name}", b"", timeout=60)
    with pytest.raises(nats.errors.TimeoutError):
        await nc.request(f"{name}.silent", b"", timeout=0.05)


async def test_drain_of_a_subscription_handles_what_has_come(
    open_connection: Connect, name: str, watch: Watch
) -> None:
    nc, seen, gate = await open_connection(), [], asyncio.Event()

    async def slow(msg: Msg) -> None:
        await gate.wait()
        seen.append(msg.data)

    sub = await nc.subscribe(f"{name}.d", cb=slow)
    for payload in numbered(100):
        await nc.publish(f"{name}.d", payload)
    await handled(nc)
    draining = asyncio.create_task(sub.drain())  # type: ignore[no-untyped-call]
    await until(lambda: sub.pending_msgs == 99)
    assert not draining.done()
    gate.set()
    await draining
    assert seen == watch.payloads == numbered(100)
    await nc.publish(f"{name}.d", b"late")
    await until(lambda: watch.payloads[-1] == b"late")
    assert len(seen) == 100


async def test_drain_of_the_connection(open_connection: Connect, name: str, watch: Watch) -> None:
    nc, seen = await open_connection(), []

    async def note(msg: Msg) -> None:
        seen.append(msg.data)

    await nc.subscribe(f"{name}.d", cb=note)
    for payload in numbered(2_000):
        await nc.publish(f"{name}.d", payload)
    await handled(nc)
    await nc.drain()
    assert seen == watch.payloads == numbered(2_000)
    assert nc.is_closed


@pytest.mark.parametrize("late", [False, True])
async def test_automatic_unsubscription(
    open_connection: Connect, name: str, watch: Watch, late: bool
) -> None:
    nc, seen = await open_connection(), []

    async def note(msg: Msg) -> None:
        seen.append(msg.data)

    sub = await nc.subscribe(f"{name}.m", cb=note, max_msgs=0 if late else 7)
    await sub.unsubscribe(limit=7)
    for payload in numbered(50):
        await nc.publish(f"{name}.m", payload)
    await until(lambda: len(watch.payloads) == 50 and len(seen) == 7)
    assert seen == numbered(7)
    assert sub._id not in nc._subs


@pytest.mark.parametrize(
    ("limits", "kept"), [({"pending_msgs_limit": 10}, 10), ({"pending_bytes_limit": 1_000}, 9)]
)
async def test_slow_consumers_lose_messages_and_are_told(
    open_connection: Connect, name: str, watch: Watch, limits: dict[str, Any], kept: int
) -> None:
    errors: list[Exception] = []

    async def note(error: Exception) -> None:
        errors.append(error)

    nc = await open_connection(error_cb=note)
    sub = await nc.subscribe(f"{name}.slow", **limits)
    for _ in range(50):
        await nc.publish(f"{name}.slow", bytes(100))
    await until(lambda: len(watch.payloads) == 50 and len(errors) == 50 - kept)
    assert all(isinstance(error, nats.errors.SlowConsumerError) for error in errors)
    assert (sub.pending_msgs, sub.pending_bytes, sub.delivered) == (kept, 100 * kept, 50)
    for _ in range(kept):
        await sub.next_msg(timeout=60)
    assert (sub.pending_msgs, sub.pending_bytes) == (0, 0)


async def test_statistics(open_connection: Connect, name: str, watch: Watch) -> None:
    nc = await open_connection()
    sub = await nc.subscribe(f"{name}.n")
    before = dict(nc.stats)
    await nc.publish(f"{name}.n", b"12345")
    await nc.publish(f"{name}.n", b"678", headers={"a": "b"})
    await nc.publish(f"{name}.other", b"9")
    await until(lambda: len(watch.payloads) == 3)
    await handled(nc)
    assert {key: nc.stats[key] - before[key] for key in before} == {
        "in_msgs": 5, "in_bytes": 17, "out_msgs": 3, "out_bytes": 9, "reconnects": 0, "errors_received": 0,
    }  # fmt: skip
    assert sub.delivered == 2


@pytest.mark.parametrize("cut_at", [1, 40, 700, 1_000, 50_000])
async def test_connection_lost_in_the_middle_of_a_message(
    open_connection: Connect, name: str, watch: Watch, nats_server: NatsServer, cut_at: int
) -> None:
    sender = await connect(nats_server.url)
    with FaultProxy(nats_server.url) as proxy:
        nc = await open_connection(f"nats://{proxy.address}")
        sub = await nc.subscribe(f"{name}.x")
        await handled(nc)
        proxy.truncate(cut_at)
        # Nothing is published while the two subscriptions are restored, one after the other.
        for payload in numbered(30):
            if nc.is_connected and not nc.stats["reconnects"]:
                await sender.publish(f"{name}.x", payload.ljust(1_000, b"."))
                await sender.flush()
        while nc.is_connected and not nc.stats["reconnects"]:
            await sender.publish(f"{name}.x", b"more")
            await asyncio.sleep(0.01)
        # Whatever has arrived whole is there, in order and once; then the connection comes back.
        await until(lambda: nc.stats["reconnects"] == 1 and nc.is_connected)
        await handled(nc)
        await sender.publish(f"{name}.x", b"end")
        await until(lambda: watch.payloads[-1:] == [b"end"])
        read = [(await sub.next_msg(timeout=60)).data for _ in range(sub.pending_msgs)]
        assert read == watch.payloads
        whole = [payload for payload in read if payload not in (b"more", b"end")]
        assert whole == sorted(set(whole), key=lambda payload: int(payload.rstrip(b".")))
    await sender.close()


async def test_server_killed_under_load(open_connection: Connect, name: str, watch: Watch) -> None:
    with run_nats_server() as server:
        nc = await open_connection(server.url)
        sub = await nc.subscribe(f"{name}.k", pending_bytes_limit=0, pending_msgs_limit=0)
        for kill in range(3):
            had = len(watch.payloads)
            for i in range(2_000):
                await nc.publish(f"{name}.k", b"%d" % (kill * 2_000 + i) + bytes(500))
            await until(lambda: len(watch.payloads) > had)  # noqa: B023
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await until(lambda: nc.stats["reconnects"] == kill + 1 and nc.is_connected)  # noqa: B023
        await handled(nc)
        await nc.publish(f"{name}.k", b"%d" % 9_999)
        await until(lambda: watch.payloads[-1:] == [b"9999"])
        read = [(await sub.next_msg(timeout=60)).data for _ in range(sub.pending_msgs)]
        for payloads in (read, watch.payloads):  # what has come is whole, in order, and there once
            assert {len(payload.rstrip(bytes(1))) + 500 - len(payload) for payload in payloads[:-1]} <= {0}
            numbers = [int(payload.rstrip(bytes(1))) for payload in payloads]
            assert numbers == sorted(set(numbers))
        # Each has a frame of its own for a message: the end can come between the two.
        assert len(set(read) ^ set(watch.payloads)) <= 3
        await nc.close()


async def test_flush_comes_after_all_that_was_sent_before(
    open_connection: Connect, name: str, watch: Watch
) -> None:
    nc = await open_connection()
    sub = await nc.subscribe(f"{name}.f")
    for round_ in range(1, 51):
        for _ in range(20):
            await nc.publish(f"{name}.f", b"x")
        await handled(nc)
        assert len(watch.payloads) == sub.delivered == 20 * round_
        assert await nc.rtt() >= 0  # the clock of uvloop has whole milliseconds


@pytest.mark.parametrize("size", [32_767, 32_768, 65_536, 1_048_576])
async def test_large_messages(open_connection: Connect, name: str, watch: Watch, size: int) -> None:
    nc = await open_connection()
    sub = await nc.subscribe(f"{name}.l")
    payloads = [bytes([i]) * size for i in range(6)]
    for payload in payloads:
        await nc.publish(f"{name}.l", payload)
        await nc.publish(f"{name}.l", b"small")
    read = [(await sub.next_msg(timeout=60)).data for _ in range(12)]
    assert read[::2] == payloads
    assert read[1::2] == [b"small"] * 6
    await until(lambda: len(watch.payloads) == 12)
    assert watch.payloads == read


async def test_many_small_messages(open_connection: Connect, name: str, watch: Watch) -> None:
    nc = await open_connection()
    sub = await nc.subscribe(f"{name}.s")
    for payload in numbered(20_000):
        await nc.publish(f"{name}.s", payload)
    assert [(await sub._pending_queue.get()).data for _ in range(20_000)] == numbered(20_000)
    await until(lambda: len(watch.payloads) == 20_000)
    assert watch.payloads == numbered(20_000)


async def test_refused_subject(open_connection: Connect, name: str) -> None:
    user = {"user": "u", "password": "p", "permissions": {"subscribe": {"deny": ["no"]}}}
    errors: list[Exception] = []

    async def note(error: Exception) -> None:
        errors.append(error)

    with run_nats_server(config={"authorization": {"users": [user]}}) as server:
        nc = await open_connection(server.url, user="u", password="p", error_cb=note)
        await nc.subscribe("no")
        await until(lambda: bool(errors))
        assert "permissions violation" in str(errors[0]).lower()
        sub = await nc.subscribe(f"{name}.yes")
        await nc.publish(f"{name}.yes", b"on")
        assert (await sub.next_msg(timeout=60)).data == b"on"
        await nc.close()


async def test_tls(open_connection: Connect, name: str, watch: Watch, tmp_path: Path) -> None:
    ca = trustme.CA()
    leaf = ca.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    files = {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")}
    with run_nats_server(config={"tls": files}) as server:
        nc = await open_connection(server.url.replace("nats://", "tls://"), tls=trusting(ca))
        sub = await nc.subscribe(f"{name}.tls")
        for payload in numbered(1_000):
            await nc.publish(f"{name}.tls", payload)
        assert [(await sub.next_msg(timeout=60)).data for _ in range(1_000)] == numbered(1_000)
        await until(lambda: len(watch.payloads) == 1_000)
        await nc.close()


async def test_jetstream_of_nats_py(
    open_connection: Connect, name: str, jetstream_server: NatsServer
) -> None:
    nc = await open_connection(jetstream_server.url, watched=False)
    js = nc.jetstream(timeout=60)
    await js.add_stream(name=name, subjects=[f"{name}.*"])
    for payload in numbered(200):
        assert (await js.publish(f"{name}.j", payload)).stream == name
    pulling = await js.pull_subscribe(f"{name}.j", durable="pull")
    read: list[bytes] = []
    while len(read) < 200:
        for msg in await pulling.fetch(64, timeout=60):
            read.append(msg.data)
            await msg.ack_sync()
    assert read == numbered(200)
    with pytest.raises(nats.errors.TimeoutError):
        await pulling.fetch(1, timeout=0.1)
    ordered = await js.subscribe(f"{name}.j", ordered_consumer=True, idle_heartbeat=0.2)
    assert [(await ordered.next_msg(timeout=60)).data for _ in range(200)] == numbered(200)
    await js.delete_stream(name)
