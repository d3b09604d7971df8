"""Attackers that send TLS hellos to the gateway, and lines to the NATS server that it uses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from liftenvelope import _wire as w
from liftenvelope._pb import api_pb2
from tests.hostile.attacks import MARK, Attack, Bounds, closes, serves
from tests.hostile.frames import CANCEL, GREETING, PING, RST_STREAM, frame, headers, stream_id
from tests.hostile.grpc_attacks import FORBIDDEN_INBOXES

__all__ = ["NATS", "TLS"]

#: The head of a ClientHello that says it has 512 bytes more.
_HALF_HELLO: Final = bytes.fromhex("16030102000100")

TLS: list[Attack] = [
    Attack(
        name=f"tls: {name}",
        must=closes(),
        wire="raw",
        tls="plain",
        begin=begin,
        connections=count,
        bounds=bounds,
    )
    for name, begin, count, bounds in (
        ("half a hello", _HALF_HELLO, 300, Bounds(rss_mib=256)),
        ("no hello", b"", 300, Bounds(rss_mib=256)),
        ("plain http/2", GREETING + headers(1, "/"), 20, Bounds()),
        ("garbage", b"\xde\xad\xbe\xef" * 64, 20, Bounds()),
        ("record of 64 KiB", b"\x16\x03\x01\xff\xff" + bytes(65_535), 20, Bounds()),
        ("alert", b"\x15\x03\x01\x00\x02\x02\x28", 20, Bounds()),
    )
]
TLS += [
    Attack(name=f"tls: {name}", must=closes(), tls=client, connections=5)
    for name, client in (
        ("no certificate", "anonymous"),
        ("certificate of a foreign authority", "foreign"),
        ("no ALPN", "no-alpn"),
        ("ALPN of HTTP/1.1", "http1"),
        ("version 1.0", "tls1.0"),
        ("version 1.1", "tls1.1"),
    )
]
TLS += [
    Attack(
        name="tls: rapid reset",
        must=closes(11),
        tls="mallory",
        repeat=lambda n: (
            headers(stream_id(n), "/grpc.health.v1.Health/Watch") + frame(RST_STREAM, 0, stream_id(n), CANCEL)
        ),
    ),
    Attack(
        name="tls: ping, unread",
        must=serves(),
        tls="mallory",
        reads=False,
        repeat=lambda _: frame(PING, 0, 0, bytes(8)),
    ),
]

_CONNECT: Final = b"CONNECT " + json.dumps({"verbose": False, "headers": True}).encode() + b"\r\n"


def _publish(subject: str, payload: bytes, reply: str = "") -> bytes:
    return f"PUB {subject} {reply + ' ' if reply else ''}{len(payload)}\r\n".encode() + payload + b"\r\n"


def _envelope(inbox: str) -> bytes:
    payload = api_pb2.Message(value=b"v", ackInbox=inbox, correlationId=MARK).SerializeToString()
    return w.MAGIC + bytes([w.VERSION, w.HEADER_LEN, 0, 0]) + payload


_NESTED: Final = b"\x9b\x06" * 5_000
_ENVELOPES: Final[dict[str, Callable[[int], bytes]]] = {
    "no envelope": lambda n: b"x" * (n % 100),
    "magic alone": lambda n: w.MAGIC[: n % 5],
    "header beyond the end": lambda _: w.MAGIC + b"\0\xff\0\0",
    "wrong crc": lambda _: w.MAGIC + b"\0\x0c\1\0" + bytes(4) + b"\x1a\1v",
    "an ack": lambda _: w.MAGIC + b"\0\x08\0\1" + b"\x32\1a",
    "nested groups": lambda _: w.MAGIC + b"\0\x08\0\0" + _NESTED,
    "length beyond the end": lambda _: w.MAGIC + b"\0\x08\0\0" + b"\x1a\xff\xff\xff\xff\x0f",
    "500 headers": lambda _: (
        w.MAGIC
        + b"\0\x08\0\0"
        + api_pb2.Message(
            headers={f"h{i}": b"v" for i in range(500)}, ackInbox="_INBOX.x"
        ).SerializeToString()
    ),
}
NATS: list[Attack] = [
    Attack(
        name=f"nats: {name}",
        must=serves(),
        wire="nats",
        begin=_CONNECT,
        repeat=lambda n, envelope=envelope: _publish("shared", envelope(n)),  # type: ignore[misc]
        rounds=2_000,
        pace=0.001,
        bounds=Bounds(rss_mib=96),
    )
    for name, envelope in _ENVELOPES.items()
]
NATS += [
    Attack(
        name="nats: envelopes with ack inboxes of others",
        must=serves(),
        wire="nats",
        begin=_CONNECT,
        repeat=lambda n: _publish("shared", _envelope(FORBIDDEN_INBOXES[n % len(FORBIDDEN_INBOXES)])),
        rounds=200,
        pace=0.001,
        bounds=Bounds(rss_mib=96),
    ),
    Attack(
        name="nats: junk on the gateways' subjects",
        must=serves(),
        wire="nats",
        begin=_CONNECT,
        repeat=lambda n: b"".join(
            _publish(subject, bytes(range(n % 256)), "a.b")
            for subject in ("_lift.activity", "_lift.brokers", "_lift.cursors", "$JS.EVENT.ADVISORY.x")
        ),
        rounds=500,
        pace=0.001,
        bounds=Bounds(rss_mib=96),
    ),
]
