"""Hostile gRPC servers: greetings, frames and answers that no real server sends."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from liftenvelope._pb import api_pb2
from tests.hostile.frames import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    message,
)
from tests.hostile.hostile_servers import SERVER_GREETING, GrpcAnswers, HostileServer

__all__ = ["GRPC_SERVERS"]

_ALL: Final = ("client metadata", "client publish", "client subscribe", "bulk.read of Liftbridge")
_ONE: Final = ("client metadata",)
_OK: Final = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_OK_HEADERS: Final = block(_OK)


def _head(stream: int) -> bytes:
    return frame(HEADERS, 4, stream, _OK_HEADERS)


def _end(stream: int, status: bytes = b"0", *more: tuple[bytes, bytes]) -> bytes:
    return frame(HEADERS, 5, stream, block([(b"grpc-status", status), *more]))


def _answer(stream: int, body: bytes) -> bytes:
    """A whole answer with a body."""
    return _head(stream) + frame(DATA, 0, stream, body) + _end(stream)


def _refuse(stream: int, status: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """An answer of headers alone."""
    return frame(HEADERS, 5, stream, block([*_OK, (b"grpc-status", status), *more]))


def _metadata(port: int) -> api_pb2.FetchMetadataResponse:
    """One broker, which leads one partition of the stream ``S``."""
    partition = api_pb2.PartitionMetadata(
        id=0, leader="a", replicas=["a"], isr=["a"], newestOffset=99, highWatermark=99
    )
    stream = api_pb2.StreamMetadata(name="S", subject="s", partitions={0: partition}, creationTimestamp=1)
    broker = api_pb2.Broker(id="a", host="127.0.0.1", port=port)
    return api_pb2.FetchMetadataResponse(brokers=[broker], streamMetadata=[stream])


def _knows(port: int, path: bytes) -> bytes | None:
    """The sound answer about the cluster; None for what the row attacks."""
    if path.endswith(b"/FetchMetadata"):
        return _metadata(port).SerializeToString()
    if path.endswith(b"/FetchPartitionMetadata"):
        return api_pb2.FetchPartitionMetadataResponse(
            metadata=_metadata(port).streamMetadata[0].partitions[0]
        ).SerializeToString()
    return None


def _later(attack: GrpcAnswers) -> GrpcAnswers:
    """Tells soundly of the cluster, and attacks every other call."""

    def answer(stream: int, path: bytes, port: int) -> bytes:
        known = _knows(port, path)
        return attack(stream, path, port) if known is None else _answer(stream, message(known))

    return answer


def _tells(change: Message) -> GrpcAnswers:
    """Answers everything with one message."""
    return lambda stream, *_: _answer(stream, message(change.SerializeToString()))


_GREETINGS: Final[dict[str, bytes]] = {
    "garbage": b"\xde\xad\xbe\xef" * 64,
    "HTTP/1.1": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "NATS": b'INFO {"server_id":"N","version":"2.15.1"} \r\n',
    "frame of 16 MiB": b"\xff\xff\xff\0\0\0\0\0\1",
    "goaway": SERVER_GREETING + frame(GOAWAY, 0, 0, bytes(8)),
    "goaway with 16 kB of text": SERVER_GREETING + frame(GOAWAY, 0, 0, bytes(8) + b"x" * 16_000),
    "goaway of two bytes": SERVER_GREETING + frame(GOAWAY, 0, 0, bytes(2)),
    "settings of five bytes": frame(SETTINGS, 0, 0, bytes(5)),
    "settings on a stream": frame(SETTINGS, 0, 1),
    "no streams allowed": frame(SETTINGS, 0, 0, b"\0\3\0\0\0\0"),
    "windows of 4 GiB": frame(SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
    "windows shut": frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0"),
    "frames of one byte": frame(SETTINGS, 0, 0, b"\0\5\0\0\0\1"),
    "window overflown": SERVER_GREETING + frame(WINDOW_UPDATE, 0, 0, (2**31 - 1).to_bytes(4, "big")) * 2,
    "push promise": SERVER_GREETING + frame(PUSH_PROMISE, 4, 1, (2).to_bytes(4, "big") + _OK_HEADERS),
    "headers of no call": SERVER_GREETING + _head(1),
    "data of no call": SERVER_GREETING + frame(DATA, 0, 1, b"x"),
    "reset of no call": SERVER_GREETING + frame(RST_STREAM, 0, 7, bytes(4)),
    "nothing": b"",
}
_FLOODS: Final[dict[str, bytes]] = {
    "settings": frame(SETTINGS, 0, 0),
    "ping": frame(PING, 0, 0, bytes(8)),
    "continuation": frame(CONTINUATION, 0, 1, block([(b"x", b"y" * 1_000)])),
    "window updates": frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    "unknown frames": frame(0xFA, 0, 0, b"x" * 100),
    "garbage": b"x" * 999,
}
_ROWS: list[HostileServer] = [
    HostileServer(name=f"grpc greets: {name}", wire="grpc", calls=_ONE, greeting=greeting)
    for name, greeting in _GREETINGS.items()
]
_ROWS += [
    HostileServer(
        name=f"grpc floods: {name}",
        wire="grpc",
        calls=_ONE,
        flood=flood,
        greeting=SERVER_GREETING + (frame(HEADERS, 0, 1) if name == "continuation" else b""),
    )
    for name, flood in _FLOODS.items()
]
_ROWS += [HostileServer(name="grpc greets: closes", wire="grpc", calls=_ALL, greeting=b"", closes=True)]

_ANSWERS: Final[dict[str, GrpcAnswers]] = {
    "never": lambda *_: b"",
    "headers alone": lambda stream, *_: _head(stream),
    "no status": lambda stream, *_: _head(stream) + frame(DATA, 1, stream, message(b"")),
    "empty": lambda stream, *_: _answer(stream, b""),
    "empty message": lambda stream, *_: _answer(stream, message(b"")),
    "two messages": lambda stream, *_: _answer(stream, message(b"") * 2),
    "junk message": lambda stream, *_: _answer(stream, message(b"\x0a\xff\xff\xff\xff\x0f")),
    "nested groups": lambda stream, *_: _answer(stream, message(b"\x9b\x06" * 5_000)),
    "bad utf-8": lambda stream, *_: _answer(stream, message(b"\x0a\x04\x0a\x02\xff\xfe")),
    "prefix of 4 GiB": lambda stream, *_: _answer(stream, b"\0\xff\xff\xff\xffx"),
    "compressed": lambda stream, *_: _answer(stream, b"\1\0\0\0\1x"),
    "half a message": lambda stream, *_: _answer(stream, b"\0\0\0\0\x09x"),
    "unavailable at once": lambda stream, *_: _refuse(stream, b"14", (b"grpc-message", b"later")),
    "status of text": lambda stream, *_: _refuse(stream, b"x"),
    "status of 500 digits": lambda stream, *_: _refuse(stream, b"9" * 500),
    "status negative": lambda stream, *_: _refuse(stream, b"-1"),
    "unknown status": lambda stream, *_: _refuse(stream, b"99", (b"grpc-message", b"%")),
    "text of junk": lambda stream, *_: _refuse(stream, b"13", (b"grpc-message", b"%ff%fe%" + b"x" * 8_000)),
    "http 503": lambda stream, *_: frame(HEADERS, 5, stream, block([(b":status", b"503")])),
    "http status of text": lambda stream, *_: frame(HEADERS, 5, stream, block([(b":status", b"x")])),
    "html": lambda stream, *_: frame(
        HEADERS, 5, stream, block([(b":status", b"200"), (b"content-type", b"text/html")])
    ),
    "binary metadata of junk": lambda stream, *_: _refuse(stream, b"13", (b"a-bin", b"!!!")),
    "details of junk": lambda stream, *_: _refuse(stream, b"13", (b"grpc-status-details-bin", b"AAAA")),
    "reset": lambda stream, *_: frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big")),
    "reset with an unknown code": lambda stream, *_: frame(RST_STREAM, 0, stream, b"\xff\xff\xff\xff"),
    "header list of 100 kB": lambda stream, *_: (
        frame(HEADERS, 0, stream, _OK_HEADERS)
        + b"".join(frame(CONTINUATION, 0, stream, block([(b"x", b"y" * 10_000)])) for _ in range(9))
        + frame(CONTINUATION, 4, stream)
    ),
    "hpack of junk": lambda stream, *_: frame(HEADERS, 4, stream, b"\xff" * 100),
    "64 MiB of zeros": lambda stream, *_: _head(stream) + frame(DATA, 0, stream, bytes(16_384)) * 4_096,
    "closed by goaway": lambda *_: frame(
        GOAWAY, 0, 0, bytes(4) + (11).to_bytes(4, "big") + b"too_many_pings"
    ),
}
_ROWS += [
    HostileServer(
        name=f"grpc answers: {name}",
        wire="grpc",
        calls=_ALL,
        greeting=SERVER_GREETING,
        grpc=answer,
        rss_mib=160 if "64 MiB" in name else 64,
    )
    for name, answer in _ANSWERS.items()
]
_ROWS += [
    HostileServer(
        name=f"grpc answers later: {name}",
        wire="grpc",
        # As messages of a subscription, so many zeros are 13 million empty ones.
        calls=("client publish",) if name == "64 MiB of zeros" else _ALL[1:],
        greeting=SERVER_GREETING,
        grpc=_later(answer),
        rss_mib=160 if "64 MiB" in name else 64,
    )
    for name, answer in _ANSWERS.items()
]

_CLUSTERS: Final[dict[str, Message]] = {
    "no brokers": api_pb2.FetchMetadataResponse(),
    "50,000 brokers": api_pb2.FetchMetadataResponse(
        brokers=[api_pb2.Broker(id=str(i), host="127.0.0.1", port=1) for i in range(50_000)]
    ),
    "port 70,000": api_pb2.FetchMetadataResponse(
        brokers=[api_pb2.Broker(id="a", host="127.0.0.1", port=70_000)]
    ),
    "port -1": api_pb2.FetchMetadataResponse(brokers=[api_pb2.Broker(id="a", host="127.0.0.1", port=-1)]),
    "no host": api_pb2.FetchMetadataResponse(brokers=[api_pb2.Broker(id="a", host="", port=1)]),
    "host of junk": api_pb2.FetchMetadataResponse(
        brokers=[api_pb2.Broker(id="a", host="\0 \r\n[::", port=1)]
    ),
    "leader unknown": api_pb2.FetchMetadataResponse(
        streamMetadata=[
            api_pb2.StreamMetadata(name="S", partitions={0: api_pb2.PartitionMetadata(leader="zzz")})
        ]
    ),
    "partition -1": api_pb2.FetchMetadataResponse(
        streamMetadata=[api_pb2.StreamMetadata(name="S", partitions={-1: api_pb2.PartitionMetadata(id=-1)})]
    ),
    "error unknown": api_pb2.FetchMetadataResponse(
        streamMetadata=[api_pb2.StreamMetadata(name="S", error=77)]  # type: ignore[arg-type]
    ),
}
_ROWS += [
    HostileServer(
        name=f"grpc tells: {name}",
        wire="grpc",
        calls=_ALL,
        greeting=SERVER_GREETING,
        grpc=_tells(cluster),
        rss_mib=128,
    )
    for name, cluster in _CLUSTERS.items()
]


def _messages(*offsets: int) -> GrpcAnswers:
    """Subscribes, then sends messages with these offsets, and ends the subscription as UNAVAILABLE."""
    bodies = [
        b"",
        *(api_pb2.Message(offset=at, value=b"v", stream="S").SerializeToString() for at in offsets),
    ]
    body = b"".join(map(message, bodies))
    return _later(lambda stream, *_: _head(stream) + frame(DATA, 0, stream, body) + _end(stream, b"14"))


_ROWS += [
    HostileServer(
        name=f"grpc subscription: {name}",
        wire="grpc",
        calls=("client subscribe", "bulk.read of Liftbridge"),
        greeting=SERVER_GREETING,
        grpc=_messages(*offsets),
    )
    for name, offsets in {
        "ends at once": (),
        "the same offset": (0,) * 10,
        "backwards": (9, 8, 7),
        "negative": (-1, -2),
        "far ahead": (2**62,),
    }.items()
]

GRPC_SERVERS: Final = tuple(_ROWS)
