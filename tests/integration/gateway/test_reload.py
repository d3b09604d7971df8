"""SIGHUP: certificates and the policy file are read again; and what systemd is told."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

import liftenvelope
from liftenvelope.errors import PermissionDeniedError, TransportError, UsageError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._monitoring.readiness import STARTING
from liftenvelope.gateway.serving import Serving, reload, running_gateway
from liftenvelope.rpc.aio import Channel
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port
from tests.integration.certificates import Certificates
from tests.integration.conftest import connect, until

from .nats_tls import nats_tls

SERVING = re.compile(r"serving the Liftbridge API on (\S+),")


class Program:
    """``liftenvelope serve`` as a process, with a thread-free reader of its log."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        assert process.stdout is not None
        line = process.stdout.readline()
        match = SERVING.match(line)
        assert match is not None, line + log.read_text()
        self.address = match[1]

    def log(self) -> list[dict[str, Any]]:
        """Return the lines of the log that are complete."""
        return [json.loads(line) for line in self._log.read_text().splitlines(True) if line.endswith("\n")]

    def messages(self) -> list[str]:
        return [line["message"] for line in self.log()]

    async def reload(self, line: str) -> None:
        """Send SIGHUP, and wait for one more line with that text."""
        before = sum(line in one for one in self.messages())
        self.process.send_signal(signal.SIGHUP)
        await until(lambda: sum(line in one for one in self.messages()) > before)


@contextmanager
def program(folder: Path, *arguments: str, **variables: str) -> Iterator[Program]:
    """Run ``liftenvelope serve`` with its log as JSON."""
    command = [sys.executable, "-W", "error", "-m", "liftenvelope", "serve", "--listen", "127.0.0.1:0"]
    log = folder / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, "--log-format", "json", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **variables},
        ) as process,
    ):
        try:
            yield Program(process, log)
        finally:
            process.terminate()


def options(certificates: Certificates) -> list[str]:
    """Return the options of a gateway with these certificates, without client certificates."""
    files = certificates.gateway_config
    return ["--tls-cert", str(files["tls_cert"]), "--tls-key", str(files["tls_key"])]


async def handshake(address: str, context: ssl.SSLContext) -> bytes:
    """Return the certificate that the server presents in a new handshake."""
    host, _, port = address.rpartition(":")
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    found: ssl.SSLObject = writer.get_extra_info("ssl_object")
    presented = found.getpeercert(binary_form=True)
    writer.close()
    assert presented is not None
    return presented


async def test_new_handshakes_use_new_certificates_and_open_connections_stay(
    tmp_path: Path, jetstream_server: NatsServer, name: str
) -> None:
    old = Certificates(tmp_path)
    arguments = ("--nats", jetstream_server.url, *options(old))
    with program(tmp_path, *arguments) as gateway:
        before = await handshake(gateway.address, old.anonymous())
        channel = await Channel.connect(gateway.address, tls=old.anonymous())
        for path in tmp_path.glob("*.pem"):
            path.unlink()
        new = Certificates(tmp_path)
        await gateway.reload("reloaded the certificates")
        assert await handshake(gateway.address, new.anonymous()) != before
        with pytest.raises(ssl.SSLCertVerificationError):
            await handshake(gateway.address, old.anonymous())
        async with liftenvelope.connect([gateway.address], tls=new.anonymous()) as client:
            await client.create_stream(name, name)
            await client.delete_stream(name)
        # The connection of before still works.
        await channel.unary("/proto.API/FetchMetadata", b"", timeout=60)
        await channel.close()


@pytest.mark.parametrize("workers", [1, 2])
async def test_sighup_during_the_start_does_not_end_the_program(tmp_path: Path, workers: int) -> None:
    """One gateway reads its files again when it is ready. Workers start after the signal."""
    arguments = ["--workers", str(workers), "--data-dir", str(tmp_path), *options(Certificates(tmp_path))]
    addresses = [
        "--listen",
        "127.0.0.1:0",
        "--nats-listen",
        f"127.0.0.1:{free_port()}",
        "--http",
        "127.0.0.1:0",
    ]
    log = tmp_path / "log"
    with (tmp_path / "lock").open("w") as lock, log.open("w") as errors:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the program waits for the server that seems to use the folder
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-m", "liftenvelope", "serve", *arguments, *addresses),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        await until(lambda: "serving health and metrics" in log.read_text() or process.returncode is not None)
        process.send_signal(signal.SIGHUP)
    assert process.stdout is not None
    assert SERVING.match((await process.stdout.readline()).decode()), log.read_text()
    if workers == 1:
        await until(lambda: "reloaded the certificates" in log.read_text())
    process.terminate()
    async with asyncio.timeout(120):
        assert await process.wait() == 0


async def test_bad_certificates_keep_the_old_and_are_one_error(
    tmp_path: Path, jetstream_server: NatsServer
) -> None:
    certificates = Certificates(tmp_path)
    with program(tmp_path, "--nats", jetstream_server.url, *options(certificates)) as gateway:
        before = await handshake(gateway.address, certificates.anonymous())
        key = tmp_path / "key.pem"
        good = key.read_bytes()
        for bad in (b"", trustme.CA().issue_cert("127.0.0.1").private_key_pem.bytes()):
            key.write_bytes(bad)
            await gateway.reload("keeping the previous certificates")
            assert await handshake(gateway.address, certificates.anonymous()) == before
        key.unlink()
        await gateway.reload("keeping the previous certificates")
        errors = [line for line in gateway.log() if line["level"] == "error"]
        assert len(errors) == 3
        assert all("tls_key" in line["message"] for line in errors)
        key.write_bytes(good)
        await gateway.reload("reloaded the certificates")


async def test_removed_authority_of_clients_is_refused_after_reload(
    tmp_path: Path, jetstream_server: NatsServer
) -> None:
    certificates, other = Certificates(tmp_path), trustme.CA()
    arguments = (*options(certificates), "--tls-client-ca", str(tmp_path / "ca.pem"))
    with program(tmp_path, "--nats", jetstream_server.url, *arguments) as gateway:
        channel = await Channel.connect(gateway.address, tls=certificates.client("app"))
        await channel.unary("/proto.API/FetchMetadata", b"", timeout=60)
        await channel.close()
        (tmp_path / "ca.pem").write_bytes(other.cert_pem.bytes())
        await gateway.reload("reloaded the certificates")

        async def call(context: ssl.SSLContext) -> None:
            opened = await Channel.connect(gateway.address, tls=context)
            try:
                await opened.unary("/proto.API/FetchMetadata", b"", timeout=60)
            finally:
                await opened.close()

        with pytest.raises(TransportError):
            await call(certificates.client("app"))
        trusted = certificates.anonymous()
        other.issue_cert("client@example.org", common_name="app").configure_cert(trusted)
        await call(trusted)


async def test_policy_is_read_at_once_and_a_bad_one_is_one_error(
    tmp_path: Path, jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("liftenvelope.gateway._clients.authorization._LOOK", 10_000.0)
    certificates = Certificates(tmp_path)
    policy = tmp_path / "policy.csv"
    policy.write_text("p, app, *, FetchMetadata")
    serving = Serving(
        nats_url=jetstream_server.url,
        gateway={"policy_file": str(policy)},
        **certificates.gateway_config,  # type: ignore[arg-type]
    )
    async with (
        running_gateway(serving) as (gateway, _),
        liftenvelope.connect([gateway.address], tls=certificates.client("app")) as client,
    ):
        with pytest.raises(PermissionDeniedError):
            await client.create_stream("policed", "policed")
        policy.write_text("p, app")
        reload(serving, gateway)
        errors = [one for one in caplog.records if one.levelname == "ERROR"]
        assert ["keeping the previous policy" in one.message for one in errors] == [True]
        policy.write_text(
            "p, app, *, FetchMetadata\np, app, policed, CreateStream\np, app, policed, DeleteStream"
        )
        reload(serving, gateway)
        await client.create_stream("policed", "policed")
        await client.delete_stream("policed")
        with pytest.raises(UsageError, match="policy_file must come with a tls context that requires"):
            gateway.reload(tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


async def test_certificates_reloaded_during_the_start_are_used(
    tmp_path: Path, jetstream_server: NatsServer
) -> None:
    def made(part: str) -> tuple[Certificates, ssl.SSLContext | None]:
        (tmp_path / part).mkdir()
        certificates = Certificates(tmp_path / part)
        cert, key = (str(certificates.gateway_config[name]) for name in ("tls_cert", "tls_key"))
        return certificates, Serving(nats_url=jetstream_server.url, tls_cert=cert, tls_key=key).tls()

    _, old = made("old")
    certificates, new = made("new")
    nc = await connect(jetstream_server.url)
    gateway = Gateway(nc, tls=old)
    starting = asyncio.create_task(gateway.start())
    await asyncio.sleep(0)
    assert gateway.readiness().reasons["running"] == STARTING
    gateway.reload(tls=new)
    await starting
    async with await Channel.connect(gateway.address, tls=certificates.anonymous()) as channel:
        await channel.unary("/proto.API/FetchMetadata", b"", timeout=60)
    await gateway.close()
    await nc.close()


async def test_gateway_without_tls_refuses_a_tls_context(jetstream_server: NatsServer) -> None:
    nc = await connect(jetstream_server.url)
    async with Gateway(nc) as gateway:
        gateway.reload()
        with pytest.raises(UsageError, match="tls can't be added to a gateway that serves plain TCP"):
            gateway.reload(tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    await nc.close()


async def test_connections_to_nats_use_new_client_certificates_after_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "server").mkdir()
    server_files = Certificates(tmp_path / "server")
    mine = tmp_path / "client.pem"
    server_files.ca.issue_cert("gateway@example.org").private_key_and_cert_chain_pem.write_to_path(mine)
    with (
        run_nats_server(jetstream=True, config=nats_tls(server_files)) as server,
        FaultProxy(server.address) as proxy,
    ):
        serving = Serving(
            nats_url=f"tls://{proxy.address}",
            nats_tls_ca=str(server_files.gateway_config["tls_client_ca"]),
            nats_tls_cert=str(mine),
            nats_tls_key=str(mine),
        )
        async with running_gateway(serving) as (gateway, _):
            stranger = trustme.CA().issue_cert("gateway@example.org")
            good = mine.read_bytes()
            stranger.private_key_and_cert_chain_pem.write_to_path(mine)
            reload(serving, gateway)
            proxy.cut()
            # The server refuses the stranger's certificate in each new handshake.
            await until(lambda: "unknown authority" in server.log())
            assert "to NATS is back" not in caplog.text
            mine.write_bytes(good)
            reload(serving, gateway)
            await until(lambda: caplog.text.count("to NATS is back") == 2)


class TestSystemd:
    """A real socket in place of systemd's."""

    @pytest.mark.parametrize("abstract", [False, True])
    async def test_states_are_told(
        self, tmp_path: Path, jetstream_server: NatsServer, abstract: bool
    ) -> None:
        certificates = Certificates(tmp_path)
        address = f"@liftenvelope-{os.getpid()}" if abstract else str(tmp_path / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.settimeout(120)
            told.bind(f"\0{address[1:]}" if abstract else address)
            arguments = ("--nats", jetstream_server.url, *options(certificates))
            with program(tmp_path, *arguments, NOTIFY_SOCKET=address) as gateway:
                serving = f"STATUS=serving on {gateway.address}"
                assert told.recv(4096).decode().splitlines() == ["READY=1", serving]
                gateway.process.send_signal(signal.SIGHUP)
                reloading = told.recv(4096).decode().splitlines()
                assert reloading[0] == "RELOADING=1"
                assert re.fullmatch(r"MONOTONIC_USEC=\d+", reloading[1])
                assert told.recv(4096).decode().splitlines() == ["READY=1", serving]
                gateway.process.terminate()
                assert told.recv(4096).decode().splitlines()[0] == "STOPPING=1"
                assert gateway.process.wait(120) == 0

    async def test_socket_that_is_not_there_is_logged(
        self, tmp_path: Path, jetstream_server: NatsServer
    ) -> None:
        with program(
            tmp_path, "--nats", jetstream_server.url, NOTIFY_SOCKET=str(tmp_path / "none")
        ) as gateway:
            await until(lambda: any("could not tell systemd READY=1" in one for one in gateway.messages()))
