"""Bulk reads and writes on NATS servers that are FAKE and hostile: errors have a type, and nothing grows."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope.bulk import Access, ReadLostError, ServerProtocolError
from liftenvelope.bulk._jetstream import consumer_read
from liftenvelope.bulk._jetstream import requests as jetstream_requests
from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
from liftenvelope.bulk.access import find_target
from liftenvelope.bulk.listing import open_lister
from liftenvelope.errors import (
    CallTimeoutError,
    InternalError,
    LiftEnvelopeError,
    StreamMessageTooLargeError,
    UsageError,
)
from tests.unit.hostile_nats import INFO, FakeNats, msg, status, usual

#: Ends soon after a server was found to be of no use.
QUICK = Access(connect_timeout=60, timeout=0.3, reconnect_wait=0, stall_timeout=0.3)
PAYLOAD = b'"max_payload":1048576'


class NoConsumers:
    """A server that answers every request but the one that creates a consumer."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __call__(self, subject: bytes, reply: bytes, sid: int) -> bytes:
        if b".CONSUMER.CREATE." not in subject:
            return usual(subject, reply, sid)
        self.asked.set()
        return b""


def requests(server: FakeNats, kind: bytes) -> list[tuple[int, bytes]]:
    """The consumers that requests of a kind name, each with the number of its connection."""
    pattern = re.compile(rb"^PUB \$JS\.API\.CONSUMER\.%b\.S\.(\S+) " % kind, re.MULTILINE)
    return [(number, name) for number, data in enumerate(server.received) for name in pattern.findall(data)]


GREETINGS = {
    "message of 5 GB": b"MSG x 1 5000000000\r\n",
    "message of 2**62 bytes": b"MSG x 1 %d\r\n" % (2**62 // 10),
    "headers of 5 GB": b"HMSG x 1 5000000000 5000000000\r\n",
    "list": b"INFO []\r\n",
    "number": b"INFO 5\r\n",
    "null": b"INFO null\r\n",
    "text": b'INFO "x"\r\n',
    "no JSON": b"INFO {\r\n",
    "deep": b"INFO " + b"[" * 30_000 + b"\r\n",
    "deep object": b"INFO " + b'{"a":' * 12_000 + b"\r\n",
    "no UTF-8": b'INFO {"version":"\xff"}\r\n',
    "long line": b"INFO " + b"x" * 70_000,
    "max_payload as text": INFO.replace(PAYLOAD, b'"max_payload":"x"'),
    "max_payload as list": INFO.replace(PAYLOAD, b'"max_payload":[1]'),
    "max_payload negative": INFO.replace(PAYLOAD, b'"max_payload":-1'),
    "max_payload infinite": INFO.replace(PAYLOAD, b'"max_payload":1e999'),
    "max_payload of 5,000 digits": INFO.replace(PAYLOAD, b'"max_payload":' + b"9" * 5_000),
    "connect_urls as number": INFO.replace(PAYLOAD, b'"connect_urls":5'),
    "connect_urls of numbers": INFO.replace(PAYLOAD, b'"connect_urls":[1]'),
    "connect_urls without port": INFO.replace(PAYLOAD, b'"connect_urls":["a"]'),
    "connect_urls with NUL": INFO.replace(PAYLOAD, b'"connect_urls":["a\\u0000:4222"]'),
    "connect_urls with a long label": INFO.replace(PAYLOAD, b'"connect_urls":["%b:1"]' % (b"a" * 64)),
    "1,001 connect_urls": INFO.replace(PAYLOAD, b'"connect_urls":["a:1"%b]' % (b',"a:1"' * 1_000)),
    "tls_required as text": INFO.replace(PAYLOAD, b'"tls_required":"no"'),
    "nonce as number": INFO.replace(PAYLOAD, b'"nonce":5'),
    "version as list": INFO.replace(PAYLOAD, b'"version":[]'),
}

ANSWERS = {
    "nothing": b"",
    "no JSON": b"{",
    "list": b"[]",
    "number": b"5",
    "null": b"null",
    "text": b'"x"',
    "deep": b"[" * 30_000,
    "no UTF-8": b"\xff\xfe\xfd",
    "no fields": b"{}",
    "error as list": b'{"error":[1]}',
    "error as text": b'{"error":"x"}',
    "error as number": b'{"error":1}',
    "error code as text": b'{"error":{"code":"x"}}',
    "error code as object": b'{"error":{"code":{},"err_code":[]}}',
    "error code infinite": b'{"error":{"code":1e999}}',
    "fields of null": b'{"state":null,"config":null,"num_pending":null,"streams":null,"delivered":null}',
    "fields as lists": b'{"state":[],"config":[],"num_pending":[],"total":[],"streams":[[]],"delivered":[]}',
    "fields as text": b'{"state":"x","config":"x","num_pending":"x","total":"x","streams":"x"}',
    "states as text": b'{"state":{"first_seq":"1","last_seq":"x"},"config":{"max_msgs_per_subject":"x"}}',
    "states negative": b'{"state":{"first_seq":-1,"last_seq":-5},"config":{},"num_pending":-1,"total":-1}',
    "states of 100 digits": b'{"state":{"first_seq":1,"last_seq":%b},"config":{},"num_pending":%b,"total":1}'
    % (b"9" * 100, b"9" * 100),
    "states infinite": b'{"state":{"first_seq":1,"last_seq":1e999},"config":{},"num_pending":1e999}',
}


def streams(url: str) -> list[str]:
    with closing(open_lister(url, QUICK)) as lister:
        return lister.streams()


CALLS: dict[str, Callable[[str], object]] = {
    "read": lambda url: bulk.read(url, "S", access=QUICK).read_all(),
    "read from a time": lambda url: bulk.read(url, "S", start=pa.scalar(0).as_py(), access=QUICK).read_all(),
    "direct read": lambda url: bulk.read(url, "S", via="direct", access=QUICK).read_all(),
    "count": lambda url: bulk.count(url, "S", access=QUICK),
    "write": lambda url: bulk.write(url, "S", pa.table({"value": [b"x"] * 3}), subject="s", access=QUICK),
    "streams": streams,
}
#: The first request, and later ones, that an answer is for.
REQUESTS = (b"$JS.API.", b"$JS.API.CONSUMER.")


def raised(call: Callable[[str], object], url: str) -> LiftEnvelopeError | None:
    """The error that a call ends with, unless it is one of ours that stands for a bug."""
    try:
        call(url)
    except InternalError:
        raise
    except LiftEnvelopeError as exc:
        return exc
    return None


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS.keys())
def test_greeting_ends_with_a_typed_error(greeting: bytes) -> None:
    with FakeNats(greeting=greeting).running() as server:
        target = find_target(server.url, Access(connect_timeout=60))
        with pytest.raises(ServerProtocolError):
            NatsSocket(target.addresses[0], target)


@pytest.mark.parametrize("first", REQUESTS, ids=["first", "consumer"])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_answers_end_with_typed_errors(answer: bytes, first: bytes) -> None:
    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        return msg(reply, sid, answer) if subject.startswith(first) else usual(subject, reply, sid)

    with FakeNats(script=script).running() as server:
        # The first request of each call is answered so: none of them can succeed.
        found = {name: raised(call, server.url) for name, call in CALLS.items()}
    if first == b"$JS.API." and answer not in (ANSWERS["states negative"], ANSWERS["no fields"]):
        assert None not in {name: error for name, error in found.items() if name != "streams"}.values()


ACKS = (*ANSWERS.values(), b'{"stream":"S"}', b'{"stream":5,"seq":"x"}', b'{"stream":"T","seq":1}')
SUBJECTS = (b"%b", b"%bx", b"%b.1", "%b\N{SUPERSCRIPT TWO}".encode(), b"%b" + b"9" * 5_000)


@pytest.mark.parametrize("subject", SUBJECTS, ids=["own", "text", "word", "superscript", "5,000 digits"])
@pytest.mark.parametrize("ack", [*ACKS[::4], b'{"stream":"S","seq":99999999999999999999}'])
def test_acks_end_with_typed_errors(ack: bytes, subject: bytes) -> None:
    def script(asked: bytes, reply: bytes, sid: int) -> bytes:
        return msg(subject % reply, sid, ack) if asked == b"s" else usual(asked, reply, sid)

    access = Access(timeout=0.2, reconnect_wait=0, stall_timeout=0.2)
    table = pa.table({"value": [b"x"] * 3})
    with FakeNats(script=script).running() as server:
        error = raised(lambda url: bulk.write(url, "S", table, subject="s", access=access), server.url)
    assert error is not None


def test_memory_follows_the_bytes_that_came() -> None:
    claimed = 60_000_000

    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        return b"MSG %b %d %d\r\n" % (reply, sid, claimed) + bytes(100_000)

    with FakeNats(script=script).running() as server:
        target = find_target(server.url, Access(timeout=1))
        link = NatsSocket(target.addresses[0], target)
        with pytest.raises(CallTimeoutError):
            link.ask(dict, "$JS.API.STREAM.INFO.S")
        assert link.end - link.start > 100_000
        assert len(link.view) < 4 * 1024 * 1024
        link.close()


def test_size_over_the_limit_is_refused_at_its_line() -> None:
    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        return b"MSG %b %d 5000000000\r\n" % (reply, sid)

    with FakeNats(script=script).running() as server:
        target = find_target(server.url, Access(max_message_bytes=1_000))
        link = NatsSocket(target.addresses[0], target)
        with pytest.raises(StreamMessageTooLargeError, match="5000000000 bytes; max_message_bytes is 1000"):
            link.ask(dict, "$JS.API.STREAM.INFO.S")
        link.close()


@pytest.mark.parametrize("name", ["max_message_bytes", "max_brokers", "max_partitions", "max_header_bytes"])
def test_limits_must_be_counts(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be at least 1, got 0"):
        Access(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["max_header_bytes", "prefetch_bytes"])
def test_sizes_of_http2_must_fit(name: str) -> None:
    assert getattr(Access(**{name: 2**31 - 1}), name) == 2**31 - 1  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"{name} must be at most {2**31 - 1}, got {2**31}"):
        Access(**{name: 2**31})  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [3, 4])
def test_servers_to_remember_are_limited(count: int) -> None:
    urls = json.dumps([f"127.0.0.1:{port}" for port in range(1, count + 1)]).encode()
    with FakeNats(greeting=INFO.replace(PAYLOAD, b'"connect_urls":' + urls)).running() as server:
        target = find_target(server.url, Access(max_brokers=3))
        if count > 3:
            with pytest.raises(ServerProtocolError, match="at most max_brokers=3 entries, got 4"):
                NatsSocket(target.addresses[0], target)
        else:
            link = NatsSocket(target.addresses[0], target)
            assert len(link.other_addresses) == 3
            link.close()


def test_info_of_ever_new_fields_is_not_kept() -> None:
    lines = b"".join(b'INFO {"field%d":"%b"}\r\n' % (number, b"x" * 100) for number in range(1_000))
    with FakeNats(after_connect=lines + b"PONG\r\n").running() as server:
        target = find_target(server.url, None)
        link = NatsSocket(target.addresses[0], target)
        assert link.info.keys() <= {"server_id", "version", "max_payload"}
        link.close()


@pytest.mark.parametrize("line", [b"PING\r\n", INFO, b"+OK\r\n"], ids=["PING", "INFO", "OK"])
def test_connect_timeout_holds_under_a_flood(line: bytes) -> None:
    with FakeNats(after_connect=b"", endless=line * 1_000).running() as server:
        target = find_target(server.url, Access(connect_timeout=0.5))
        with pytest.raises(LiftEnvelopeError):  # time is up, or the server does not read what it asked for
            NatsSocket(target.addresses[0], target)


def test_timeout_of_a_request_holds_under_a_flood() -> None:
    with FakeNats(endless=INFO * 100).running() as server:
        target = find_target(server.url, Access(timeout=0.5))
        link = NatsSocket(target.addresses[0], target)
        with pytest.raises(CallTimeoutError):
            link.ask(dict, "$JS.API.STREAM.INFO.S")
        link.close()


class Pulls:
    """A server that ends every pull at once with a status, and counts them."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.count = 0

    def __call__(self, subject: bytes, reply: bytes, sid: int) -> bytes:
        if b".MSG.NEXT." not in subject:
            return usual(subject, reply, sid)
        self.count += 1
        return status(reply, sid, self.text)


@pytest.mark.parametrize(
    "text",
    [
        b"408 Request Timeout",
        b"404 No Messages",
        b"409 Leadership Change",
        b"409 Server Shutdown",
        b"409 Message Size Exceeds MaxBytes",
        b"999 What Is This",
        b"409 Batch Completed",
    ],
)
def test_read_ends_if_every_pull_is_ended_at_once(text: bytes) -> None:
    pulls = Pulls(text)
    access = Access(stall_timeout=0.5, reconnect_wait=1)
    # On a busy machine the last error may be another one, such as a send that took too long.
    with FakeNats(script=pulls).running() as server, pytest.raises(ReadLostError):
        bulk.read(server.url, "S", access=access).read_all()
    # Thousands per second without a pause; two pulls are in flight, and a few connections are made.
    assert pulls.count < 150


def test_tail_pauses_and_ends_if_every_pull_is_ended_at_once() -> None:
    pulls = Pulls(b"408 Request Timeout")
    access = Access(stall_timeout=0.5, reconnect_wait=1)
    with FakeNats(script=pulls).running() as server, pytest.raises(ReadLostError):
        next(iter(bulk.tail(server.url, "S", access=access)))
    assert pulls.count < 150


@pytest.mark.parametrize("text", [b"100 Idle Heartbeat", b"100 FlowControl Request"])
def test_read_ends_if_nothing_but_heartbeats_come(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_read, "EXPIRES", 0.5)
    beats = itertools.count()

    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        if b".MSG.NEXT." in subject:
            next(beats)
            return status(reply, sid, text) * 10
        return usual(subject, reply, sid)

    access = Access(stall_timeout=0.5, reconnect_wait=1, timeout=60)
    with FakeNats(script=script).running() as server, pytest.raises(ReadLostError):
        bulk.read(server.url, "S", access=access).read_all()


def test_direct_read_ends_if_every_answer_is_empty() -> None:
    asked = itertools.count()

    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        if b".DIRECT.GET." in subject:
            next(asked)
            return status(reply, sid, b"204 EOB")
        if b"STREAM.INFO" in subject:
            return usual(subject, reply, sid).replace(b'"retention"', b'"allow_direct": true, "retention"')
        return usual(subject, reply, sid)

    def resized(subject: bytes, reply: bytes, sid: int) -> bytes:
        answer = script(subject, reply, sid)
        if not answer.startswith(b"MSG"):
            return answer
        return msg(reply, sid, answer.split(b"\r\n", 1)[1][:-2])

    access = Access(stall_timeout=0.5, reconnect_wait=1)
    with FakeNats(script=resized).running() as server, pytest.raises(ReadLostError):
        bulk.read(server.url, "S", via="direct", access=access).read_all()
    assert next(asked) < 100


def test_many_dead_servers_do_not_prolong_a_connection_attempt() -> None:
    """Each of the servers that a cluster names is refused; the attempt ends with ``reconnect_wait``."""
    urls = json.dumps([f"127.0.0.{number}:1" for number in range(1, 250)]).encode()
    greeting = INFO.replace(PAYLOAD, b'"connect_urls":' + urls)
    with FakeNats(greeting=greeting, script=lambda *_: b"").running() as server:
        began = time.monotonic()
        with pytest.raises(LiftEnvelopeError):
            bulk.count(server.url, "S", access=Access(timeout=0.1, reconnect_wait=0, connect_timeout=60))
        assert time.monotonic() - began < 60


def test_dropped_reader_waits_for_the_creation_of_its_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers execute requests concurrently: a deletion sent before the answer may overtake the creation."""
    monkeypatch.setattr(jetstream_requests, "_CLOSING", 60.0)
    asked, may_answer, answered = threading.Event(), threading.Event(), threading.Event()
    sent_after_the_answer: list[bool] = []
    publish = NatsSocket.publish

    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        if b".CONSUMER.CREATE." in subject:
            asked.set()
            may_answer.wait(60)
            answered.set()
        return usual(subject, reply, sid)

    def recorded(link: NatsSocket, subject: str, *args: Any) -> None:
        if ".CONSUMER.DELETE." in subject:
            sent_after_the_answer.append(answered.is_set())
        publish(link, subject, *args)

    monkeypatch.setattr(NatsSocket, "publish", recorded)
    with FakeNats(script).running() as server:
        readers = [bulk.read(server.url, "S")]
        assert asked.wait(60)
        dropping = threading.Thread(target=readers.clear)
        dropping.start()
        dropping.join(1.0)  # the reader looks every 0.5 s whether it was stopped
        assert dropping.is_alive()
        may_answer.set()
        dropping.join(60)
        assert not dropping.is_alive()
    assert sent_after_the_answer == [True]


def test_dropped_reader_deletes_a_consumer_whose_creation_is_unanswered() -> None:
    script = NoConsumers()
    with FakeNats(script).running() as server:
        reader = bulk.read(server.url, "S", access=Access(timeout=30.0))
        assert script.asked.wait(60)
        del reader  # returns when the threads have ended and the server has read all
        created, deleted = requests(server, b"CREATE"), requests(server, b"DELETE")
    assert len(created) == 1
    assert deleted == created  # over the same connection, so the server sees them in this order


def test_consumer_is_deleted_after_its_creation_timed_out() -> None:
    access = replace(QUICK, timeout=2.0)  # also for the answers to the other requests
    with FakeNats(NoConsumers()).running() as server:
        with pytest.raises(ReadLostError):
            bulk.read(server.url, "S", access=access).read_all()
        created = {name for _, name in requests(server, b"CREATE")}
        deleted = {name for _, name in requests(server, b"DELETE")}
    assert len(created) == 1
    assert deleted == created
