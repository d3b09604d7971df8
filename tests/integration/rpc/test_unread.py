"""Clients that do not read what a server sends them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack

from liftenvelope.rpc.aio import Call, Channel
from liftenvelope.rpc.limits import ServerLimits
from liftenvelope.rpc.server import Server, ServerCall, unary
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.hostile.frames import DATA, GREETING, SETTINGS, call, frame, headers, message
from tests.integration.gateway.raw_http2 import PATIENCE, RawClient


async def test_idle_connection_is_closed_though_its_client_does_not_read() -> None:
    async def answer(served: ServerCall) -> None:
        # More than the socket's buffers hold.
        served.send_nowait([bytes(1_000_000)] * 32)

    async with Server({"/": answer}, limits=ServerLimits(preface_timeout=1.0, idle_timeout=1.0)) as server:
        host, port = (await server.start()).rsplit(":", 1)
        windows = b"\0\0\x06\x04\0\0\0\0\0" + b"\0\4" + (2**31 - 1).to_bytes(4, "big")
        room = b"\0\0\x04\x08\0\0\0\0\0" + (2**30).to_bytes(4, "big")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(GREETING + windows + room + call(1, "/", message(b"")))
            while not server.links:
                await asyncio.sleep(0)
            (link,) = server.links
            async with asyncio.timeout(120):
                await asyncio.shield(link.closed)


async def taken(stream: Call) -> tuple[int, int]:
    """Take the messages of a call; return their number and the status."""
    count = 0
    try:
        async for _ in stream:
            count += 1
    except RpcError as error:
        return count, error.code
    return count, StatusCode.OK


async def test_answers_that_clients_do_not_take_are_bounded() -> None:
    # 8 MiB fit into the window of a call, so 1.6 MB of its answers are left.
    answers, left = [bytes(1_000_000)] * 10, 10 * 1_000_005 - (8 << 20)

    async def answer(served: ServerCall) -> None:
        served.send_nowait(answers)

    async def answer_reader(served: ServerCall) -> None:
        served.exempt_answers()
        served.send_nowait(answers)

    async def nothing(_: bytes) -> bytes:
        return b""

    handlers = {"/counted": answer, "/exempt": answer_reader, "/": unary(nothing)}
    # The answer of a short call counts too while the socket takes nothing.
    limits = ServerLimits(max_unsent_bytes_per_connection=2 * left + 100)
    async with (
        Server(handlers, limits=limits) as server,
        await Channel.connect(await server.start()) as channel,
    ):
        streams = []
        for path, unsent in (
            ("/exempt", 0),
            ("/counted", left),
            ("/counted", 2 * left),
            ("/counted", 2 * left),
        ):
            streams.append(channel.server_stream(path, b""))
            await channel.unary("/", b"", timeout=120)  # follows all that the windows have allowed
            assert server.unsent_bytes == unsent
        exempt, *counted = [await taken(stream) for stream in streams]
        whole = (10, StatusCode.OK)
        assert (exempt, sorted(counted)) == (whole, [(8, StatusCode.RESOURCE_EXHAUSTED), whole, whole])
        await channel.unary("/", b"", timeout=120)
        assert server.unsent_bytes == 0


async def test_expired_calls_of_clients_that_take_nothing_leave_the_budget_of_unread_requests() -> None:
    async def stuck(served: ServerCall) -> None:
        served.send_nowait([b"answer"])
        await asyncio.Event().wait()

    no_window = frame(SETTINGS, 0, 0, b"\0\4" + bytes(4))
    body = message(bytes(10_000))
    requests = headers(1, "/", more=[(b"grpc-timeout", b"9999S")]) + 5 * frame(DATA, 0, 1, body)
    async with (
        Server({"/": stuck}, limits=ServerLimits(max_unread_bytes=210_000)) as server,
        AsyncExitStack() as stack,
    ):
        address = await server.start()
        for _ in range(4):
            client = await stack.enter_async_context(RawClient(address))
            client.send(no_window + requests)
        async with asyncio.timeout(PATIENCE):
            while server.unread_bytes < 20 * len(body):
                await asyncio.sleep(0.01)
            for link in server.links:
                link._expire(1)  # the time is up
            assert server.unread_bytes == 0
            while server.calls:
                await asyncio.sleep(0.01)
        assert [link.protocol.open_calls for link in server.links] == [1] * 4
        assert server.unread_bytes == 0
