"""HTTP/2 frames, gRPC bodies and header blocks as bytes, and a parser that counts what comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError

__all__ = [
    "CANCEL", "CONTINUATION", "DATA", "GOAWAY", "GREETING", "HEADERS", "PING", "PREFACE", "PRIORITY",
    "PUSH_PROMISE", "RST_STREAM", "SETTINGS", "WINDOW_UPDATE", "Answers", "block", "call", "frame",
    "headers", "message", "stream_id",
]  # fmt: skip

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
#: Flags (RFC 9113, 6).
END_STREAM, END_HEADERS, PADDED = 0x1, 0x4, 0x8
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CANCEL: Final = (8).to_bytes(4, "big")
Fields = Iterable[tuple[bytes, bytes]]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


#: Bytes that a client begins a connection with.
GREETING: Final = PREFACE + frame(SETTINGS, 0, 0)


def stream_id(number: int) -> int:
    """Return the id of a client's stream, counted from 0."""
    return 2 * number + 1


def _string(text: bytes) -> bytes:
    """Return a string literal without Huffman coding (RFC 7541, 5.2)."""
    size = len(text)
    if size < 0x7F:
        return bytes([size]) + text
    size -= 0x7F
    prefix = bytearray(b"\x7f")
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(prefix) + bytes([size]) + text


def block(fields: Fields) -> bytes:
    """Return header fields as literals without indexing (RFC 7541, 6.2.2)."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in fields)


def headers(stream: int, path: str, *, end: bool = False, more: Fields = ()) -> bytes:
    """Return the HEADERS frame of a gRPC call."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"a"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    ]
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block(fields))


def message(payload: bytes) -> bytes:
    """Return a gRPC message with its prefix."""
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def call(stream: int, path: str, body: bytes, *, end: bool = True) -> bytes:
    """Return a gRPC call with a body, which is cut into frames of 16 KiB."""
    pieces = [body[start : start + 16_384] for start in range(0, len(body), 16_384)] or [b""]
    last = len(pieces) - 1
    data = (
        frame(DATA, END_STREAM if end and number == last else 0, stream, piece)
        for number, piece in enumerate(pieces)
    )
    return headers(stream, path) + b"".join(data)


class Answers:
    """Counts what a server answers.

    Attributes:
        goaways: Error codes of GOAWAY frames.
        resets: Error codes of RST_STREAM frames.
        statuses: gRPC statuses of calls.
        http: HTTP statuses other than 200.
        longest: Length of the longest status text, in bytes.
    """

    def __init__(self) -> None:
        self.goaways: Counter[int] = Counter()
        self.resets: Counter[int] = Counter()
        self.statuses: Counter[int] = Counter()
        self.http: Counter[int] = Counter()
        self.longest = 0
        self._data = b""
        self._decoder = Decoder()
        # A header list of ours is at most 64 KiB; a status text may be longer if the server is wrong.
        self._decoder.max_header_list_size = 1 << 24

    def feed(self, data: bytes) -> None:
        """Take in bytes; keep what is not a whole frame yet."""
        self._data += data
        start = 0
        while len(self._data) - start >= 9:
            end = start + 9 + int.from_bytes(self._data[start : start + 3], "big")
            if len(self._data) < end:
                break
            self._take(self._data[start + 3], self._data[start + 9 : end])
            start = end
        self._data = self._data[start:]

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == GOAWAY:
            self.goaways[int.from_bytes(payload[4:8], "big")] += 1
        elif kind == RST_STREAM:
            self.resets[int.from_bytes(payload, "big")] += 1
        elif kind == HEADERS:
            self._take_headers(payload)

    def _take_headers(self, payload: bytes) -> None:
        try:
            fields = self._decoder.decode(payload, raw=True)
        except HPACKError:  # the server is no HTTP/2 server
            return
        for name, value in fields:
            if name == b"grpc-status":
                self.statuses[int(value)] += 1
            elif name == b":status" and value != b"200":
                self.http[int(value)] += 1
            elif name == b"grpc-message":
                self.longest = max(self.longest, len(value))
