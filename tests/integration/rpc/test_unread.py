"""Clients that do not read what a server sends them."""

from __future__ import annotations

import asyncio
import socket

from liftenvelope.rpc.limits import ServerLimits
from liftenvelope.rpc.server import Server, ServerCall
from tests.hostile.frames import GREETING, call, message


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
