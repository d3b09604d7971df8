"""Connections of this package's own programs whose TLS handshake fails."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats.errors
import pytest

from liftenvelope.nats.closing import close_connection
from liftenvelope.nats.program_client import new_client
from liftenvelope.testing import run_nats_server
from tests.integration.certificates import Certificates
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
