"""Connections of this package's own programs that get input which nats-py can't read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport

from liftenvelope.nats import accelerate
from liftenvelope.nats.closing import close_connection
from liftenvelope.nats.program_client import new_client
from liftenvelope.testing import FaultProxy, run_nats_server
from tests.handled import handled
from tests.integration.conftest import until

GREETING = b'INFO {"max_payload":1048576}\r\n'
#: Greeting and answer to the login.
LOGINS = {
    "greeting without an object": (b"INFO []\r\n", b""),
    "greeting without INFO's blank": (b"INFO\r\n", b""),
    "greeting with an invalid URL": (b'INFO {"connect_urls":["[::1"]}\r\n', b""),
    "greeting with a number for the URLs": (b'INFO {"connect_urls":5}\r\n', b""),
    "greeting without an end": (b"x" * 100_000, b""),
    "error without a text": (GREETING, b"-ERR\r\n"),
    "error that is not UTF-8": (GREETING, b"-ERR '\xff'\r\n"),
}
STATUS = b"NATS/1.0 \xff\r\n\r\n"
MESSAGES = {
    "reply subject that is not UTF-8": b"PUB request \xff 2\r\nhi\r\n",
    "subject that is not UTF-8": b"PUB any.\xff 2\r\nhi\r\n",
    "headers without a version": b"HPUB request 1 3\r\nXhi\r\n",
    "status that is not UTF-8": b"HPUB request %d %d\r\n%b\r\n" % (len(STATUS), len(STATUS), STATUS),
}


class Fake(asyncio.Protocol):
    """A fake server, because nats-server sends no malformed lines.

    Args:
        greeting: Sent to each client.
        answers: Answers to PINGs of any client, in order. Those that come later get a PONG each.
    """

    def __init__(self, greeting: bytes, answers: Iterator[bytes]) -> None:
        self._greeting, self._answers = greeting, answers

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._greeting)

    def data_received(self, data: bytes) -> None:
        # Two may come in one read: after a reconnect nats-py flushes, and so may the test meanwhile.
        for _ in range(data.count(b"PING\r\n")):
            self._transport.write(next(self._answers, b"PONG\r\n"))


async def fake_server(greeting: bytes, *answers: bytes) -> tuple[asyncio.Server, str]:
    left = iter(answers)
    fake = await asyncio.get_running_loop().create_server(lambda: Fake(greeting, left), "127.0.0.1", 0)
    return fake, f"nats://127.0.0.1:{fake.sockets[0].getsockname()[1]}"


async def connect(urls: list[str], seen: list[str], attempts: int = -1) -> Client:
    async def note(error: Exception) -> None:
        seen.append(str(error))

    nc = new_client(urls)
    await nc.connect(
        urls,
        connect_timeout=60,
        dont_randomize=True,
        max_reconnect_attempts=attempts,
        reconnect_time_wait=0,
        error_cb=note,
    )
    return nc


@pytest.mark.parametrize("kind", LOGINS)
async def test_malformed_login_is_not_the_end_of_all_attempts(kind: str) -> None:
    greeting, answer = LOGINS[kind]
    seen: list[str] = []
    fake, fake_url = await fake_server(greeting, *[answer] * 100)
    with run_nats_server() as server, FaultProxy(server.url.removeprefix("nats://")) as proxy:
        async with asyncio.timeout(240):
            nc = await connect([f"nats://{proxy.address}", fake_url], seen)
            proxy.refuse()
            proxy.cut()
            await until(lambda: sum("answer a login like nats-server" in text for text in seen) > 2)
            proxy.accept()
            await until(lambda: nc.is_connected)
            await nc.flush()
            assert nc.connected_url is not None
            assert nc.connected_url.netloc == proxy.address
        await close_connection(nc)
    fake.close()


async def test_first_connection_to_another_service_fails_with_the_reason() -> None:
    seen: list[str] = []
    fake, url = await fake_server(b"INFO []\r\n")
    async with asyncio.timeout(240):
        with pytest.raises(nats.errors.NoServersError):
            await connect([url], seen, attempts=2)
    assert seen == ["the server must greet and answer a login like nats-server: AttributeError"] * 3
    fake.close()


async def test_ping_before_the_answer_to_the_login_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nats-server pings a connection that is two seconds old, also if its client has stood still so long."""
    drain = TcpTransport.drain

    async def stand_still(transport: TcpTransport) -> None:
        monkeypatch.setattr(TcpTransport, "drain", drain)
        await drain(transport)  # type: ignore[no-untyped-call]
        time.sleep(3)

    with run_nats_server() as server:
        monkeypatch.setattr(TcpTransport, "drain", stand_still)
        nc = await connect([server.url], [])
        assert nc.is_connected
        async with asyncio.timeout(60):
            sub = await nc.subscribe("any")
            await nc.publish("any", b"sent by nats-py's own task")
            assert (await sub.next_msg(60)).data == b"sent by nats-py's own task"
        await close_connection(nc)


@pytest.mark.parametrize("is_accelerated", [False, True], ids=["plain", "accelerated"])
@pytest.mark.parametrize("kind", MESSAGES)
async def test_malformed_message_is_dropped_and_the_next_one_arrives(kind: str, is_accelerated: bool) -> None:
    seen: list[str] = []
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def note(msg: Msg) -> None:
        got.put_nowait(msg.data)

    with run_nats_server() as server:
        nc = await connect([server.url], seen)
        if is_accelerated:
            accelerate(nc)
        await nc.subscribe("request", cb=note)
        await nc.subscribe("any.*", cb=note)
        await handled(nc)
        async with asyncio.timeout(240):
            parts = urlsplit(server.url)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + MESSAGES[kind])
            writer.write(b"PUB request 4\r\nnext\r\nPING\r\n")
            await reader.readuntil(b"PONG\r\n")
            assert await got.get() == b"next"
        writer.close()
        assert nc.stats["reconnects"] == 0
        assert [text.partition(":")[0] for text in seen] == ["malformed message"]
        await close_connection(nc)


@pytest.mark.parametrize("line", [b"INFO []\r\n", b"INFO {\r\n", b"-ERR \r\n", b"-ERR '\xff'\r\n"])
async def test_malformed_line_is_the_end_of_the_connection_and_not_only_of_reading(line: bytes) -> None:
    seen: list[str] = []
    fake, url = await fake_server(GREETING, b"PONG\r\n" + line)
    async with asyncio.timeout(240):
        nc = await connect([url], seen)
        await until(lambda: nc.is_connected and nc.stats["reconnects"] == 1)
        await nc.flush()
    assert seen == ["nats: protocol error"]
    await close_connection(nc)
    fake.close()


async def test_cancelled_reading_does_not_reconnect() -> None:
    """As at the end of ``asyncio.run``, which cancels all tasks."""
    seen: list[str] = []
    with run_nats_server() as server:
        nc = await connect([server.url], seen)
        assert nc._reading_task is not None
        nc._reading_task.cancel()
        await asyncio.wait({nc._reading_task})
        assert not nc.is_reconnecting
        assert seen == []
        await close_connection(nc)


async def test_servers_of_the_latest_list_are_kept_and_those_that_were_named() -> None:
    """FAKE, NOT REAL: a server that names other servers all the time."""
    lists = [[f"10.0.{number}.{last}:4222" for last in range(200)] for number in range(50)]
    lists.append([f"10.1.{number // 256}.{number % 256}:4222" for number in range(300)])
    infos = b"".join(b"INFO " + json.dumps({"connect_urls": urls}).encode() + b"\r\n" for urls in lists)
    fake, url = await fake_server(GREETING, b"PONG\r\n" + infos)
    async with asyncio.timeout(240):
        nc = await connect([url, "nats://127.0.0.1:1"], [])
        await until(lambda: any(server.netloc.startswith("10.1.") for server in nc.servers))
    assert {server.netloc for server in nc.servers if server.hostname == "127.0.0.1"} == {
        url.removeprefix("nats://"),
        "127.0.0.1:1",
    }
    assert [server.netloc for server in nc.discovered_servers] == lists[-1][:256]
    await close_connection(nc)
    fake.close()
