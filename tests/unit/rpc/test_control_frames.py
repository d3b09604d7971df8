"""The connection handles pings, its flow-control window and the rules for headers itself, instead of h2."""

from __future__ import annotations

from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.utilities import HeaderValidationFlags, validate_headers
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.rpc._client_side import ClientConnection
from liftenvelope.rpc._connection import Connection
from liftenvelope.rpc._events import CallEnded, CallStarted, Event, HeadersReceived, Pong
from liftenvelope.rpc._fields import REQUEST, RESPONSE, TRAILERS, FieldRules
from liftenvelope.rpc._server_side import ServerConnection
from liftenvelope.rpc.status import RpcError, StatusCode

METHOD = "/test/method"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0x1, 0x5, 0x6, 0x7, 0x8, 0x9
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4


def frame(kind: int, payload: bytes, *, flags: int = 0, stream_id: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


SETTINGS = frame(0x4, b"")


def connection(client: bool) -> Connection:
    """A connection of either side that has greeted, and has nothing to send."""
    made: Connection = ClientConnection("server.test") if client else ServerConnection()
    assert made.feed(SETTINGS if client else PREFACE + SETTINGS) == []
    made.data_to_send()
    return made


def complaint(made: Connection) -> int:
    """The code with which a failed connection takes its leave."""
    assert made.failed
    *_, last = frames(made.data_to_send())
    assert last[3] == GOAWAY
    return int.from_bytes(last[13:17], "big")


def frames(data: bytes) -> list[bytes]:
    found = []
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        found.append(data[:end])
        data = data[end:]
    return found


@pytest.mark.parametrize("size", [1, 5, 100])
@pytest.mark.parametrize("client", [False, True])
def test_pings_are_answered_with_their_payload(client: bool, size: int) -> None:
    made = connection(client)
    data = frame(PING, b"\0" * 8) + frame(PING, bytes(range(8)))
    for start in range(0, len(data), size):
        assert made.feed(data[start : start + size]) == []
    answers = [frame(PING, b"\0" * 8, flags=ACK), frame(PING, bytes(range(8)), flags=ACK)]
    assert frames(made.data_to_send()) == answers
    assert made.data_to_send() == b""


@pytest.mark.parametrize("client", [False, True])
def test_answer_to_a_ping_is_not_answered(client: bool) -> None:
    made = connection(client)
    assert made.feed(frame(PING, b"liftping", flags=ACK)) == [Pong()]
    assert made.data_to_send() == b""


@pytest.mark.parametrize("flags", [0, ACK])
@pytest.mark.parametrize(
    ("payload", "stream_id", "code"),
    [
        (b"", 0, ErrorCodes.FRAME_SIZE_ERROR),
        (b"1234567", 0, ErrorCodes.FRAME_SIZE_ERROR),
        (b"123456789", 0, ErrorCodes.FRAME_SIZE_ERROR),
        (b"12345678", 1, ErrorCodes.PROTOCOL_ERROR),
    ],
)
def test_malformed_ping(payload: bytes, stream_id: int, code: ErrorCodes, flags: int) -> None:
    made = connection(client=True)
    assert isinstance(made, ClientConnection)
    call_id = made.start_call(METHOD)
    (event,) = made.feed(frame(PING, payload, flags=flags, stream_id=stream_id))
    assert isinstance(event, CallEnded)
    assert event.call_id == call_id
    assert complaint(made) == code


def test_unknown_flags_of_a_ping_are_ignored() -> None:
    made = connection(client=True)
    assert made.feed(frame(PING, b"12345678", flags=0xFE)) == []
    assert made.data_to_send() == frame(PING, b"12345678", flags=ACK)


@pytest.mark.parametrize("flood", [frame(PING, b"12345678"), SETTINGS], ids=["ping", "settings"])
@pytest.mark.parametrize("client", [False, True])
def test_peer_that_takes_no_answers_is_cut_off(client: bool, flood: bytes) -> None:
    made = connection(client)
    made.feed(flood * 1_000)
    assert not made.failed
    made.feed(flood)
    assert complaint(made) == ErrorCodes.ENHANCE_YOUR_CALM


def test_any_number_of_pings_whose_answers_are_taken() -> None:
    made = connection(client=True)
    for _ in range(5_000):
        made.feed(frame(PING, b"12345678"))
        assert made.data_to_send() == frame(PING, b"12345678", flags=ACK)
    assert not made.failed


@pytest.mark.parametrize(
    "between",
    [
        frame(PING, b"12345678"),
        frame(PING, b"12345678", flags=ACK),
        frame(WINDOW_UPDATE, b"\0\0\0\1"),
        frame(GOAWAY, bytes(8)),
    ],
)
@pytest.mark.parametrize("before", [b"", CONTINUATION])
def test_nothing_may_come_inside_a_block_of_headers(before: bytes | int, between: bytes) -> None:
    made = connection(client=True)
    assert isinstance(made, ClientConnection)
    call_id = made.start_call(METHOD)
    made.data_to_send()
    block = Encoder().encode([(":status", "200"), ("content-type", "application/grpc")])
    data = frame(HEADERS, block[:1], stream_id=call_id)
    if before:
        data += frame(CONTINUATION, block[1:2], stream_id=call_id)
    assert made.feed(data) == []
    (event,) = made.feed(between)
    assert isinstance(event, CallEnded)
    assert complaint(made) == ErrorCodes.PROTOCOL_ERROR


def test_ping_after_a_block_in_several_frames() -> None:
    made = connection(client=True)
    assert isinstance(made, ClientConnection)
    call_id = made.start_call(METHOD)
    made.data_to_send()
    block = Encoder().encode([(":status", "200"), ("grpc-status", "0")])
    first = frame(HEADERS, block[:1], flags=END_STREAM, stream_id=call_id)
    last = frame(CONTINUATION, block[1:], flags=END_HEADERS, stream_id=call_id)
    assert made.feed(first + last + frame(PING, b"12345678")) == [CallEnded(call_id, None)]
    assert frame(PING, b"12345678", flags=ACK) in frames(made.data_to_send())


def sent_after(made: ClientConnection, call_id: int) -> int:
    """Return the number of message bytes that are sent now."""
    data = [part for part in frames(made.data_to_send()) if part[3] == 0]
    assert all(int.from_bytes(part[5:9], "big") == call_id for part in data)
    return sum(len(part) - 9 for part in data)


@pytest.mark.parametrize("increments", [[1], [3, 4], [0x80000000 + 5]])
def test_room_on_the_connection_is_used_to_the_last_byte(increments: list[int]) -> None:
    made = connection(client=True)
    assert isinstance(made, ClientConnection)
    made.feed(frame(0x4, b"\0\x04" + (2**31 - 1).to_bytes(4, "big")))
    call_id = made.start_call(METHOD)
    made.send(call_id, [bytes(100_000)])
    assert sent_after(made, call_id) == 65_535
    for increment in increments:
        # The highest bit is reserved, and ignored (RFC 9113, 6.9).
        assert made.feed(frame(WINDOW_UPDATE, increment.to_bytes(4, "big"))) == []
    assert sent_after(made, call_id) == sum(increment & 0x7FFFFFFF for increment in increments)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (bytes(4), ErrorCodes.PROTOCOL_ERROR),
        (b"\x80\0\0\0", ErrorCodes.PROTOCOL_ERROR),
        ((2**31 - 65_535).to_bytes(4, "big"), ErrorCodes.FLOW_CONTROL_ERROR),
        (b"\0\0\1", ErrorCodes.FRAME_SIZE_ERROR),
        (b"\0\0\0\0\1", ErrorCodes.FRAME_SIZE_ERROR),
    ],
)
def test_room_that_is_none(payload: bytes, code: ErrorCodes) -> None:
    made = connection(client=True)
    assert made.feed(frame(WINDOW_UPDATE, payload)) == []
    assert complaint(made) == code


def test_most_room_that_there_can_be() -> None:
    made = connection(client=True)
    assert made.feed(frame(WINDOW_UPDATE, (2**31 - 1 - 65_535).to_bytes(4, "big"))) == []
    assert not made.failed


# Headers that came before.

HEAD = [(":status", "200"), ("content-type", "application/grpc")]


def answered(calls: int) -> tuple[ClientConnection, Encoder]:
    """A client whose calls were answered in the same words, and the encoder of the server."""
    made, encoder = connection(client=True), Encoder()
    assert isinstance(made, ClientConnection)
    for _ in range(calls):
        call_id = made.start_call(METHOD)
        made.half_close(call_id)
        made.data_to_send()
        head = frame(HEADERS, encoder.encode(HEAD), flags=END_HEADERS, stream_id=call_id)
        assert made.feed(head) == [HeadersReceived(call_id, [])]
        tail = encoder.encode([("grpc-status", "0"), ("grpc-message", "")])
        ended = made.feed(frame(HEADERS, tail, flags=END_HEADERS | END_STREAM, stream_id=call_id))
        assert ended == [CallEnded(call_id, None)]
    return made, encoder


@pytest.mark.parametrize("calls", [0, 1, 2, 5])
def test_same_headers_mean_the_same_however_often_they_come(calls: int) -> None:
    made, encoder = answered(calls)
    call_id = made.start_call(METHOD)
    made.data_to_send()
    block = encoder.encode([*HEAD, ("grpc-status", "5"), ("x-a", "b")])
    (event,) = made.feed(frame(HEADERS, block, flags=END_HEADERS | END_STREAM, stream_id=call_id))
    assert isinstance(event, CallEnded)
    assert isinstance(event.error, RpcError)
    assert event.error.code == StatusCode.NOT_FOUND
    assert event.metadata == (("x-a", "b"),)
    assert made.open_calls == 0


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_headers_that_come_twice_in_one_call(calls: int) -> None:
    made, encoder = answered(calls)
    call_id = made.start_call(METHOD)
    made.data_to_send()
    made.feed(frame(HEADERS, encoder.encode(HEAD), flags=END_HEADERS, stream_id=call_id))
    (event,) = made.feed(frame(HEADERS, encoder.encode(HEAD), flags=END_HEADERS, stream_id=call_id))
    assert isinstance(event, CallEnded)
    assert complaint(made) == ErrorCodes.PROTOCOL_ERROR


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_headers_on_a_stream_that_is_none(calls: int) -> None:
    made, encoder = answered(calls)
    assert made.feed(frame(HEADERS, encoder.encode(HEAD), flags=END_HEADERS, stream_id=99)) == []
    assert complaint(made) == ErrorCodes.PROTOCOL_ERROR


def test_headers_of_a_call_that_still_waits_for_its_turn() -> None:
    made, encoder = answered(2)
    made.feed(frame(0x4, b"\0\x03\0\0\0\1"))  # one call at a time
    first, second = made.start_call(METHOD), made.start_call(METHOD)
    made.data_to_send()
    block = frame(HEADERS, encoder.encode(HEAD), flags=END_HEADERS, stream_id=second)
    assert {event.call_id for event in made.feed(block) if isinstance(event, CallEnded)} == {first, second}
    assert complaint(made) == ErrorCodes.PROTOCOL_ERROR


# The rules for header fields, with those of h2 beside them.

FLAGS: Any = {
    REQUEST: HeaderValidationFlags(False, False, False, False),
    RESPONSE: HeaderValidationFlags(True, False, True, False),
    TRAILERS: HeaderValidationFlags(True, True, False, False),
}
SOUND: Any = {
    REQUEST: [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"b"),
        (b"te", b"trailers"),
    ],
    RESPONSE: [(b":status", b"200"), (b"content-type", b"application/grpc")],
    TRAILERS: [(b"grpc-status", b"0"), (b"grpc-message", b"")],
}  # fmt: skip

names = st.one_of(
    st.sampled_from(
        [b":method", b":scheme", b":path", b":authority", b":status", b":protocol", b":x", b":", b"", b"::a"]
    ),
    st.sampled_from(
        [b"host", b"te", b"connection", b"upgrade", b"keep-alive", b"x-a", b"X-A", b"a:b", b"a b"]
    ),
    st.binary(max_size=3),
)
values = st.one_of(
    st.sampled_from(
        [b"", b"200", b"POST", b"b", b"trailers", b"Trailers", b" x", b"x\t", b"a b", b"a\nb", b"\0"]
    ),
    st.binary(max_size=3),
)
fields = st.tuples(names, values)


def is_sound(check: Any) -> bool:
    try:
        check()
    except ProtocolError:
        return False
    return True


@pytest.mark.parametrize("block", [REQUEST, RESPONSE, TRAILERS])
@given(data=st.data(), kept=st.integers(0, 5), extra=st.lists(fields, max_size=3), at=st.integers(0, 5))
def test_rules_are_those_of_h2(
    block: Any, data: st.DataObject, kept: int, extra: list[tuple[bytes, bytes]], at: int
) -> None:
    given_fields = list(SOUND[block])
    if data.draw(st.booleans()):
        given_fields = given_fields[:kept]
    given_fields[at:at] = extra
    ours = is_sound(lambda: FieldRules().check(given_fields, block))
    theirs = is_sound(lambda: list(validate_headers(given_fields, FLAGS[block])))
    assert ours == theirs or (block is REQUEST and (b":method", b"CONNECT") in given_fields)


@pytest.mark.parametrize("block", [REQUEST, RESPONSE, TRAILERS])
def test_sound_block_stays_sound_and_broken_one_broken(block: Any) -> None:
    rules = FieldRules()
    for _ in range(2):
        rules.check(list(SOUND[block]), block)
        for _ in range(2):
            with pytest.raises(ProtocolError):
                rules.check([*SOUND[block], (b"Upper", b"x")], block)


def test_request_for_connect_is_refused() -> None:
    # h2 allows it; there is no gRPC in it, and it has no path.
    with pytest.raises(ProtocolError, match=":path"):
        FieldRules().check([(b":method", b"CONNECT"), (b":authority", b"b")], REQUEST)


@pytest.mark.parametrize(
    "extra", [("Upper", "x"), ("connection", "close"), (":status", "200"), ("x", "a\r\nb")]
)
@pytest.mark.parametrize("trailing", [False, True])
def test_client_breaks_with_a_server_that_sends_what_must_not_be(
    extra: tuple[str, str], trailing: bool
) -> None:
    made = connection(client=True)
    assert isinstance(made, ClientConnection)
    call_id = made.start_call(METHOD)
    made.data_to_send()
    encoder, events = Encoder(), list[Event]()
    head = [(":status", "200"), ("content-type", "application/grpc")]
    if trailing:
        events += made.feed(frame(HEADERS, encoder.encode(head), flags=END_HEADERS, stream_id=call_id))
        head = [("grpc-status", "0")]
    flags = END_HEADERS | (END_STREAM if trailing else 0)
    events += made.feed(frame(HEADERS, encoder.encode([*head, extra]), flags=flags, stream_id=call_id))
    assert isinstance(events[-1], CallEnded)
    assert "HTTP/2" in str(events[-1].error)
    assert complaint(made) == ErrorCodes.PROTOCOL_ERROR


@pytest.mark.parametrize("missing", [":method", ":scheme", ":path", ":authority"])
def test_server_breaks_with_a_client_whose_request_lacks_something(missing: str) -> None:
    made = connection(client=False)
    request = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "b")]
    block = Encoder().encode([field for field in request if field[0] != missing])
    assert made.feed(frame(HEADERS, block, flags=END_HEADERS, stream_id=1)) == []
    assert complaint(made) == ErrorCodes.PROTOCOL_ERROR


def test_server_breaks_with_a_client_that_ends_with_headers_of_a_request() -> None:
    made = connection(client=False)
    encoder = Encoder()
    request = [*SOUND[REQUEST], (b"content-type", b"application/grpc")]
    (started,) = made.feed(frame(HEADERS, encoder.encode(request), flags=END_HEADERS, stream_id=1))
    assert isinstance(started, CallStarted)
    trailers = encoder.encode(request)
    (ended,) = made.feed(frame(HEADERS, trailers, flags=END_HEADERS | END_STREAM, stream_id=1))
    assert isinstance(ended, CallEnded)
    assert complaint(made) == ErrorCodes.PROTOCOL_ERROR


def test_goaway_on_a_stream_ends_the_connection() -> None:
    made = connection(client=False)
    made.feed(frame(GOAWAY, bytes(8), stream_id=1))
    assert complaint(made) == ErrorCodes.PROTOCOL_ERROR


def test_goaway_on_a_stream_ignores_the_reserved_bit() -> None:
    made = connection(client=False)
    assert made.feed(frame(GOAWAY, bytes(8), stream_id=1 << 31)) == []
    assert not made.failed
