"""FaultProxy, in front of a server that echoes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from liftenvelope.errors import UsageError
from liftenvelope.testing import FaultProxy, ServerStartError
from tests.integration.conftest import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class EchoServer:
    """Sends back what it gets, until the end of each connection, and then ends it too."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self.received = bytearray()
        self.resets = 0
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._echo, args=(connection,))
            thread.start()
            self._threads.append(thread)

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65_536):
                    self.received += data
                    connection.sendall(data)
            except (ConnectionResetError, BrokenPipeError):
                self.resets += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def server() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.address) as proxy:
        yield proxy


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=60.0)


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with connect(proxy) as client:
        yield client


def read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := client.recv(size - len(data))):
        data += piece
    return data


def test_whole_connections_are_whole(proxy: FaultProxy, client: socket.socket) -> None:
    data = bytes(range(256)) * 8_000

    def send() -> None:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    assert read(client, len(data) + 1) == data
    sender.join()
    assert proxy.connections == 1
    wait_until(lambda: proxy.open_connections == 0)
    assert proxy.bytes_to_server == proxy.bytes_to_client == len(data)


def test_delay(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.delay(0.1)
    began = time.monotonic()
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    assert 0.2 <= time.monotonic() - began < 60
    proxy.delay(0.1, "to_server")
    proxy.delay(0, "to_client")
    began = time.monotonic()
    client.sendall(b"b")
    assert client.recv(1) == b"b"
    assert 0.1 <= time.monotonic() - began < 60


def test_delay_is_latency_and_not_throughput(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.delay(1.0)
    began = time.monotonic()
    data = bytes(1_000_000)
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert read(client, len(data)) == data
    sender.join()
    # Sixty-two chunks, one after the other, would take a minute each way.
    assert 2 <= time.monotonic() - began < 60


def test_stall_and_resume(proxy: FaultProxy, client: socket.socket, server: EchoServer) -> None:
    client.sendall(b"before")
    assert read(client, 6) == b"before"
    proxy.stall()
    client.sendall(b"after")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(1)
    assert server.received == b"before"
    with connect(proxy) as other:
        other.sendall(b"x")
        assert server.received == b"before"
    proxy.resume()
    client.settimeout(60.0)
    assert read(client, 5) == b"after"


def test_stall_in_one_direction(proxy: FaultProxy, client: socket.socket, server: EchoServer) -> None:
    proxy.stall("to_client")
    client.sendall(b"abc")
    wait_until(lambda: server.received == b"abc")
    assert proxy.bytes_to_client == 0
    proxy.resume("to_client")
    assert read(client, 3) == b"abc"


def test_stalled_sender_is_held_back(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.stall()
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.sendall(bytes(100_000_000))


def test_cut_resets_both_sides_and_takes_new_ones(
    proxy: FaultProxy, client: socket.socket, server: EchoServer
) -> None:
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    proxy.cut()
    assert proxy.open_connections == 0
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    wait_until(lambda: server.resets == 1)
    with connect(proxy) as other:
        other.sendall(b"b")
        assert other.recv(1) == b"b"
    assert proxy.connections == 2


def test_cut_of_a_stalled_and_delayed_connection(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.delay(60.0)
    client.sendall(b"a")
    proxy.stall()
    client.sendall(b"b")
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


@pytest.mark.parametrize("size", [0, 1, 5, 20_000])
def test_truncated_answer(proxy: FaultProxy, client: socket.socket, server: EchoServer, size: int) -> None:
    client.sendall(b"hello")
    assert read(client, 5) == b"hello"
    proxy.truncate(size)
    data = bytes(range(250)) * 400
    client.sendall(data)
    assert read(client, len(data)) == data[:size]
    assert client.recv(1) == b""
    wait_until(lambda: server.resets == 1)
    assert proxy.bytes_to_client == 5 + size
    client.close()
    wait_until(lambda: proxy.open_connections == 0)
    with connect(proxy) as other:
        other.sendall(data[:100])
        assert read(other, 100) == data[:100]


def test_truncated_request(proxy: FaultProxy, client: socket.socket, server: EchoServer) -> None:
    proxy.truncate(3, "to_server")
    client.sendall(b"abcdef")
    with pytest.raises(ConnectionResetError):
        read(client, 10)
    wait_until(lambda: server.received == b"abc")


def test_refusing_and_cutting_while_connections_come(
    proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def connect() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", proxy.port), timeout=10).close()

    threads = [threading.Thread(target=connect) for _ in range(2)]
    for thread in threads:
        thread.start()
    rounds, deadline = 0, time.monotonic() + 240
    try:
        while rounds < 150 or not proxy.connections:
            assert time.monotonic() < deadline
            proxy.refuse()
            proxy.accept()
            proxy.cut()
            rounds += 1
    finally:
        done.set()
        for thread in threads:
            thread.join()
    wait_until(lambda: proxy.open_connections == 0)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_refuse_and_accept(proxy: FaultProxy, client: socket.socket) -> None:
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    proxy.refuse()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    client.sendall(b"b")
    assert client.recv(1) == b"b"
    proxy.accept()
    proxy.accept()
    with connect(proxy) as other:
        other.sendall(b"c")
        assert other.recv(1) == b"c"


def test_target_that_is_down() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with FaultProxy("127.0.0.1", unused.getsockname()[1]) as proxy:
            # The reset can come before connect() has returned.
            with pytest.raises(ConnectionResetError), connect(proxy) as client:
                client.recv(1)
            wait_until(lambda: proxy.open_connections == 0)
            assert proxy.connections == 1


def test_reset_by_the_client_reaches_the_server(proxy: FaultProxy, server: EchoServer) -> None:
    client = connect(proxy)
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    wait_until(lambda: server.resets == 1)
    wait_until(lambda: proxy.open_connections == 0)


def test_close_ends_everything(server: EchoServer) -> None:
    threads = threading.active_count()
    with FaultProxy(server.address) as proxy, connect(proxy) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        port = proxy.port
        proxy.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with pytest.raises(UsageError, match="not running"):
            proxy.stall()
        with pytest.raises(UsageError, match="started before"):
            proxy.start()
    wait_until(lambda: threading.active_count() <= threads)


async def test_async_use(server: EchoServer) -> None:
    async with FaultProxy(server.address) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"abc")
        assert await reader.readexactly(3) == b"abc"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        with pytest.raises(ConnectionResetError):
            await writer.wait_closed()


@pytest.mark.parametrize(("here", "there"), [("127.0.0.2", "127.0.0.1"), ("::1", "::1")])
def test_local_address(here: str, there: str) -> None:
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    with (
        socket.create_server((there, 0), family=family) as listener,
        FaultProxy(there, listener.getsockname()[1], local_address=here) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)),
    ):
        listener.settimeout(60)
        connection, address = listener.accept()
        connection.close()
    assert address[0] == here


def test_local_address_of_another_machine() -> None:
    proxy = FaultProxy("127.0.0.1", 4222, local_address="192.0.2.1")
    with pytest.raises(ServerStartError, match=r"can't connect from 192\.0\.2\.1: "):
        proxy.start()


def test_arguments(proxy: FaultProxy) -> None:
    with pytest.raises(UsageError, match="local_address must be an IP address, got 'localhost'"):
        FaultProxy(proxy.address, local_address="localhost")
    with pytest.raises(UsageError, match="seconds must be at least 0 and finite, got -1"):
        proxy.delay(-1)
    with pytest.raises(UsageError, match="after_bytes must be at least 0, got -1"):
        proxy.truncate(-1)
    with pytest.raises(UsageError, match="direction must be to_server or to_client, got 'both'"):
        proxy.truncate(1, "both")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"direction must be both, .*, got 'up'"):
        proxy.stall("up")  # type: ignore[arg-type]
