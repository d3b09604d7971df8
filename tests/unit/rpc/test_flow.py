"""Odd framings and windows, on the client's side of a connection."""

from __future__ import annotations

import random

import pytest
from h2 import events as h2_events
from h2.errors import ErrorCodes
from h2.exceptions import FlowControlError
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.errors import TransportError
from liftenvelope.rpc import _connection as connection_module
from liftenvelope.rpc import _credit as credit_module
from liftenvelope.rpc._client_side import ClientConnection
from liftenvelope.rpc._events import CallEnded, HeadersReceived, MessagesReceived, Pong
from liftenvelope.rpc.status import RpcError
from tests.hostile.frames import message as frame_message
from tests.sinks import RecordingSink
from tests.unit.rpc.test_connection import METHOD, OK_HEADERS, OK_TRAILERS, Pair, failure, goaway, messages


def small_window(window: int, **settings: int) -> Pair:
    pair = Pair(**settings)
    pair.client = ClientConnection("server.test", window=window)
    pair.server = type(pair.server)(pair.server.config)
    pair.server.initiate_connection()
    pair.exchange()
    return pair


def data_frame(call_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + b"\0\0" + call_id.to_bytes(4, "big") + payload


@given(st.lists(st.tuples(st.integers(0, 9_000), st.booleans(), st.booleans()), max_size=60), st.randoms())
def test_windows_agree_whatever_comes(steps: list[tuple[int, bool, bool]], choice: random.Random) -> None:
    """With padding or not, taken at once or later: the server's window never runs dry or over."""
    window = 20_000
    pair = small_window(window)
    call_id = pair.start()
    pair.server.send_headers(call_id, OK_HEADERS)
    pair.exchange()
    owed: list[int] = []
    for size, padded, take in steps:
        body = frame_message(bytes(size))
        if pair.server.local_flow_control_window(call_id) < len(body) + 300:
            continue
        pair.server.send_data(call_id, body, pad_length=choice.randrange(200) if padded else None)
        owed += [event.size for event in pair.exchange() if isinstance(event, MessagesReceived)]
        if take and owed:
            pair.client.release(call_id, owed.pop(choice.randrange(len(owed))))
            pair.exchange()
        assert pair.server.local_flow_control_window(call_id) <= window
    for size in owed:
        pair.client.release(call_id, size)
    pair.exchange()
    assert 0 < pair.server.local_flow_control_window(call_id) <= window
    # However little is left, the next bytes make the client give room.
    for _ in range(40):
        size = min(pair.server.local_flow_control_window(call_id), 16_384) - 5
        assert size >= 0
        pair.server.send_data(call_id, frame_message(bytes(size)))
        for event in pair.exchange():
            assert isinstance(event, MessagesReceived)
            pair.client.release(call_id, event.size)
        pair.exchange()


@pytest.mark.parametrize("padded", [False, True])
def test_message_larger_than_the_window(padded: bool) -> None:
    pair = small_window(20_000)
    call_id = pair.start()
    pair.server.send_headers(call_id, OK_HEADERS)
    body = frame_message(bytes(300_000))
    got: list[bytes] = []
    while body:
        room = min(pair.server.local_flow_control_window(call_id) - 10, 16_000)
        assert room > 0
        pair.server.send_data(call_id, body[:room], pad_length=5 if padded else None)
        body = body[room:]
        got += messages(pair.exchange())
    assert got == [bytes(300_000)]


def test_sink_takes_the_bytes_of_its_call() -> None:
    pair, sink = Pair(), RecordingSink()
    first, second = pair.client.start_call(METHOD, sink=sink), pair.start()
    pair.client.half_close(first)
    pair.exchange()
    for call_id in (first, second):
        pair.server.send_headers(call_id, OK_HEADERS)
        pair.server.send_data(call_id, frame_message(b"x"))
    pair.server.send_data(first, frame_message(b"padded"), pad_length=9)
    pair.server.send_data(first, b"\0\0")
    pair.server.send_headers(first, OK_TRAILERS, end_stream=True)
    *came, end = pair.exchange()
    assert came[:2] == [MessagesReceived(first, [], 6), MessagesReceived(second, [b"x"], 6)]
    assert came[2:] == [MessagesReceived(first, [], 21), MessagesReceived(first, [], 2)]
    assert sink.found == frame_message(b"x") + frame_message(b"padded") + b"\0\0"
    assert end == CallEnded(first, None)  # the sink is the one to know that a message is incomplete


def test_sink_of_a_response_with_a_length() -> None:
    pair, sink = Pair(), RecordingSink()
    call_id = pair.client.start_call(METHOD, sink=sink)
    pair.client.half_close(call_id)
    pair.exchange()
    pair.server.send_headers(call_id, [*OK_HEADERS, ("content-length", "6")])
    pair.server.send_data(call_id, frame_message(b"x"))
    assert pair.exchange() == [MessagesReceived(call_id, [], 6)]
    assert sink.payloads == [frame_message(b"x")]


def test_sink_gets_no_padding() -> None:
    """A server that sends nothing but padding gets its credit back, and no event resets a timeout."""
    pair, sink = small_window(20_000), RecordingSink()
    call_id = pair.client.start_call(METHOD, sink=sink)
    pair.client.half_close(call_id)
    pair.exchange()
    pair.server.send_headers(call_id, OK_HEADERS)
    for _ in range(500):
        pair.server.send_data(call_id, b"", pad_length=200)
        assert pair.exchange() == []
    assert (sink.calls, pair.client.unread) == (0, 0)


def test_window_holds_back_a_server_whose_bytes_a_sink_took() -> None:
    pair, sink = small_window(20_000), RecordingSink()
    call_id = pair.client.start_call(METHOD, sink=sink)
    pair.client.half_close(call_id)
    pair.exchange()
    pair.server.send_headers(call_id, OK_HEADERS)
    pair.exchange()
    sent = 0
    for taken in range(3):
        pair.server.send_data(call_id, bytes(16_000))
        pair.server.send_data(call_id, bytes(4_000))
        sent += 20_000
        events = pair.exchange()
        assert (pair.server.local_flow_control_window(call_id), len(sink.found)) == (0, sent), taken
        for event in events:
            assert isinstance(event, MessagesReceived)
            pair.client.release(call_id, event.size)
        pair.exchange()
        assert pair.server.local_flow_control_window(call_id) == 20_000


def test_window_of_the_connection_is_given_back_by_every_way_a_call_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(credit_module, "_CONNECTION_WINDOW", 100_000)
    pair = Pair()
    for turn in range(200):
        call_id = pair.start()
        pair.server.send_headers(call_id, OK_HEADERS)
        # Both kinds of room are given back at half a window: a little is always left.
        size = min(9_000, pair.server.outbound_flow_control_window - 3_020)
        pair.server.send_data(call_id, frame_message(bytes(size)), pad_length=7 if turn % 3 == 0 else None)
        came = pair.exchange()
        match turn % 4:
            case 0:
                pair.client.cancel(call_id)
                # Already on its way: nobody wants it, and the room for it comes back all the same.
                frames = data_frame(call_id, bytes(1_000)) * 3
                pair.server.outbound_flow_control_window -= 3_000
                assert pair.client.feed(frames) == []
            case 1:
                pair.server.reset_stream(call_id, ErrorCodes.CANCEL)
            case 2:
                pair.server.send_headers(call_id, OK_TRAILERS, end_stream=True)
            case 3:
                sizes = [event.size for event in came if isinstance(event, MessagesReceived)]
                pair.client.release(call_id, sum(sizes))
                pair.server.send_data(call_id, b"", end_stream=True)
        pair.exchange()
        assert pair.client.open_calls == 0
        assert pair.server.outbound_flow_control_window <= 100_000


def test_what_comes_after_a_cancel_is_not_answered_frame_by_frame() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.server.send_headers(call_id, OK_HEADERS)
    pair.exchange()
    pair.client.cancel(call_id)
    pair.client.data_to_send()
    assert pair.client.feed(data_frame(call_id, bytes(100)) * 1_000) == []
    assert pair.client.data_to_send() == b""


def test_calls_cancelled_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_MUTED", 2)
    pair = Pair()
    for _ in range(5):
        call_id = pair.start()
        pair.server.send_headers(call_id, OK_HEADERS)
        pair.exchange()
        pair.client.cancel(call_id)
    pair.client.data_to_send()
    pair.client.feed(data_frame(1, b"x"))
    assert pair.client.data_to_send() != b""  # h2 says that it is closed
    pair.client.feed(data_frame(9, b"x"))
    assert pair.client.data_to_send() == b""


@pytest.mark.parametrize("size", [None, 1])
def test_headers_and_trailers_in_continuations(size: int | None) -> None:
    pair = Pair()
    call_id = pair.start()
    long = "".join(random.Random(1).choices("abcdefgh", k=60_000))
    pair.server.send_headers(call_id, [*OK_HEADERS, ("x-long", long)])
    sent = pair.server.data_to_send()
    assert b"\x09\x04\x00\x00\x00\x01" in sent
    step = size or len(sent)
    events = [event for i in range(0, len(sent), step) for event in pair.client.feed(sent[i : i + step])]
    assert events == [HeadersReceived(call_id, [("x-long", long)])]
    pair.server.send_data(call_id, frame_message(b"a"))
    pair.server.send_headers(call_id, [*OK_TRAILERS, ("x-long", long)], end_stream=True)
    *rest, end = pair.exchange(size)
    assert messages(rest) == [b"a"]
    assert end == CallEnded(call_id, None, (("x-long", long),))


def test_response_with_a_length_goes_through_h2() -> None:
    pair = Pair()
    first, second = pair.start(), pair.start()
    for call_id in (first, second):
        pair.server.send_headers(call_id, [*OK_HEADERS, ("content-length", "6")])
        pair.server.send_data(call_id, frame_message(b"x"))
    pair.server.send_headers(first, OK_TRAILERS, end_stream=True)
    pair.server.send_data(second, b"", end_stream=True)
    *came, ours, theirs = pair.exchange()
    assert [event.call_id for event in came if isinstance(event, MessagesReceived)] == [first, second]
    assert ours == CallEnded(first, None)
    assert isinstance(failure([theirs]), RpcError)  # no trailers; but the length was right


def test_data_before_headers_breaks_the_connection() -> None:
    pair = Pair()
    call_id = pair.start()
    assert isinstance(failure(pair.client.feed(data_frame(call_id, frame_message(b"x")))), TransportError)


def test_frame_too_long_breaks_the_connection_and_says_so() -> None:
    pair = Pair()
    call_id = pair.start()
    pair.server.send_headers(call_id, OK_HEADERS)
    pair.exchange()
    events = pair.client.feed(data_frame(call_id, bytes(16_385)))
    assert "16385 bytes" in str(failure(events))
    (event,) = pair.server.receive_data(pair.client.data_to_send())
    assert isinstance(event, h2_events.ConnectionTerminated)
    assert event.error_code == ErrorCodes.FRAME_SIZE_ERROR


def test_a_server_of_nats_is_known_by_its_greeting() -> None:
    pair = Pair()
    pair.start()
    events = pair.client.feed(b'INFO {"server_id":"NAAA","version":"2.12.0","port":4222}\r\n')
    assert "so a NATS server greets, which has another port" in str(failure(events))


def test_more_than_the_window_is_a_fault_where_h2_sees_it() -> None:
    pair = small_window(1_000)
    call_id = pair.start()
    pair.server.send_headers(call_id, OK_HEADERS)
    with pytest.raises(FlowControlError):
        pair.server.send_data(call_id, bytes(1_001))
    pair.exchange()
    flagged = bytearray(data_frame(call_id, bytes(1_001)))
    flagged[4] = 1
    assert isinstance(failure(pair.client.feed(bytes(flagged))), TransportError)


def test_window_that_shrinks_below_nothing_in_mid_call() -> None:
    # As grpc-go does when it has measured the path: it changes the setting while calls are open.
    pair = Pair(INITIAL_WINDOW_SIZE=1_000)
    call_id = pair.client.start_call(METHOD)
    pair.client.send(call_id, [bytes(5_000)])
    pair.exchange()
    assert len(pair.requests[call_id]) == 1_000
    pair.server.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 500})
    pair.exchange()
    pair.server.increment_flow_control_window(400, call_id)
    pair.exchange()
    assert len(pair.requests[call_id]) == 1_000
    pair.server.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100_000})
    pair.exchange()
    assert len(pair.requests[call_id]) == 5_005


sending_steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(0, 40_000)),
        st.tuples(st.just("room"), st.integers(0, 2), st.integers(1, 40_000)),
        st.tuples(st.just("frame"), st.just(0), st.integers(16_384, 30_000)),
    ),
    max_size=25,
)


@given(sending_steps, st.booleans())
def test_what_is_sent_keeps_to_the_windows_and_in_order(
    steps: list[tuple[str, int, int]], half: bool
) -> None:
    """h2 on the other side fails the test where a frame is larger than a window, or than it may be."""
    pair = Pair(INITIAL_WINDOW_SIZE=30_000)
    calls = [pair.client.start_call(METHOD) for _ in range(2)]
    given = [bytearray(), bytearray()]
    for number, (what, which, size) in enumerate(steps):
        if what == "send":
            body = bytes([number]) * size
            given[which] += frame_message(body)
            pair.client.send_framed(calls[which], frame_message(body))
        elif what == "room":
            pair.exchange()
            pair.server.increment_flow_control_window(size, None if which == 2 else calls[which])
        else:
            setting = {"setting": SettingCodes.INITIAL_WINDOW_SIZE, "frame": SettingCodes.MAX_FRAME_SIZE}[
                what
            ]
            pair.server.update_settings({setting: size})
        pair.client.ping()
        pair.exchange()
        sent = [len(given[i]) - pair.client.unsent(call_id) for i, call_id in enumerate(calls)]
        assert [len(pair.requests[call_id]) for call_id in calls] == sent
    if half:
        for call_id in calls:
            pair.client.half_close(call_id)
    pair.server.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2_000_000})
    pair.server.increment_flow_control_window(2_000_000)
    pair.exchange()
    assert [pair.requests[call_id] for call_id in calls] == given
    assert pair.ended == (set(calls) if half else set())


def test_messages_of_one_turn_share_a_frame() -> None:
    pair = Pair()
    call_id = pair.client.start_call(METHOD)
    for _ in range(10):
        pair.client.send(call_id, [b"abc"] * 100)
    assert pair.client.unsent(call_id) == 3_000
    pair.exchange()
    assert pair.data_frames == [8_000]
    assert pair.client.unsent(call_id) == 0
    pair.client.half_close(call_id)
    pair.exchange()
    assert call_id in pair.ended
    pair.client.send(call_id, [b"late"])
    assert pair.client.data_to_send() == b""


def test_pong() -> None:
    pair = Pair()
    pair.client.ping()
    assert pair.exchange() == [Pong()]
    pair.client.connection_lost("cut")
    pair.client.ping()
    assert pair.client.data_to_send() == b""


def test_goaway_with_calls_in_flight_on_both_sides_of_the_line() -> None:
    pair = Pair()
    calls = [pair.start() for _ in range(6)]
    events = pair.client.feed(goaway(calls[2]))
    assert [event.call_id for event in events if isinstance(event, CallEnded)] == calls[3:]
    for call_id in calls[:3]:
        pair.answer(call_id, frame_message(b"done"))
        assert messages(pair.exchange()) == [b"done"]
    assert pair.client.open_calls == 0


def test_ids_of_calls_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftenvelope.rpc._client_side._LAST_ID", 3)
    pair = Pair()
    assert [pair.start(), pair.start()] == [1, 3]
    with pytest.raises(TransportError, match="used up"):
        pair.client.start_call(METHOD)
    assert not pair.client.accepts_calls


def test_server_may_send_ahead_exactly_the_window() -> None:
    pair = small_window(5_000)
    call_id = pair.start()
    pair.server.send_headers(call_id, OK_HEADERS)
    # The beginning of a message, which nobody can take yet.
    pair.server.send_data(call_id, b"\0" + (5_000).to_bytes(4, "big") + bytes(4_995))
    with pytest.raises(FlowControlError):
        pair.server.send_data(call_id, b"x")
    assert pair.exchange() == []
    assert not pair.client.failed
