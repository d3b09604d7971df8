"""Floods on the server's side of a connection: no event is lost, and time spent on them earns nothing."""

from __future__ import annotations

from liftenvelope.rpc.events import CallEnded, CallStarted
from liftenvelope.rpc.limits import ServerLimits
from liftenvelope.rpc.server_side import ServerConnection
from tests.hostile.frames import CANCEL, GREETING, PRIORITY, RST_STREAM, SETTINGS, frame, headers, stream_id

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
