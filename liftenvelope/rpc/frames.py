"""HTTP/2 frames in the bytes of a connection (RFC 9113, 4.1).

Each frame has a header of 9 bytes::

    0..2     length of the payload, big-endian
    3        type
    4        flags
    5..8     stream id
"""

from __future__ import annotations

from typing import Final

__all__ = ["GOAWAY", "MAX_FRAME_SIZE", "FrameSplitter", "payload_length"]

#: The type of the frame with which a server says that it takes no more calls.
GOAWAY: Final = 0x7
#: The longest payload that a server may send us: what HTTP/2 starts with, and we announce no other.
MAX_FRAME_SIZE: Final = 16_384

_HEADER_SIZE: Final = 9


def payload_length(frame: bytes | bytearray) -> int:
    """Return how long a frame says that its payload is."""
    return int.from_bytes(frame[:3], "big")


class FrameSplitter:
    """Cuts the bytes of a connection into frames, however they were divided on the way."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take in more bytes; return the frames that are complete now, with their headers.

        A frame that is too long is not waited for: what there is of it comes as the last frame, to be refused
        by its header. It is also what a server that does not speak HTTP/2 seems to send.
        """
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= _HEADER_SIZE:
            length = payload_length(self._buffer[start : start + 3])
            end = start + _HEADER_SIZE + length
            if length > MAX_FRAME_SIZE:
                end = len(self._buffer)
            elif end > len(self._buffer):
                break
            frames.append(bytes(self._buffer[start:end]))
            start = end
        del self._buffer[:start]
        return frames
