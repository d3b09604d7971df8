"""Closing nats-py connections in every state."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from nats.aio.client import Client

from liftenvelope.nats.closing import close_connection
from liftenvelope.nats.program_client import _abort, new_client
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.integration.certificates import Certificates
from tests.integration.conftest import connect, freeze, until


@contextmanager
def frozen(server: NatsServer, nc: Client) -> Iterator[asyncio.WriteTransport]:
    """Freeze the server of a connection while bytes to it are unsent; yield the transport that holds them."""
    assert server.pid is not None
    freeze(server.pid)
    try:
        transport: asyncio.WriteTransport = nc._transport._io_writer.transport  # type: ignore[union-attr]
        while not transport.get_write_buffer_size():
            transport.write(bytes(1_000_000))
        yield transport
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.fixture
async def reconnecting() -> AsyncIterator[Client]:
    """A connection that waits for the end of its old transport: the server takes no bytes any more."""
    with run_nats_server() as server:
        nc = await connect(server.url)
        with frozen(server, nc) as transport:
            await nc.force_reconnect()
            assert nc._reconnection_task is not None
            await until(transport.is_closing)
            yield nc
            transport.abort()


async def test_reconnecting_connection_is_closed(reconnecting: Client) -> None:
    await close_connection(reconnecting)
    assert reconnecting.is_closed
    await close_connection(reconnecting)


async def test_nats_py_still_raises_a_cancellation_that_nobody_asked_for(reconnecting: Client) -> None:
    """If this fails, ``close_connection`` need not look at cancellations any more."""
    with pytest.raises(asyncio.CancelledError):
        await reconnecting.close()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.parametrize("is_back", [False, True])
async def test_reconnection_that_loses_its_cancellation_ends(
    is_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: ``asyncio.wait_for`` of Python 3.11 forgets a cancellation that comes with the result."""
    before = asyncio.all_tasks()
    with run_nats_server() as server:
        nc = await connect(server.url)
        connect_again, began = nc._select_next_server, asyncio.Event()

        async def lose_a_cancellation() -> None:
            monkeypatch.setattr(nc, "_select_next_server", connect_again)
            began.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await connect_again()

        monkeypatch.setattr(nc, "_select_next_server", lose_a_cancellation)
        server.kill()
        await began.wait()
        if is_back:
            server.start()
        await close_connection(nc)
        assert nc.is_closed
        await until(lambda: asyncio.all_tasks() <= before)


async def test_cancellation_of_the_caller_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faked: a close that does not end."""
    nc, closing = Client(), asyncio.Event()

    async def hang() -> None:
        closing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(nc, "close", hang)
    task = asyncio.create_task(close_connection(nc))
    await closing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_connection_that_was_never_made_is_closed() -> None:
    nc = Client()
    await close_connection(nc)
    assert nc.is_closed


async def test_connection_to_a_stopped_server_is_closed() -> None:
    with run_nats_server() as server:
        nc = await connect(server.url)
    await until(lambda: not nc.is_connected)
    await close_connection(nc)
    assert nc.is_closed


async def test_lost_connection_with_unsent_data_is_closed() -> None:
    """uvloop's transport does not take the data: RuntimeError."""

    async def quiet(_: Exception) -> None: ...

    with run_nats_server() as server, FaultProxy(server.url.removeprefix("nats://")) as proxy:
        nc = await connect(f"nats://{proxy.address}", error_cb=quiet)
        proxy.refuse()
        proxy.cut()
        await until(lambda: not nc.is_connected)
        await nc.publish("any", b"unsent")
        await close_connection(nc)
        assert nc.is_closed


async def test_programs_leave_a_frozen_server_for_the_next_one() -> None:
    """nats-py waits until the frozen server has taken what is written, before it connects again."""

    async def quiet(_: Exception) -> None: ...

    with run_nats_server() as first, run_nats_server() as other:
        urls = [first.url, other.url]
        nc = new_client(urls)
        await nc.connect(
            urls,
            dont_randomize=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0,
            ping_interval=1,
            max_outstanding_pings=1,
            connect_timeout=1,
            error_cb=quiet,
        )
        with frozen(first, nc):
            async with asyncio.timeout(240):
                await until(lambda: nc.is_connected and nc.connected_url.netloc in other.url)  # type: ignore[union-attr]
                await nc.flush()
        await close_connection(nc)


async def test_transport_whose_last_bytes_went_out_is_left_alone() -> None:
    """A frozen server may go on in its last second. Python 3.11 raises AttributeError in abort() then."""
    loop, lost = asyncio.get_running_loop(), asyncio.Event()

    class Ending(asyncio.Protocol):
        def connection_lost(self, _: Exception | None) -> None:
            lost.set()

    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        transport, _ = await loop.create_connection(Ending, sock=ours)
        transport.write(bytes(10_000_000))
        transport.close()
        while await loop.sock_recv(theirs, 1_000_000):
            pass
        await lost.wait()
        _abort(transport)


async def test_tls_transport_that_was_closed_twice_is_left_alone(tmp_path: Path) -> None:
    """asyncio's transport forgets its connection then, and fails if it is asked for its socket."""
    Certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    async with await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context
    ) as fake:
        _, writer = await asyncio.open_connection(*fake.sockets[0].getsockname(), ssl=trusting)
        writer.transport.close()
        writer.transport.close()
        _abort(writer.transport)
