"""Pauses before the reads of a blocking call: deadlines, interrupts and slow connections."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from liftenvelope.errors import TransportError
from liftenvelope.rpc.blocking import BlockingChannel, ResponseStream
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import FaultProxy
from tests.hostile.frames import message as frame_message
from tests.integration.rpc.test_blocking import Service, serve
from tests.sinks import RecordingSink

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A pause that no test has the time for.
ENDLESS = 10_000.0


class AlwaysDue:
    """A pacer that asks for a pause before each read."""

    is_due = True

    def received(self, size: int, now: float) -> None:
        """Take notice of nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with serve(Service()) as address:
        yield address


@pytest.fixture
def channel(address: str) -> Iterator[BlockingChannel]:
    with BlockingChannel(address) as channel:
        yield channel


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftenvelope.rpc.blocking.ReadPacer", AlwaysDue)


def take_all(stream: ResponseStream, pause: float) -> None:
    while stream.wait(pause=pause):
        pass


def counted(count: int) -> bytes:
    """Answers of the service's method ``count``."""
    return b"".join(frame_message(b"%d" % number) for number in range(count))


@contextmanager
def one_byte_at_a_time(address: str) -> Iterator[str]:
    """A relay whose client gets each byte of the server in a segment of its own."""
    host, port = address.rsplit(":", 1)

    def forward(source: socket.socket, target: socket.socket, size: int) -> None:
        with suppress(OSError):
            while data := source.recv(size):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection((host, int(port))) as out,
    ):

        def relay() -> None:
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=forward, args=(client, out, 65_536), daemon=True)
            back.start()
            with client:
                forward(out, client, 1)
                back.join(60)

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        with suppress(OSError):  # the server may have closed it
            out.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def test_pauses_come_between_small_reads(channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    sink, deadline = RecordingSink(), time.monotonic() + 60
    with channel.conversation("/test/chat", sink=sink) as call:
        while 0.125 not in pauses and time.monotonic() < deadline:
            call.send_framed(frame_message(b"a"))
            assert call.wait(timeout=60.0, pause=0.125)
    assert 0.125 in pauses


@pytest.mark.usefixtures("eager")
def test_pause_is_no_longer_than_the_timeout(channel: BlockingChannel) -> None:
    sink = RecordingSink()
    with channel.server_stream("/test/forever", b"", sink=sink) as stream:
        assert stream.wait(timeout=60.0)
        began = time.monotonic()
        with pytest.raises(RpcError, match=r"no message came within 0\.3 s"):
            stream.wait(timeout=0.3, pause=ENDLESS)
        assert 0.3 <= time.monotonic() - began < 30
    assert sink.found == frame_message(b"first")


@pytest.mark.usefixtures("eager")
def test_pause_is_no_longer_than_the_deadline_of_the_call(channel: BlockingChannel) -> None:
    with channel.server_stream("/test/forever", b"", timeout=1.0, sink=RecordingSink()) as stream:
        began = time.monotonic()
        with pytest.raises(RpcError) as info:
            take_all(stream, ENDLESS)
        assert info.value.code is StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - began < 30


@pytest.mark.usefixtures("eager")
def test_interrupted_pause_loses_nothing(channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    sink = RecordingSink()
    with channel.conversation("/test/chat", sink=sink) as call:
        call.send_framed(frame_message(b"a"))
        assert call.wait(timeout=60.0)
        call.send_framed(frame_message(b"b"))
        monkeypatch.setattr(time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            call.wait(pause=0.001)
        assert call.wait(timeout=60.0, pause=0.001)
    assert sink.found == frame_message(b"a") + frame_message(b"b")


@pytest.mark.usefixtures("eager")
def test_stream_that_comes_byte_by_byte_is_whole(address: str) -> None:
    sink = RecordingSink()
    with one_byte_at_a_time(address) as slow, BlockingChannel(slow) as channel:
        take_all(channel.server_stream("/test/count", b"200", timeout=60.0, sink=sink), 0.0005)
    assert sink.found == counted(200)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("size", [1, 9, 12, 1000])
def test_connection_lost_inside_a_frame_is_no_end(address: str, size: int) -> None:
    with FaultProxy(address) as proxy, BlockingChannel(proxy.address) as channel:
        assert channel.unary("/test/echo", b"whole", timeout=60.0) == b"whole"
        proxy.truncate(size)
        stream = channel.server_stream("/test/flood", b"", timeout=60.0, sink=RecordingSink())
        with pytest.raises(TransportError):
            take_all(stream, 0.0005)
