"""The monitor's HTTP server: files, events, messages, and who gets them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import nats
import pytest
from aiohttp import web

import liftenvelope
from liftenvelope import new_message
from liftenvelope.errors import LiftEnvelopeError, MessageNotFoundError, UnsupportedByServerError
from liftenvelope.jetstream import JetStream, StorageType, StoredMessage, Stream, StreamConfig
from liftenvelope.monitor import Collector, Sampler
from liftenvelope.monitor import server as monitor_server
from liftenvelope.monitor.server import (
    LiftbridgeMessages,
    MonitorAccess,
    MonitorLink,
    MonitorPages,
    serving_monitor,
)
from liftenvelope.rpc.address import Address
from liftenvelope.testing import NatsServer, run_gateway, run_nats_server
from tests.integration.cli.commands import error_of

TOKEN = "a token of the tests"


@pytest.fixture(scope="module")
def server() -> Any:
    with run_nats_server(jetstream=True, max_payload=32 * 2**20) as running:
        asyncio.run(_fill(running.url))
        yield running


async def _fill(url: str) -> None:
    async with await nats.connect(url) as nc, JetStream(nc, timeout=60) as js:
        for name, direct in (("DIRECT", True), ("SINGLE", False)):
            await js.create_stream(
                StreamConfig(name=name, subjects=(f"{name}.*",), allow_direct=direct, max_msgs_per_subject=-1)
            )
            for number in range(8):
                value = new_message(b"value %d" % number, key=b"key %d" % (number % 2))
                await js.publish(f"{name}.{number}", value)
            stream = await js.stream(name)
            await stream.delete_message(8)
        await js.create_stream(StreamConfig(name="BIG", subjects=("BIG",)))
        await js.publish("BIG", b"b" * (10 * 2**20))
        await js.publish("BIG", b"\xff\x00")


@asynccontextmanager
async def pages(
    server: NatsServer, access: MonitorAccess | None = None, **options: Any
) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve the pages of a server, and yield a session that asks them."""
    link = MonitorLink()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Sampler]:
        async with await nats.connect(server.url) as nc, JetStream(nc, timeout=60) as js:
            with link.to_jetstream(js) as sampler:
                yield sampler

    collector = Collector(connect, kind="jetstream", interval=0.05)
    monitor = MonitorPages(
        collector, link=link, access=access or MonitorAccess(), where="nats://servers", **options
    )
    async with serving_monitor(collector, monitor, Address("127.0.0.1", 0)) as found:
        await collector.next()
        timeout = aiohttp.ClientTimeout(60)
        async with aiohttp.ClientSession(f"http://{found}/", timeout=timeout) as session:
            yield session


async def connected(session: aiohttp.ClientSession) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the pages' port."""
    base: Any = session._base_url
    return await asyncio.open_connection(base.host, base.port)


async def found(session: aiohttp.ClientSession, **query: str) -> Any:
    async with session.get("api/messages", params=query) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


def values(answer: Any) -> list[str]:
    return [one["value"]["text"] for one in answer["messages"]]


async def states(session: aiohttp.ClientSession, *names: str, page: str) -> AsyncIterator[Any]:
    params = [("page", page), *(("name", name) for name in names)]
    async with session.get("api/events", params=params) as answer:
        assert answer.status == 200
        async for line in answer.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


async def test_events_have_changed_rows_and_new_points_alone(server: NatsServer) -> None:
    async with pages(server) as session, await nats.connect(server.url) as nc:
        events = states(session, page="streams")
        first = await anext(events)
        assert {"DIRECT", "SINGLE", "BIG"} <= first["rows"].keys()
        assert first["head"]["messages"] >= 16
        await nc.request("DIRECT.new", b"", timeout=60)
        async with asyncio.timeout(60):
            while "DIRECT" not in (state := await anext(events))["rows"]:
                assert state["rows"].keys() <= {"DIRECT"}
                assert len(state["series"][0]["times"]) <= 5
        await events.aclose()  # type: ignore[attr-defined]


async def test_events_of_one_stream(server: NatsServer) -> None:
    async with pages(server) as session:
        state = await anext(states(session, "DIRECT", page="stream"))
        assert state["stream"]["partitions"][0]["end"] >= 8
        assert (await anext(states(session, "NONE", page="stream")))["gone"] is True


async def test_slow_reader_gets_the_newest_state_and_no_queue(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAKE is that the second state waits for the reader: the buffers between the two hold many."""
    write, may_write = web.StreamResponse.write, asyncio.Event()
    written: list[web.StreamResponse] = []

    async def slowly(response: web.StreamResponse, data: bytes) -> None:
        written.append(response)
        if written[0] is response and written.count(response) == 2:
            await may_write.wait()
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", slowly)
    async with pages(server) as session:
        slow = states(session, page="streams")
        await anext(slow)
        fast = states(session, page="streams")
        newest = [await anext(fast) for _ in range(10)][-1]["head"]["at"]
        may_write.set()
        assert (await anext(slow))["head"]["at"] < newest
        assert (await anext(slow))["head"]["at"] >= newest
        await slow.aclose()  # type: ignore[attr-defined]
        await fast.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", ["DIRECT", "SINGLE"])
async def test_messages_by_offset_time_and_key(server: NatsServer, stream: str) -> None:
    async with pages(server) as session:
        last = await found(session, stream=stream, limit="2")
        assert values(last)[-1] in ("value 6", "")  # the newest was deleted
        some = await found(session, stream=stream, start="2", limit="3")
        assert values(some) == ["value 2", "value 3", "value 4"]
        assert some["next"] == 5
        assert some["messages"][0]["key"] == {"size": 5, "text": "key 0"}
        keyed = await found(session, stream=stream, start="1", key="key 1", limit="2")
        assert values(keyed) == ["value 1", "value 3"]
        assert (await found(session, stream=stream, key="no such key"))["messages"] == []
        early = (datetime.now(UTC) - timedelta(days=1)).isoformat()
        assert values(await found(session, stream=stream, start=early, limit="1")) == ["value 0"]
        late = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        assert values(await found(session, stream=stream, start=late)) == []


@pytest.mark.parametrize("error", [UnsupportedByServerError("no batches"), MessageNotFoundError(404, "", 0)])
async def test_messages_of_a_server_without_batches(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, error: LiftEnvelopeError
) -> None:
    # FAKE: nats-server 2.10 answers a batch by one message, and by none if the first sequence was deleted.
    async def batch(*_: object, **__: object) -> AsyncIterator[StoredMessage]:
        raise error
        yield

    monkeypatch.setattr(Stream, "get_messages", batch)
    async with pages(server) as session:
        some = await found(session, stream="DIRECT", start="2", limit="3")
        assert (values(some), some["next"]) == (["value 2", "value 3", "value 4"], 5)
        keyed = await found(session, stream="DIRECT", start="1", key="key 1", limit="2")
        assert values(keyed) == ["value 1", "value 3"]
        assert (await found(session, stream="DIRECT", key="no such key"))["messages"] == []


async def test_messages_of_a_gateway() -> None:
    async with run_gateway() as gateway, liftenvelope.connect(gateway.addresses, timeout=60) as client:
        await client.create_stream("s", "s", partitions=2)
        for number in range(5):
            await client.publish("s", b"value %d" % number, key=b"k", partition=1)
        from liftenvelope.monitor._reading import MessageQuery

        reader = LiftbridgeMessages(client)
        page = await reader.read(MessageQuery(stream="s", partition=1, limit=2))
        assert [one.value for one in page.messages] == [b"value 3", b"value 4"]
        page = await reader.read(MessageQuery(stream="s", partition=1, start=1, limit=2))
        assert ([one.value for one in page.messages], page.next) == ([b"value 1", b"value 2"], 3)
        assert (await reader.read(MessageQuery(stream="s", partition=0))).messages == ()


async def test_large_payload_is_cut(server: NatsServer) -> None:
    async with pages(server) as session, session.get("api/messages?stream=BIG") as answer:
        body = await answer.read()
        assert len(body) < 10_000
        big, binary = json.loads(body)["messages"]
        assert (big["size"], len(big["value"]["text"])) == (10 * 2**20, 4_096)
        assert binary["value"] == {"size": 2, "base64": "/wA="}


async def test_payloads_can_be_left_out(server: NatsServer) -> None:
    async with pages(server, payloads=False) as session:
        (message,) = (await found(session, stream="DIRECT", start="0", limit="1"))["messages"]
        assert sorted(message) == ["offset", "partition", "size", "subject", "time"]


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("stream=DIRECT&start=soon", 400, "start must be an offset, or a time such as 2026-01-31T12:00, got"),
        ("stream=DIRECT&limit=-1", 400, "limit must be a number, got '-1'"),
        ("stream=NONE", 502, "stream not found"),
        ("stream=", 502, "stream name must not be empty"),
    ],
)  # fmt: skip
async def test_refused_query(server: NatsServer, query: str, status: int, text: str) -> None:
    async with pages(server) as session, session.get(f"api/messages?{query}") as answer:
        assert answer.status == status
        assert text in (await answer.json())["error"]


async def test_number_of_open_pages_is_limited(server: NatsServer) -> None:
    async with pages(server, max_readers=2) as session, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(session.get("api/events?page=streams"))
        async with session.get("api/events?page=streams") as answer:
            assert answer.status == 503
            assert await answer.text() == "2 pages are open already: close one\n"


def session_from(address: str, base: Any) -> aiohttp.ClientSession:
    """Return a session whose connections come from an address of loopback."""
    connector = aiohttp.TCPConnector(local_addr=(address, 0), limit=0)
    return aiohttp.ClientSession(base, connector=connector, timeout=aiohttp.ClientTimeout(60))


async def test_client_with_all_open_pages_makes_room_for_another_address(server: NatsServer) -> None:
    async with pages(server, max_readers=4) as session, AsyncExitStack() as stack:
        first = [await stack.enter_async_context(session.get("api/events?page=streams")) for _ in range(4)]
        other = await stack.enter_async_context(session_from("127.0.0.2", session._base_url))
        second = [await stack.enter_async_context(other.get("api/events?page=streams")) for _ in range(3)]
        assert [answer.status for answer in second] == [200, 200, 503]  # each has its half
        for answer in first[:2]:  # the oldest ones
            with suppress(aiohttp.ClientError):
                await answer.read()
        for answer in [*first[2:], *second[:2]]:
            assert (await answer.content.readline()).startswith(b"data: ")


async def test_users_behind_a_proxy_make_room_for_each_other(server: NatsServer) -> None:
    access = MonitorAccess(user_header="X-User")
    async with pages(server, access, max_readers=2) as session, AsyncExitStack() as stack:
        for user, status in (("ann", 200), ("ann", 200), ("ann", 503), ("ben", 200), ("ben", 503)):
            request = session.get("api/events?page=streams", headers={"X-User": user})
            assert (await stack.enter_async_context(request)).status == status


async def status_of_page(session: aiohttp.ClientSession) -> int:
    async with session.get("api/events?page=streams") as answer:
        return answer.status


@pytest.fixture
def many_streams() -> Iterator[NatsServer]:
    """A server whose list of streams is larger than the buffers of a connection."""

    async def fill(url: str) -> None:
        async with await nats.connect(url) as nc, JetStream(nc, timeout=60) as js:
            for number in range(1_500):
                name = f"{'s' * 150}{number}"
                await js.create_stream(StreamConfig(name=name, subjects=(name,), storage=StorageType.MEMORY))

    with run_nats_server(jetstream=True) as running:
        asyncio.run(fill(running.url))
        yield running


async def test_page_that_takes_nothing_is_closed(
    many_streams: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_server, "_STUCK", 0.5)
    async with pages(many_streams, max_readers=1) as session, asyncio.timeout(240):
        base: Any = session._base_url
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stalled.connect((base.host, base.port))
        reader, writer = await asyncio.open_connection(sock=stalled, limit=1)
        writer.write(b"GET /api/events?page=streams HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.read(1) == b"H"
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while await status_of_page(session) == 503:
            await asyncio.sleep(0.05)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with suppress(ConnectionError):
            assert not (await reader.read()).endswith(b"\r\n0\r\n\r\n")  # closed, and not ended
        writer.close()


@pytest.mark.parametrize(
    "path",
    ["static/none.js", "static/..%2fserver.py", "static/%2e%2e/server.py", "api/none", "static/__init__.py",
     f"static/{'a' * 2_000}.js", "static/a%00.js"],
)  # fmt: skip
async def test_nothing_else_is_served(server: NatsServer, path: str) -> None:
    async with pages(server) as session, session.get(path) as answer:
        assert answer.status == 404


class TestConnections:
    """Peers that send little, nothing or nonsense. They need no login."""

    async def test_connections_that_send_nothing_make_room(self, server: NatsServer) -> None:
        async with pages(server) as session, AsyncExitStack() as stack:
            for _ in range(140):
                _, writer = await connected(session)
                stack.callback(writer.close)
            async with session.get("api/about") as answer:
                assert answer.status == 200

    async def test_silent_connection_is_closed(
        self, server: NatsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(monitor_server, "_CONNECTION_TIMEOUT", 1.0)
        async with pages(server) as session, asyncio.timeout(60):
            reader, writer = await connected(session)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    async def test_forms_that_do_not_end_keep_nobody_from_logging_in(self, server: NatsServer) -> None:
        async with pages(server, MonitorAccess(token=TOKEN)) as session, AsyncExitStack() as stack:
            for _ in range(8):
                _, writer = await connected(session)
                stack.callback(writer.close)
                kind = b"Content-Type: application/x-www-form-urlencoded"
                head = b"POST /login HTTP/1.1\r\nHost: localhost\r\n%s\r\nContent-Length: 99\r\n\r\n"
                writer.write(head % kind + b"token=")
                await writer.drain()
            async with session.get("login") as answer:  # the server has read them by now
                assert answer.status == 200
            async with session.post("login", data={"token": TOKEN}, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, "./")

    @pytest.mark.parametrize(
        ("fields", "status"),
        [
            ("Content-Type: application/x-www-form-urlencoded; charset=none", 303),
            ("Content-Type: application/x-www-form-urlencoded", 303),
            ("Content-Type: multipart/form-data", 303),
            ("Content-Encoding: gzip", 400),
        ],
    )
    async def test_form_of_any_bytes_is_no_failure_of_the_server(
        self, server: NatsServer, fields: str, status: int
    ) -> None:
        async with pages(server, MonitorAccess(token=TOKEN)) as session, asyncio.timeout(60):
            reader, writer = await connected(session)
            head = f"POST /login HTTP/1.1\r\nHost: localhost\r\n{fields}\r\nContent-Length: 8\r\n\r\n"
            writer.write(head.encode() + b"token=\xff\x00")
            assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
            writer.close()


class TestAccess:
    async def test_every_answer_has_the_policy(self, server: NatsServer) -> None:
        async with pages(server) as session:
            for path in ("", "static/app.js", "api/about", "static/none"):
                async with session.get(path) as answer:
                    policy = answer.headers["Content-Security-Policy"]
                    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
                    assert "unsafe" not in policy
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
                    assert answer.headers["X-Frame-Options"] == "DENY"

    @pytest.mark.parametrize(
        ("host", "status"),
        [("127.0.0.1:1", 200), ("localhost", 200), ("[::1]:80", 200), ("evil.example", 421),
         ("evil.example:8040", 421), ("monitor.example", 200), ("127.0.0.1.evil.example", 421)],
    )  # fmt: skip
    async def test_name_of_another_site_is_refused(self, server: NatsServer, host: str, status: int) -> None:
        async with (
            pages(server, MonitorAccess(hosts=("monitor.example",))) as session,
            session.get("api/about", headers={"Host": host}) as answer,
        ):
            assert answer.status == status

    async def test_request_of_another_site_is_refused(self, server: NatsServer) -> None:
        foreign = {"Sec-Fetch-Site": "cross-site"}
        async with pages(server, MonitorAccess(token=TOKEN)) as session:
            async with session.get("api/about", headers=foreign) as answer:
                assert answer.status == 403
            async with session.post("login", headers=foreign, data={"token": TOKEN}) as answer:
                assert answer.status == 403
            async with session.get("", headers=foreign) as answer:  # a link to the page
                assert (answer.status, answer.url.path) == (200, "/login")

    async def test_token(self, server: NatsServer) -> None:
        async with pages(server, MonitorAccess(token=TOKEN)) as session:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "liftenvelope_monitor=wrong"}):
                async with session.get("api/about", headers=headers) as answer:
                    assert answer.status == 401
            async with session.get("api/about", headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
                assert answer.status == 200
            async with session.get("", allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, "login")
            async with session.post("login", data={"token": "wrong"}) as answer:
                assert answer.url.query_string == "wrong"
            async with session.post("login", data={"token": TOKEN}, allow_redirects=False) as answer:
                cookie = answer.cookies["liftenvelope_monitor"]
            assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")
            assert TOKEN not in cookie.value
            sent = {"Cookie": f"liftenvelope_monitor={cookie.value}"}
            async with session.get("api/about", headers=sent) as answer:
                assert answer.status == 200

    async def test_user_header_of_a_proxy(self, server: NatsServer) -> None:
        async with pages(server, MonitorAccess(user_header="X-User")) as session:
            async with session.get("api/about") as answer:
                assert answer.status == 401
            async with session.get("api/about", headers={"X-User": "ann"}) as answer:
                assert answer.status == 200

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("--http", "0.0.0.0:0"), "--http must be a loopback address such as 127.0.0.1:8040 without"),
            (("--token", "short"), "--token must have at least 16 characters, got 5"),
            (("--http", "nowhere"), "nowhere"),
            (("--user-header", "a:b"), "must be the name of an HTTP header, such as X-User, got 'a:b'"),
            (("--allow-host", "a:80"), "--allow-host must be names such as monitor.example.org, without"),
        ],
    )  # fmt: skip
    def test_unsafe_options_are_refused(self, arguments: tuple[str, ...], text: str) -> None:
        assert text in error_of("monitor", "--url", "nats://127.0.0.1:1", *arguments, code=2)


def test_command_tells_that_the_servers_are_not_reached() -> None:
    command = [sys.executable, "-m", "liftenvelope", "monitor", "--url", "nats://127.0.0.1:1", "--json"]
    variables = {**os.environ, "XDG_CONFIG_HOME": "/nowhere"}
    with subprocess.Popen(
        [*command, "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["url"].startswith("http://127.0.0.1:")
        assert "Note: sampling of connection failed, trying again: can't connect" in process.stderr.readline()
        process.terminate()
        assert process.wait(60) == 0


async def test_options_limit_samples_and_pages(server: NatsServer) -> None:
    command = [sys.executable, "-m", "liftenvelope", "monitor", "--url", server.url, "--json"]
    command += ["--http", "127.0.0.1:0", "--limit", "max_streams=1", "--max-pages", "1", "--timeout", "60"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, "XDG_CONFIG_HOME": "/nowhere"}
    )
    assert process.stdout is not None
    try:
        url = json.loads(await process.stdout.readline())["url"]
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(60)) as session:
            events = states(session, page="streams")
            while (state := await anext(events))["head"] is None:
                pass
            assert len(state["rows"]) == 1
            assert any("streams beyond the limit" in alert[3] for alert in state["alerts"])
            async with session.get("api/events", params={"page": "streams"}) as answer:
                assert answer.status == 503
                assert await answer.text() == "1 pages are open already: close one\n"
            await events.aclose()  # type: ignore[attr-defined]
    finally:
        process.terminate()
        assert await process.wait() == 0
