"""Attackers that send HTTP/2 frames: floods, resets, header blocks and frames that break the rules.

Names of attacks are those of their papers: rapid reset (CVE-2023-44487), MadeYouReset (CVE-2025-8671),
CONTINUATION flood (CERT VU#421644). A reset of TCP may overtake a GOAWAY, so a missing code is no fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.hostile.attacks import Attack, Bounds, Must, closes, refuses, serves
from tests.hostile.frames import (
    CANCEL,
    CONTINUATION,
    DATA,
    GREETING,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    call,
    frame,
    headers,
    message,
    stream_id,
)

__all__ = ["HTTP2"]

WATCH: Final = "/grpc.health.v1.Health/Watch"
CHECK: Final = "/grpc.health.v1.Health/Check"
#: Error code ENHANCE_YOUR_CALM (RFC 9113, 7).
_CALM: Final = 11
_BIG: Final = (2**31 - 1).to_bytes(4, "big")


def _open(number: int, *, end: bool = False, **more: list[tuple[bytes, bytes]]) -> bytes:
    """A call that stays open on the server, or whose request is ended without a message."""
    return headers(stream_id(number), WATCH, end=end, **more)


def _watch(number: int) -> bytes:
    """A call whose request is complete, and that the server keeps open."""
    return call(stream_id(number), WATCH, message(b""))


def _on_open(name: str, repeat: Callable[[int], bytes], must: Must) -> Attack:
    """A flood of frames on a call that is open."""
    return Attack(name=name, must=must, begin=GREETING + _open(0), repeat=repeat)


#: MadeYouReset: frames behind a whole request that make the server reset the call itself.
_MADE: Final[dict[str, Callable[[int], bytes]]] = {
    "zero window": lambda n: _watch(n) + frame(WINDOW_UPDATE, 0, stream_id(n), bytes(4)),
    "window overflow": lambda n: _watch(n) + frame(WINDOW_UPDATE, 0, stream_id(n), _BIG) * 2,
    "data after the end": lambda n: _watch(n) + frame(DATA, 0, stream_id(n), b"x"),
    "padded data after the end": lambda n: _watch(n) + frame(DATA, 8, stream_id(n), b"\0x"),
    "headers after the end": lambda n: _watch(n) + _open(n, end=True),
    "priority on itself": lambda n: (
        _watch(n) + frame(PRIORITY, 0, stream_id(n), stream_id(n).to_bytes(4, "big") + b"\x10")
    ),
    "short priority": lambda n: _watch(n) + frame(PRIORITY, 0, stream_id(n), b"1234"),
    "content length": lambda n: (
        _open(n, more=[(b"content-length", b"5")]) + frame(DATA, 1, stream_id(n), message(b"four"))
    ),
    "trailers with a path": lambda n: (
        _open(n) + frame(HEADERS, 5, stream_id(n), block([(b":path", b"/again")]))
    ),
    "trailers that end nothing": lambda n: _open(n) + frame(HEADERS, 4, stream_id(n), block([(b"a", b"b")])),
    "padding beyond the frame": lambda n: _open(n) + frame(DATA, 8, stream_id(n), b"\xffx"),
    "uppercase name": lambda n: _open(n, more=[(b"Upper", b"x")]),
    "connection header": lambda n: _open(n, more=[(b"connection", b"close")]),
}

_RESETS: list[Attack] = [
    Attack(
        name=f"rapid reset, {count} connections",
        must=closes(_CALM),
        repeat=lambda n: _open(n) + frame(RST_STREAM, 0, stream_id(n), CANCEL),
        connections=count,
    )
    for count in (1, 8, 20)
]
_RESETS += [
    Attack(name=f"made you reset: {name}", must=closes(), repeat=repeat) for name, repeat in _MADE.items()
]
_RESETS += [
    Attack(
        name="reset of whole requests",
        must=closes(_CALM),
        repeat=lambda n: _watch(n) + frame(RST_STREAM, 0, stream_id(n), CANCEL),
    ),
    Attack(
        name="reset of unary calls",
        must=closes(_CALM),
        repeat=lambda n: call(stream_id(n), CHECK, message(b"")) + frame(RST_STREAM, 0, stream_id(n), CANCEL),
    ),
    Attack(
        name="reset of calls, answers unread",
        must=serves(),
        reads=False,
        repeat=lambda n: _open(n) + frame(RST_STREAM, 0, stream_id(n), CANCEL),
    ),
]

_CONTROL: Final = [
    Attack(name="ping, read", must=serves(), repeat=lambda _: frame(PING, 0, 0, bytes(8))),
    Attack(name="ping, unread", must=serves(), reads=False, repeat=lambda _: frame(PING, 0, 0, bytes(8))),
    Attack(
        name="ping, 900 answers blocked",
        must=serves(),
        begin=GREETING + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0") + b"".join(map(_watch, range(900))),
        repeat=lambda _: frame(PING, 0, 0, bytes(8)),
        bounds=Bounds(rss_mib=96),
    ),
    Attack(name="settings", must=closes(_CALM), repeat=lambda _: frame(SETTINGS, 0, 0)),
    Attack(
        name="settings, 20 connections",
        must=closes(_CALM),
        repeat=lambda _: frame(SETTINGS, 0, 0),
        connections=20,
    ),
    Attack(name="settings, unread", must=serves(), reads=False, repeat=lambda _: frame(SETTINGS, 0, 0)),
    Attack(
        name="settings that change windows",
        must=closes(_CALM),
        begin=GREETING + b"".join(map(_open, range(500))),
        repeat=lambda n: frame(SETTINGS, 0, 0, b"\0\4" + (n % 1_000).to_bytes(4, "big")),
    ),
    Attack(
        name="priority", must=closes(_CALM), repeat=lambda n: frame(PRIORITY, 0, stream_id(n % 9), bytes(5))
    ),
    Attack(
        name="priority, 20 connections",
        must=closes(_CALM),
        repeat=lambda n: frame(PRIORITY, 0, stream_id(n % 9), bytes(5)),
        connections=20,
    ),
    Attack(name="unknown frames", must=closes(_CALM), repeat=lambda _: frame(0xFA, 0, 0, b"x")),
    _on_open("empty data", lambda _: frame(DATA, 0, 1), serves()),
    _on_open("padded data", lambda _: frame(DATA, 8, 1, b"\0"), closes(_CALM)),
    _on_open("data of padding alone", lambda _: frame(DATA, 8, 1, b"\x09" + bytes(9)), closes(_CALM)),
    _on_open("window updates of a call", lambda _: frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"), serves()),
    Attack(
        name="window updates of the connection",
        must=serves(),
        repeat=lambda _: frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    ),
    Attack(
        name="data on a closed call",
        must=closes(),
        begin=GREETING + _watch(0) + frame(RST_STREAM, 0, 1, CANCEL),
        repeat=lambda _: frame(DATA, 0, 1, b"x"),
    ),
    Attack(
        name="padded data on a closed call",
        must=closes(),
        begin=GREETING + _watch(0) + frame(RST_STREAM, 0, 1, CANCEL),
        repeat=lambda _: frame(DATA, 8, 1, b"\0x"),
    ),
    Attack(
        name="window updates of closed calls",
        must=closes(),
        begin=GREETING + _watch(0) + frame(RST_STREAM, 0, 1, CANCEL),
        repeat=lambda _: frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"),
    ),
]

#: One field of 4,000 bytes that is put into the dynamic table (RFC 7541, 6.2.1), then repeated by its index.
_BOMB: Final = b"\x40\x01x\x7f" + b"\xa1\x1e" + bytes(4_000) + b"\xbe" * 12_000
_HEADER_BLOCKS: Final = [
    Attack(
        name="continuation flood",
        must=closes(),
        begin=GREETING + frame(HEADERS, 0, 1, block([(b":method", b"POST")])),
        repeat=lambda _: frame(CONTINUATION, 0, 1, block([(b"x", b"y" * 1_000)])),
    ),
    Attack(
        name="empty continuations",
        must=closes(),
        begin=GREETING + frame(HEADERS, 0, 1),
        repeat=lambda _: frame(CONTINUATION, 0, 1),
    ),
    Attack(name="hpack bomb", must=closes(), repeat=lambda n: frame(HEADERS, 5, stream_id(n), _BOMB)),
    Attack(
        name="hpack table resized",
        must=closes(),
        repeat=lambda n: frame(HEADERS, 5, stream_id(n), b"\x3f\xe1\xff\xff\x07"),
    ),
    Attack(
        name="header list of 20 kB",
        must=closes(),
        repeat=lambda n: _open(n, more=[(b"x-%d" % i, b"v" * 100) for i in range(120)]),
    ),
    Attack(
        name="path of 15 kB",
        must=refuses(12),
        repeat=lambda n: call(stream_id(n), "/" + "p" * 15_000, b""),
        rounds=200,
    ),
    Attack(
        name="path of 60 kB",
        must=closes(),
        repeat=lambda n: headers(stream_id(n), "/" + "p" * 15_900) + frame(CONTINUATION, 4, stream_id(n)),
    ),
    Attack(
        name="many different headers",
        must=serves(),
        repeat=lambda n: headers(
            stream_id(n), CHECK, end=True, more=[(b"x-%d" % (n + i), b"v") for i in range(50)]
        ),
        rounds=3_000,
    ),
]

_RULES: Final[dict[str, bytes]] = {
    "garbage": b"\xde\xad\xbe\xef" * 64,
    "http/1.1": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "nats client": b'CONNECT {"verbose":false}\r\nPING\r\n' * 4,
    "tls hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "frame of 16 MiB": PREFACE + b"\xff\xff\xff\0\0\0\0\0\1" + bytes(1_000),
    "push promise": GREETING + frame(PUSH_PROMISE, 4, 1, (2).to_bytes(4, "big") + block([(b"a", b"b")])),
    "even stream": GREETING + headers(2, CHECK, end=True),
    "data on an idle stream": GREETING + frame(DATA, 0, 1, b"x"),
    "reset of an idle stream": GREETING + frame(RST_STREAM, 0, 1, CANCEL),
    "streams backwards": GREETING + headers(5, CHECK, end=True) + headers(3, CHECK, end=True),
    "goaway on a stream": GREETING + frame(7, 0, 1, bytes(8)),
    "settings on a stream": GREETING + frame(SETTINGS, 0, 1),
    "settings of five bytes": GREETING + frame(SETTINGS, 0, 0, bytes(5)),
    "ping of seven bytes": GREETING + frame(PING, 0, 0, bytes(7)),
    "window of the connection overflown": GREETING + frame(WINDOW_UPDATE, 0, 0, _BIG) * 2,
    "headers inside headers": GREETING + frame(HEADERS, 0, 1, b"") + headers(3, CHECK),
}
_BROKEN: Final = [
    Attack(name=f"breaks the rules: {name}", must=closes(), begin=begin, repeat=None, connections=20)
    for name, begin in _RULES.items()
]

_HELD: Final = [
    Attack(name="idle, no byte", must=closes(), begin=b"", connections=300, bounds=Bounds(rss_mib=96)),
    Attack(
        name="half a preface", must=closes(), begin=PREFACE[:10], connections=300, bounds=Bounds(rss_mib=96)
    ),
    Attack(name="preface alone", must=closes(), begin=PREFACE, connections=50),
    Attack(name="idle after the greeting", must=serves(), connections=900, bounds=Bounds(rss_mib=192)),
    Attack(
        name="calls that never end",
        must=serves(),
        begin=GREETING + b"".join(map(_watch, range(900))),
        connections=4,
        bounds=Bounds(rss_mib=128),
    ),
    Attack(
        name="more calls than allowed",
        must=closes(),
        repeat=_open,
        rounds=3_000,
    ),
]

HTTP2: Final = [*_RESETS, *_CONTROL, *_HEADER_BLOCKS, *_BROKEN, *_HELD]
