"""Credentials of clients: sent over TLS alone where TLS is wanted, to verified hosts alone, and never shown.

The servers here are FAKE: they record what a client sends, and say what a real server would not. TLS is real.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nkeys
import pytest
import trustme
from google.protobuf.message import Message

import liftenvelope
from liftenvelope import bulk
from liftenvelope._pb import api_pb2
from liftenvelope.bulk import Access
from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
from liftenvelope.bulk._jetstream.source import JetStreamSource
from liftenvelope.bulk.access import find_target
from liftenvelope.errors import LiftEnvelopeError, PermissionDeniedError, ServerProtocolError, TransportError
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.rpc.server import Server, ServerCall
from tests.integration.certificates import trusting
from tests.unit.hostile_nats import INFO, FakeNats

SECRET = "correct-horse-battery"
#: What a TLS handshake begins with: a record of type 22.
HELLO = b"\x16\x03"
#: What nats-server answers to it without TLS.
NO_PROTOCOL = b"-ERR 'Unknown Protocol Operation'\r\n"
TLS_INFO = INFO.replace(b'"max_payload"', b'"tls_required":true,"max_payload"')
NO_TLS_INFO = INFO.replace(b'"headers"', b'"tls_required":false,"headers"')
LOGINS = {
    "password": {"user": "app", "password": SECRET},
    "token": {"token": SECRET},
}


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def serving(ca: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*names).configure_cert(context)
    return context


class Wire:
    """A proxy that notes what a client sends, as it is on the wire."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.seen: list[bytearray] = []

    @contextmanager
    def running(self) -> Iterator[Wire]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.port = listening.getsockname()[1]
            open_: list[socket.socket] = []
            accepting = threading.Thread(target=self._accept, args=(listening, open_))
            accepting.start()
            try:
                yield self
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                for one in open_:
                    one.close()
                accepting.join(60)

    def _accept(self, listening: socket.socket, open_: list[socket.socket]) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            open_ += [client, server]
            self.seen.append(bytearray())
            for source, sink, seen in ((client, server, self.seen[-1]), (server, client, bytearray())):
                threading.Thread(target=pump, args=(source, sink, seen), daemon=True).start()


def pump(source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
    try:
        while piece := source.recv(65_536):
            seen += piece
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def connect(url: str, access: Access) -> NatsSocket:
    target = find_target(url, access)
    return NatsSocket(target.addresses[0], target)


def refused(url: str, access: Access) -> LiftEnvelopeError:
    with pytest.raises(LiftEnvelopeError) as caught:
        connect(url, access).close()
    return caught.value


def shown(error: BaseException) -> str:
    """All texts of an error and of its causes."""
    texts, next_ = [], error
    while next_ is not None:
        texts += [str(next_), repr(next_)]
        next_ = next_.__cause__ or next_.__context__  # type: ignore[assignment]
    return "\n".join(texts)


# NATS, by the socket of bulk


@pytest.mark.parametrize("login", LOGINS.values(), ids=LOGINS.keys())
@pytest.mark.parametrize(
    "greeting", [INFO, INFO.replace(b'"headers"', b'"tls_required":false,"headers"'), TLS_INFO]
)
@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_server_that_speaks_no_tls_gets_nothing_but_a_handshake(
    ca: trustme.CA, scheme: str, greeting: bytes, login: dict[str, str]
) -> None:
    access = Access(tls=trusting(ca), **login)  # type: ignore[arg-type]
    with FakeNats(greeting=greeting, first_answer=NO_PROTOCOL).running() as server:
        refused(f"{scheme}://127.0.0.1:{server.port}", access)
    (received,) = server.received
    assert received.startswith(HELLO)
    assert SECRET.encode() not in received
    assert b"CONNECT" not in received


def test_url_with_tls_needs_no_option(ca: trustme.CA) -> None:
    with FakeNats(first_answer=NO_PROTOCOL).running() as server:
        refused(f"tls://app:{SECRET}@127.0.0.1:{server.port}", Access())
    assert server.received[0].startswith(HELLO)
    assert SECRET.encode() not in server.received[0]


def test_server_that_asks_for_tls_gets_the_login_over_tls(ca: trustme.CA) -> None:
    server = FakeNats(greeting=TLS_INFO, context=serving(ca, "127.0.0.1"))
    with server.running(), Wire(server.port).running() as wire:
        link = connect(f"nats://app:{SECRET}@127.0.0.1:{wire.port}", Access(tls=trusting(ca)))
        assert link.is_secure
        link.close()
        assert wire.seen[0].startswith(HELLO)
        assert SECRET.encode() not in wire.seen[0]
    assert SECRET.encode() in server.received[0]


@pytest.mark.parametrize("trusted", [True, False], ids=["wrong name", "unknown authority"])
def test_certificate_that_is_not_the_hosts_gets_no_login(ca: trustme.CA, trusted: bool) -> None:
    context = serving(ca, "elsewhere.example.org") if trusted else serving(trustme.CA(), "127.0.0.1")
    server = FakeNats(greeting=TLS_INFO, context=context)
    with server.running(), Wire(server.port).running() as wire:
        error = refused(f"tls://app:{SECRET}@127.0.0.1:{wire.port}", Access(tls=trusting(ca)))
        assert SECRET.encode() not in wire.seen[0]
    assert server.received == [b""]
    assert "certificate verify failed" in str(error)


def test_what_comes_before_tls_is_refused(ca: trustme.CA) -> None:
    server = FakeNats(greeting=TLS_INFO + b'INFO {"nonce":"injected"}\r\n', context=serving(ca, "127.0.0.1"))
    with server.running(), pytest.raises(ServerProtocolError, match="more than its greeting before TLS"):
        connect(f"tls://app:{SECRET}@127.0.0.1:{server.port}", Access(tls=trusting(ca)))
    assert server.received == [b""]


def naming(port: int, greeting: bytes) -> bytes:
    urls = json.dumps([f"127.0.0.1:{port}"]).encode()
    return greeting.replace(b'"max_payload"', b'"connect_urls":%b,"max_payload"' % urls)


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_server_that_is_named_gets_no_login_over_plain_tcp(ca: trustme.CA, scheme: str) -> None:
    """The first server speaks TLS, also if only it has asked for that; the one that it names does not."""
    access = Access(tls=trusting(ca) if scheme == "tls" else None, reconnect_wait=0)
    with FakeNats(first_answer=NO_PROTOCOL).running() as other:
        greeting = naming(other.port, TLS_INFO)
        server = FakeNats(greeting=greeting, context=serving(ca, "127.0.0.1"))
        with server.running(), default_trust(ca):
            target = find_target(f"{scheme}://app:{SECRET}@127.0.0.1:{server.port}", access)
            source = JetStreamSource(target, "S")
            source.connect().close()
            with pytest.raises(TransportError):  # the next in turn
                source.connect()
    (received,) = other.received
    assert received.startswith(HELLO)
    assert SECRET.encode() not in received


def test_server_that_is_named_must_have_a_certificate_of_its_own(ca: trustme.CA) -> None:
    other = FakeNats(greeting=TLS_INFO, context=serving(ca, "elsewhere.example.org"))
    with other.running():
        server = FakeNats(greeting=naming(other.port, TLS_INFO), context=serving(ca, "127.0.0.1"))
        with server.running():
            access = Access(tls=trusting(ca), reconnect_wait=0)
            source = JetStreamSource(find_target(f"tls://a:{SECRET}@127.0.0.1:{server.port}", access), "S")
            source.connect().close()
            with pytest.raises(TransportError, match="certificate verify failed"):
                source.connect()
    assert other.received == [b""]


@contextmanager
def default_trust(ca: trustme.CA) -> Iterator[None]:
    """Trust an authority as the system's own are trusted."""
    with ca.cert_pem.tempfile() as path, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", path)
        yield


@pytest.mark.parametrize("login", LOGINS.values(), ids=LOGINS.keys())
@pytest.mark.parametrize(
    "answer",
    [
        b"-ERR 'Authorization Violation'\r\n",
        b"-ERR 'no user with %b'\r\n" % SECRET.encode(),
        b"-ERR 'Authorization Violation %b'\r\n" % SECRET.encode(),
    ],
)
def test_errors_do_not_show_the_login(answer: bytes, login: dict[str, str]) -> None:
    with FakeNats(after_connect=answer).running() as server:
        access = Access(**login)  # type: ignore[arg-type]
        error = refused(server.url, access)
    assert isinstance(error, PermissionDeniedError | TransportError)
    assert SECRET not in shown(error)


@pytest.mark.parametrize("url", ["nats://app:{0}@127.0.0.1:1", "nats://{0}@127.0.0.1:1", "nats://a:{0}@b:x"])
def test_errors_do_not_show_the_login_of_a_url(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LiftEnvelopeError) as caught:
        bulk.read(url.format(SECRET), "S", access=Access(connect_timeout=1, reconnect_wait=0))
    assert SECRET not in shown(caught.value)
    assert SECRET not in "".join(capfd.readouterr())


def test_credentials_file_is_signed_and_never_sent(ca: trustme.CA, tmp_path: Path) -> None:
    """The seed of a credentials file stays here: the server gets a signature of its nonce."""
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode()
    path = tmp_path / "user.creds"
    path.write_text(
        "-----BEGIN NATS USER JWT-----\nheader.body.signature\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    greeting = INFO.replace(b'"max_payload"', b'"nonce":"abc","max_payload"')
    with FakeNats(greeting=greeting).running() as server:
        connect(server.url, Access(user_credentials=path)).close()
    assert b"header.body.signature" in server.received[0]
    assert seed.encode() not in server.received[0]


# Liftbridge, by gRPC: asyncio and blocking


@contextmanager
def listening() -> Iterator[tuple[str, list[bytes]]]:
    """A port that notes what clients send first, and answers nothing."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(ConnectionResetError):  # a client that gives up
                    seen.append(connection.recv(65_536))

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", seen
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def metadata_naming(address: str) -> Message:
    """Metadata whose stream is led by a broker at a foreign address."""
    host, _, port = address.rpartition(":")
    answer = api_pb2.FetchMetadataResponse()
    answer.brokers.add(id="foreign", host=host, port=int(port))
    partition = answer.streamMetadata.add(name="foo", subject="foo").partitions[0]
    partition.leader = "foreign"
    partition.isr.append("foreign")
    return answer


@contextmanager
def secured_broker(ca: trustme.CA, answer: Message) -> Iterator[str]:
    """A broker over TLS that answers every question about the cluster so, in a thread of its own."""
    ready, stop = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve(call: ServerCall) -> None:
        async for _ in call:
            pass
        await call.send([answer.SerializeToString()])

    async def main() -> None:
        server = Server({"/proto.API/FetchMetadata": serve})
        address.append(await server.start(tls=serving(ca, "127.0.0.1")))
        ready.set()
        await asyncio.to_thread(stop.wait)
        await server.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(60)
    yield address[0]
    stop.set()
    thread.join(60)


async def by_asyncio(address: str, tls: ssl.SSLContext) -> None:
    async with liftenvelope.connect(address, tls=tls, timeout=2, ack_wait=2, connect_timeout=1) as client:
        await client.publish("foo", SECRET.encode())


async def by_bulk(address: str, tls: ssl.SSLContext) -> None:
    access = Access(tls=tls, timeout=2, connect_timeout=1, reconnect_wait=0)
    await asyncio.to_thread(lambda: bulk.read(address, "foo", access=access).read_all())


@pytest.mark.parametrize("call", [by_asyncio, by_bulk], ids=["asyncio", "blocking"])
async def test_broker_that_is_named_gets_nothing_over_plain_tcp(
    ca: trustme.CA, call: Callable[[str, ssl.SSLContext], asyncio.Future[None]]
) -> None:
    async with asyncio.timeout(60):
        with listening() as (foreign, seen), secured_broker(ca, metadata_naming(foreign)) as address:
            while not any(seen):  # on a busy machine a client may give up before it says anything
                with pytest.raises(LiftEnvelopeError):
                    await call(address, trusting(ca))
    sent = [first for first in seen if first]
    assert sent
    assert [first for first in sent if not first.startswith(HELLO) or SECRET.encode() in first] == []


@pytest.mark.parametrize("names", [("elsewhere.example.org",), ()], ids=["wrong name", "unknown authority"])
async def test_certificate_that_is_not_the_brokers_is_refused(ca: trustme.CA, names: tuple[str, ...]) -> None:
    context = serving(ca, *names) if names else serving(trustme.CA(), "127.0.0.1")
    server = Server({})
    address = await server.start(tls=context)
    with pytest.raises(TransportError, match="certificate verify failed"):
        await Channel.connect(address, tls=trusting(ca))
    with pytest.raises(TransportError, match="certificate verify failed"):
        await asyncio.to_thread(lambda: BlockingChannel(address, tls=trusting(ca)).connect())
    await server.close()


async def test_server_without_http2_over_tls_is_refused(ca: trustme.CA) -> None:
    """ALPN must agree on HTTP/2: no call is made to a server of another protocol."""
    context = serving(ca, "127.0.0.1")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionResetError):  # the client need not wait for the server's part of the end
            await reader.read(65_536)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(TransportError):
        await Channel.connect(address, tls=trusting(ca))
    with pytest.raises(TransportError):
        await asyncio.to_thread(lambda: BlockingChannel(address, tls=trusting(ca)).connect())
    server.close()
    await server.wait_closed()
