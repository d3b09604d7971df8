"""TLS: trust, names, client certificates, and the agreement on HTTP/2; with Google's gRPC on either side."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
import grpc.aio
import pytest
import trustme

from liftenvelope.errors import TransportError
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.rpc.server import Server, unary
from tests.integration.certificates import trusting
from tests.integration.rpc.test_blocking import Service
from tests.integration.rpc.test_read_pauses import AlwaysDue


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(ca: trustme.CA) -> trustme.LeafCert:
    return ca.issue_cert("localhost", "127.0.0.1")


@pytest.fixture
def client_tls(ca: trustme.CA) -> ssl.SSLContext:
    return trusting(ca)


@pytest.fixture
def server_tls(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


@pytest.fixture
def google_address(ca: trustme.CA, certificate: trustme.LeafCert) -> Iterator[str]:
    """A server of Google's that wants to see a certificate."""
    chain = b"".join(pem.bytes() for pem in certificate.cert_chain_pems)
    key = certificate.private_key_pem.bytes()
    credentials = grpc.ssl_server_credentials([(key, chain)], ca.cert_pem.bytes(), require_client_auth=True)
    executor = ThreadPoolExecutor(2)
    server = grpc.server(executor, handlers=[Service()])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"localhost:{port}"
    server.stop(None).wait()
    executor.shutdown()


async def echo(request: bytes) -> bytes:
    return request


async def test_mutual_with_googles_server(
    ca: trustme.CA, client_tls: ssl.SSLContext, google_address: str
) -> None:
    ca.issue_cert("client@example.org").configure_cert(client_tls)
    async with await Channel.connect(google_address, tls=client_tls) as channel:
        assert await channel.unary("/test/echo", bytes(1_000_000), timeout=60.0) == bytes(1_000_000)
        async with channel.server_stream("/test/count", b"1000") as call:
            assert [int(message) async for message in call] == list(range(1000))


async def test_connection_rests_between_small_reads(
    ca: trustme.CA, client_tls: ssl.SSLContext, google_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftenvelope.rpc.aio.ReadPacer", AlwaysDue)
    ca.issue_cert("client@example.org").configure_cert(client_tls)
    async with await Channel.connect(google_address, tls=client_tls) as channel:
        async with channel.server_stream("/test/count", b"1000", timeout=60.0) as call:
            call.pause = 0.001
            assert [int(message) async for message in call] == list(range(1000))
        assert await channel.unary("/test/echo", bytes(1_000_000), timeout=60.0) == bytes(1_000_000)


async def test_no_client_certificate(client_tls: ssl.SSLContext, google_address: str) -> None:
    # With TLS 1.3 the client learns of it only after it has shaken hands.
    with pytest.raises(TransportError):
        async with await Channel.connect(google_address, tls=client_tls) as channel:
            await channel.unary("/test/echo", b"")


def test_blocking(ca: trustme.CA, client_tls: ssl.SSLContext, google_address: str) -> None:
    ca.issue_cert("client@example.org").configure_cert(client_tls)
    with BlockingChannel(google_address, tls=client_tls) as channel:
        for _ in range(3):
            assert channel.unary("/test/echo", bytes(1_000_000), timeout=60.0) == bytes(1_000_000)
        assert [int(message) for message in channel.server_stream("/test/count", b"1000")] == list(
            range(1000)
        )


async def test_googles_client(ca: trustme.CA, server_tls: ssl.SSLContext) -> None:
    async with Server({"/test/echo": unary(echo)}) as server:
        address = await server.start(tls=server_tls)
        credentials = grpc.ssl_channel_credentials(ca.cert_pem.bytes())
        async with grpc.aio.secure_channel(address, credentials) as channel:
            assert await channel.unary_unary("/test/echo")(bytes(100_000)) == bytes(100_000)


async def test_mutual_on_our_server(
    ca: trustme.CA, client_tls: ssl.SSLContext, server_tls: ssl.SSLContext
) -> None:
    ca.configure_trust(server_tls)
    server_tls.verify_mode = ssl.CERT_REQUIRED
    async with Server({"/test/echo": unary(echo)}) as server:
        address = await server.start(tls=server_tls)
        with pytest.raises(TransportError):
            async with await Channel.connect(address, tls=client_tls) as channel:
                await channel.unary("/test/echo", b"")
        ca.issue_cert("client@example.org").configure_cert(client_tls)
        async with await Channel.connect(address, tls=client_tls) as channel:
            assert await channel.unary("/test/echo", b"x") == b"x"


async def test_certificate_of_somebody_else(server_tls: ssl.SSLContext) -> None:
    async with Server({"/test/echo": unary(echo)}) as server:
        address = await server.start(tls=server_tls)
        with pytest.raises(TransportError, match="certificate verify failed"):
            await Channel.connect(address, tls=ssl.create_default_context())
    async with asyncio.timeout(60):
        # The event loop's own task that shook hands for the server may still be there.
        while asyncio.all_tasks() > {asyncio.current_task()}:
            await asyncio.sleep(0.01)


async def test_server_that_does_not_speak_http2(
    client_tls: ssl.SSLContext, server_tls: ssl.SSLContext
) -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0, ssl=server_tls)
    host, port = server.sockets[0].getsockname()
    async with server:
        with pytest.raises(TransportError, match="HTTP/2"):
            await Channel.connect(f"{host}:{port}", tls=client_tls)


async def test_client_that_does_not_speak_http2(
    client_tls: ssl.SSLContext, server_tls: ssl.SSLContext
) -> None:
    async with Server({}) as server:
        host, _, port = (await server.start(tls=server_tls)).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=client_tls)
        await reader.read()
        writer.close()
        await writer.wait_closed()


async def test_plain_client_of_a_secure_server(server_tls: ssl.SSLContext) -> None:
    server = Server({})
    async with server:
        address = await server.start(tls=server_tls)
        async with await Channel.connect(address) as channel:
            with pytest.raises(TransportError, match="expect TLS or a client certificate"):
                await channel.unary("/test/echo", b"")
        text = "expect TLS or a client certificate"
        with BlockingChannel(address) as blocking, pytest.raises(TransportError, match=text):
            await asyncio.to_thread(blocking.unary, "/test/echo", b"", timeout=60.0)
