"""Hostile NATS servers: greetings, answers of JetStream, pulls, messages and acks that no real server sends.

Sound parts are shaped by what nats-server 2.15.1 sends.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tests.hostile.hostile_servers import HostileServer, NatsAnswers

__all__ = ["NATS_SERVERS"]

INFO: Final = (
    b'INFO {"server_id":"NHOSTILE","server_name":"hostile","version":"2.15.1","proto":1,"go":"go1.27.2",'
    b'"host":"127.0.0.1","port":4222,"headers":true,"max_payload":1048576,"jetstream":true,"client_id":6,'
    b'"client_ip":"127.0.0.1","api_lvl":5} \r\n'
)
_STREAM: Final[dict[str, Any]] = {
    "type": "io.nats.jetstream.api.v1.stream_info_response",
    "config": {
        "name": "S", "subjects": ["s"], "retention": "limits", "max_consumers": -1, "max_msgs": -1,
        "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1, "max_msg_size": -1, "discard": "old",
        "storage": "file", "num_replicas": 1, "duplicate_window": 120_000_000_000, "compression": "none",
        "allow_direct": False, "mirror_direct": False, "sealed": False, "deny_delete": False,
        "deny_purge": False, "allow_rollup_hdrs": False, "consumer_limits": {}, "allow_msg_ttl": False,
    },
    "created": "2026-11-22T11:33:47.261543417Z",
    "state": {
        "messages": 1_000, "bytes": 100_000, "first_seq": 1, "first_ts": "2026-11-22T11:33:48.1Z",
        "last_seq": 1_000, "last_ts": "2026-11-22T11:33:48.2Z", "consumer_count": 0,
    },
    "cluster": {"leader": "hostile"},
    "ts": "2026-11-22T11:33:48.69183133Z",
}  # fmt: skip
_ALL: Final = ("bulk.read", "bulk.count", "bulk.write", "jetstream info", "jetstream publish", "ack inbox")
_BULK: Final = ("bulk.read", "bulk.write")


def _consumer(payload: bytes) -> dict[str, Any]:
    """The answer that makes the consumer that was asked for."""
    config = json.loads(payload).get("config", {}) if payload else {}
    config = {
        "durable_name": "C",
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "ack_wait": 30_000_000_000,
        "max_deliver": -1,
        "replay_policy": "instant",
        "max_waiting": 512,
        "max_ack_pending": 1_000,
        "num_replicas": 0,
        **config,
    }
    position = {"consumer_seq": 0, "stream_seq": 0}
    return {
        "type": "io.nats.jetstream.api.v1.consumer_create_response",
        "stream_name": "S",
        "name": config.get("name", "C"),
        "created": "2026-11-22T11:33:47.261543417Z",
        "config": config,
        "delivered": position,
        "ack_floor": position,
        "num_ack_pending": 0,
        "num_redelivered": 0,
        "num_waiting": 0,
        "num_pending": 1_000,
        "cluster": {"leader": "hostile"},
        "ts": "2026-11-22T11:33:48.69183133Z",
    }


def _sound(subject: bytes, payload: bytes) -> bytes | None:
    """The sound answer of JetStream's API, None for a pull or a message."""
    if b".STREAM.INFO." in subject:
        return json.dumps(_STREAM).encode()
    if b".CONSUMER.CREATE." in subject or b".CONSUMER.INFO." in subject:
        return json.dumps(_consumer(payload)).encode()
    if b".CONSUMER.DELETE." in subject:
        return b'{"type":"io.nats.jetstream.api.v1.consumer_delete_response","success":true}'
    return None


def _api(answer: bytes, header: bytes = b"") -> NatsAnswers:
    """Answers everything in one way."""
    return lambda *_: [(header, answer)]


def _changed(**changes: Any) -> NatsAnswers:
    """Answers the API soundly, but for fields of the stream's info and of the consumer's."""

    def answer(subject: bytes, payload: bytes) -> list[tuple[bytes, bytes]]:
        sound = _sound(subject, payload)
        return [] if sound is None else [(b"", json.dumps({**json.loads(sound), **changes}).encode())]

    return answer


def _pulls(*replies: tuple[bytes, bytes]) -> NatsAnswers:
    """Answers the API soundly, and pulls with these."""

    def answer(subject: bytes, payload: bytes) -> list[tuple[bytes, bytes]]:
        sound = _sound(subject, payload)
        return list(replies) if sound is None else [(b"", sound)]

    return answer


def _status(code: bytes, text: bytes = b"", *more: bytes) -> tuple[bytes, bytes]:
    head = b"NATS/1.0 " + code + (b" " + text if text else b"") + b"\r\n"
    return head + b"".join(line + b"\r\n" for line in more) + b"\r\n", b""


_JSON: Final[dict[str, bytes]] = {
    "nothing": b"",
    "list": b"[]",
    "number": b"5",
    "null": b"null",
    "string": b'"x"',
    "empty object": b"{}",
    "30,000 brackets": b"[" * 30_000,
    "nested objects": b'{"a":' * 30_000,
    "no utf-8": b'{"type":"\xff\xfe"}',
    "lone surrogate": b'{"type":"\\ud800","config":{"name":"\\ud800"}}',
    "infinite numbers": b'{"state":{"last_seq":1e400,"first_seq":NaN}}',
    "number of 5,000 digits": b'{"state":{"last_seq":' + b"9" * 5_000 + b"}}",
    "error is a list": b'{"error":[1]}',
    "error is a number": b'{"error":5}',
    "error without fields": b'{"error":{}}',
    "error with a text as its code": b'{"error":{"code":"x","err_code":[],"description":{}}}',
    "fields are null": b'{"config":null,"state":null,"created":null,"name":null,"num_pending":null}',
    "fields are lists": b'{"config":[],"state":[],"created":[],"name":[],"num_pending":[]}',
}

_GREETINGS: Final[dict[str, bytes]] = {
    **{f"INFO {name}": b"INFO " + text + b"\r\n" for name, text in _JSON.items()},
    "nonce is a number": INFO.replace(b'"proto"', b'"auth_required":true,"nonce":5,"proto"'),
    "connect_urls of junk": INFO.replace(b'"proto"', b'"connect_urls":[5,null,"","a:b:c","[::"],"proto"'),
    "version is junk": INFO.replace(b'"2.15.1"', b"[]"),
    "HTTP/1.1": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "garbage": bytes(range(256)) * 8,
    "line without end": b"INFO " + b"x" * 100_000,
    "error": b"-ERR '" + b"x" * 1_000 + b"'\r\n",
    "TLS, then junk": INFO.replace(b'"proto"', b'"tls_required":true,"proto"') + b"junk" * 1_000,
}
#: Values of max_payload. nats-py believes them all.
_PAYLOADS: Final[dict[str, bytes]] = {
    "text": b'"x"',
    "number as a text": b'"1048576"',
    "negative": b"-1",
    "zero": b"0",
    "huge": b"9" * 30,
    "infinite": b"1e400",
    "fraction": b"1.5",
    "null": b"null",
    "list": b"[1]",
}
_SIZES: Final[dict[str, bytes]] = {
    "message of 5 GB": b"MSG x 1 5000000000\r\n",
    "message of 10^30 bytes": b"MSG x 1 " + b"9" * 30 + b"\r\n",
    "negative message": b"MSG x 1 -5\r\n",
    "header larger than the message": b"HMSG x 1 90 10\r\n" + bytes(100),
    "message of 4 GiB with a header": b"HMSG x 1 4294967295 4294967296\r\n",
}

_GREETING_ROWS: list[HostileServer] = [
    HostileServer(name=f"nats greets: {name}", wire="nats", calls=("bulk.read",), greeting=greeting)
    for name, greeting in _GREETINGS.items()
]
_GREETING_ROWS += [
    HostileServer(name="nats greets: never", wire="nats", calls=_BULK, greeting=b""),
    HostileServer(name="nats greets: closes", wire="nats", calls=_BULK, greeting=b"", closes=True),
    HostileServer(name="nats greets: and closes", wire="nats", calls=_BULK, greeting=INFO, closes=True),
    HostileServer(name="nats greets: no PONG", wire="nats", calls=_BULK, greeting=INFO, pong=None),
    HostileServer(
        name="nats greets: PONG of junk", wire="nats", calls=_BULK, greeting=INFO, pong=b"JUNK\r\n"
    ),
    HostileServer(
        name="nats greets: endless line", wire="nats", calls=_BULK, greeting=b"INFO ", flood=b"x" * 1_000
    ),
    HostileServer(name="nats greets: endless INFO", wire="nats", calls=_BULK, greeting=INFO, flood=INFO),
    HostileServer(
        name="nats greets: endless PING", wire="nats", calls=_BULK, greeting=INFO, flood=b"PING\r\n"
    ),
    HostileServer(
        name="nats greets: endless PONG", wire="nats", calls=_BULK, greeting=INFO, flood=b"PONG\r\n"
    ),
    HostileServer(
        name="nats greets: endless line later",
        wire="nats",
        calls=_BULK,
        greeting=INFO,
        pong=b"PONG\r\n+OK",
        flood=b"x" * 1_000,
    ),
]
_GREETING_ROWS += [
    HostileServer(
        name=f"nats claims before login: {name}", wire="nats", calls=_BULK, greeting=claim, flood=b"x" * 999
    )
    for name, claim in _SIZES.items()
]
_GREETING_ROWS += [
    HostileServer(
        name=f"nats claims after login: {name}",
        wire="nats",
        calls=_BULK,
        greeting=INFO,
        pong=b"PONG\r\n" + claim,
    )
    for name, claim in _SIZES.items()
]

_GREETING_ROWS += [
    HostileServer(
        name=f"nats greets: max_payload of {name}",
        wire="nats",
        calls=_ALL,
        greeting=INFO.replace(b"1048576", value),
    )
    for name, value in _PAYLOADS.items()
]
_GREETING_ROWS += [
    HostileServer(
        name="nats greets: no max_payload",
        wire="nats",
        calls=_ALL,
        greeting=INFO.replace(b'"max_payload":1048576,', b""),
    ),
]
_GREETING_ROWS += [
    HostileServer(
        name=f"nats greets: {count:,} connect_urls",
        wire="nats",
        calls=calls,
        greeting=INFO.replace(
            b'"proto"',
            b'"connect_urls":[%b],"proto"'
            % b",".join(b'"10.1.%d.%d:4222"' % (i >> 8, i & 255) for i in range(count)),
        ),
    )
    # nats-py itself fails at a line beyond 32 KiB.
    for count, calls in ((1_000, _ALL), (20_000, _BULK))
]

_API_ROWS: list[HostileServer] = [
    HostileServer(
        name=f"jetstream answers: {name}", wire="nats", calls=_ALL, greeting=INFO, answers=_api(text)
    )
    for name, text in _JSON.items()
]
_API_ROWS += [
    HostileServer(name="jetstream answers: never", wire="nats", calls=_ALL, greeting=INFO),
    HostileServer(
        name="jetstream answers: no responders",
        wire="nats",
        calls=_ALL,
        greeting=INFO,
        answers=_api(b"", b"NATS/1.0 503\r\n\r\n"),
    ),
    HostileServer(
        name="jetstream answers: unknown status",
        wire="nats",
        calls=_ALL,
        greeting=INFO,
        answers=_api(b"", b"NATS/1.0 999 What\r\n\r\n"),
    ),
    HostileServer(
        name="jetstream answers: header of junk",
        wire="nats",
        calls=_ALL,
        greeting=INFO,
        answers=_api(b"{}", b"\xff\xfe: \0"),
    ),
    HostileServer(
        name="jetstream answers: 1 MiB of text",
        wire="nats",
        calls=_ALL,
        greeting=INFO,
        answers=_api(b'{"type":"' + b"x" * 1_000_000 + b'"}'),
    ),
]
_CHANGES: Final[dict[str, dict[str, Any]]] = {
    "state of texts": {"state": {"messages": "x", "first_seq": "1", "last_seq": "2"}},
    "state negative": {"state": {"messages": -1, "first_seq": -5, "last_seq": -9}},
    "state beyond 64 bits": {"state": {"messages": 2**70, "first_seq": 2**69, "last_seq": 2**70}},
    "no config": {"config": None},
    "config of texts": {"config": {"subjects": "s", "max_msgs": "x", "num_replicas": []}},
    "time of junk": {"created": "junk", "ts": "junk"},
    "pending of text": {"num_pending": "many"},
    "delivered of text": {"delivered": "x", "ack_floor": 5},
}
_API_ROWS += [
    HostileServer(
        name=f"jetstream changes: {name}",
        wire="nats",
        calls=("bulk.read", "jetstream fetch"),
        greeting=INFO,
        answers=_changed(**changes),
    )
    for name, changes in _CHANGES.items()
]

_NEXT: Final[dict[str, tuple[tuple[bytes, bytes], ...]]] = {
    "408 at once": (
        _status(b"408", b"Request Timeout", b"Nats-Pending-Messages: 1", b"Nats-Pending-Bytes: 0"),
    ),
    "404 at once": (_status(b"404", b"No Messages"),),
    "409 at once": (_status(b"409", b"Message Size Exceeds MaxBytes"),),
    "409 leadership at once": (_status(b"409", b"Leadership Change"),),
    "unknown status at once": (_status(b"477", b"Who Knows"),),
    "status without a number": (_status(b"x"),),
    "status of 500 digits": (_status(b"9" * 500),),
    "heartbeats at once": (_status(b"100", b"Idle Heartbeat"),) * 50,
    "heartbeat of junk": (
        _status(b"100", b"Idle Heartbeat", b"Nats-Last-Consumer: x", b"Nats-Last-Stream: -1"),
    ),
    "pending of junk": (_status(b"408", b"Request Timeout", b"Nats-Pending-Messages: x"),),
    "message without metadata": ((b"", b"payload"),),
    "header without end": ((b"NATS/1.0\r\nA: b", b""),),
}
_PULL_ROWS: Final = [
    HostileServer(
        name=f"pulls: {name}",
        wire="nats",
        calls=("bulk.read", "jetstream fetch"),
        greeting=INFO,
        answers=_pulls(*replies),
    )
    for name, replies in _NEXT.items()
]

_ACKS: Final[dict[str, bytes]] = {
    "empty": b"",
    "sequence of text": b'{"stream":"S","seq":"x"}',
    "sequence negative": b'{"stream":"S","seq":-1}',
    "sequence beyond 64 bits": b'{"stream":"S","seq":99999999999999999999999}',
    "stream of number": b'{"stream":5,"seq":1}',
    "envelope magic": b"\xb9\x0e\x43\xb4",
    "envelope of another type": b"\xb9\x0e\x43\xb4\0\x08\0\0",
    "envelope, length beyond the end": b"\xb9\x0e\x43\xb4\0\x08\0\1\x0a\xff\xff\xff\xff\x0f",
    "envelope, nested groups": b"\xb9\x0e\x43\xb4\0\x08\0\1" + b"\x9b\x06" * 5_000,
    "junk": bytes(range(256)),
}
_ACK_ROWS: Final = [
    HostileServer(
        name=f"acks: {name}",
        wire="nats",
        calls=("bulk.write", "jetstream publish", "ack inbox"),
        greeting=INFO,
        answers=_pulls((b"", ack)),
    )
    for name, ack in _ACKS.items()
]

NATS_SERVERS: Final = (*_GREETING_ROWS, *_API_ROWS, *_PULL_ROWS, *_ACK_ROWS)
