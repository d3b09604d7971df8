"""Our server, with Google's client and with ours."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from liftenvelope.errors import TransportError, UsageError
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.limits import ServerLimits
from liftenvelope.rpc.listening import Listener
from liftenvelope.rpc.server import Server, ServerCall, unary
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.hostile.frames import DATA, GREETING, Answers, frame, headers, stream_id
from tests.integration.conftest import until


class Service:
    """Methods on plain bytes."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.timeouts: list[float | None] = []
        self.sent = 0

    async def echo(self, request: bytes) -> bytes:
        return request

    async def fail(self, call: ServerCall) -> None:
        call.trailing_metadata = [("x-why", "because")]
        raise RpcError(StatusCode.FAILED_PRECONDITION, "nöt so: 100%\n")

    async def chat(self, call: ServerCall) -> None:
        call.send_headers([("x-bytes-bin", b"\x00\xff")])
        while (requests := await call.receive()) is not None:
            await call.send(requests)

    async def count(self, call: ServerCall) -> None:
        (number,) = [int(request) async for request in call]
        await call.send([b"%d" % n for n in range(number)])

    async def flood(self, call: ServerCall) -> None:
        for _ in range(200):
            await call.send([bytes(100_000)])
            self.sent += 1

    async def wait(self, call: ServerCall) -> None:
        self.timeouts.append(call.timeout)
        try:
            await call.send([b"first"])
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def early(self, call: ServerCall) -> None:
        await call.receive()
        raise RpcError(StatusCode.ABORTED, "enough")

    async def broken(self, call: ServerCall) -> None:
        raise KeyError("secret")

    def methods(self) -> dict[str, Any]:
        names = ("fail", "chat", "count", "flood", "wait", "early", "broken")
        return {"/test/echo": unary(self.echo), **{f"/test/{name}": getattr(self, name) for name in names}}


@pytest.fixture
async def service() -> Service:
    return Service()


@pytest.fixture
async def server(service: Service) -> AsyncIterator[Server]:
    async with Server(service.methods(), limits=ServerLimits(max_request_bytes=6_000_000)) as server:
        await server.start()
        yield server
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("serve ")]


@pytest.fixture
async def google(server: Server) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        yield channel


@pytest.fixture
async def ours(server: Server) -> AsyncIterator[Channel]:
    async with await Channel.connect(server.address, max_message=6_000_000) as channel:
        yield channel


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 5_000_000])
async def test_unary(google: grpc.aio.Channel, size: int) -> None:
    assert await google.unary_unary("/test/echo")(bytes(size)) == bytes(size)


async def test_thousands_of_calls_at_once_are_no_flood(google: grpc.aio.Channel) -> None:
    """grpcio sends control frames for most answers."""
    echo = google.unary_unary("/test/echo")
    answers = await asyncio.gather(*(echo(b"%d" % number) for number in range(3_000)))
    assert answers == [b"%d" % number for number in range(3_000)]


async def test_thousands_of_small_messages_both_ways_are_no_flood(google: grpc.aio.Channel) -> None:
    """grpcio sends a control frame for every second message that it receives."""
    chat = google.stream_stream("/test/chat")()

    async def send() -> None:
        for number in range(10_000):
            await chat.write(b"%d" % number)
        await chat.done_writing()

    sending = asyncio.create_task(send())
    assert [answer async for answer in chat] == [b"%d" % number for number in range(10_000)]
    await sending


@pytest.mark.parametrize("size", [0, 100_000])
async def test_compressed_calls_are_refused(google: grpc.aio.Channel, size: int) -> None:
    """Also those of small messages, which grpcio does not compress."""
    echo = google.unary_unary("/test/echo")
    with pytest.raises(grpc.aio.AioRpcError, match="compressed with 'gzip' are not accepted") as info:
        await echo(bytes(size), compression=grpc.Compression.Gzip)
    assert info.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert await echo(bytes(size)) == bytes(size)


async def test_answers_are_sent_without_delay(google: grpc.aio.Channel, server: Server) -> None:
    """The end of an answer would wait for the client's TCP, which acks the first part after 40 ms."""
    await google.unary_unary("/test/echo")(b"")
    (link,) = server.links
    assert link._transport is not None
    accepted = link._transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_status(google: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await google.unary_unary("/test/fail")(b"")
    assert info.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert info.value.details() == "nöt so: 100%\n"
    assert dict(info.value.trailing_metadata()) == {"x-why": "because"}
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await google.unary_unary("/test/none")(b"")
    assert info.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_streams(google: grpc.aio.Channel) -> None:
    call = google.unary_stream("/test/count")(b"5000")
    assert [int(message) async for message in call] == list(range(5000))
    assert [message async for message in google.unary_stream("/test/count")(b"0")] == []
    chat = google.stream_stream("/test/chat")()
    for turn in range(10):
        await chat.write(b"%d" % turn)
        assert await chat.read() == b"%d" % turn
    await chat.done_writing()
    assert await chat.read() == grpc.aio.EOF
    assert dict(await chat.initial_metadata())["x-bytes-bin"] == b"\x00\xff"


async def test_large_requests_both_ways(google: grpc.aio.Channel) -> None:
    chat = google.stream_stream("/test/chat")()

    async def write() -> None:
        for _ in range(20):
            await chat.write(bytes(1_000_000))
        await chat.done_writing()

    writing = asyncio.create_task(write())
    assert [len(message) async for message in chat] == [1_000_000] * 20
    await writing


async def test_end_before_the_requests_end(google: grpc.aio.Channel) -> None:
    chat = google.stream_stream("/test/early")()
    await chat.write(b"x")
    assert await chat.code() == grpc.StatusCode.ABORTED


async def test_deadline(google: grpc.aio.Channel, service: Service) -> None:
    while not service.timeouts:  # a call whose time was up before it got here is not begun
        with pytest.raises(grpc.aio.AioRpcError) as info:
            await google.unary_unary("/test/wait")(b"", timeout=2.0)
        assert info.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await service.cancelled.wait()
    timeout = service.timeouts[0]
    assert timeout is not None
    assert 0 < timeout < 2.1  # gRPC rounds it up to 10 ms


async def test_cancelled_by_the_client(google: grpc.aio.Channel, service: Service) -> None:
    call = google.unary_stream("/test/wait")(b"")
    assert await call.read() == b"first"
    call.cancel()
    await service.cancelled.wait()


async def test_slow_client_holds_the_handler_back(ours: Channel, service: Service) -> None:
    async with ours.server_stream("/test/flood", b"") as call:
        for _ in range(50):
            assert await ours.unary("/test/echo", b"x") == b"x"
        assert service.sent < 120
        assert sum([len(message) async for message in call]) == 200 * 100_000


async def test_oversize_request(ours: Channel) -> None:
    with pytest.raises(RpcError, match="6000001 bytes") as info:
        await ours.unary("/test/echo", bytes(6_000_001))
    assert info.value.code == StatusCode.RESOURCE_EXHAUSTED
    assert await ours.unary("/test/echo", b"on") == b"on"


async def test_not_exactly_one_request(ours: Channel) -> None:
    async with ours.bidi("/test/echo") as call:
        call.half_close()
        with pytest.raises(RpcError, match="one request, none came"):
            await call.receive()


async def test_handler_that_fails_is_reported(ours: Channel) -> None:
    seen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: seen.append(context))
    with pytest.raises(RpcError, match="KeyError") as info:
        await ours.unary("/test/broken", b"")
    loop.set_exception_handler(handler)
    assert info.value.code == StatusCode.UNKNOWN
    assert "secret" not in str(info.value)
    assert isinstance(seen[0]["exception"], KeyError)


async def test_close_lets_calls_finish(server: Server, service: Service) -> None:
    async with await Channel.connect(server.address) as channel, channel.bidi("/test/chat") as call:
        await call.send([b"a"])
        assert await anext(call) == b"a"
        closing = asyncio.create_task(server.close(grace=60.0))
        await until(lambda: not channel.is_usable)
        with pytest.raises(TransportError, match="going away"):
            await channel.unary("/test/echo", b"")
        await call.send([b"b"])
        assert await anext(call) == b"b"
        call.half_close()
        assert await call.receive() is None
        await closing


async def test_close_cancels_what_goes_on(server: Server, service: Service) -> None:
    channel = await Channel.connect(server.address)
    async with channel, channel.server_stream("/test/wait", b"") as call:
        assert await anext(call) == b"first"
        await server.close()
        with pytest.raises(RpcError) as info:
            await call.receive()
        assert info.value.code == StatusCode.CANCELLED
    assert service.cancelled.is_set()


async def test_address_in_use(server: Server) -> None:
    host, _, port = server.address.rpartition(":")
    with pytest.raises(TransportError, match="can't listen"):
        await Server({}).start(host, int(port))
    with pytest.raises(UsageError, match="already"):
        await server.start()
    with pytest.raises(UsageError, match="does not listen"):
        _ = Server({}).address


async def test_ipv6() -> None:
    async with Server(Service().methods()) as server:
        address = await server.start("::1")
        assert address.startswith("[::1]:")
        async with await Channel.connect(address) as channel:
            assert await channel.unary("/test/echo", b"six") == b"six"


async def test_client_that_is_not_grpc(server: Server) -> None:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_calls_beyond_the_limit_wait() -> None:
    service = Service()
    server = Server(service.methods(), limits=ServerLimits(max_calls_per_connection=1))
    async with server, await Channel.connect(await server.start()) as channel:
        async with channel.server_stream("/test/wait", b"") as call:
            assert await anext(call) == b"first"
            waiting = asyncio.create_task(channel.unary("/test/echo", b"x"))
            await until(lambda: channel.open_calls == 2)
            assert not waiting.done()
        assert await waiting == b"x"


# Limits


async def test_connections_above_the_limit_are_closed_at_once(service: Service) -> None:
    async with Server(service.methods(), limits=ServerLimits(max_connections=2)) as server:
        await server.start()
        async with (
            await Channel.connect(server.address) as first,
            await Channel.connect(server.address) as other,
            first.bidi("/test/chat") as one,
            other.bidi("/test/chat") as two,
        ):
            for call in (one, two):
                await call.send([b"open"])
                assert await anext(call) == b"open"
            host, port = server.address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await reader.read() == b""
            writer.close()
            assert await first.unary("/test/echo", b"still served") == b"still served"
        await until(lambda: not server.links)
        async with await Channel.connect(server.address) as channel:
            assert await channel.unary("/test/echo", b"room again") == b"room again"


@pytest.mark.parametrize("greeting", [b"", b"PRI * HTTP/2.0\r\n"], ids=["nothing", "half a preface"])
async def test_client_that_does_not_speak_http2_is_closed(service: Service, greeting: bytes) -> None:
    async with Server(service.methods(), limits=ServerLimits(preface_timeout=0.2)) as server:
        await server.start()
        host, port = server.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting)
        async with asyncio.timeout(60):
            await reader.read()
        writer.close()
        await until(lambda: not server.links)


async def test_unfinished_tls_handshake_is_closed(service: Service) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    async with Server(service.methods(), limits=ServerLimits(handshake_timeout=0.2)) as server:
        await server.start(tls=tls)
        host, port = server.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a hello
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


async def test_idle_connection_is_closed_and_a_busy_one_stays(service: Service) -> None:
    async with Server(service.methods(), limits=ServerLimits(idle_timeout=3.0)) as server:
        await server.start()
        async with await Channel.connect(server.address) as busy, busy.bidi("/test/chat") as call:
            await call.send([b"first"])
            assert await anext(call) == b"first"
            async with await Channel.connect(server.address) as idle:
                await until(lambda: not idle.is_usable)
                await until(lambda: len(server.links) == 1)
                await call.send([b"second"])
                assert await anext(call) == b"second"


async def is_let_in(address: str) -> bool:
    """Return True if a new client is served."""
    try:
        async with await Channel.connect(address) as newcomer:
            return await newcomer.unary("/test/echo", b"let in", timeout=60) == b"let in"
    except TransportError:
        return False


async def test_server_without_descriptors_serves_those_it_has(service: Service) -> None:
    """Runs a server with 24 descriptors in a process of its own: the limit is the process's."""
    program = (
        "import asyncio, resource, sys\n"
        "from liftenvelope.rpc.server import Server, unary\n"
        "async def echo(request):\n    return request\n"
        "async def main():\n"
        "    async with Server({'/test/echo': unary(echo)}) as server:\n"
        "        print(await server.start(), flush=True)\n"
        "        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "        await asyncio.to_thread(sys.stdin.read)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    address = (await process.stdout.readline()).decode().strip()
    host, port = address.rsplit(":", 1)
    async with await Channel.connect(address) as channel:
        strangers = [await asyncio.open_connection(host, int(port)) for _ in range(60)]
        for _ in range(20):
            assert await channel.unary("/test/echo", b"served", timeout=60) == b"served"
        for _, writer in strangers:
            writer.close()
        async with asyncio.timeout(60):
            while not await is_let_in(address):  # the server may not have noticed yet that they are gone
                await asyncio.sleep(0.01)
    process.stdin.close()
    log = await process.stderr.read() if process.stderr is not None else b""
    assert await process.wait() == 0
    assert len(log.splitlines()) == 1, log[:2000]
    assert b"as many are open as the limits allow" in log


async def test_connection_whose_opening_is_cancelled_before_it_begins_is_closed() -> None:
    def admits(*_: object) -> bool:
        loop.call_soon(listener.close)  # runs before the task that is made next
        return True

    loop = asyncio.get_running_loop()
    listener = Listener(asyncio.Protocol, tls=None, admits=admits, handshake_timeout=60)
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.address.split(":"))
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    await listener.wait_closed()


@pytest.mark.parametrize("idle_timeout", [60.0, 0.05], ids=["closed", "idle"])
async def test_client_may_write_until_it_has_read_the_end_of_its_connection(idle_timeout: float) -> None:
    """A reset would fail its writes, and asyncio drops the statuses that it has not read then."""
    answered = asyncio.Event()

    async def answer(_: ServerCall) -> None:
        answered.set()

    async with Server({"/": answer}, limits=ServerLimits(idle_timeout=idle_timeout)) as server:
        host, port = (await server.start()).rsplit(":", 1)
        with socket.create_connection((host, int(port))) as client:
            client.sendall(GREETING + headers(stream_id(0), "/"))
            await answered.wait()
            closing = asyncio.create_task(server.close()) if idle_timeout == 60.0 else None
            received = Answers()
            while data := await asyncio.to_thread(client.recv, 1 << 16):
                received.feed(data)
            for _ in range(3):
                client.sendall(frame(DATA, 0, stream_id(0), b"late"))
        await (closing or until(lambda: not server.links))
    assert (received.statuses, received.goaways) == ({0: 1}, {0: 1})


async def test_end_of_a_connection_whose_reset_was_not_seen_yet() -> None:
    answered = asyncio.Event()

    async def answer(_: ServerCall) -> None:
        answered.set()

    async with Server({"/": answer}) as server:
        host, port = (await server.start()).rsplit(":", 1)
        with socket.create_connection((host, int(port))) as client:
            client.sendall(GREETING + headers(stream_id(0), "/"))
            await answered.wait()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        [link] = server.links
        link.end("the server was closed")
        async with asyncio.timeout(60):
            await link.closed
