"""HTTP/2 frames made of chunks: a form, flags, a stream, then the payload."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fuzz.target import Chunks, option

__all__ = ["DATA", "MAX_MESSAGE", "frame_of", "seeds_of_frames"]

MAX_MESSAGE = 60

#: A frame of DATA on stream 1 with an empty gRPC message, as it is on the wire.
DATA = b"\0\0\5\0\0\0\0\0\1\0\0\0\0\0"
#: By the four lowest bits of the form: kinds of frames, most of them DATA.
KINDS = (0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255)
#: With this bit the payload is one gRPC message, and its prefix is put before it.
MESSAGE = 0x10
RAW = 15


def frame_of(chunk: bytes) -> bytes:
    """The frame that a chunk stands for; for the last kind, the bytes of the chunk as they are."""
    form, payload = option(chunk, 0), chunk[3:]
    if form & 15 == RAW:
        return chunk[1:]
    if form & MESSAGE:
        payload = b"\0" + len(payload).to_bytes(4, "big") + payload
    stream = option(chunk, 2)
    stream_id = stream & 0x7F | (1 << 31 if stream & 0x80 else 0)
    head = bytes((KINDS[form & 15], option(chunk, 1)))
    return len(payload).to_bytes(3, "big") + head + stream_id.to_bytes(4, "big") + payload


def seeds_of_frames() -> Iterator[Chunks]:
    message = bytes((MESSAGE,))
    sent = [
        message + b"\0\1one",
        message + b"\0\3two",
        b"\0\0\1\0\0\0\0\5ab",
        b"\0\0\1cde",
        b"\5\4\1\x88",
        b"\5\0\1\x88",
        b"\x0d\4\1\x88",
        b"\x08\0\0",
        b"\0\1\1",
        b"\0\x08\1\2ab\0\0",
        b"\x0a\0\x0012345678",
        message + b"\0\x81" + b"x" * 61,
        b"\0\0\1\1\0\0\0\1x",
        b"\x0f" + DATA * 3,
        b"\0\0\1" + b"y" * 201,
    ]
    for options in range(8):
        yield [bytes([options, options & 1, options >> 1, options * 5]), *sent[options::2][:10]]
        yield [bytes([0, options & 1, 0, options * 9, 1]), *sent[options::3]]
        for action in range(1, 4):
            first = bytes((sent[options][0] | action << 5,)) + sent[options][1:]
            yield [bytes([0, action & 1, 3, 9 * action]), sent[1], first, *sent[:6]]
