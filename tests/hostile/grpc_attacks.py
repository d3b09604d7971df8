"""Attackers that send gRPC calls: endless bodies, oversized names, malformed messages, forbidden subjects.

The victim has the streams ``data`` (messages of 100 kB), ``first`` and ``copy`` (both on one subject).
"""

from __future__ import annotations

from typing import Final

from liftenvelope._pb import api_pb2
from tests.hostile.attacks import MARK, Attack, Bounds, refuses, serves
from tests.hostile.frames import (
    CANCEL,
    DATA,
    GREETING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call,
    frame,
    headers,
    message,
    stream_id,
)

__all__ = ["FORBIDDEN_INBOXES", "GRPC"]

_API: Final = "/proto.API/"
_CHECK: Final = "/grpc.health.v1.Health/Check"
_WATCH: Final = "/grpc.health.v1.Health/Watch"
_INVALID, _DEADLINE, _NOT_FOUND, _DENIED, _EXHAUSTED, _UNIMPLEMENTED, _INTERNAL = 3, 4, 5, 7, 8, 12, 13
#: The largest windows that HTTP/2 has, for each call and for the connection: the reader never holds back.
_OPEN_WINDOWS: Final = (
    GREETING
    + frame(SETTINGS, 0, 0, b"\0\4" + (2**31 - 1).to_bytes(4, "big"))
    + frame(WINDOW_UPDATE, 0, 0, (2**31 - 65_536).to_bytes(4, "big"))
)
#: The call's windows are shut: no answer but a status alone may be sent.
_SHUT_WINDOWS: Final = GREETING + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0")
_FRAME: Final = bytes(16_000)


def _ask(number: int, method: str, request: bytes) -> bytes:
    return call(stream_id(number), method if method.startswith("/") else _API + method, message(request))


def _subscribe(stop: api_pb2.StopPosition = api_pb2.STOP_ON_CANCEL) -> bytes:
    """A request for all messages of ``data``."""
    return api_pb2.SubscribeRequest(
        stream="data", startPosition=api_pb2.EARLIEST, stopPosition=stop
    ).SerializeToString()


def _unread(number: int) -> bytes:
    """A piece of a message of 4,000,000 bytes, of one call of 200."""
    begins = number < 200
    head = headers(stream_id(number), _WATCH) if begins else b""
    prefix = b"\0" + (4_000_000).to_bytes(4, "big") if begins else b""
    return head + frame(DATA, 0, stream_id(number % 200), prefix + _FRAME)


_BODIES: list[Attack] = [
    Attack(
        name=f"requests without end: {path}",
        must=refuses(_INTERNAL, close=None),
        begin=GREETING + headers(1, path),
        repeat=lambda _: frame(DATA, 0, 1, message(_FRAME)),
        rounds=20_000,
    )
    for path in (_CHECK, _WATCH, _API + "Publish", _API + "Subscribe")
]
_BODIES += [
    Attack(
        name="requests without end: unknown method",
        must=refuses(_UNIMPLEMENTED, close=None),
        begin=GREETING + headers(1, "/no/such"),
        repeat=lambda _: frame(DATA, 0, 1, message(_FRAME)),
        rounds=20_000,
    ),
    Attack(
        name="calls with unread windows",
        must=refuses(_EXHAUSTED, close=None),
        repeat=_unread,
        rounds=20_000,
        bounds=Bounds(rss_mib=96),
    ),
    Attack(
        name="calls with unread windows, 20 connections",
        must=serves(),
        repeat=_unread,
        rounds=4_000,
        connections=20,
        bounds=Bounds(rss_mib=448),
    ),
    Attack(
        name="9,000 calls with a prefix of 4 MiB",
        must=serves(),
        repeat=lambda n: (
            headers(stream_id(n), _WATCH) + frame(DATA, 0, stream_id(n), b"\0\0\x40\0\0x")
            if n < 1_000
            else b""
        ),
        rounds=1_000,
        connections=9,
        bounds=Bounds(rss_mib=192),
    ),
    Attack(
        name="messages of 1 MB that nobody stores",
        must=refuses(_DEADLINE, _EXHAUSTED, close=None),
        repeat=lambda n: _ask(
            n,
            "PublishToSubject",
            api_pb2.PublishToSubjectRequest(subject="nobody", value=bytes(1_000_000)).SerializeToString(),
        ),
        rounds=900,
        bounds=Bounds(rss_mib=448),
    ),
    Attack(
        name="publishes without end, answers unread",
        must=serves(),
        begin=GREETING + headers(1, _API + "PublishAsync"),
        repeat=lambda n: frame(
            DATA,
            0,
            1,
            message(api_pb2.PublishRequest(stream="first", correlationId=str(n)).SerializeToString()),
        ),
        reads=False,
        rounds=100_000,
        bounds=Bounds(rss_mib=128),
    ),
]

_LONG: Final = {
    "CreateStream name": ("CreateStream", api_pb2.CreateStreamRequest(name="n" * 1_000_000, subject="s")),
    "CreateStream subject": ("CreateStream", api_pb2.CreateStreamRequest(name="n", subject="s" * 1_000_000)),
    "SetCursor id": ("SetCursor", api_pb2.SetCursorRequest(stream="n", cursorId="c" * 1_000_000)),
    "Subscribe stream": ("Subscribe", api_pb2.SubscribeRequest(stream="s" * 1_000_000)),
    "JoinConsumerGroup streams": (
        "JoinConsumerGroup", api_pb2.JoinConsumerGroupRequest(groupId="g", streams=["s"] * 100_000)),
    "FetchMetadata streams": ("FetchMetadata", api_pb2.FetchMetadataRequest(streams=["s" * 10] * 100_000)),
}  # fmt: skip
_NAMES: Final = [
    Attack(
        name=f"long names: {name}",
        must=refuses(_INVALID, _NOT_FOUND, close=None),
        repeat=lambda n, request=request, method=method: _ask(n, method, request.SerializeToString()),  # type: ignore[misc]
        rounds=10,
        bounds=Bounds(rss_mib=128),
    )
    for name, (method, request) in _LONG.items()
]

_GROUPS: Final = b"\x9b\x06" * 5_000 + b"\x9c\x06" * 5_000
_MALFORMED: Final[dict[str, tuple[bytes, tuple[int, ...]]]] = {
    "prefix of 4 GiB": (b"\0\xff\xff\xff\xffx", (_EXHAUSTED,)),
    "compressed": (b"\1\0\0\0\1x", (_UNIMPLEMENTED, _INTERNAL)),
    "unknown flag": (b"\x80\0\0\0\1x", (_UNIMPLEMENTED, _INTERNAL)),
    "truncated message": (b"\0\0\0\0\x09x", (_INTERNAL,)),
    "truncated prefix": (b"\0\0", (_INTERNAL,)),
    "no message": (b"", (_INTERNAL,)),
    "two messages": (message(b"") * 2, (_INTERNAL,)),
    "5,000 nested groups": (message(_GROUPS), (_INTERNAL,)),
    "bad utf-8": (message(b"\x0a\x02\xff\xfe"), (_INTERNAL, _INVALID)),
    "lone surrogate": (message(b"\x0a\x03\xed\xa0\x80"), (_INTERNAL, _INVALID)),
    "length beyond the end": (message(b"\x0a\xff\xff\xff\xff\x0f"), (_INTERNAL, _INVALID)),
    "varint of 11 bytes": (message(b"\x08" + b"\xff" * 11), (_INTERNAL, _INVALID)),
    "wire type 7": (message(b"\x0f"), (_INTERNAL, _INVALID)),
    "random bytes": (message(bytes((i * 167 + 13) % 256 for i in range(500))), (_INTERNAL, _INVALID)),
}
_REQUESTS: Final = [
    Attack(
        name=f"malformed: {name}",
        must=refuses(*statuses, close=None),
        repeat=lambda n, body=body: call(stream_id(n), _API + "CreateStream", body),  # type: ignore[misc]
        rounds=200,
    )
    for name, (body, statuses) in _MALFORMED.items()
]

_READERS: Final = [
    Attack(
        name="readers that never read",
        must=serves(),
        begin=_OPEN_WINDOWS + b"".join(_ask(n, "Subscribe", _subscribe()) for n in range(4)),
        connections=16,
        reads=False,
        bounds=Bounds(rss_mib=160),
    ),
    Attack(
        name="readers whose windows are shut",
        must=serves(),
        begin=_SHUT_WINDOWS + b"".join(_ask(n, "Subscribe", _subscribe()) for n in range(4)),
        connections=16,
        bounds=Bounds(rss_mib=160),
    ),
    Attack(
        name="readers that read",
        must=serves(),
        begin=_OPEN_WINDOWS,
        repeat=lambda n: _ask(n, "Subscribe", _subscribe(stop=api_pb2.STOP_LATEST)),
        pace=0.5,
        connections=8,
        bounds=Bounds(rss_mib=160),
    ),
    Attack(
        name="subscriptions opened and dropped",
        must=serves(),
        repeat=lambda n: (
            _ask(n, "Subscribe", _subscribe())
            + (frame(RST_STREAM, 0, stream_id(n - 20), CANCEL) if n >= 20 else b"")
        ),
        pace=0.01,
        bounds=Bounds(rss_mib=96),
    ),
    Attack(
        name="subscriptions of a connection that goes",
        must=serves(),
        begin=_OPEN_WINDOWS
        + b"".join(_ask(n, "Subscribe", _subscribe()) for n in range(50))
        + frame(7, 0, 0, bytes(8)),
        repeat=lambda _: b"",
        rounds=1,
        bounds=Bounds(rss_mib=96),
    ),
]

#: Ack inboxes at which no ack may arrive. ``trap`` is where injected commands would publish.
FORBIDDEN_INBOXES: Final = (
    f"$KV.lift_streams.{MARK}",
    f"$KV.lift_cursors.{MARK}",
    "$JS.API.STREAM.DELETE.lift_data_0",
    f"_lift.{MARK}",
    f"liftenvelope.groups.at.{MARK}.Leave",
    f"a 0\r\n\r\nPUB trap.{MARK} {len(MARK)}\r\n{MARK}\r\nPUB b",
    f"a\r\nPUB trap.{MARK} {len(MARK)}\r\n{MARK}\r\nPUB b 2",
    "a b",
    "*",
    ">",
    ".",
)
_SUBJECTS: Final = (
    "_INBOX.>",
    "_INBOX.*",
    "_lift.activity",
    "liftenvelope.groups.>",
    "liftenvelope.*.at.*.*",
    "liftenvelope.>",
    "$KV.lift_streams.>",
    "$JS.API.>",
    ">",
    "*.>",
    "*.*",
)


def _publish(number: int, stream: str) -> bytes:
    inbox = FORBIDDEN_INBOXES[number % len(FORBIDDEN_INBOXES)]
    request = api_pb2.PublishRequest(stream=stream, ackInbox=inbox, correlationId=MARK)
    return _ask(number, "Publish", request.SerializeToString())


def _publish_to(number: int) -> bytes:
    request = api_pb2.PublishToSubjectRequest(
        subject=FORBIDDEN_INBOXES[number % len(FORBIDDEN_INBOXES)], value=MARK.encode(), correlationId=MARK
    )
    return _ask(number, "PublishToSubject", request.SerializeToString())


def _record(number: int) -> bytes:
    request = api_pb2.CreateStreamRequest(name=MARK, subject=_SUBJECTS[number % len(_SUBJECTS)])
    return _ask(number, "CreateStream", request.SerializeToString())


_SUBJECTS_OF_OTHERS: Final = [
    Attack(name="ack inboxes of others", must=serves(), repeat=lambda n: _publish(n, "first"), rounds=50),
    Attack(
        name="ack inboxes of others, by a copy",
        must=serves(),
        repeat=lambda n: _publish(n, "copy"),
        rounds=50,
    ),
    Attack(name="publish to internal subjects", must=refuses(_INVALID), repeat=_publish_to, rounds=50),
    Attack(name="streams on internal subjects", must=refuses(_INVALID), repeat=_record, rounds=50),
]

#: 1 MB of messages that mallory may not publish.
_DENIED_PUBLISHES: Final = 64 * frame(
    DATA, 0, 1, 150 * message(api_pb2.PublishRequest(stream="s" * 100).SerializeToString())
)
#: 250 kB of such messages on each call: the answers repeat the correlation ids.
_DENIED_IDS: Final = 83 * message(
    api_pb2.PublishRequest(stream="s", correlationId="c" * 3_000).SerializeToString()
)


def _deny_on_calls(number: int) -> bytes:
    """Ten calls of PublishAsync."""
    calls = range(10 * number, 10 * number + 10)
    return b"".join(call(stream_id(n), _API + "PublishAsync", _DENIED_IDS, end=False) for n in calls)


_DENIED_CALLS: list[Attack] = [
    Attack(
        name=f"denied: {name}",
        must=refuses(*statuses, close=None),
        tls="mallory",
        repeat=lambda n, request=request, method=method: _ask(n, method, request),  # type: ignore[misc]
        rounds=rounds,
        bounds=Bounds(rss_mib=96),
    )
    for name, statuses, rounds, method, request in (
        ("publish", (_DENIED,), 200, "Publish", api_pb2.PublishRequest(stream="data").SerializeToString()),
        ("subscribe", (_DENIED,), 200, "Subscribe", _subscribe()),
        (
            "long name",
            (_DENIED, _INVALID),
            10,
            *_LONG["CreateStream name"][:1],
            _LONG["CreateStream name"][1].SerializeToString(),
        ),
        ("malformed", (_INTERNAL, _INVALID), 200, "Publish", b"\x0a\xff\xff\xff\xff\x0f"),
        (
            "internal subject by an own name",
            (_DENIED, _INVALID),
            50,
            "CreateStream",
            api_pb2.CreateStreamRequest(name="mallory", subject="_INBOX.>").SerializeToString(),
        ),
    )
]

_DENIED_CALLS += [
    Attack(
        name="denied publishes, windows shut",
        must=serves(),
        tls="mallory",
        begin=_SHUT_WINDOWS + headers(1, _API + "PublishAsync"),
        repeat=lambda _: _DENIED_PUBLISHES,
        rounds=1_000,
        connections=2,
    ),
    Attack(
        name="denied publishes of many calls, windows shut",
        must=refuses(_EXHAUSTED, close=None),
        tls="mallory",
        begin=_SHUT_WINDOWS,
        repeat=_deny_on_calls,
        rounds=90,
        bounds=Bounds(rss_mib=96),
    ),
]

GRPC: Final = [*_BODIES, *_NAMES, *_REQUESTS, *_READERS, *_SUBJECTS_OF_OTHERS, *_DENIED_CALLS]
