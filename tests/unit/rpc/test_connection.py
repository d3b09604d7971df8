"""The client's side of a connection, against h2 in the server's role."""

from __future__ import annotations

import math
import sys

import pytest
from h2 import events as h2_events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.errors import TransportError, UsageError
from liftenvelope.rpc._calls import CallState
from liftenvelope.rpc._client_side import ClientConnection
from liftenvelope.rpc._events import CallEnded, Event, HeadersReceived, MessagesReceived
from liftenvelope.rpc._headers import timeout_header
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode
from tests.hostile.frames import message as frame_message

OK_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
OK_TRAILERS = [("grpc-status", "0")]
METHOD = "/proto.API/FetchMetadata"


class Pair:
    """A client connection and a server in memory, with a wire between them."""

    def __init__(self, *, max_header_list: int | None = None, **settings: int) -> None:
        self.client = ClientConnection("server.test:9292", max_header_list=max_header_list)
        self.server = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.server.initiate_connection()
        if settings:
            self.server.update_settings({SettingCodes[name]: value for name, value in settings.items()})
        self.requests: dict[int, bytearray] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.data_frames: list[int] = []
        self.exchange()

    def exchange(self, size: int | None = None) -> list[Event]:
        """Carry bytes both ways until there are none; return the client's events."""
        events: list[Event] = []
        while True:
            up, down = self.client.data_to_send(), self.server.data_to_send()
            if not up and not down:
                return events
            if up:
                self._serve(self.server.receive_data(up))
            step = size or max(1, len(down))
            for start in range(0, len(down), step):
                came = self.client.feed(down[start : start + step])
                events += [event for event in came if not isinstance(event, HeadersReceived)]

    def _serve(self, events: list[h2_events.Event]) -> None:
        for event in events:
            match event:
                case h2_events.RequestReceived():
                    self.headers[event.stream_id] = {str(name): str(value) for name, value in event.headers}
                    self.requests[event.stream_id] = bytearray()
                case h2_events.DataReceived():
                    self.requests[event.stream_id] += event.data
                    self.data_frames.append(len(event.data))
                case h2_events.StreamEnded():
                    self.ended.add(event.stream_id)
                case h2_events.StreamReset():
                    self.resets[event.stream_id] = event.error_code

    def start(self, request: bytes = b"", timeout: float | None = None) -> int:
        call_id = self.client.start_call(METHOD, timeout=timeout)
        self.client.send(call_id, [request])
        self.client.half_close(call_id)
        self.exchange()
        return call_id

    def answer(self, call_id: int, body: bytes, *, end: bool = True) -> None:
        """Send a response: headers, ``body`` in frames, and trailers."""
        self.server.send_headers(call_id, OK_HEADERS)
        for start in range(0, len(body), 16_384):
            self.server.send_data(call_id, body[start : start + 16_384])
        if end:
            self.server.send_headers(call_id, OK_TRAILERS, end_stream=True)


def messages(events: list[Event]) -> list[bytes]:
    """Return the messages in ``events``, of which one call had any."""
    assert len({event.call_id for event in events if isinstance(event, MessagesReceived)}) <= 1
    return [m for event in events if isinstance(event, MessagesReceived) for m in event.messages]


def failure(events: list[Event]) -> RpcError | TransportError:
    """Return the error with which the only call in ``events`` ended."""
    (event,) = events
    assert isinstance(event, CallEnded)
    assert event.error is not None
    return event.error


def test_request_is_that_of_grpc() -> None:
    pair = Pair()
    call_id = pair.start(b"request", timeout=2.5)
    headers = pair.headers[call_id]
    assert headers.pop("user-agent").startswith("liftenvelope/")
    assert headers == {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": "server.test:9292",
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-timeout": "2500000u",
    }
    assert pair.requests[call_id] == frame_message(b"request")
    assert call_id in pair.ended


@pytest.mark.parametrize("size", [None, 1, 2, 3, 7, 9, 10, 64])
def test_answers_come_in_order_however_divided(size: int | None) -> None:
    pair = Pair()
    call_id = pair.start()
    sent = [b"", b"first", b"x" * 40_000]
    pair.answer(call_id, b"".join(map(frame_message, sent)))
    events = pair.exchange(size)
    assert messages(events) == sent
    assert events[-1] == CallEnded(call_id, None)
    assert pair.client.open_calls == 0


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20))
def test_message_over_several_data_frames(sizes: list[int]) -> None:
    pair = Pair()
    call_id = pair.start()
    body = frame_message(b"0123456789") + frame_message(b"abc")
    pair.server.send_headers(call_id, OK_HEADERS)
    start = 0
    for size in sizes:
        pair.server.send_data(call_id, body[start : start + size], pad_length=size)
        start += size
    pair.server.send_data(call_id, body[start:])
    assert messages(pair.exchange()) == [b"0123456789", b"abc"]


def test_status_in_headers_alone() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.server.send_headers(
        call_id, [*OK_HEADERS, ("grpc-status", "3"), ("grpc-message", "bad%0Aname")], end_stream=True
    )
    error = failure(pair.exchange())
    assert isinstance(error, RpcError)
    assert (error.code, error.description) == (StatusCode.INVALID_ARGUMENT, "bad\nname")


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        (
            [("content-type", "text/html; charset=utf-8")],
            "got 'text/html; charset=utf-8', with HTTP status 200",
        ),
        ([("content-type", "application/grpc-web")], "got 'application/grpc-web', with HTTP status 200"),
        ([], "got none, with HTTP status 200"),
    ],
)
@pytest.mark.parametrize("ends", [False, True])
def test_answer_that_is_not_grpc(fields: list[tuple[str, str]], got: str, ends: bool) -> None:
    """Its body was read as messages, and the error was about a flag of a message or a missing status."""
    pair = Pair()
    call_id = pair.start()
    pair.server.send_headers(call_id, [(":status", "200"), *fields], end_stream=ends)
    if not ends:
        pair.server.send_data(call_id, b"<html>Welcome to the proxy</html>", end_stream=True)
    error = failure(pair.exchange())
    assert isinstance(error, RpcError)
    assert error.code == StatusCode.UNKNOWN
    assert got in error.description
    assert pair.client.open_calls == 0


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;charset=utf-8"])
def test_other_content_types_of_grpc(kind: str) -> None:
    pair = Pair()
    call_id = pair.start()
    pair.server.send_headers(call_id, [(":status", "200"), ("content-type", kind)])
    pair.server.send_data(call_id, frame_message(b"answer"))
    pair.server.send_headers(call_id, [("grpc-status", "0")], end_stream=True)
    events = pair.exchange()
    assert messages(events) == [b"answer"]
    assert events[-1] == CallEnded(call_id, None)


def test_http_error() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.server.send_headers(call_id, [(":status", "503"), ("content-type", "text/html")])
    pair.server.send_data(call_id, b"<html>")
    error = failure(pair.exchange())
    assert isinstance(error, RpcError)
    assert error.code == StatusCode.UNAVAILABLE
    assert call_id in pair.resets


def test_end_without_trailers() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.server.send_headers(call_id, OK_HEADERS)
    pair.server.send_data(call_id, frame_message(b"x"), end_stream=True)
    message, *rest = pair.exchange()
    assert messages([message]) == [b"x"]
    error = failure(rest)
    assert isinstance(error, RpcError)
    assert error.code == StatusCode.UNKNOWN


def test_ok_inside_a_message_is_an_error() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.answer(call_id, frame_message(b"abc")[:-1])
    error = failure(pair.exchange())
    assert isinstance(error, RpcError)
    assert error.code == StatusCode.INTERNAL


def test_compressed_message_resets_the_call_alone() -> None:
    pair = Pair()
    first, second = pair.start(), pair.start()
    pair.answer(first, b"\x01\x00\x00\x00\x01x", end=False)
    pair.answer(second, frame_message(b"fine"))
    events = pair.exchange()
    error = failure(events[:1])
    assert isinstance(error, RpcError)
    assert "compressed" in error.description
    assert pair.resets == {first: ErrorCodes.CANCEL}
    assert events[1:] == [MessagesReceived(second, [b"fine"], 9), CallEnded(second, None)]


def test_invalid_message_in_the_frame_that_closes_the_stream_ends_the_call_alone() -> None:
    # A web server, taken for a gRPC server, ends its page without trailers.
    pair = Pair()
    first, second = pair.start(), pair.start()
    pair.server.send_headers(first, OK_HEADERS)
    pair.server.send_data(first, b"<html>", end_stream=True)
    pair.answer(second, frame_message(b"fine"))
    events = pair.exchange()
    error = failure(events[:1])
    assert isinstance(error, RpcError)
    assert "compressed" in error.description
    assert pair.resets == {}
    assert events[1:] == [MessagesReceived(second, [b"fine"], 9), CallEnded(second, None)]


def test_reset_by_the_server() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.server.reset_stream(call_id, ErrorCodes.REFUSED_STREAM)
    error = failure(pair.exchange())
    assert isinstance(error, CallNotProcessedError)
    assert error.retriable


def test_reset_with_the_request_half_sent() -> None:
    pair = Pair()
    call_id = pair.start(bytes(200_000))
    assert call_id not in pair.ended
    pair.server.reset_stream(call_id, ErrorCodes.CANCEL)
    error = failure(pair.exchange())
    assert isinstance(error, RpcError)
    assert error.code == StatusCode.CANCELLED
    pair.server.increment_flow_control_window(65_535)
    assert pair.start() in pair.ended


def test_answer_before_the_request_is_sent_ends_both_sides() -> None:
    pair = Pair()
    call_id = pair.start(bytes(200_000))
    pair.server.send_headers(call_id, [*OK_HEADERS, ("grpc-status", "8")], end_stream=True)
    error = failure(pair.exchange())
    assert isinstance(error, RpcError)
    assert error.code == StatusCode.RESOURCE_EXHAUSTED
    assert pair.resets == {call_id: ErrorCodes.CANCEL}


def test_request_goes_out_as_windows_and_frame_size_allow() -> None:
    pair = Pair(INITIAL_WINDOW_SIZE=1_000, MAX_FRAME_SIZE=20_000)
    request = bytes(range(256)) * 400
    call_id = pair.start(request)
    assert len(pair.requests[call_id]) == 1_000
    while call_id not in pair.ended:
        room = min(30_000, len(request) + 5 - len(pair.requests[call_id]))
        pair.server.increment_flow_control_window(room, call_id)
        pair.server.increment_flow_control_window(room)
        pair.exchange()
    assert pair.requests[call_id] == frame_message(request)
    assert max(pair.data_frames) == 20_000


def test_window_that_the_server_widens_by_settings() -> None:
    pair = Pair(INITIAL_WINDOW_SIZE=0)
    call_id = pair.start(b"abc")
    assert pair.requests[call_id] == b""
    pair.server.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
    pair.exchange()
    assert pair.requests[call_id] == frame_message(b"abc")


def test_server_is_held_back_until_what_came_is_released() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.server.send_headers(call_id, OK_HEADERS)
    pair.exchange()
    sent = taken = 0
    while (room := pair.server.local_flow_control_window(call_id)) > 0:
        pair.server.send_data(call_id, bytes(min(room, 16_384)))
        sent += min(room, 16_384)
        taken += sum(event.size for event in pair.exchange() if isinstance(event, MessagesReceived))
    assert sent == 8 * 1024 * 1024
    pair.client.release(call_id, taken)
    pair.exchange()
    assert sent - 16_384 <= pair.server.local_flow_control_window(call_id) <= sent
    # Another call is not held back by it.
    other = pair.start()
    pair.answer(other, frame_message(b"x" * 100_000))
    assert pair.exchange()[-1] == CallEnded(other, None)


def test_many_messages_with_release_never_stall() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.server.send_headers(call_id, OK_HEADERS)
    body = frame_message(bytes(16_000))
    for _ in range(1_000):
        pair.server.send_data(call_id, body)
        (event,) = pair.exchange()
        assert isinstance(event, MessagesReceived)
        pair.client.release(call_id, event.size)


def test_cancel_resets_and_hides_what_still_comes() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.answer(call_id, frame_message(b"late"), end=False)
    pair.client.cancel(call_id)
    pair.client.cancel(call_id)
    assert pair.exchange() == []
    assert pair.resets == {call_id: ErrorCodes.CANCEL}
    other = pair.start()
    pair.answer(other, b"")
    assert pair.exchange() == [CallEnded(other, None)]


def goaway(last_id: int, code: int = 0, text: bytes = b"") -> bytes:
    payload = last_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text
    return len(payload).to_bytes(3, "big") + b"\x07\x00\x00\x00\x00\x00" + payload


@pytest.mark.parametrize("size", [1, 100])
def test_after_goaway_accepted_calls_go_on(size: int) -> None:
    pair = Pair()
    accepted, refused = pair.start(), pair.start()
    data = goaway(accepted, 0xB, b"too_many_pings")
    events = [event for i in range(0, len(data), size) for event in pair.client.feed(data[i : i + size])]
    error = failure(events)
    assert isinstance(error, CallNotProcessedError)
    assert events == [CallEnded(refused, error)]
    assert "too_many_pings" in str(error)
    assert not pair.client.accepts_calls
    with pytest.raises(TransportError, match="going away"):
        pair.client.start_call(METHOD)
    pair.answer(accepted, frame_message(b"done"))
    assert pair.exchange() == [MessagesReceived(accepted, [b"done"], 9), CallEnded(accepted, None)]


def test_second_goaway_narrows_the_first() -> None:
    pair = Pair()
    call_id = pair.start()
    assert pair.client.feed(goaway(2**31 - 1)) == []
    assert isinstance(failure(pair.client.feed(goaway(0))), TransportError)
    assert pair.client.feed(goaway(0)) == []
    assert call_id == 1


def test_short_goaway_is_a_broken_connection() -> None:
    pair = Pair()
    pair.start()
    assert isinstance(failure(pair.client.feed(b"\0\0\x04\x07\0\0\0\0\0\0\0\0\0")), TransportError)


def test_only_a_server_that_sent_nothing_may_have_expected_tls() -> None:
    assert "expect TLS" in ClientConnection("server.test:9292").closed_reason
    assert Pair().client.closed_reason == "the other side closed the connection"


def test_connection_lost_ends_every_call() -> None:
    pair = Pair()
    calls = [pair.start(), pair.start()]
    events = pair.client.connection_lost("reset by peer")
    assert [event.call_id for event in events if isinstance(event, CallEnded)] == calls
    assert all(isinstance(event, CallEnded) and "reset" in str(event.error) for event in events)
    assert pair.client.feed(goaway(0)) == []
    pair.client.release(calls[0], 0)
    with pytest.raises(TransportError, match="reset by peer"):
        pair.client.start_call(METHOD)


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0"])
@pytest.mark.parametrize("size", [1, 100])
def test_server_that_breaks_http2(garbage: bytes, size: int) -> None:
    pair = Pair()
    pair.start()
    events = [e for i in range(0, len(garbage), size) for e in pair.client.feed(garbage[i : i + size])]
    assert isinstance(failure(events), TransportError)


def test_events_before_a_fault_are_kept() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.answer(call_id, frame_message(b"x"), end=False)
    events = pair.client.feed(pair.server.data_to_send() + b"\0\0\x01\x08\0\0\0\0\0\0")
    assert events[1] == MessagesReceived(call_id, [b"x"], 6)
    assert isinstance(failure(events[2:]), TransportError)


def test_limit_of_calls_at_once() -> None:
    pair = Pair(MAX_CONCURRENT_STREAMS=1)
    first, second, third = pair.start(), pair.start(b"second"), pair.start()
    assert set(pair.requests) == {first}
    pair.client.cancel(second)
    assert pair.exchange() == []
    pair.answer(first, b"")
    assert pair.exchange() == [CallEnded(first, None)]
    assert pair.ended == {first, third}
    fourth = pair.start()
    pair.client.cancel(third)
    pair.exchange()
    assert pair.ended == {first, third, fourth}


def test_calls_that_wait_are_not_looked_at_until_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each write, or each call that begins, looked at all of them, 5,000 calls would take seconds."""
    pair = Pair(MAX_CONCURRENT_STREAMS=10)
    looks: list[int] = []
    counts: list[H2Connection] = []
    look, count = ClientConnection._send_call, H2Connection._open_streams

    def noted_look(client: ClientConnection, call_id: int, call: CallState) -> None:
        looks.append(call_id)
        look(client, call_id, call)

    def noted_count(connection: H2Connection, remainder: int) -> int:
        if connection is pair.client._h2:
            counts.append(connection)
        open_streams: int = count(connection, remainder)
        return open_streams

    monkeypatch.setattr(ClientConnection, "_send_call", noted_look)
    monkeypatch.setattr(H2Connection, "_open_streams", noted_count)
    calls = [pair.client.start_call(METHOD) for _ in range(500)]
    for call_id in calls:
        pair.client.send(call_id, [b"request"])
        pair.client.half_close(call_id)
    pair.exchange()
    for call_id in calls:
        pair.answer(call_id, frame_message(b"answer"))
        pair.exchange()
    assert pair.ended == {*calls}
    assert pair.client.open_calls == 0
    assert len(looks) <= 2 * len(calls)
    assert len(counts) <= len(calls) / 10
    assert len(pair.client._h2.streams) <= 50


@pytest.mark.parametrize("cut", [False, True])
def test_calls_that_wait_are_safe_to_repeat(cut: bool) -> None:
    pair = Pair(MAX_CONCURRENT_STREAMS=1)
    pair.start()
    waiting = pair.start(b"x")
    (event, *_) = pair.client.connection_lost("cut") if cut else pair.client.feed(goaway(99))
    assert isinstance(event, CallEnded)
    assert event.call_id == waiting
    assert isinstance(event.error, CallNotProcessedError)


def test_ping_is_answered() -> None:
    pair = Pair()
    pair.server.ping(b"12345678")
    pair.client.feed(pair.server.data_to_send())
    events = pair.server.receive_data(pair.client.data_to_send())
    assert any(isinstance(event, h2_events.PingAckReceived) for event in events)


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan])
def test_timeout_that_makes_no_sense(timeout: float) -> None:
    pair = Pair()
    with pytest.raises(UsageError, match="timeout"):
        pair.client.start_call(METHOD, timeout=timeout)
    assert pair.client.open_calls == 0


def test_method_that_is_no_path() -> None:
    with pytest.raises(UsageError, match="method"):
        Pair().client.start_call("FetchMetadata")


@pytest.mark.parametrize(
    ("timeout", "header"),
    [
        (1e-9, "1u"),
        (0.25, "250000u"),
        (99.999999, "99999999u"),
        (100, "100000m"),
        (1e6, "1000000S"),
        (sys.float_info.max, "99999999S"),
    ],
)
def test_timeout_header(timeout: float, header: str) -> None:
    assert timeout_header(timeout) == header


@given(st.floats(min_value=1e-9, max_value=1e12))
def test_timeout_header_is_never_short_nor_long(timeout: float) -> None:
    header = timeout_header(timeout)
    assert len(header) <= 9
    seconds = int(header[:-1]) / {"u": 1e6, "m": 1e3, "S": 1}[header[-1]]
    assert seconds >= timeout * (1 - 1e-9) or seconds == 99_999_999


@pytest.mark.parametrize("excess", [0, 1])
def test_response_headers_up_to_the_limit_are_taken(excess: int) -> None:
    trailers = [*OK_HEADERS, *OK_TRAILERS, ("x-pad", "p" * 100)]
    size = sum(len(name) + len(value) + 32 for name, value in trailers)  # RFC 9113, 6.5.2
    pair = Pair(max_header_list=size - excess)
    call_id = pair.start()
    pair.server.send_headers(call_id, trailers, end_stream=True)
    events = pair.exchange()
    assert pair.client.failed is bool(excess)
    if excess:
        assert isinstance(failure(events), TransportError)
    else:
        assert [event.error for event in events if isinstance(event, CallEnded)] == [None]
