"""Frames and messages: what both twins do, and that they do the same for any bytes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._native import _fastframes
from liftenvelope.errors import UsageError, UsageTypeError
from tests.sinks import RecordingSink
from tests.twin import readable

TWINS = pytest.mark.parametrize("frames", [readable.frames, _fastframes], ids=["python", "cython"])
MAX_FRAME, MAX_MESSAGE = 64, 40
DATA, HEADERS, SETTINGS, CONTINUATION = 0, 1, 4, 9


def frame(kind: int, stream_id: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


def message(body: bytes) -> bytes:
    return b"\0" + len(body).to_bytes(4, "big") + body


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    """Divide ``data`` into pieces of the given sizes, repeated until it ends."""
    pieces, start, turn = [], 0, 0
    while start < len(data):
        pieces.append(data[start : start + sizes[turn % len(sizes)]])
        start += sizes[turn % len(sizes)]
        turn += 1
    return pieces


def walk_all(walker: Any, pieces: list[bytes]) -> tuple[dict[int, list[bytes]], dict[int, int], bytes]:
    """The messages and the sizes of each stream, and everything that was left to h2."""
    messages: dict[int, list[bytes]] = {}
    sizes: dict[int, int] = {}
    left = b""
    for piece in pieces:
        walker.feed(piece)
        rest = b"-"
        while rest:
            taken, rest = walker.walk()
            left += rest
            for stream_id, size, bodies in taken:
                messages.setdefault(stream_id, []).extend(bodies)
                sizes[stream_id] = sizes.get(stream_id, 0) + size
    return messages, sizes, left


pieces_of = st.lists(st.integers(1, 40), min_size=1, max_size=10)
bodies = st.lists(st.binary(max_size=MAX_MESSAGE), max_size=8)


@TWINS
@given(bodies=bodies, sizes=pieces_of)
def test_messages_come_out_as_they_went_in(frames: ModuleType, bodies: list[bytes], sizes: list[int]) -> None:
    packed = frames.pack_messages(bodies)
    assert packed == b"".join(map(message, bodies))
    cutter = frames.MessageCutter(MAX_MESSAGE)
    assert [body for piece in split(packed, sizes) for body in cutter.feed(piece)] == bodies
    assert not cutter.inside_message
    assert cutter.fault == 0


@TWINS
@pytest.mark.parametrize("cut", range(1, 8))
def test_half_a_message_is_noticed(frames: ModuleType, cut: int) -> None:
    cutter = frames.MessageCutter(MAX_MESSAGE)
    assert cutter.feed(message(b"abc")[:cut]) == []
    assert cutter.inside_message


@TWINS
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("prefix", "fault", "value"),
    [
        (b"\1\0\0\0\1x", "COMPRESSED", 1),
        (b"\xff\0\0\0\0", "COMPRESSED", 255),
        (b"\0\0\0\0\x29", "TOO_LONG", 41),
    ],
)
def test_fault_ends_the_stream(frames: ModuleType, size: int, prefix: bytes, fault: str, value: int) -> None:
    cutter = frames.MessageCutter(MAX_MESSAGE)
    data = message(b"fine") + prefix + message(b"late")
    assert [body for piece in split(data, [size]) for body in cutter.feed(piece)] == [b"fine"]
    assert (cutter.fault, cutter.fault_value) == (getattr(frames, fault), value)
    assert not cutter.inside_message


@TWINS
def test_only_bytes_are_messages(frames: ModuleType) -> None:
    assert frames.pack_messages([bytearray(b"a"), memoryview(b"b")]) == message(b"a") + message(b"b")
    with pytest.raises(UsageTypeError, match="message must be bytes-like, got str"):
        frames.pack_messages([b"", "text"])
    for thing in (frames.MessageCutter(1), frames.FrameWalker(1, 1)):
        with pytest.raises(UsageTypeError, match="data must be bytes-like"):
            thing.feed(None)
        thing.feed(bytearray(b""))


@TWINS
@given(bodies=bodies, sizes=pieces_of, cuts=pieces_of)
def test_data_is_taken_out_and_all_else_is_left(
    frames: ModuleType, bodies: list[bytes], sizes: list[int], cuts: list[int]
) -> None:
    data = [frame(DATA, 1, part) for part in split(b"".join(map(message, bodies)), cuts)]
    others = [frame(SETTINGS, 0, b"123456"), frame(DATA, 3, b"unknown"), frame(DATA, 1, b"end", flags=1)]
    walker = frames.FrameWalker(MAX_FRAME, MAX_MESSAGE)
    walker.open(1)
    mixed = b"".join(part for pair in zip(data, others * len(data), strict=False) for part in pair)
    messages, taken, left = walk_all(walker, split(mixed, sizes))
    assert messages.get(1, []) == bodies
    assert taken.get(1, 0) == len(b"".join(map(message, bodies)))
    assert left == b"".join(part for _, part in zip(data, others * len(data), strict=False))


@TWINS
def test_sink_gets_the_payloads_of_its_stream(frames: ModuleType) -> None:
    walker, sink = frames.FrameWalker(MAX_FRAME, MAX_MESSAGE), RecordingSink()
    assert walker.open(1, sink).sink is sink
    assert walker.open(3).sink is None
    data = frame(DATA, 1, b"ab") + frame(DATA, 3, message(b"x")) + frame(DATA, 1, b"") + frame(DATA, 1, b"c")
    walker.feed(data + frame(SETTINGS, 0, b"") + frame(DATA, 1, b"d") + frame(DATA, 1, b""))
    assert walker.walk() == ([(1, 3, []), (3, 6, [b"x"])], frame(SETTINGS, 0, b""))
    assert sink.payloads == [b"ab", b"", b"c"]
    assert walker.walk() == ([(1, 1, [])], b"")
    assert sink.payloads[3:] == [b"d", b""]
    walker.feed(frame(DATA, 1, b""))
    assert walker.walk() == ([(1, 0, [])], b"")


@TWINS
def test_sink_of_a_cutter_gets_the_bytes(frames: ModuleType) -> None:
    sink = RecordingSink()
    cutter = frames.MessageCutter(MAX_MESSAGE, sink)
    assert cutter.feed(b"\1\2") == cutter.feed(bytearray(b"")) == []
    assert (sink.found, cutter.fault, cutter.inside_message) == (b"\1\2", 0, False)


def test_one_call_of_the_sink_takes_the_frames_of_a_walk() -> None:
    walker, sink = _fastframes.FrameWalker(MAX_FRAME, MAX_MESSAGE), RecordingSink()
    walker.open(1, sink)
    walker.feed(b"".join(frame(DATA, 1, b"%d" % i) for i in range(9)))
    assert walker.walk() == ([(1, 9, [])], b"")
    assert (sink.found, sink.calls) == (b"012345678", 1)


@TWINS
@given(bodies=bodies, cuts=pieces_of, sizes=pieces_of)
def test_input_may_be_overwritten_after_a_walk(
    frames: ModuleType, bodies: list[bytes], cuts: list[int], sizes: list[int]
) -> None:
    walker, sink = frames.FrameWalker(MAX_FRAME, MAX_MESSAGE), RecordingSink()
    walker.open(1, sink)
    walker.open(3)
    data = b"".join(map(message, bodies))
    frames_of_both = [frame(DATA, stream, part) for part in split(data, cuts) for stream in (1, 3)]
    buffer, found = bytearray(100), list[bytes]()
    for piece in split(b"".join(frames_of_both), sizes):
        buffer[: len(piece)] = piece
        walker.feed(memoryview(buffer)[: len(piece)])
        taken, left = walker.walk()
        found += [body for stream_id, _, messages in taken if stream_id == 3 for body in messages]
        assert left == b""
        buffer[:] = b"\xff" * len(buffer)
    assert sink.found == data
    assert found == bodies


@TWINS
@pytest.mark.parametrize("size", [4_000, 9_000, 20_000, 70_001])
@pytest.mark.parametrize("body", [b"", b"x", b"x" * 55])
def test_large_input_behind_the_rest_of_the_last(frames: ModuleType, size: int, body: bytes) -> None:
    walker, sink = frames.FrameWalker(MAX_FRAME, 60), RecordingSink()
    walker.open(1, sink)
    walker.open(3)
    one = frame(DATA, 1, b"a" * 50) + frame(SETTINGS, 0, b"123456") + frame(DATA, 3, message(body))
    messages, sizes, left = walk_all(walker, split(one * 1000, [size]))
    assert messages == {1: [], 3: [body] * 1000}
    assert sizes == {1: 50_000, 3: (len(body) + 5) * 1000}
    assert left == frame(SETTINGS, 0, b"123456") * 1000
    assert sink.found == b"a" * 50_000


@TWINS
def test_large_input_behind_the_header_of_a_frame_too_long(frames: ModuleType) -> None:
    for cut in range(1, 9):
        walker, long = frames.FrameWalker(MAX_FRAME, 60), frame(DATA, 1, bytes(9_000))
        walker.open(1)
        walker.feed(long[:cut])
        assert walker.walk() == ([], b"")
        walker.feed(long[cut:])
        assert walker.walk() == ([], long[:32])
        assert walker.oversize == 9_000


@TWINS
def test_input_is_a_view_of_any_kind(frames: ModuleType) -> None:
    data = frame(DATA, 1, message(b"abc"))
    released = memoryview(b"x")
    released.release()
    for view in (memoryview(data), memoryview(bytearray(data)), memoryview(data).cast("b"), bytearray(data)):
        walker = frames.FrameWalker(MAX_FRAME, MAX_MESSAGE)
        walker.open(1)
        walker.feed(view)
        assert walker.walk() == ([(1, 8, [b"abc"])], b"")
    for wrong in (memoryview(b"abcd")[::2], released):
        with pytest.raises(UsageError, match="data must be"):
            frames.FrameWalker(MAX_FRAME, MAX_MESSAGE).feed(wrong)


@TWINS
def test_input_is_fed_twice_before_a_walk(frames: ModuleType) -> None:
    walker = frames.FrameWalker(MAX_FRAME, MAX_MESSAGE)
    walker.open(1)
    parts = [frame(DATA, 1, message(b"%d" % i)) for i in range(4)]
    walker.feed(parts[0] + parts[1][:5])
    walker.feed(parts[1][5:] + parts[2] + parts[3][:11])
    walker.feed(parts[3][11:])
    assert walker.walk() == ([(1, 24, [b"0", b"1", b"2", b"3"])], b"")


@TWINS
def test_frames_in_order_with_those_of_h2(frames: ModuleType) -> None:
    walker = frames.FrameWalker(MAX_FRAME, MAX_MESSAGE)
    headers, end = frame(HEADERS, 1, b"h", flags=4), frame(HEADERS, 1, b"t", flags=5)
    walker.feed(
        headers + frame(DATA, 1, message(b"a")) + frame(DATA, 3) + end + frame(DATA, 1, message(b"b"))
    )
    assert walker.walk() == ([], headers)
    walker.open(1)
    walker.open(3)
    assert walker.walk() == ([(1, 6, [b"a"]), (3, 0, [])], end)
    walker.mute(1)
    assert walker.walk() == ([(1, 6, [])], b"")
    walker.close(1)
    walker.close(1)
    walker.feed(frame(DATA, 1))
    assert walker.walk() == ([], frame(DATA, 1))


@TWINS
def test_nothing_is_taken_out_of_a_block_of_headers(frames: ModuleType) -> None:
    # Such a peer breaks the rules, and h2 is the one to say so.
    walker = frames.FrameWalker(MAX_FRAME, MAX_MESSAGE)
    walker.open(1)
    parts = [
        frame(HEADERS, 3),
        frame(DATA, 1),
        frame(CONTINUATION, 3),
        frame(DATA, 1),
        frame(CONTINUATION, 3, b"", 4),
    ]
    messages, _, left = walk_all(walker, [b"".join(parts) + frame(DATA, 1, message(b"x"))])
    assert left == b"".join(parts)
    assert messages == {1: [b"x"]}


@TWINS
@pytest.mark.parametrize("size", [1, 100])
def test_frame_too_long_ends_the_walk(frames: ModuleType, size: int) -> None:
    walker = frames.FrameWalker(MAX_FRAME, MAX_MESSAGE)
    walker.open(1)
    long = frame(DATA, 1, bytes(MAX_FRAME + 1))
    _, taken, left = walk_all(walker, split(frame(DATA, 1, bytes(MAX_FRAME)) + long, [size]))
    assert taken == {1: MAX_FRAME}
    assert long.startswith(left[:9])
    assert left
    assert walker.oversize == MAX_FRAME + 1


@TWINS
@given(st.integers(0, 30), pieces_of)
def test_preface_goes_to_h2(frames: ModuleType, preface: int, sizes: list[int]) -> None:
    walker = frames.FrameWalker(MAX_FRAME, MAX_MESSAGE, preface)
    walker.open(1)
    start = b"\xff" * preface
    messages, _, left = walk_all(walker, split(start + frame(DATA, 1, message(b"x")), sizes))
    assert left == start
    assert messages == {1: [b"x"]}


wild_frames = st.builds(
    frame,
    st.sampled_from([DATA, DATA, DATA, HEADERS, SETTINGS, CONTINUATION, 5, 255]),
    st.sampled_from([0, 1, 3, 5, 0x80000001, 0xFFFFFFFF]),
    st.one_of(
        st.binary(max_size=70), st.lists(st.binary(max_size=45).map(message), max_size=3).map(b"".join)
    ),
    st.sampled_from([0, 0, 0, 1, 4, 8, 255]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.one_of(wild_frames, st.binary(max_size=60))),
        st.tuples(st.sampled_from(["open", "mute", "close"]), st.sampled_from([1, 3, 5])),
        st.tuples(st.just("open_with_sink"), st.sampled_from([1, 3])),
    ),
    max_size=40,
)


@given(steps, pieces_of, st.integers(0, 24))
def test_twins_agree(steps: list[tuple[str, Any]], sizes: list[int], preface: int) -> None:
    python = readable.frames.FrameWalker(MAX_FRAME, MAX_MESSAGE, preface)
    cython = _fastframes.FrameWalker(MAX_FRAME, MAX_MESSAGE, preface)
    cutters = []
    sinks = []
    for name, argument in steps:
        pieces: list[Any] = split(argument, sizes) if name == "feed" else [argument]
        for piece in pieces:
            if name == "open_with_sink":
                sinks.append((RecordingSink(), RecordingSink()))
                cutters.append((python.open(piece, sinks[-1][0]), cython.open(piece, sinks[-1][1])))
            else:
                cutters.append((getattr(python, name)(piece), getattr(cython, name)(piece)))
            for _ in range(20):
                result = python.walk()
                assert result == cython.walk()
                assert python.oversize == cython.oversize
            assert [ours.found for ours, _ in sinks] == [theirs.found for _, theirs in sinks]
    for ours, theirs in cutters:
        if ours is not None:
            state = (theirs.fault, theirs.fault_value, theirs.inside_message)
            assert (ours.fault, ours.fault_value, ours.inside_message) == state


@given(st.lists(st.one_of(st.binary(max_size=60), st.binary(max_size=45).map(message))))
def test_cutters_agree(pieces: list[bytes]) -> None:
    python, cython = readable.frames.MessageCutter(MAX_MESSAGE), _fastframes.MessageCutter(MAX_MESSAGE)
    for piece in pieces:
        assert python.feed(piece) == cython.feed(piece)
        state = (cython.fault, cython.fault_value, cython.inside_message)
        assert (python.fault, python.fault_value, python.inside_message) == state
