"""The blocking channel against a gRPC server of Google's making."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from liftenvelope.errors import TransportError
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import FaultProxy, NatsServer
from tests.hostile.frames import message as frame_message
from tests.sinks import RecordingSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


#: Go's net/http answers this to HTTP/2's preface, and closes: seen of nats-server 2.15.1's monitor.
HTTP1 = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"
    b"Date: Sun, 22 Nov 2026 11:36:01 GMT\r\nContent-Length: 0\r\n\r\n"
)


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Methods on plain bytes."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()
        self.sent = 0

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        name = details.method.removeprefix("/test/")
        if name in ("echo", "fail", "slow"):
            return grpc.unary_unary_rpc_method_handler(getattr(self, name))
        if name in ("count", "flood", "forever"):
            return grpc.unary_stream_rpc_method_handler(getattr(self, name))
        if name in ("chat", "total", "metadata"):
            return grpc.stream_stream_rpc_method_handler(getattr(self, name))
        return None

    def echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return request

    def fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "nöt so: 100%\n")
        return b""

    def slow(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if not context.add_callback(self.cancelled.set):
            self.cancelled.set()  # it was before it began
        self.begun.set()
        self.cancelled.wait(60)
        return b""

    def count(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for number in range(int(request)):
            yield str(number).encode()

    def flood(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in range(200):
            self.sent += 1
            yield bytes(100_000)

    def chat(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from requests

    def total(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"ready"
        yield str(sum(map(len, requests))).encode()

    def metadata(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        mine = [(name, value) for name, value in context.invocation_metadata() if name.startswith("x-")]
        context.send_initial_metadata(mine)
        context.set_trailing_metadata((("x-end-bin", b"\xff\x00"),))
        yield str(context.time_remaining()).encode()

    def forever(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(self.cancelled.set)
        yield b"first"
        self.cancelled.wait(60)


@contextmanager
def serve(service: Service, port: int = 0) -> Iterator[str]:
    executor = ThreadPoolExecutor(4)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(executor, handlers=[service], options=options)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
        executor.shutdown()


@pytest.fixture
def channel(address: str) -> Iterator[BlockingChannel]:
    with BlockingChannel(address, max_message=8_000_000) as channel:
        yield channel


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 5_000_000])
def test_unary(channel: BlockingChannel, size: int) -> None:
    request = bytes(range(256)) * (size // 256 + 1)
    assert channel.unary("/test/echo", request[:size], timeout=60.0) == request[:size]


def test_status(channel: BlockingChannel) -> None:
    with pytest.raises(RpcError) as info:
        channel.unary("/test/fail", b"", timeout=60.0)
    assert info.value.code is StatusCode.FAILED_PRECONDITION
    assert info.value.description == "nöt so: 100%\n"


def test_unknown_method(channel: BlockingChannel) -> None:
    with pytest.raises(RpcError) as info:
        channel.unary("/test/nothing", b"", timeout=None)
    assert info.value.code == StatusCode.UNIMPLEMENTED


def test_deadline_is_kept_and_told_to_the_server(channel: BlockingChannel, service: Service) -> None:
    while not service.begun.is_set():  # a call whose time was up before it got there is not begun
        began = time.monotonic()
        with pytest.raises(RpcError) as info:
            channel.unary("/test/slow", b"", timeout=2.0)
        assert info.value.code == StatusCode.DEADLINE_EXCEEDED
        assert 2.0 <= time.monotonic() - began < 30
    assert service.cancelled.wait(60)
    assert channel.unary("/test/echo", b"on", timeout=60.0) == b"on"


def test_stream(channel: BlockingChannel) -> None:
    assert [int(data) for data in channel.server_stream("/test/count", b"1000")] == list(range(1000))


def test_stream_where_one_answer_is_wanted(channel: BlockingChannel) -> None:
    for count in (b"0", b"2"):
        with pytest.raises(RpcError, match="exactly one"):
            channel.unary("/test/count", count, timeout=60.0)


def test_stream_end_is_repeated(channel: BlockingChannel) -> None:
    stream = channel.server_stream("/test/count", b"1")
    assert stream.receive() == b"0"
    assert stream.receive() is None
    assert stream.receive() is None


def test_closing_a_stream_cancels_it(channel: BlockingChannel, service: Service) -> None:
    with channel.server_stream("/test/forever", b"") as stream:
        assert next(stream) == b"first"
        with pytest.raises(RpcError, match=r"within 0\.05 s"):
            stream.receive(timeout=0.05)
        assert not service.cancelled.is_set()
    assert service.cancelled.wait(60)
    with pytest.raises(RpcError) as info:
        stream.receive()
    assert info.value.code == StatusCode.CANCELLED


def test_sink_takes_the_stream(channel: BlockingChannel) -> None:
    sink = RecordingSink()
    with channel.server_stream("/test/count", b"1000", sink=sink) as stream:
        waits = 0
        while stream.wait(timeout=60.0):
            waits += 1
        assert not stream.wait()
        assert stream.ended
    assert sink.found == b"".join(frame_message(b"%d" % number) for number in range(1000))
    assert waits <= sink.calls


def test_sink_of_another_call_misses_nothing(channel: BlockingChannel) -> None:
    sink = RecordingSink()
    stream = channel.server_stream("/test/flood", b"", sink=sink)
    for _ in range(10):
        assert channel.unary("/test/echo", b"x" * 10_000, timeout=60.0) == b"x" * 10_000
    while stream.wait(timeout=60.0):
        pass
    assert sink.found == frame_message(bytes(100_000)) * 200


def test_wait_raises_the_status_after_the_bytes(channel: BlockingChannel) -> None:
    sink = RecordingSink()
    with channel.server_stream("/test/fail", b"", sink=sink) as stream, pytest.raises(RpcError) as info:
        stream.wait(timeout=60.0)
    assert info.value.code == StatusCode.FAILED_PRECONDITION
    assert sink.found == b""


def test_closed_stream_has_nothing_for_its_sink(channel: BlockingChannel) -> None:
    sink = RecordingSink()
    stream = channel.server_stream("/test/forever", b"", sink=sink)
    assert stream.wait(timeout=60.0)
    assert sink.found == frame_message(b"first")
    stream.close()
    with pytest.raises(RpcError) as info:
        stream.wait()
    assert info.value.code == StatusCode.CANCELLED


def test_poll_takes_only_what_came(channel: BlockingChannel) -> None:
    sink = RecordingSink()
    with channel.conversation("/test/chat", sink=sink) as call:
        assert not call.poll()
        call.send_framed(frame_message(b"a"))
        assert call.wait(timeout=60.0)
        assert sink.found == frame_message(b"a")
        assert not call.poll()


class InterruptedSink(RecordingSink):
    """A sink that is interrupted once, as by Ctrl+C, before it records anything."""

    def put(self, view: Buffer, spans: bytes) -> None:
        if not self.calls:
            self.calls += 1
            raise KeyboardInterrupt
        super().put(view, spans)


def test_interrupted_receive_loses_the_connection(channel: BlockingChannel) -> None:
    sink = InterruptedSink()
    stream = channel.server_stream("/test/count", b"1000", sink=sink)
    other = channel.server_stream("/test/forever", b"")
    with pytest.raises(KeyboardInterrupt):
        stream.wait(timeout=60.0)
    for call in (stream, other):
        with pytest.raises(TransportError, match="receiving was interrupted"):
            list(call)
    assert sink.found == b""  # nothing after the payloads that were lost
    assert channel.unary("/test/echo", b"again", timeout=60.0) == b"again"


def test_interrupted_end_of_a_call_is_not_lost(
    channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    stream = channel.server_stream("/test/count", b"1")
    monkeypatch.setattr("liftenvelope.rpc._client_side.CallEnded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    with pytest.raises(TransportError, match="receiving was interrupted"):
        list(stream)


def test_two_calls_at_once(channel: BlockingChannel) -> None:
    stream = channel.server_stream("/test/count", b"100")
    assert next(stream) == b"0"
    assert channel.unary("/test/echo", b"between", timeout=60.0) == b"between"
    assert len(list(stream)) == 99


def test_unread_stream_holds_the_server_back_and_nobody_else(
    channel: BlockingChannel, service: Service
) -> None:
    stream = channel.server_stream("/test/flood", b"")
    for _ in range(100):
        assert channel.unary("/test/echo", b"x" * 10_000, timeout=60.0) == b"x" * 10_000
    assert service.sent < 100
    assert sum(map(len, stream)) == 200 * 100_000


def test_no_server(channel: BlockingChannel) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with BlockingChannel(address) as other, pytest.raises(TransportError, match="can't connect"):
            other.unary("/test/echo", b"", timeout=5.0)


def test_restarted_server_is_found_again(service: Service) -> None:
    with serve(service) as address:
        channel = BlockingChannel(address)
        assert channel.unary("/test/echo", b"a", timeout=60.0) == b"a"
    with serve(service, int(address.rpartition(":")[2])), channel:
        assert channel.unary("/test/echo", b"b", timeout=60.0) == b"b"


def test_lost_connection_ends_the_open_calls(address: str) -> None:
    with FaultProxy(address) as proxy, BlockingChannel(proxy.address) as channel:
        stream = channel.server_stream("/test/forever", b"")
        assert next(stream) == b"first"
        proxy.cut()
        with pytest.raises(TransportError):
            next(stream)
        assert channel.unary("/test/echo", b"again", timeout=60.0) == b"again"
        assert proxy.connections == 2


@pytest.mark.parametrize("size", [0, 1, 9, 30])
def test_truncated_answer_is_never_an_end(address: str, size: int) -> None:
    with FaultProxy(address) as proxy, BlockingChannel(proxy.address) as channel:
        assert channel.unary("/test/echo", b"whole", timeout=60.0) == b"whole"
        proxy.truncate(size)
        with pytest.raises(TransportError):
            channel.unary("/test/echo", bytes(1000), timeout=60.0)


def test_stalled_server_meets_the_deadline(address: str) -> None:
    with FaultProxy(address) as proxy, BlockingChannel(proxy.address) as channel:
        proxy.stall()
        with pytest.raises(RpcError) as info:
            channel.unary("/test/echo", bytes(10_000_000), timeout=0.3)
        assert info.value.code == StatusCode.DEADLINE_EXCEEDED


def test_closing_the_channel_ends_its_streams(address: str, service: Service) -> None:
    channel = BlockingChannel(address)
    stream = channel.server_stream("/test/forever", b"")
    assert next(stream) == b"first"
    channel.close()
    with pytest.raises(TransportError, match="closed"):
        next(stream)
    assert service.cancelled.wait(60)


def test_server_that_is_not_grpc() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as reader:
                while reader.readline() not in (b"SM\r\n", b""):
                    pass
                connection.sendall(HTTP1)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        refused = pytest.raises(TransportError, match=r"HTTP/1\.1 400")
        with BlockingChannel(address) as channel, refused:
            channel.unary("/test/echo", b"", timeout=60.0)
        thread.join()


def test_nats_server_is_named_as_such(nats_server: NatsServer) -> None:
    refused = pytest.raises(TransportError, match="a NATS server greets")
    with BlockingChannel(nats_server.address) as channel, refused:
        channel.unary("/test/echo", b"", timeout=60.0)
