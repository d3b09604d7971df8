"""Floods on the server's side of a connection: no event is lost, and time spent on them earns nothing."""

from __future__ import annotations

from collections.abc import Callable

import h2.connection
import pytest

from liftenvelope.rpc._calls import CallState
from liftenvelope.rpc._events import CallEnded, CallStarted, Event, MessagesReceived, RequestsEnded
from liftenvelope.rpc._http2 import ErrorCodes
from liftenvelope.rpc._server_side import ServerConnection
from liftenvelope.rpc.limits import ServerLimits
from tests.hostile.frames import (
    CANCEL,
    DATA,
    GREETING,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call,
    frame,
    headers,
    message,
    stream_id,
)

SETTINGS_FRAME = frame(SETTINGS, 0, 0)
#: By default 250 control frames a second are allowed, and 1,000 at once.
BURST = 1_000


def greeted() -> ServerConnection:
    server = ServerConnection()
    flood(server, GREETING)
    return server


def flood(server: ServerConnection, frames: bytes) -> None:
    """Feed frames whose answers the client takes."""
    server.feed(frames)
    server.data_to_send()


def test_every_call_of_a_flood_of_resets_ends() -> None:
    server, started, ended = greeted(), set[int](), list[int]()
    for number in range(2 * BURST):
        stream = stream_id(number)
        for event in server.feed(headers(stream, "/") + frame(RST_STREAM, 0, stream, CANCEL)):
            if isinstance(event, CallStarted):
                started.add(event.call_id)
            elif isinstance(event, CallEnded):
                ended.append(event.call_id)
    assert server.failed
    assert len(ended) == len(started)
    assert set(ended) == started


def test_time_spent_on_the_frames_of_a_connection_allows_no_more_of_them() -> None:
    server = greeted()
    server.refill(0.0)
    flood(server, SETTINGS_FRAME * (BURST - 100))
    server.refill(3_600.0, was_busy=True)
    flood(server, SETTINGS_FRAME * 50)
    assert not server.failed
    flood(server, SETTINGS_FRAME * 100)
    assert server.failed


def test_time_after_the_frames_of_a_connection_allows_more_of_them() -> None:
    server = greeted()
    server.refill(0.0)
    flood(server, SETTINGS_FRAME * (BURST - 100))
    server.refill(1.0, was_busy=True)
    server.refill(2.0)
    flood(server, SETTINGS_FRAME * 300)
    assert not server.failed


#: A control frame that is not answered: data sent would allow more of them.
PRIORITY_FRAME = frame(PRIORITY, 0, 1, bytes(5))


def full(burst: int, rate: int) -> ServerConnection:
    """A connection with all of its allowance, 1,000 s after its start."""
    limits = ServerLimits(control_frame_burst=burst, control_frames_per_second=rate)
    server = ServerConnection(limits=limits)
    flood(server, GREETING)
    server.refill(0.0)
    server.refill(1_000.0)
    return server


def test_burst_of_control_frames_is_exact() -> None:
    server = full(burst=100, rate=7)
    server.feed(PRIORITY_FRAME * 100)
    assert not server.failed
    server.feed(PRIORITY_FRAME)
    assert server.failed


def test_rate_of_control_frames_is_exact() -> None:
    server = full(burst=100, rate=7)
    server.feed(PRIORITY_FRAME * 100)
    for second in range(1, 4):
        server.refill(1_000.0 + second)
        server.feed(PRIORITY_FRAME * 7)
        assert not server.failed
    server.refill(1_004.0)
    server.feed(PRIORITY_FRAME * 8)
    assert server.failed


def flood_of_everything() -> bytes:
    """Calls with messages, resets, pings and settings, in turn."""
    pieces = [GREETING]
    for number in range(60):
        stream = stream_id(number)
        pieces += [headers(stream, "/"), frame(DATA, 0, stream, message(b"%d" % number)), SETTINGS_FRAME]
        pieces += [frame(PING, 0, 0, b"%8d" % number), frame(DATA, 1, stream, message(b"end"))]
        if number % 3 == 0:
            pieces.append(frame(RST_STREAM, 0, stream, CANCEL))
    return b"".join(pieces)


@pytest.mark.parametrize("most", [1, 2, 7])
@pytest.mark.parametrize("size", [1, 100, 1_000_000])
def test_frames_left_to_later_turns_are_not_lost(most: int, size: int) -> None:
    data = flood_of_everything()
    whole, parted = ServerConnection(), ServerConnection()
    expected, answers = whole.feed(data), whole.data_to_send()
    assert not whole.has_frames
    events = list[Event]()
    for start in range(0, len(data), size):
        events += parted.feed(data[start : start + size], countdown(most))
    while parted.has_frames:
        frames_of_turn = countdown(most)
        events += parted.feed(b"", frames_of_turn)
    assert list(map(repr, events)) == list(map(repr, expected))
    assert parted.data_to_send() == answers


def countdown(most: int) -> Callable[[int], bool]:
    """Let so many frames pass."""
    left = iter(range(most - 1, -1, -1))
    return lambda _: next(left) == 0


def test_turn_ends_with_the_frame_that_is_enough() -> None:
    server = greeted()
    server.feed(frame(PING, 0, 0, bytes(8)) * 10, countdown(3))
    assert server.has_frames
    assert server.data_to_send().count(b"\x06\x01") == 3
    server.feed(b"", countdown(8))
    assert not server.has_frames
    assert server.data_to_send().count(b"\x06\x01") == 7


def test_frames_that_are_left_end_with_the_connection() -> None:
    server = greeted()
    server.feed(frame(PING, 0, 0, bytes(8)) * 2, countdown(1))
    assert server.has_frames
    server.connection_lost("gone")
    assert server.feed(b"") == []
    assert not server.has_frames


def test_data_after_the_end_of_the_requests_resets_the_call() -> None:
    """RFC 9113, 5.1: STREAM_CLOSED. Once, such data was taken for part of a message."""
    server = greeted()
    sid = stream_id(0)
    events = server.feed(call(sid, "/a", message(b"")) + frame(DATA, 0, sid, b"x"))
    assert [type(event) for event in events] == [CallStarted, MessagesReceived, RequestsEnded, CallEnded]
    assert (
        frame(RST_STREAM, 0, sid, int(ErrorCodes.STREAM_CLOSED).to_bytes(4, "big")) in server.data_to_send()
    )
    assert not server.failed


def tried(server: ServerConnection, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of the calls that the server tries to send on, from now on."""
    calls, send_call = list[int](), ServerConnection._send_call

    def note(connection: ServerConnection, call_id: int, call: CallState) -> None:
        calls.append(call_id)
        send_call(connection, call_id, call)

    monkeypatch.setattr(ServerConnection, "_send_call", note)
    return calls


@pytest.mark.parametrize(
    ("opening", "expected"),
    [
        (frame(WINDOW_UPDATE, 0, stream_id(3), b"\0\0\0\x64"), [stream_id(3)]),
        (frame(SETTINGS, 0, 0, b"\0\4\0\0\0\x64"), [stream_id(number) for number in range(100)]),
        (frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x64"), []),
        (frame(PING, 0, 0, bytes(8)), []),
    ],
    ids=["window of a call", "settings", "window of the connection", "ping"],
)
def test_blocked_answers_cost_nothing_until_their_window_opens(
    opening: bytes, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = greeted()
    flood(server, frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0"))
    for number in range(100):
        flood(server, headers(stream_id(number), "/"))
        server.send(stream_id(number), [b"answer"])
    server.data_to_send()
    calls = tried(server, monkeypatch)
    server.data_to_send()
    assert calls == []
    flood(server, opening)
    assert calls == expected
    calls.clear()
    server.data_to_send()
    assert calls == []
    assert [server.unsent(stream) for stream in expected] == [0] * len(expected)


def test_answers_blocked_by_the_connection_go_on_with_its_window() -> None:
    server = greeted()
    for number in range(2):
        flood(server, headers(stream_id(number), "/"))
        server.send(stream_id(number), [bytes(60_000)])
    server.data_to_send()
    assert [server.unsent(stream_id(number)) for number in range(2)] == [0, 120_010 - 65_535]
    flood(server, frame(WINDOW_UPDATE, 0, 0, (10**6).to_bytes(4, "big")))
    assert server.unsent(stream_id(1)) == 0


def test_calls_are_counted_rarely_and_their_limit_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, count = list[int](), h2.connection.H2Connection._open_streams

    def note(connection: h2.connection.H2Connection, remainder: int) -> int:
        counts.append(len(connection.streams))
        open_streams: int = count(connection, remainder)
        return open_streams

    monkeypatch.setattr(h2.connection.H2Connection, "_open_streams", note)
    server = ServerConnection(limits=ServerLimits(max_calls_per_connection=900))
    flood(server, GREETING)
    for number in range(890):
        flood(server, headers(stream_id(number), "/", end=True))
    assert len(counts) < 10
    for number in range(890, 900):
        flood(server, headers(stream_id(number), "/", end=True))
    for number in range(800):
        server.finish(stream_id(number))
        server.data_to_send()
    counts.clear()
    for number in range(900, 1_700):
        flood(server, headers(stream_id(number), "/", end=True))
    assert server.open_calls == 900
    assert len(counts) < 10
    assert not server.failed
    flood(server, headers(stream_id(1_700), "/"))
    assert server.failed


def test_calls_that_have_ended_are_forgotten() -> None:
    server = greeted()
    for number in range(1_000):
        flood(server, headers(stream_id(number), "/", end=True))
        server.finish(stream_id(number))
        server.data_to_send()
        assert len(server._h2.streams) <= 50
