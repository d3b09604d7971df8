"""Subscriptions that are accelerated: the same messages, whenever acceleration begins and ends."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from contextlib import suppress
from typing import Any

import nats.errors
import nats.protocol.parser
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope._native import frames
from liftenvelope.errors import TransportError
from liftenvelope.nats import Acceleration, accelerate
from liftenvelope.nats.headers import header_block
from liftenvelope.nats.receiving import (
    DirectParser,
    DirectSubscription,
    read_directly,
    subscribe_direct,
)
from liftenvelope.testing import FaultProxy, NatsServer
from tests.handled import handled
from tests.integration.conftest import connect, until
from tests.integration.nats.test_accelerate import numbered

BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"
#: What a fake server says first, as captured from nats-server 2.15.1 but for its names, keys and limit.
INFO = (
    b'INFO {"server_id":"NSCRIPTED","server_name":"scripted","version":"2.15.1","proto":1,'
    b'"git_commit":"b2fd3ef","go":"go1.27.2","host":"127.0.0.1","port":4222,"headers":true,'
    b'"max_payload":1000,"client_id":6,"client_ip":"127.0.0.1","api_lvl":5,"xkey":"XSCRIPTED"} \r\n'
)
Message = tuple[str, bytes, bytes | None, bytes]


@pytest.fixture(params=["plain", "accelerated"])
async def either(request: pytest.FixtureRequest, nats_server: NatsServer) -> Client:
    """A connection, accelerated in one of two runs."""
    client = await connect(nats_server.url)
    if request.param == "accelerated":
        assert accelerate(client).active
    return client


async def test_what_a_handler_gets(either: Client, name: str) -> None:
    seen: list[Message] = []
    payloads: list[bytes] = []
    await subscribe_direct(either, f"{name}.>", seen.extend)
    await subscribe_direct(either, f"{name}.*", payloads.extend, payloads=True)
    await either.publish(f"{name}.a", b"1")
    await either.publish(f"{name}.b", b"2", reply="answer.to")
    await either.publish(f"{name}.a", b"", headers={"A": "b"})
    await either.publish(f"{name}.sch\u00f6n", b"4", headers={"A": "b"}, reply="r")
    await until(lambda: len(seen) == len(payloads) == 4)
    assert seen == [
        (f"{name}.a", b"", None, b"1"),
        (f"{name}.b", b"answer.to", None, b"2"),
        (f"{name}.a", b"", BLOCK, b""),
        (f"{name}.sch\u00f6n", b"r", BLOCK, b"4"),
    ]
    assert payloads == [b"1", b"2", b"", b"4"]


async def test_a_read_is_one_call_when_accelerated(nc: Client, name: str) -> None:
    calls: list[int] = []

    def note(messages: list[Message]) -> None:
        calls.append(len(messages))

    await subscribe_direct(nc, name, note)
    for accelerated in (False, True):
        calls.clear()
        with accelerate(nc) if accelerated else Acceleration(None):
            await handled(nc)
            for _ in range(1_000):
                await nc.publish(name, b"x")
            await until(lambda: sum(calls) == 1_000)
        assert (len(calls) < 200) is accelerated


async def test_a_subscription_with_a_way_of_its_own(nc: Client, name: str) -> None:
    slow: list[bytes] = []
    fast: list[bytes] = []

    async def note(msg: Msg) -> None:
        slow.append(msg.data)

    sub = await nc.subscribe(name, cb=note, pending_msgs_limit=0, pending_bytes_limit=0)
    direct = read_directly(nc, sub, fast.extend, payloads=True)
    for round_ in range(1, 4):
        await nc.publish(name, b"slow")
        await until(lambda: len(slow) == round_)  # noqa: B023
        with accelerate(nc):
            await nc.publish(name, b"fast")
            await until(lambda: len(fast) == round_)  # noqa: B023
    await direct.unsubscribe()
    await nc.publish(name, b"late")
    await handled(nc)
    assert (slow, fast) == ([b"slow"] * 3, [b"fast"] * 3)


async def test_a_failing_handler_is_reported(nats_server: NatsServer, name: str) -> None:
    errors: list[Exception] = []

    async def note(error: Exception) -> None:
        errors.append(error)

    def fail(_: list[Any]) -> None:
        raise ZeroDivisionError("of the handler")

    client = await connect(nats_server.url, error_cb=note)
    await subscribe_direct(client, name, fail)
    for accelerated in (False, True):
        with accelerate(client) if accelerated else Acceleration(None):
            await client.publish(name, b"x")
            await handled(client)
            await until(lambda: len(errors) == 1 + accelerated)  # noqa: B023
    assert [str(error) for error in errors] == ["of the handler"] * 2
    await client.close()


async def test_ends(either: Client, name: str) -> None:
    seen: list[bytes] = []
    first = await subscribe_direct(either, name, seen.extend, payloads=True)
    second = await subscribe_direct(either, name, seen.extend, payloads=True)
    await either.publish(name, b"both")
    await until(lambda: seen == [b"both"] * 2)
    await first.unsubscribe()
    await first.unsubscribe()
    await either.publish(name, b"one")
    await until(lambda: seen[2:] == [b"one"])
    await handled(either)
    await either.drain()
    await second.unsubscribe()
    assert seen == [b"both", b"both", b"one"]
    with pytest.raises(TransportError):
        await subscribe_direct(either, name, seen.extend)


async def test_no_message_after_unsubscribe(either: Client, name: str) -> None:
    seen: list[bytes] = []
    done: list[asyncio.Task[None]] = []

    def stop(payloads: list[bytes]) -> None:
        seen.extend(payloads)
        if not done:
            done.append(asyncio.get_running_loop().create_task(direct.unsubscribe()))

    direct = await subscribe_direct(either, name, stop, payloads=True)
    await handled(either)
    # More than nats-py can have read at once, should all of it wait in the socket.
    sent = [payload.ljust(1_000, b".") for payload in numbered(5_000)]
    for payload in sent:
        await either.publish(name, payload)
    await until(lambda: bool(done))
    await done[0]
    had = len(seen)
    await handled(either)
    assert len(seen) == had < 5_000
    assert seen == sent[:had]


async def test_a_cancelled_subscription_is_cancelled(nats_server: NatsServer, name: str) -> None:
    with FaultProxy(nats_server.url) as proxy:
        client: Any = await connect(f"nats://{proxy.address}", pending_size=10)
        accelerate(client)
        proxy.stall()
        for _ in range(30):  # more than all buffers on the way take
            client._transport.write(b"PUB a 1000000\r\n%b\r\n" % bytes(1_000_000))
        subscribing = asyncio.create_task(subscribe_direct(client, name, print))
        await until(lambda: bool(client._subs))
        assert not subscribing.done()
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        assert client._subs == {}
        proxy.resume()
        await client.close()


async def test_toggled_while_messages_flow(nats_server: NatsServer, nc: Client, name: str) -> None:
    """Direct and ordinary subscriptions get everything, once and in order, whatever the moment."""
    sender = await connect(nats_server.url)
    direct: list[bytes] = []
    ordinary: list[bytes] = []

    async def note(msg: Msg) -> None:
        ordinary.append(msg.data)

    await nc.subscribe(name, cb=note, pending_msgs_limit=0, pending_bytes_limit=0)
    await subscribe_direct(nc, name, direct.extend, payloads=True)
    await handled(nc)
    payloads = [b"%d" % i + b"." * (i % 3_000) for i in range(20_000)]

    async def send() -> None:
        for start in range(0, len(payloads), 100):
            for payload in payloads[start : start + 100]:
                await sender.publish(name, payload)
            await sender.flush()

    sending = asyncio.create_task(send())
    toggles = 0
    while not sending.done():
        with accelerate(nc) as acceleration:
            assert acceleration.active
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.002)
        toggles += 1
    await sending
    await until(lambda: len(direct) == len(ordinary) == len(payloads))
    assert direct == ordinary == payloads
    assert toggles > 20
    assert type(nc._ps) is nats.protocol.parser.Parser
    await sender.close()


def _frames(direct: DirectSubscription, other: int) -> bytes:
    """Return bytes that a server could send: messages of both subscriptions, and lines between them."""
    mine = direct.subscription._id
    return (
        b"MSG s %d 3\r\none\r\n" % mine
        + b"MSG s %d r 3\r\none\r\n" % other
        + b"HMSG s %d r 18 21\r\n%btwo\r\n" % (mine, BLOCK)
        + b"+OK\r\n"
        + b"HMSG s %d 18 21\r\n%btwo\r\n" % (other, BLOCK)
        + b"MSG s %d 5\r\nthree\r\n" % mine
        + b"PING\r\n"
    )


@pytest.mark.parametrize("begin", [False, True], ids=["restored", "begun"])
async def test_toggled_at_every_byte(nc: Client, name: str, begin: bool) -> None:
    seen: list[bytes] = []
    direct = await subscribe_direct(nc, name, seen.extend, payloads=True)
    sub = await nc.subscribe(name)
    data = _frames(direct, sub._id)
    for cut in range(len(data) + 1):
        acceleration = Acceleration(None) if begin else accelerate(nc)
        await nc._ps.parse(data[:cut])
        if begin:
            acceleration = accelerate(nc)
        else:
            acceleration.restore()
        assert isinstance(nc._ps, DirectParser) is begin
        await nc._ps.parse(data[cut:])
        await until(lambda: len(seen) == 3)
        await nc._ps.parse(b"MSG s %d 4\r\nlast\r\n" % direct.subscription._id)
        assert len(seen) == 3 + begin  # at once
        acceleration.restore()
        await until(lambda: len(seen) == 4)
        others = [await sub.next_msg(timeout=60) for _ in range(2)]
        assert seen == [b"one", b"two", b"three", b"last"]
        assert [(msg.data, msg.reply, msg.headers) for msg in others] == [
            (b"one", "r", None),
            (b"two", "", {"A": "b"}),
        ]
        assert (bytes(nc._ps.buf), nc._ps.state) == (b"", nats.protocol.parser.AWAITING_CONTROL_LINE)
        seen.clear()


async def test_queued_messages_are_not_overtaken(nc: Client, name: str) -> None:
    seen: list[bytes] = []
    direct = await subscribe_direct(nc, name, seen.extend, payloads=True)
    sid = direct.subscription._id
    await nc._ps.parse(b"MSG s %d 1\r\n1\r\nMSG s %d 1\r\n2\r\n" % (sid, sid))
    accelerate(nc)
    await nc._ps.parse(b"MSG s %d 1\r\n3\r\n" % sid)
    assert seen == []
    await until(lambda: len(seen) == 3)
    await nc._ps.parse(b"MSG s %d 1\r\n4\r\n" % sid)
    assert seen == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("cut", range(1, 24))
async def test_restored_by_a_handler_in_the_middle_of_a_read(nc: Client, name: str, cut: int) -> None:
    seen: list[bytes] = []

    def stop(payloads: list[bytes]) -> None:
        seen.extend(payloads)
        acceleration.restore()

    direct = await subscribe_direct(nc, name, stop, payloads=True)
    sid, acceleration = direct.subscription._id, accelerate(nc)
    data = b"MSG s %d 1\r\n1\r\nMSG s %d 5\r\n22222\r\nPING\r\n" % (sid, sid)
    first = data.index(b"MSG", 1)
    await nc._ps.parse(data[: first + cut])
    await nc._ps.parse(data[first + cut :])
    assert not acceleration.active
    await until(lambda: seen == [b"1", b"22222"])


async def test_what_nats_py_has_queued_is_not_overtaken_after_a_reconnect(nc: Client, name: str) -> None:
    seen: list[bytes] = []
    accelerate(nc)
    direct = await subscribe_direct(nc, name, seen.extend, payloads=True)
    sid = direct.subscription._id
    await nc._ps.parse(b"MSG s %d 1\r\n1\r\n" % sid)
    await nc._ps.parse(b"PING  \r\nMSG s %d 1\r\n2\r\n" % sid)  # no server writes that, but nats-py takes it
    assert seen == [b"1"]
    nc._ps.reset()
    await nc._ps.parse(b"MSG s %d 1\r\n3\r\n" % sid)
    await until(lambda: seen == [b"1", b"2", b"3"])
    await nc._ps.parse(b"MSG s %d 1\r\n4\r\n" % sid)
    assert seen == [b"1", b"2", b"3", b"4"]


async def test_nothing_is_handled_or_kept_of_what_has_ended(nc: Client, name: str) -> None:
    seen: list[bytes] = []
    accelerate(nc)
    parser: Any = nc._ps
    directs = [await subscribe_direct(nc, name, seen.extend, payloads=True) for _ in range(3)]
    sent = [b"MSG s %d 1\r\n1\r\n" % direct.subscription._id for direct in directs]
    nc._remove_sub(directs[2].subscription._id)  # before it was taken over
    await parser.parse(sent[0] + sent[1])
    assert (len(seen), len(parser._direct), len(parser._waiting)) == (2, 2, 0)
    nc._remove_sub(directs[0].subscription._id)
    draining = asyncio.create_task(nc.drain())
    while not nc.is_draining:
        await asyncio.sleep(0)
    await directs[1].unsubscribe()
    before = nc.stats["in_msgs"]
    await parser.parse(b"".join(sent))
    assert nc.stats["in_msgs"] == before + 3
    await draining
    assert len(seen) == 2
    assert parser._direct == {}


async def test_several_users(nc: Client) -> None:
    first, second = accelerate(nc), accelerate(nc)
    parsers: list[Any] = [nc._ps]
    first.restore()
    first.restore()
    parsers.append(nc._ps)
    assert (first.active, second.active) == (False, True)
    second.restore()
    parsers.append(nc._ps)
    assert [type(parser) for parser in parsers] == [DirectParser, DirectParser, nats.protocol.parser.Parser]
    assert parsers[0] is parsers[1]


async def test_a_client_that_connects_later(nats_server: NatsServer, name: str) -> None:
    client = Client()
    accelerate(client)
    await client.connect(nats_server.url)
    seen: list[bytes] = []
    await subscribe_direct(client, name, seen.extend, payloads=True)
    await client.publish(name, b"x")
    await until(lambda: seen == [b"x"])
    await client.close()


def test_nothing_keeps_a_connection_alive() -> None:
    client = Client()
    assert accelerate(client).active
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("change", ["name", "state", "parser", "attribute", "buffer", "signature"])
async def test_an_unknown_nats_py_is_left_as_it_is(
    nc: Client, name: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    parser: Any = nc._ps

    class Another(nats.protocol.parser.Parser):
        pass

    async def parse(data: bytes, more: int) -> None:
        raise AssertionError

    match change:
        case "name":
            monkeypatch.setattr("liftenvelope.nats._internals._PRIVATE", ("_gone",))
        case "state":
            monkeypatch.delattr(nats.protocol.parser, "AWAITING_MSG_PAYLOAD")
        case "parser":
            nc._ps = Another(nc)
        case "attribute":
            monkeypatch.setattr("liftenvelope.nats._internals._SUBSCRIPTION_PRIVATE", ("_gone",))
        case "buffer":
            parser.buf = b""
        case "signature":
            monkeypatch.setattr(parser, "parse", parse)
    before = nc._ps
    with pytest.warns(
        RuntimeWarning, match=r"nats-py \d.* is not known to liftenvelope: .*; not accelerated"
    ):
        acceleration = accelerate(nc)
    assert not acceleration.active
    assert nc._ps is before
    acceleration.restore()
    if change == "buffer":
        parser.buf = bytearray()
    monkeypatch.undo()
    seen: list[bytes] = []
    await subscribe_direct(nc, name, seen.extend, payloads=True)
    await nc.publish(name, b"x")
    await until(lambda: seen == [b"x"])


@pytest.mark.parametrize(
    ("headers", "block"),
    [
        (None, None),
        ({"A": "b", "C": "d: e"}, b"NATS/1.0\r\nA: b\r\nC: d: e\r\n\r\n"),
        ({"Status": "404", "Description": "No Messages"}, b"NATS/1.0 404 No Messages\r\n\r\n"),
        (
            {"Status": "503", "Description": "\nNats-Subject: a.b"},
            b"NATS/1.0 503\r\nNats-Subject: a.b\r\n\r\n",
        ),
    ],
)
def test_headers_made_again(headers: dict[str, str] | None, block: bytes | None) -> None:
    assert header_block(headers) == block


# A scripted server: what a real one can't be made to send.


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize(
    "spoiled",
    [
        b"MSG s x 1\r\nx\r\n",
        b"oops\r\n",
        b"MSG s 1\r\n",
        b"HMSG s 1 5\r\n",
        b"\r\n",
        b"-ERR 'Stale Connection'\r\n",
    ],
)
async def test_faults_of_the_server_lose_the_connection(accelerated: bool, spoiled: bytes) -> None:
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.write(INFO)
        with suppress(ConnectionResetError):
            while line := await reader.readline():
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = await connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    if accelerated:
        accelerate(client)
    seen: list[bytes] = []
    direct = await subscribe_direct(client, "s", seen.extend, payloads=True)
    sid = direct.subscription._id
    for round_ in range(1, 4):
        connections[-1].write(b"MSG s %d 3\r\none\r\nMSG s %d 3\r\nt" % (sid, sid) + b"wo\r\n" + spoiled)
        await until(lambda: client.stats["reconnects"] == round_ and client.is_connected)  # noqa: B023
        assert seen == [b"one", b"two"] * round_
    await client.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("accelerated", [False, True])
async def test_lame_duck(accelerated: bool, nats_server: NatsServer) -> None:
    told = asyncio.Event()

    async def note() -> None:
        told.set()

    client = await connect(nats_server.url, lame_duck_mode_cb=note)
    if accelerated:
        accelerate(client)
    # A fake: nats-server adds "ldm" to the fields that it sends at the beginning.
    await client._ps.parse(INFO.replace(b'"api_lvl"', b'"ldm":true,"api_lvl"'))
    assert told.is_set()
    await client.close()


def test_a_blocking_socket_is_walked_as_well(nats_server: NatsServer, name: str) -> None:
    walker = frames.NatsWalker(1 << 20)
    walker.open(9)
    seen: list[Message] = []
    left = b""
    with socket.create_connection(("127.0.0.1", nats_server.port), timeout=60) as connection:
        connection.sendall(b'CONNECT {"verbose": false, "headers": true}\r\nSUB %b 9\r\n' % name.encode())
        connection.sendall(b"PUB %b r 5\r\nhello\r\n" % name.encode() * 1_000 + b"PING\r\n")
        while not left.endswith(b"PONG\r\n"):
            walker.feed(connection.recv(8_192))
            rest = b"-"
            while rest:
                taken, rest = walker.walk()
                left += rest
                for _, _, messages in taken:
                    assert isinstance(messages, list)
                    seen += messages
    assert seen == [(name, b"r", None, b"hello")] * 1_000
    assert left.startswith(b"INFO ")
