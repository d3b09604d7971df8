"""gRPC messages and HTTP/2 frames, however the bytes are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.rpc.frames import FrameSplitter
from liftenvelope.rpc.framing import MessageReader, frame_message
from liftenvelope.rpc.status import RpcError, StatusCode


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    """Divide ``data`` into pieces of the given sizes, repeated until it ends."""
    pieces, start, turn = [], 0, 0
    while start < len(data):
        pieces.append(data[start : start + sizes[turn % len(sizes)]])
        start += sizes[turn % len(sizes)]
        turn += 1
    return pieces


pieces_of = st.lists(st.integers(1, 40), min_size=1, max_size=10)


@given(st.lists(st.binary(max_size=100)), pieces_of)
def test_messages_come_out_as_they_went_in(messages: list[bytes], sizes: list[int]) -> None:
    reader = MessageReader()
    stream = b"".join(frame_message(message) for message in messages)
    received = [message for piece in split(stream, sizes) for message in reader.feed(piece)]
    assert received == messages
    assert not reader.inside_message


def test_prefix_is_that_of_grpc() -> None:
    assert frame_message(b"abc") == b"\x00\x00\x00\x00\x03abc"


@pytest.mark.parametrize("cut", range(1, 8))
def test_half_a_message_is_noticed(cut: int) -> None:
    reader = MessageReader()
    assert reader.feed(frame_message(b"abc")[:cut]) == []
    assert reader.inside_message


def test_compressed_message_is_refused() -> None:
    with pytest.raises(RpcError, match="compressed") as info:
        MessageReader().feed(b"\x01\x00\x00\x00\x01x")
    assert info.value.code == StatusCode.INTERNAL


def test_long_message_is_refused_before_it_comes() -> None:
    reader = MessageReader(max_message=4)
    assert reader.feed(frame_message(b"1234")) == [b"1234"]
    with pytest.raises(RpcError, match="5 bytes") as info:
        reader.feed(frame_message(b"12345")[:5])
    assert info.value.code == StatusCode.RESOURCE_EXHAUSTED


def http2_frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0, 0, 0, 0, 1]) + payload


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60))), pieces_of)
def test_frames_come_out_as_they_went_in(frames: list[tuple[int, bytes]], sizes: list[int]) -> None:
    encoded = [http2_frame(kind, payload) for kind, payload in frames]
    splitter = FrameSplitter()
    received = [frame for piece in split(b"".join(encoded), sizes) for frame in splitter.feed(piece)]
    assert received == encoded


def test_frame_too_long_is_passed_on_at_once() -> None:
    header = (16_385).to_bytes(3, "big") + bytes(6)
    assert FrameSplitter().feed(header + b"some") == [header + b"some"]
