"""Connections of this package's own programs whose TLS handshake fails."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats.errors
import pytest

from liftenvelope.nats.closing import close_connection
from liftenvelope.nats.program_client import new_client
from liftenvelope.testing import FaultProxy, run_nats_server
from tests.integration.certificates import Certificates
from tests.integration.conftest import until
from tests.integration.nats_tls import tls_first_server


@contextmanager
def usual_server(folder: Path) -> Iterator[str]:
    Certificates(folder)
    tls = {"cert_file": str(folder / "cert.pem"), "key_file": str(folder / "key.pem")}
    with run_nats_server(config={"tls": tls}) as server:
        yield server.url


SERVERS = {"after the greeting": usual_server, "before the greeting": tls_first_server}


@pytest.mark.parametrize("kind", SERVERS)
async def test_untrusted_certificate_is_an_error_and_not_the_end_of_all_attempts(
    kind: str, tmp_path: Path
) -> None:
    seen: list[Exception] = []

    async def note(error: Exception) -> None:
        seen.append(error)

    with SERVERS[kind](tmp_path) as url:
        nc = new_client([url], tls=True)
        options: dict[str, Any] = {
            "tls": ssl.create_default_context(),
            "tls_handshake_first": kind == "before the greeting",
            "max_reconnect_attempts": 2,
            "reconnect_time_wait": 0.01,
            "connect_timeout": 60,  # of each attempt, also for its handshake
            "error_cb": note,
        }
        async with asyncio.timeout(60):
            with pytest.raises(nats.errors.NoServersError):
                await nc.connect(url, **options)
            await close_connection(nc)
            assert [type(error) for error in seen] == [ssl.SSLCertVerificationError] * 3
            options["tls"] = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            nc = new_client([url], tls=True)
            await nc.connect(url, **options)
            assert nc.is_connected
            await close_connection(nc)


async def test_end_of_a_connection_is_no_warning_of_asyncio(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """nats-py keeps the streams of before the handshake, which answer the end as if there were no TLS."""
    closed = asyncio.Event()

    async def note() -> None:
        closed.set()

    async def quiet(_: Exception) -> None: ...

    Certificates(tmp_path)
    tls = {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")}
    with run_nats_server(config={"tls": tls}) as server:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        nc = new_client([server.url], tls=True)
        await nc.connect(server.url, tls=trusting, allow_reconnect=False, closed_cb=note, error_cb=quiet)
        await asyncio.to_thread(server.stop)
        async with asyncio.timeout(60):
            await closed.wait()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_refused_login_is_no_warning_of_asyncio(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def quiet(_: Exception) -> None: ...

    Certificates(tmp_path)
    tls = {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")}
    users = {"users": [{"user": "ann", "password": "secret"}]}
    with run_nats_server(config={"tls": tls, "authorization": users}) as server:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        nc = new_client([server.url], tls=True)
        with pytest.raises(nats.errors.Error):
            await nc.connect(server.url, tls=trusting, allow_reconnect=False, error_cb=quiet)
        await close_connection(nc)
        await asyncio.to_thread(server.stop)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


class HandshakeThenEnd(asyncio.Protocol):
    """A fake server that ends each connection with its part of the handshake.

    A client of TLS 1.3 takes the handshake for done then. So does nats-server with a refused certificate, if
    its answer is fast.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._read, self._write = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._read, self._write, server_side=True)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(b'INFO {"tls_required":true,"max_payload":1048576}\r\n')

    def data_received(self, data: bytes) -> None:
        self._read.write(data)
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._transport.write(self._write.read())
        reset = struct.pack("ii", 1, 0)
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        self._transport.abort()


async def test_connection_that_ends_with_the_handshake_is_not_the_end_of_all_attempts(tmp_path: Path) -> None:
    async def note(error: Exception) -> None:
        seen.append(error)

    seen: list[Exception] = []
    with usual_server(tmp_path) as url, FaultProxy(url.removeprefix("nats://")) as proxy:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        fake = await asyncio.get_running_loop().create_server(
            lambda: HandshakeThenEnd(context), "127.0.0.1", 0
        )
        urls = [f"tls://{proxy.address}", f"tls://127.0.0.1:{fake.sockets[0].getsockname()[1]}"]
        nc = new_client(urls)
        await nc.connect(
            urls,
            tls=ssl.create_default_context(cafile=str(tmp_path / "ca.pem")),
            dont_randomize=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0,
            error_cb=note,
        )
        proxy.refuse()
        proxy.cut()
        async with asyncio.timeout(240):
            # From Python 3.12 on, asyncio mostly tells the reset itself.
            await until(lambda: sum(isinstance(error, ConnectionResetError) for error in seen) > 50)
            proxy.accept()
            await until(lambda: nc.is_connected)
            await nc.flush()
        await close_connection(nc)
        fake.close()
