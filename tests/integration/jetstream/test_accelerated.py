"""Consumers deliver the same on an accelerated connection, whenever the acceleration begins and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream.message import Message, Recorder
from liftenvelope.nats import Acceleration, accelerate
from liftenvelope.nats.pull_inbox import PullInbox
from liftenvelope.nats.receiving import DirectParser
from liftenvelope.testing import FaultProxy, NatsServer
from tests.integration.conftest import connect, until

from .pulling import Bench, feed_of, numbered, read_all, until_acked, until_no_pulls

ACK = "$JS.ACK.S.C.1.7.3.0.2"
BLOCK = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
FORGED = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"


async def toggle(nc: Client, reading: asyncio.Task[Any]) -> int:
    """Begin and end acceleration until somebody has read enough; how often."""
    toggles = 0
    while not reading.done():
        with accelerate(nc) as acceleration:
            assert acceleration.active
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        toggles += 1
    return toggles


async def by_messages(consumer: Consumer, count: int, seen: list[bytes]) -> None:
    async with consumer.messages(max_messages=70) as messages:
        async for message in messages:
            seen.append(message.data)
            message.ack()
            if len(seen) == count:
                break


async def by_bytes(consumer: Consumer, count: int, seen: list[bytes]) -> None:
    async with consumer.messages(max_bytes=30_000) as messages:
        feed = feed_of(messages)
        while len(seen) < count:
            message = await messages.next()
            seen.append(message.data)
            message.ack()
            assert 0 <= feed._core.buffered <= 30_000
        assert feed._core.buffered == 0


async def by_handler(consumer: Consumer, count: int, seen: list[bytes]) -> None:
    done = asyncio.Event()

    def handle(message: Message) -> None:
        seen.append(message.data)
        message.ack()
        if len(seen) == count:
            done.set()

    async with await consumer.consume(handle, max_messages=70):
        await done.wait()


async def by_fetch(consumer: Consumer, count: int, seen: list[bytes]) -> None:
    while len(seen) < count:
        for message in await consumer.fetch(min(70, count - len(seen)), expires=10):
            seen.append(message.data)
            message.ack()


async def by_next(consumer: Consumer, count: int, seen: list[bytes]) -> None:
    while len(seen) < count:
        message = await consumer.next(timeout=20)
        seen.append(message.data)
        message.ack()


@pytest.mark.parametrize("read", [by_messages, by_bytes, by_handler, by_fetch, by_next])
async def test_toggled_while_messages_flow(
    jetstream_server: NatsServer, name: str, read: Callable[..., Any]
) -> None:
    """Everything comes once and in order, and the account is right at the end."""
    nc = await connect(jetstream_server.url)
    bench = await Bench(nc, name).create(storage="memory")
    payloads = [b"%d" % i + b"." * (i * 37 % 4_000) for i in range(1_500)]
    await bench.publish(payloads, headers={"A": "b"})
    consumer = await bench.consumer(max_ack_pending=-1)
    seen: list[bytes] = []
    reading = asyncio.create_task(read(consumer, len(payloads), seen))
    async with asyncio.timeout(60):
        assert await toggle(nc, reading) > 3
        await reading
    assert seen == payloads
    await until_acked(consumer)
    await until_no_pulls(consumer)
    await bench.delete()
    await nc.close()


class Inbox:
    """A pull inbox that notes what it gets, and the frames that a server could send to it."""

    def __init__(self, nc: Client) -> None:
        self.seen: list[Any] = []
        self.inbox = PullInbox(nc, Message, Recorder(), self.take, self.take_status, sized=True)

    def take(self, messages: list[Message]) -> None:
        self.seen += [
            (one.subject, one.reply, one.data, dict(one.headers), one._size - len(one.data))
            for one in messages
        ]

    def take_status(self, number: int, headers: Mapping[str, str]) -> None:
        self.seen.append((number, dict(headers)))

    async def open(self) -> bytes:
        """Subscribe; returns some frames."""
        await self.inbox.open()
        sub: Any = self.inbox._subscription
        sid, prefix = sub._id, self.inbox._prefix.encode()
        # As captured from nats-server 2.15.1.
        status = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 0\r\n\r\n"
        return b"".join(
            [
                b"MSG s %d %b 3\r\none\r\n" % (sid, ACK.encode()),
                b"HMSG %b7 %d %d %d\r\n%b\r\n" % (prefix, sid, len(status), len(status), status),
                b"HMSG s %d %b %d %d\r\n%b\r\n" % (sid, ACK.encode(), len(FORGED), len(FORGED), FORGED),
                b"PING\r\n",
                b"HMSG s %d %b 19 22\r\nNATS/1.0\r\nA: \xc3\xb6\r\n\r\ntwo\r\n" % (sid, ACK.encode()),
            ]
        )


def expected() -> list[Any]:
    alone = 1 + len(ACK)
    return [
        ("s", ACK, b"one", {}, alone),
        (
            7,
            {
                "Status": "408",
                "Description": "Request Timeout",
                "Nats-Pending-Messages": "3",
                "Nats-Pending-Bytes": "0",
            },
        ),
        ("s", ACK, b"", {"Status": "409", "Description": "Consumer Deleted"}, alone + len(FORGED)),
        ("s", ACK, b"two", {"A": "ö"}, alone + 19),
    ]


@pytest.mark.parametrize("begin", [False, True], ids=["restored", "begun"])
async def test_toggled_at_every_byte(nc: Client, begin: bool) -> None:
    """Messages and statuses in their order, wherever it is that the parsers change places."""
    inbox = Inbox(nc)
    data = await inbox.open()
    for cut in range(len(data) + 1):
        acceleration = Acceleration(None) if begin else accelerate(nc)
        await nc._ps.parse(data[:cut])
        if begin:
            acceleration = accelerate(nc)
        else:
            acceleration.restore()
        assert isinstance(nc._ps, DirectParser) is begin
        await nc._ps.parse(data[cut:])
        acceleration.restore()
        got, inbox.seen = inbox.seen, []
        # nats-py makes two headers of the status that is forged, and those are longer.
        assert [one[:4] for one in got] == [one[:4] for one in expected()]
    inbox.inbox.close()


async def test_a_split_at_every_byte(nc: Client) -> None:
    inbox = Inbox(nc)
    data = await inbox.open()
    with accelerate(nc):
        for cut in range(len(data) + 1):
            await nc._ps.parse(data[:cut])
            await nc._ps.parse(data[cut:])
            got, inbox.seen = inbox.seen, []
            assert got == expected()
        inbox.inbox.close()
        await nc._ps.parse(data)  # nothing is handled after the end
        assert inbox.seen == []


async def test_a_reset_in_the_middle_of_a_message(nc: Client) -> None:
    inbox = Inbox(nc)
    data = await inbox.open()
    with accelerate(nc):
        for cut in range(len(data)):
            await nc._ps.parse(data[:cut])
            nc._ps.reset()
            inbox.seen.clear()
            await nc._ps.parse(data)
            assert inbox.seen == expected()
    inbox.inbox.close()


async def test_the_same_message_both_ways(jetstream_server: NatsServer, bench: Bench) -> None:
    """Repeated names, other cases, no blank behind a colon, blanks within: all as nats-py reads them."""
    blocks = [
        BLOCK,
        b"NATS/1.0\r\na:x\r\nA:\ty \r\nno colon\r\nin side: z\r\n\r\n",
        "NATS/1.0\r\nB: ö\r\nÖ: b\r\n\r\n".encode(),
        b"NATS/1.0\r\nC: \xff\r\n: nameless\r\n\r\n",
        FORGED,
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 3\r\nNats-Last-Stream: 3\r\n\r\n",
    ]
    reader, writer = await asyncio.open_connection("127.0.0.1", jetstream_server.port)
    writer.write(b'CONNECT {"verbose": false, "headers": true}\r\n')
    for block in blocks:
        size = len(block)
        writer.write(b"HPUB %b.a %d %d\r\n%bx\r\n" % (bench.name.encode(), size, size + 1, block))
    writer.write(b"PING\r\n")
    while await reader.readline() != b"PONG\r\n":
        pass
    writer.close()
    seen = []
    for name in ("slow", "fast"):
        nc = await connect(jetstream_server.url)
        if name == "fast":
            accelerate(nc)
        consumer = await Bench(nc, bench.name).consumer(name)
        batch = await consumer.fetch(len(blocks), expires=20)
        seen.append([(one.subject, one.data, one.headers, one.metadata.stream_sequence) for one in batch])
        await nc.close()
    assert seen[0] == seen[1]
    assert [one[3] for one in seen[1]] == [1, 2, 3, 4, 5, 6]
    assert seen[1][0][2] == {"A": "2"}


@pytest.mark.parametrize("js_nc", ["accelerated"], indirect=True)
async def test_sizes_are_the_servers_own(bench: Bench, jetstream_server: NatsServer) -> None:
    """All bytes of repeated headers are counted, so that pulls fit exactly. nats-py keeps one value."""
    reader, writer = await asyncio.open_connection("127.0.0.1", jetstream_server.port)
    writer.write(b'CONNECT {"verbose": false, "headers": true}\r\n')
    frame = b"HPUB %b.a %d %d\r\n%bxyz\r\n" % (bench.name.encode(), len(BLOCK), len(BLOCK) + 3, BLOCK)
    writer.write(frame * 200 + b"PING\r\n")
    while await reader.readline() != b"PONG\r\n":
        pass
    writer.close()
    consumer = await bench.consumer(ack_policy="none")
    async with asyncio.timeout(60), consumer.messages(max_bytes=2_000) as messages:
        feed = feed_of(messages)
        for _ in range(200):
            message = await messages.next()
            assert message._size == len(message.subject) + len(message.reply) + len(BLOCK) + 3
            assert 0 <= feed._core.buffered <= 2_000
        assert feed._core.buffered == 0


async def test_huge_messages(bench: Bench) -> None:
    payloads = [bytes([number]) * 1_000_000 for number in range(8)]
    await bench.publish(payloads)
    consumer = await bench.consumer()
    async with asyncio.timeout(60), consumer.messages(max_messages=3) as messages:
        assert [(await messages.next()).data for _ in range(8)] == payloads


async def test_cut_off_in_the_middle_of_messages(jetstream_server: NatsServer, bench: Bench) -> None:
    """Nothing of a message that has come in part is delivered, and all of it later."""
    payloads = [b"%d:" % number + b"x" * 30_000 for number in range(60)]
    await bench.publish(payloads)
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        accelerate(nc)
        consumer = await Bench(nc, bench.name).consumer(ack_wait=500_000_000, max_ack_pending=-1)
        seen: set[bytes] = set()
        async with asyncio.timeout(60), consumer.messages(max_messages=10) as messages:
            cuts = 0
            while len(seen) < len(payloads):
                message = await messages.next()
                seen.add(message.data)
                message.ack()
                if len(seen) > 15 * (cuts + 1) and cuts < 3:
                    proxy.cut()
                    cuts += 1
                    await until(lambda: nc.stats["reconnects"] >= cuts)  # noqa: B023  # it is polled here
        assert seen == set(payloads)
        await nc.close()


async def test_reading_ends_with_the_connection(bench: Bench, js_nc: Client) -> None:
    """Received messages are delivered before the error, accelerated or not."""
    await bench.publish(numbered(500))
    consumer = await bench.consumer()
    async with consumer.messages() as messages:
        await until(lambda: messages.buffered == 500)
        await js_nc.close()
        got: list[bytes] = []
        with pytest.raises(ConnectionError):
            await read_all(messages, got)
    assert got == numbered(500)


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nats-py had renamed what it keeps to itself."""
    monkeypatch.setattr("liftenvelope.nats.link._PRIVATE", ("_gone",))
    monkeypatch.setattr("liftenvelope.nats._internals._PRIVATE", ("_gone",))


@pytest.mark.parametrize("read", [by_messages, by_bytes, by_handler, by_fetch, by_next])
async def test_an_unknown_nats_py(
    jetstream_server: NatsServer, name: str, unknown: None, read: Callable[..., Any]
) -> None:
    """It is refused with a warning, and everything works through its public methods."""
    nc = await connect(jetstream_server.url)
    with pytest.warns(
        RuntimeWarning, match=r"is not known to liftenvelope: it has no _gone; not accelerated"
    ):
        assert not accelerate(nc).active
    bench = await Bench(nc, name).create(storage="memory")
    await bench.publish(numbered(300))
    consumer = await bench.consumer()
    seen: list[bytes] = []
    async with asyncio.timeout(60):
        await read(consumer, 300, seen)
    assert seen == numbered(300)
    await until_acked(consumer)
    await until_no_pulls(consumer)
    await bench.delete()
    await nc.close()
