"""Frames of an S2 stream, the compression of a snapshot. Sans-io; nothing is decompressed.

A stream is a sequence of chunks: a byte with the type, three bytes with the length, little-endian, and the
content. Chunks of data begin with a checksum of four bytes. A compressed one goes on with the length of its
data as a varint. So the frames tell whether a stream ends within a chunk, and how much data it has, at the
cost of reading a few bytes of each chunk. nats-server compares the checksums when it restores.

See https://github.com/klauspost/compress/tree/master/s2 and the framing format of Snappy.
"""

from __future__ import annotations

from typing import Final

__all__ = ["S2Frames"]

_HEADER: Final = 4
_CHECKSUM: Final = 4
_IDENTIFIER: Final = b"\xff\x06\x00\x00S2sTwO"
_COMPRESSED: Final = 0x00
_UNCOMPRESSED: Final = 0x01
#: Types from this one on may be skipped by a reader that does not know them.
_SKIPPABLE: Final = 0x80
#: Bytes of a chunk that are looked at: header, checksum, and a varint of up to five bytes.
_LOOKED_AT: Final = _HEADER + _CHECKSUM + 5


class S2Frames:
    """Follows the chunks of an S2 stream that is fed in pieces.

    Attributes:
        size: Bytes fed so far.
        data: Bytes of data, uncompressed, in the chunks that have begun so far.
    """

    def __init__(self) -> None:
        self.size = 0
        self.data = 0
        self._chunks = 0
        # Beginning of the current chunk, the bytes of it to wait for, and those to pass over after it.
        self._head = bytearray()
        self._wanted = _HEADER
        self._skip = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the stream.

        Raises:
            ValueError: The pieces are not an S2 stream.
        """
        rest = memoryview(piece)
        while rest:
            step = min(self._skip or self._wanted - len(self._head), len(rest))
            self.size += step
            if self._skip:
                self._skip -= step
            else:
                self._head += rest[:step]
                if len(self._head) == self._wanted:
                    self._advance()
            rest = rest[step:]

    def end(self) -> None:
        """Take the end of the stream.

        Raises:
            ValueError: The stream ends within a chunk, or has no data.
        """
        if self._skip or self._head:
            raise ValueError(f"the S2 stream ends within a chunk, after {self.size:,} bytes")
        if not self.data:
            raise ValueError("the S2 stream has no data")

    def _advance(self) -> None:
        """Read the bytes that were waited for: the header, or the rest of what is looked at."""
        whole = _HEADER + int.from_bytes(self._head[1:_HEADER], "little")
        if self._wanted == _HEADER and whole > _HEADER:
            self._wanted = min(whole, _LOOKED_AT)
            return
        self._count(bytes(self._head), whole)
        self._skip = whole - len(self._head)
        self._head.clear()
        self._wanted = _HEADER

    def _count(self, head: bytes, whole: int) -> None:
        kind, self._chunks = head[0], self._chunks + 1
        if self._chunks == 1 and head != _IDENTIFIER:
            raise ValueError(f"an S2 stream begins with {_IDENTIFIER!r}, but this one with {head!r}")
        if kind == _UNCOMPRESSED:
            self.data += whole - _HEADER - _CHECKSUM
        elif kind == _COMPRESSED:
            self.data += _varint(head[_HEADER + _CHECKSUM :])
        elif kind < _SKIPPABLE:
            at = self.size - len(head)
            raise ValueError(f"the S2 stream has a chunk of unknown type {kind}, after {at:,} bytes")


def _varint(data: bytes) -> int:
    """Return the number that a varint at the beginning of the data has; of an unfinished one, its part."""
    number = 0
    for place, byte in enumerate(data):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            break
    return number
