"""Bytes that a connection receives are parsed in order, whether at once or by nats-py's task.

The bytes are put where asyncio puts those of the socket. The server of the connection sends none meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.jetstream.message import Message, Recorder
from liftenvelope.nats import Acceleration, accelerate
from liftenvelope.nats.pull_inbox import PullInbox
from liftenvelope.nats.receiving import parser_of, subscribe_direct
from liftenvelope.testing import FaultProxy, NatsServer
from tests.handled import handled
from tests.integration.conftest import connect, until

STATUS = b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"
Give = Callable[[bytes], None]


def give_to(nc: Client, data: bytes) -> None:
    """Give a connection bytes as if they came from its server."""
    inside: Any = nc
    protocol = inside._transport._io_writer.transport.get_protocol()
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(data)
    elif data:
        room = memoryview(protocol.get_buffer(-1))
        room[: len(data)] = data
        protocol.buffer_updated(len(data))
        room[: len(data)] = b"?" * len(data)  # the next read overwrites them


@pytest.fixture
async def give(nc: Client) -> Give:
    """Gives a connection bytes as if they came from its server."""
    return partial(give_to, nc)


class Seen(list[str]):
    """Messages and statuses of a pull inbox, and the bytes that contain them."""

    async def open(self, nc: Client) -> bytes:
        self.inbox = PullInbox(nc, Message, Recorder(), self._messages, self._status)
        await self.inbox.open()
        await handled(nc)
        inside: Any = self.inbox
        sid, prefix = inside._subscription._id, inside._prefix.encode()
        parts = []
        for number in range(3):
            parts += [
                b"MSG s %d $JS.ACK.S.C.1.1.1.0.0 2\r\nm%d\r\n" % (sid, number),
                b"HMSG %b%d %d %d %d\r\n%b\r\n" % (prefix, number, sid, len(STATUS), len(STATUS), STATUS),
                b"PING\r\n" * number,
            ]
        parts.append(b"MSG s %d $JS.ACK.S.C.1.1.1.0.0 2\r\nm3\r\n" % sid)
        return b"".join(parts)

    def _messages(self, messages: list[Any]) -> None:
        self += [message.data.decode() for message in messages]

    def _status(self, number: int, headers: Mapping[str, str]) -> None:
        assert headers["Status"] == "100"
        self.append(f"status {number}")


ALL = ["m0", "status 0", "m1", "status 1", "m2", "status 2", "m3"]


@pytest.mark.parametrize("turns", [0, 1, 5])
@pytest.mark.parametrize("change", ["none", "accelerate", "restore"])
async def test_order_is_kept_wherever_the_bytes_are_cut(
    nc: Client, give: Give, turns: int, change: str
) -> None:
    seen = Seen()
    data = await seen.open(nc)
    inside: Any = nc
    # nats-server pings a connection that is two seconds old, which would come in the middle of a message.
    inside._transport._io_writer.transport.pause_reading()
    for cut in range(len(data) + 1):
        acceleration = Acceleration(None) if change == "accelerate" else accelerate(nc)
        give(b"+OK\r\n")  # the first read of a connection after accelerate() is nats-py's
        await until_read(nc)
        give(data[:cut])
        for _ in range(turns):
            await asyncio.sleep(0)
        if change == "accelerate":
            acceleration = accelerate(nc)
        if change == "restore":
            acceleration.restore()
        give(data[cut:])
        async with asyncio.timeout(60):
            while len(seen) < len(ALL):  # some turns of the loop: until() would wait for milliseconds
                await asyncio.sleep(0)
        assert seen == ALL
        seen.clear()
        acceleration.restore()


async def test_order_is_kept_by_a_restore_behind_two_reads_that_nats_py_has_not_seen(
    nc: Client, give: Give
) -> None:
    seen = Seen()
    data = await seen.open(nc)
    for cut in range(len(data) + 1):
        acceleration = accelerate(nc)
        give(b"+OK\r\n")  # the first read of a connection after accelerate() is nats-py's
        await until_read(nc)
        second = (cut + len(data)) // 2
        give(data[:cut])
        give(data[cut:second])
        acceleration.restore()
        give(data[second:])
        async with asyncio.timeout(60):
            while len(seen) < len(ALL):
                await asyncio.sleep(0)
        assert seen == ALL
        seen.clear()


async def until_read(nc: Client) -> None:
    """Wait until nats-py's task waits for bytes."""
    inside: Any = nc
    async with asyncio.timeout(60):
        while inside._transport._io_reader._buffer or inside._transport._io_reader._waiter is None:
            await asyncio.sleep(0)


async def test_messages_are_handled_as_soon_as_they_are_received(nc: Client, give: Give) -> None:
    seen: list[bytes] = []
    accelerate(nc)
    direct = await subscribe_direct(nc, "s", seen.extend, payloads=True)
    await handled(nc)
    await until_read(nc)
    inside: Any = direct.subscription
    give(b"MSG s %d 3\r\none\r\nMSG s %d 3\r\ntw" % (inside._id, inside._id))
    assert seen == [b"one"]
    give(b"o\r\n")
    assert seen == [b"one", b"two"]


async def test_restore_in_a_handler_leaves_the_rest_to_nats_py(nc: Client, give: Give) -> None:
    seen: list[bytes] = []
    acceleration = accelerate(nc)

    def restore(messages: list[Any]) -> None:
        seen.extend(messages)
        acceleration.restore()

    direct = await subscribe_direct(nc, "s", restore, payloads=True)
    sub = await nc.subscribe("o")
    await handled(nc)
    await until_read(nc)
    inside: Any = direct.subscription
    mine, other = inside._id, vars(sub)["_id"]
    give(b"MSG s %d 3\r\none\r\nMSG o %d 3\r\ntwo\r\nMSG s %d 5\r\nthr" % (mine, other, mine))
    assert parser_of(nc) is None
    give(b"ee\r\n")
    assert (await sub.next_msg(60)).data == b"two"
    await until(lambda: seen == [b"one", b"three"])


async def test_error_of_a_handler_goes_to_error_cb(nats_server: NatsServer) -> None:
    errors: list[Exception] = []

    async def note(error: Exception) -> None:
        errors.append(error)

    nc = await connect(nats_server.url, error_cb=note)
    accelerate(nc)

    def fail(messages: list[Any]) -> None:
        raise ValueError(messages)

    direct = await subscribe_direct(nc, "s", fail, payloads=True)
    await handled(nc)
    await until_read(nc)
    give_to(nc, b"MSG s %d 3\r\none\r\n" % vars(direct.subscription)["_id"])
    await until(lambda: [str(error) for error in errors] == ["[b'one']"])
    await nc.close()


async def test_malformed_bytes_end_the_connection_as_without_acceleration(nc: Client, give: Give) -> None:
    accelerate(nc)
    seen: list[bytes] = []
    await subscribe_direct(nc, "s", seen.extend, payloads=True)
    await handled(nc)
    await until_read(nc)
    give(b"PONY\r\n")
    await until(lambda: nc.is_connected and nc.stats["reconnects"] == 1)
    await nc.publish("s", b"after")
    await until(lambda: seen == [b"after"])


async def test_reader_of_the_next_connection_is_tapped(nats_server: NatsServer) -> None:
    with FaultProxy(nats_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        accelerate(nc)
        seen: list[bytes] = []
        direct = await subscribe_direct(nc, "s", seen.extend, payloads=True)
        await handled(nc)
        proxy.cut()
        await until(lambda: nc.is_connected and nc.stats["reconnects"] == 1)
        await handled(nc)
        await until_read(nc)
        give_to(nc, b"MSG s %d 1\r\n1\r\n" % vars(direct.subscription)["_id"])
        assert seen == [b"1"]
        await nc.close()
