"""The server's side of a connection, against h2 in the client's role."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import unquote

import pytest
from h2 import events as h2_events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from liftenvelope.rpc._budget import Budget
from liftenvelope.rpc._events import CallEnded, CallStarted, Event, MessagesReceived, RequestsEnded
from liftenvelope.rpc._server_side import ServerConnection
from liftenvelope.rpc.limits import ServerLimits
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.hostile.frames import message as frame_message

REQUEST = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/test/echo",
    ":authority": "here",
    "te": "trailers",
    "content-type": "application/grpc+proto",
}


class Pair:
    """A server connection and a client in memory."""

    def __init__(self, *, unread: Budget | None = None, unsent: Budget | None = None, **limits: int) -> None:
        self.server = ServerConnection(limits=ServerLimits(**limits), unread=unread, unsent=unsent)
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.client.initiate_connection()
        self.answers: list[Any] = []
        self.exchange()

    def exchange(self, size: int | None = None) -> list[Event]:
        events: list[Event] = []
        while True:
            up, down = self.client.data_to_send(), self.server.data_to_send()
            if not up and not down:
                return events
            step = size or max(1, len(up))
            for start in range(0, len(up), step):
                events += self.server.feed(up[start : start + step])
            if down:
                self.answers += self.client.receive_data(down)

    def start(self, body: bytes | None = None, **headers: str) -> int:
        call_id: int = self.client.get_next_available_stream_id()
        given = {**REQUEST, **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.client.send_headers(call_id, list(given.items()))
        if body is not None:
            self.client.send_data(call_id, body, end_stream=True)
        return call_id

    def seen(self, kind: type) -> list[Any]:
        return [event for event in self.answers if isinstance(event, kind)]


@pytest.mark.parametrize("size", [None, 1, 7])
def test_call_from_beginning_to_end(size: int | None) -> None:
    pair = Pair()
    call_id = pair.start(frame_message(b"a") + frame_message(b""), grpc_timeout="250m", x_name="v")
    started, *rest = pair.exchange(size)
    assert started == CallStarted(call_id, "/test/echo", [("x-name", "v")], 0.25)
    assert [m for event in rest if isinstance(event, MessagesReceived) for m in event.messages] == [b"a", b""]
    assert rest[-1] == RequestsEnded(call_id)
    pair.server.send_headers(call_id, [("x-begin", "b")])
    pair.server.send(call_id, [b"one", b"two"])
    pair.server.finish(call_id, metadata=[("x-end", "e")])
    pair.server.finish(call_id, StatusCode.ABORTED)
    pair.exchange()
    (head,), (data,) = pair.seen(h2_events.ResponseReceived), pair.seen(h2_events.DataReceived)
    assert dict(head.headers)["x-begin"] == "b"
    assert data.data == frame_message(b"one") + frame_message(b"two")
    (trailers,) = pair.seen(h2_events.TrailersReceived)
    assert dict(trailers.headers) == {"grpc-status": "0", "x-end": "e"}
    assert pair.server.open_calls == 0


def test_status_in_headers_alone() -> None:
    pair = Pair()
    call_id = pair.start(b"")
    pair.exchange()
    pair.server.finish(call_id, StatusCode.NOT_FOUND, "nö")
    pair.exchange()
    (head,) = pair.seen(h2_events.ResponseReceived)
    assert head.stream_ended is not None
    assert dict(head.headers)["grpc-message"] == "n%C3%B6"


@pytest.mark.parametrize(
    ("headers", "status"),
    [({":method": "GET"}, "405"), ({"content-type": "text/html"}, "415"), ({"content_type": ""}, "415")],
)
@pytest.mark.parametrize("body", [None, b""])
def test_request_that_is_none_of_grpcs(headers: dict[str, str], status: str, body: bytes | None) -> None:
    pair = Pair()
    call_id = pair.start(body, **headers)
    assert pair.exchange() == []
    (head,) = pair.seen(h2_events.ResponseReceived)
    assert dict(head.headers)[":status"] == status
    assert pair.server.open_calls == 0
    assert [reset.stream_id for reset in pair.seen(h2_events.StreamReset)] == (
        [call_id] if body is None else []
    )


def test_malformed_timeout() -> None:
    pair = Pair()
    pair.start(frame_message(b"x"), grpc_timeout="soon")
    assert pair.exchange() == []
    (head,) = pair.seen(h2_events.ResponseReceived)
    assert dict(head.headers)["grpc-status"] == "13"


@pytest.mark.parametrize("ended", [False, True])
def test_refused_message(ended: bool) -> None:
    pair = Pair(max_request_bytes=4)
    call_id = pair.start(frame_message(b"12345") if ended else None)
    if not ended:
        pair.client.send_data(call_id, frame_message(b"12345") * 3)
    _, end, *rest = pair.exchange()
    assert isinstance(end, CallEnded)
    assert isinstance(end.error, RpcError)
    assert end.error.code == StatusCode.RESOURCE_EXHAUSTED
    assert end.error.description == "a message of 5 bytes came, the limit is 4"
    assert rest == []
    (head,) = pair.seen(h2_events.ResponseReceived)
    assert dict(head.headers)["grpc-status"] == "8"


def test_requests_that_end_inside_a_message() -> None:
    pair = Pair()
    pair.start(frame_message(b"abc")[:-1])
    _, end = pair.exchange()
    assert isinstance(end, CallEnded)
    assert isinstance(end.error, RpcError)
    assert end.error.code == StatusCode.INTERNAL


def test_reset_by_the_client() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.exchange()
    pair.client.reset_stream(call_id, ErrorCodes.CANCEL)
    (end,) = pair.exchange()
    assert isinstance(end, CallEnded)
    assert isinstance(end.error, RpcError)
    assert end.error.code == StatusCode.CANCELLED
    pair.server.send(call_id, [b"late"])
    pair.server.send_headers(call_id)
    pair.server.finish(call_id)
    assert pair.server.data_to_send() == b""


def test_answer_waits_for_the_window_and_the_status_for_the_answer() -> None:
    pair = Pair()
    call_id = pair.start(b"")
    pair.exchange()
    pair.server.send(call_id, [bytes(100_000)])
    pair.server.finish(call_id, StatusCode.ABORTED, "half")
    pair.exchange()
    assert sum(len(event.data) for event in pair.seen(h2_events.DataReceived)) == 65_535
    assert pair.seen(h2_events.TrailersReceived) == []
    pair.client.increment_flow_control_window(100_000, call_id)
    pair.client.increment_flow_control_window(100_000)
    pair.exchange()
    assert sum(len(event.data) for event in pair.seen(h2_events.DataReceived)) == 100_005
    assert len(pair.seen(h2_events.TrailersReceived)) == 1


def test_client_that_resets_while_the_answer_waits() -> None:
    pair = Pair()
    call_id = pair.start(b"")
    pair.exchange()
    pair.server.send(call_id, [bytes(100_000)])
    pair.server.finish(call_id)
    pair.exchange()
    pair.client.reset_stream(call_id, ErrorCodes.CANCEL)
    assert pair.exchange() == []
    assert pair.server.open_calls == 0


def test_end_before_the_requests_end() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.exchange()
    pair.server.finish(call_id, StatusCode.ABORTED, "enough")
    pair.client.send_data(call_id, frame_message(b"late"))
    assert pair.exchange() == []
    (reset,) = pair.seen(h2_events.StreamReset)
    assert reset.error_code == ErrorCodes.NO_ERROR


def test_requests_after_the_answer_was_decided_are_dropped() -> None:
    pair = Pair(max_unread_bytes_per_call=20_000)
    call_id = pair.start()
    pair.exchange()
    pair.server.send(call_id, [bytes(100_000)])
    pair.server.finish(call_id)
    for _ in range(20):
        pair.client.send_data(call_id, frame_message(bytes(5_000)))
        assert pair.exchange() == []


def test_going_away() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.exchange()
    late = pair.start()
    pair.server.go_away()
    pair.server.go_away()
    up = pair.client.data_to_send()
    assert pair.server.feed(up) == []
    assert not pair.server.accepts_calls
    frames = pair.server.data_to_send()
    assert frames.startswith(b"\0\0\x08\x07\0\0\0\0\0\0\0\0\x01")
    refusal = b"\0\0\x04\x03\0" + late.to_bytes(4, "big") + int(ErrorCodes.REFUSED_STREAM).to_bytes(4, "big")
    assert refusal in frames
    pair.server.finish(call_id)
    assert pair.server.data_to_send()
    assert pair.server.open_calls == 0


def test_client_that_goes_away_gets_its_answers() -> None:
    pair = Pair()
    call_id = pair.start(b"")
    pair.exchange()
    assert pair.server.feed(b"\0\0\x08\x07\0\0\0\0\0" + bytes(8)) == []
    pair.server.send(call_id, [b"x"])
    pair.server.finish(call_id)
    pair.exchange()
    assert len(pair.seen(h2_events.TrailersReceived)) == 1


@pytest.mark.parametrize("size", [1, 100])
def test_client_that_does_not_speak_http2(size: int) -> None:
    server = ServerConnection()
    data = b"GET / HTTP/1.1\r\n\r\n"
    for start in range(0, len(data), size):
        assert server.feed(data[start : start + size]) == []
    assert server.failed


@pytest.mark.parametrize("kind", [1, 5, 7, 9], ids=["headers", "push", "goaway", "continuation"])
def test_part_of_a_preface_is_not_read_as_a_frame(kind: int) -> None:
    server = ServerConnection()
    assert server.feed(bytes((0, 0, 0, kind))) == []
    assert server.failed


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("n" * 1024, "n" * 1024),
        ("n" * 1025, "n" * 1021 + "..."),
        ("ö" * 512, "ö" * 512),
        ("ö" * 513, "ö" * 510 + "..."),
        ("n" * 1_000_000, "n" * 1021 + "..."),
    ],
    ids=["at the limit", "one more", "two bytes each", "two bytes each, one more", "a million"],
)
def test_status_text_is_cut_at_1_kib(text: str, sent: str) -> None:
    pair = Pair()
    call_id = pair.start(b"")
    pair.exchange()
    pair.server.finish(call_id, StatusCode.NOT_FOUND, text)
    pair.exchange()
    (head,) = pair.seen(h2_events.ResponseReceived)
    assert unquote(dict(head.headers)["grpc-message"]) == sent


def test_status_text_is_not_huffman_coded() -> None:
    # hpack's Huffman coder is quadratic in the length of the text.
    pair = Pair()
    call_id = pair.start(b"")
    pair.exchange()
    pair.server.finish(call_id, StatusCode.NOT_FOUND, "there is no such stream")
    assert b"there is no such stream" in pair.server.data_to_send()


def test_headers_above_the_limit_end_the_connection() -> None:
    for size, is_accepted in ((15_000, True), (16 * 1024, False)):
        pair = Pair()
        pair.start(b"", x_long="v" * size)
        started = [event for event in pair.exchange() if isinstance(event, CallStarted)]
        assert (len(started) == 1, pair.server.failed) == (is_accepted, not is_accepted)


def test_greediest_call_is_refused_when_a_connection_holds_too_much() -> None:
    pair = Pair(max_unread_bytes_per_connection=100_000)
    small, large = pair.start(), pair.start()
    pair.client.send_data(small, frame_message(b"s" * 10_000))
    for _ in range(8):
        pair.client.send_data(large, frame_message(b"l" * 10_000))
    assert not [event for event in pair.exchange() if isinstance(event, CallEnded)]
    pair.client.send_data(large, frame_message(b"l" * 10_000))
    (ended,) = [event for event in pair.exchange() if isinstance(event, CallEnded)]
    assert isinstance(ended.error, RpcError)
    assert (ended.call_id, ended.error.code) == (large, StatusCode.RESOURCE_EXHAUSTED)
    assert 10_005 < pair.server.unread < 10_500
    pair.server.release(small, len(frame_message(b"s" * 10_000)))
    assert pair.server.unread == 0


def test_small_unread_messages_count_with_their_memory() -> None:
    budget = Budget(1 << 30)
    pair = Pair(max_unread_bytes_per_connection=100_000, unread=budget)
    call_id = pair.start()
    tiny = frame_message(b"12345678")
    pair.client.send_data(call_id, tiny * 1_000)
    (received,) = [event for event in pair.exchange() if isinstance(event, MessagesReceived)]
    least = sum(map(sys.getsizeof, received.messages)) + sys.getsizeof(received.messages)
    assert least <= pair.server.unread == budget.used < 1.3 * least
    pair.server.release(call_id, 500 * len(tiny))
    assert least <= 2 * pair.server.unread < 1.3 * least
    pair.server.release(call_id, 500 * len(tiny))
    assert pair.server.unread == budget.used == 0
    # 26,000 bytes on the wire are more than the limit in memory.
    pair.client.send_data(call_id, tiny * 1_000)
    assert not [event for event in pair.exchange() if isinstance(event, CallEnded)]
    pair.client.send_data(call_id, tiny * 1_000)
    (ended,) = [event for event in pair.exchange() if isinstance(event, CallEnded)]
    assert isinstance(ended.error, RpcError)
    assert ended.error.code == StatusCode.RESOURCE_EXHAUSTED
    assert pair.server.unread == budget.used == 0


@pytest.mark.parametrize("is_whole", [False, True])
def test_unread_requests_of_an_ended_call_do_not_count_while_its_client_takes_nothing(is_whole: bool) -> None:
    budget = Budget(1 << 30)
    pair = Pair(unread=budget)
    pair.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    call_id, body = pair.start(), frame_message(b"r" * 10_000)
    pair.client.send_data(call_id, body)
    pair.client.send_data(call_id, body, pad_length=9)  # goes through h2
    pair.client.send_data(call_id, body if is_whole else body[:-1], end_stream=is_whole)
    pair.exchange()
    pair.server.send(call_id, [b"answer"])
    pair.exchange()
    assert budget.used > 30_000
    pair.server.finish(call_id, StatusCode.DEADLINE_EXCEEDED)
    pair.exchange()
    assert (pair.server.open_calls, pair.server.unread, budget.used) == (1, 0, 0)
    pair.server.release(call_id, len(body))  # by a handler that has not learned of the end
    assert (pair.server.unread, budget.used) == (0, 0)
    assert pair.server.refuse_greediest("too much") == []
    pair.client.increment_flow_control_window(100, call_id)
    pair.exchange()
    (trailers,) = pair.seen(h2_events.TrailersReceived)
    assert dict(trailers.headers)["grpc-status"] == "4"
    assert (pair.server.open_calls, pair.server.unread, budget.used) == (0, 0, 0)


def test_unread_bytes_are_counted_over_all_connections_until_they_end() -> None:
    budget = Budget(15_000)
    pairs = [Pair(unread=budget) for _ in range(2)]
    for pair in pairs:
        pair.client.send_data(pair.start(), frame_message(b"b" * 10_000))
        pair.exchange()
    assert budget.is_exceeded
    pairs[0].server.connection_lost("the test is over")
    assert budget.used == pairs[1].server.unread
    assert 10_005 < budget.used < 10_500


def shut_pair(unsent: Budget) -> Pair:
    """A connection whose client takes no message."""
    pair = Pair(unsent=unsent)
    pair.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    pair.exchange()
    return pair


def test_unsent_bytes_are_counted_until_they_are_sent_or_their_call_ends() -> None:
    budget = Budget(1)
    pair, other = shut_pair(budget), shut_pair(budget)
    sent, reset, ended, exempt = (pair.start(frame_message(b"")) for _ in range(4))
    elsewhere = other.start(frame_message(b""))
    pair.exchange()
    other.exchange()
    for call_id in (sent, reset, ended, exempt):
        pair.server.send(call_id, [b"a" * 100, b""])
        if call_id == exempt:
            pair.server.exempt(call_id)
        pair.server.send_framed(call_id, frame_message(b"b" * 50))
    other.server.send(elsewhere, [b"c"])
    assert (pair.server.unsent_bytes, other.server.unsent_bytes) == (3 * 165, 6)
    pair.exchange()
    assert budget.used == 3 * 165 + 6
    pair.client.increment_flow_control_window(65, sent)
    pair.exchange()
    assert pair.server.unsent_bytes == 3 * 165 - 65
    pair.client.increment_flow_control_window(100, sent)
    pair.client.reset_stream(reset)
    pair.exchange()
    assert pair.server.unsent_bytes == 165
    pair.server.finish(ended)
    pair.server.send(ended, [b"ignored"])
    pair.client.increment_flow_control_window(1_000, ended)
    pair.exchange()
    assert (pair.server.unsent_bytes, budget.used) == (0, 6)
    other.server.connection_lost("the test is over")
    assert budget.used == 0


@pytest.mark.parametrize("is_whole", [False, True])
def test_call_with_the_most_unsent_bytes_is_refused_and_its_answers_are_dropped(is_whole: bool) -> None:
    pair = shut_pair(Budget(1))
    small, large, exempt = (pair.start(frame_message(b"")) for _ in range(3))
    pair.exchange()
    pair.server.exempt(exempt)
    for call_id, size in ((small, 10), (large, 100), (exempt, 1_000)):
        pair.server.send(call_id, [bytes(size)])
    if is_whole:
        pair.server.finish(large)
    pair.exchange()
    assert [event.stream_id for event in pair.seen(h2_events.ResponseReceived)] == [small, large, exempt]
    events = pair.server.refuse_most_unsent("too much")
    assert [event.call_id for event in events if isinstance(event, CallEnded)] == [large] * (not is_whole)
    pair.exchange()
    (trailers,) = pair.seen(h2_events.TrailersReceived)
    text = unquote(dict(trailers.headers)["grpc-message"])
    assert (trailers.stream_id, dict(trailers.headers)["grpc-status"]) == (large, "8")
    assert text == "too much, 105 of them on this call: take answers before asking for more"
    assert (pair.server.unsent_bytes, pair.server.open_calls) == (15, 2)
    pair.client.increment_flow_control_window(15, small)
    pair.exchange()
    (data,) = pair.seen(h2_events.DataReceived)
    assert (data.stream_id, data.data) == (small, frame_message(bytes(10)))


def test_body_of_a_refused_call_is_dropped_while_the_client_reads_nothing() -> None:
    pair = Pair(max_unread_bytes_per_connection=20_000)
    call_id = pair.start()
    pair.exchange()
    for _ in range(3):
        pair.client.send_data(call_id, frame_message(b"m" * 10_000))
    # Feeds without sending: as for a client that does not read.
    pair.server.feed(pair.client.data_to_send())
    for _ in range(20):
        pair.client.send_data(call_id, b"\0\0\x10\0\0" + b"p" * 10_000)
        assert pair.server.feed(pair.client.data_to_send()) == []
    assert pair.server.unread == 0


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


#: Frames that change nothing, or end a call, by what they are. Each is sent on a call that is open.
FLOODS = {
    "settings": lambda stream: frame(4, 0, 0, b""),
    "priority": lambda stream: frame(2, 0, stream, bytes(5)),
    "room on a call that is over": lambda stream: frame(8, 0, stream + 2, (1).to_bytes(4, "big")),
    "room on a call with flags": lambda stream: frame(8, 1, stream, (1).to_bytes(4, "big")),
    "empty padded data": lambda stream: frame(0, 8, stream, b"\0"),
    "data without content": lambda stream: frame(0, 2, stream, b""),
    "end of a call that is over": lambda stream: frame(0, 1, stream + 2, b""),
    "unknown": lambda stream: frame(0xFA, 0, stream, b""),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_flood_of_control_frames_ends_the_connection(kind: str) -> None:
    pair = Pair(control_frames_per_second=50, control_frame_burst=200)
    call_id, over = pair.start(), pair.start()
    pair.exchange()
    pair.client.reset_stream(over)
    pair.exchange()
    one = FLOODS[kind](call_id)
    assert pair.server.feed(one * 150) == []
    assert not pair.server.failed
    (ended,) = pair.server.feed(one * 60)
    assert pair.server.failed
    assert "flood of control frames" in str(ended.error)
    events = pair.client.receive_data(pair.server.data_to_send())
    (goaway,) = [event for event in events if isinstance(event, h2_events.ConnectionTerminated)]
    assert goaway.error_code == ErrorCodes.ENHANCE_YOUR_CALM


def test_allowance_of_control_frames_grows_with_time() -> None:
    pair = Pair(control_frames_per_second=50, control_frame_burst=200)
    pair.server.refill(10.0)
    for now in range(11, 31):
        pair.server.feed(FLOODS["settings"](0) * 50)
        pair.server.refill(float(now))
    assert not pair.server.failed


def test_rapid_resets_end_the_connection() -> None:
    pair = Pair(control_frames_per_second=50, control_frame_burst=200)
    for _ in range(210):
        call_id = pair.start(b"")
        pair.client.reset_stream(call_id)
    pair.exchange()
    assert pair.server.failed


def test_calls_made_to_be_reset_by_the_server_end_the_connection() -> None:
    # MadeYouReset: the client breaks a rule of each call, so that the server resets it.
    pair = Pair(control_frames_per_second=50, control_frame_burst=200)
    for _ in range(210):
        call_id = pair.start()
        pair.server.feed(pair.client.data_to_send() + frame(8, 0, call_id, bytes(4)))
    assert pair.server.failed


def test_many_calls_are_no_flood() -> None:
    pair = Pair(control_frames_per_second=50, control_frame_burst=200)
    for _ in range(1_000):
        call_id = pair.start(frame_message(b"request"))
        pair.exchange()
        pair.server.send(call_id, [b"answer"])
        pair.server.finish(call_id)
        pair.exchange()
    assert not pair.server.failed


def test_window_updates_for_each_answer_are_no_flood() -> None:
    pair, call_id = Pair(control_frames_per_second=50, control_frame_burst=200), 0
    for _ in range(1_000):
        call_id = pair.start(frame_message(b"request"))
        pair.exchange()
        pair.server.send(call_id, [b"answer"])
        pair.server.finish(call_id)
        pair.exchange()
        pair.server.feed(frame(8, 0, call_id, b"\0\0\0\x0b") * 2)
    assert not pair.server.failed
    pair.server.feed(frame(8, 0, call_id, b"\0\0\0\x0b") * 201)
    assert pair.server.failed


def test_window_updates_of_an_open_call_are_no_flood() -> None:
    """grpcio sends one for every second message that it gets on a stream of small ones."""
    pair = Pair(control_frames_per_second=50, control_frame_burst=200)
    call_id = pair.start()
    pair.exchange()
    assert pair.server.feed(frame(8, 0, call_id, (1).to_bytes(4, "big")) * 1_000) == []
    assert not pair.server.failed
    assert pair.server._h2.streams[call_id].outbound_flow_control_window == 65_535 + 1_000
    (ended,) = pair.server.feed(frame(8, 0, call_id, (2**31 - 1).to_bytes(4, "big")))
    assert isinstance(ended, CallEnded)
    pair.exchange()
    (reset,) = pair.seen(h2_events.StreamReset)
    assert reset.error_code == ErrorCodes.FLOW_CONTROL_ERROR
    assert not pair.server.failed


def test_call_with_compressed_messages_is_refused() -> None:
    pair = Pair()
    call_id = pair.start(grpc_encoding="gzip")
    assert pair.exchange() == []
    (trailers,) = pair.seen(h2_events.ResponseReceived)
    fields = dict(trailers.headers)
    assert (trailers.stream_id, fields["grpc-status"]) == (call_id, str(int(StatusCode.UNIMPLEMENTED)))
    assert fields["grpc-accept-encoding"] == "identity"
    plain = pair.start(grpc_encoding="identity")
    (started,) = pair.exchange()
    assert isinstance(started, CallStarted)
    assert started.call_id == plain


@pytest.mark.parametrize("size", [1, 5, 24])
def test_client_has_greeted_with_its_first_frame(size: int) -> None:
    server, client = ServerConnection(), H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    greeting = client.data_to_send()
    for start in range(0, 24, size):
        server.feed(greeting[start : min(start + size, 24)])
        assert not server.greeted
    server.feed(greeting[24:])
    assert server.greeted
