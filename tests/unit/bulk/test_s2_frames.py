"""Frames of S2 streams, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.bulk._snapshots.frames import S2Frames

IDENTIFIER = b"\xff\x06\x00\x00S2sTwO"
BACKUPS = Path(__file__).parents[2] / "integration" / "bulk" / "backups"


def chunk(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + len(content).to_bytes(3, "little") + content


def data(content: bytes) -> bytes:
    return chunk(1, b"\0\0\0\0" + content)


def compressed(size: bytes, rest: bytes = b"") -> bytes:
    return chunk(0, b"\0\0\0\0" + size + rest)


def fed(*pieces: bytes) -> S2Frames:
    frames = S2Frames()
    for piece in pieces:
        frames.feed(piece)
    return frames


@pytest.mark.parametrize(
    ("name", "size"), [("nats-2.14/stream.tar.s2", 16_384), ("nats-2.15/stream.arc.s2", 954)]
)
def test_frames_of_a_real_backup_give_the_size_of_its_data(name: str, size: int) -> None:
    whole = (BACKUPS / name).read_bytes()
    at_once, byte_by_byte = fed(whole), fed(*(bytes([byte]) for byte in whole))
    for frames in (at_once, byte_by_byte):
        frames.end()
        assert (frames.size, frames.data) == (len(whole), size)


@pytest.mark.parametrize("name", ["nats-2.14/stream.tar.s2", "nats-2.15/stream.arc.s2"])
def test_cut_stream_ends_well_at_the_bounds_of_its_chunks_alone(name: str) -> None:
    whole = (BACKUPS / name).read_bytes()
    ends = [size for size in range(1, len(whole) + 1) if ends_well(whole[:size])]
    assert ends == list(ends_of_chunks(whole))[1:]  # after the identifier alone there is no data
    assert ends[-1] == len(whole)


def ends_well(data: bytes) -> bool:
    try:
        fed(data).end()
    except ValueError:
        return False
    return True


def ends_of_chunks(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "little")
        yield at


def test_kinds_of_chunks_count_their_data() -> None:
    frames = fed(IDENTIFIER, data(b"abc"), compressed(b"\x80\x01", b"x" * 30), chunk(0xFE, b"padding"))
    frames.end()
    assert frames.data == 3 + 128
    frames.feed(IDENTIFIER + data(b"joined"))
    frames.end()
    assert frames.data == 3 + 128 + 6


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ((b"NATSARC1 and more",), "an S2 stream begins with"),
        ((b"\xff\x06\x00\x00sNaPpY",), "an S2 stream begins with"),
        ((IDENTIFIER, chunk(2, b"")), "a chunk of unknown type 2"),
        ((IDENTIFIER, chunk(0x7F, b"x" * 100)), "a chunk of unknown type 127"),
    ],
)
def test_other_data_is_refused(pieces: tuple[bytes, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        fed(*pieces)


@pytest.mark.parametrize("pieces", [(), (IDENTIFIER,), (IDENTIFIER, chunk(0xFE, b"padding"))])
def test_stream_without_data_does_not_end_well(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="has no data"):
        fed(*pieces).end()


def outcome(pieces: list[bytes]) -> tuple[int, int] | str:
    try:
        frames = fed(*pieces)
        frames.end()
    except ValueError as exc:
        return str(exc)
    return frames.size, frames.data


CHUNKS = st.one_of(
    st.builds(data, st.binary(max_size=40)),
    st.builds(compressed, st.binary(max_size=12), st.binary(max_size=40)),
    st.builds(chunk, st.integers(0, 255), st.binary(max_size=20)),
    st.just(IDENTIFIER),
    st.binary(max_size=20),
)


@given(st.lists(CHUNKS, max_size=6), st.booleans(), st.lists(st.integers(0, 120), max_size=6))
def test_pieces_do_not_matter(chunks: list[bytes], begins_well: bool, cuts: list[int]) -> None:
    whole = b"".join([IDENTIFIER, *chunks] if begins_well else chunks)
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[start:stop] for start, stop in pairwise(places)]
    at_once = outcome([whole])
    assert outcome(pieces) == at_once
    assert outcome([bytes([byte]) for byte in whole]) == at_once
