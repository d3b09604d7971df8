"""Both twins read any bytes that pass through a gateway alike."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._native import _fastgate
from liftenvelope._pb import api_pb2
from liftenvelope.envelope import Ack, marshal_ack, new_message, unmarshal_message
from liftenvelope.types import AckPolicy
from tests.twin import readable
from tests.twin import strategies as make

TWINS = pytest.mark.parametrize("twin", [readable.gate, _fastgate], ids=["python", "cython"])
STORED = 1_700_000_000_987_654_321
NOW = 1_800_000_000_123_456_789
#: When the requests arrived.
THEN = NOW - 1_000
INBOX = "_INBOX.x."
MAX_NAME = 100


def delivered(payload: bytes, sequence: int = 1, subject: str = "s", pending: int = 0) -> Any:
    return (subject, f"$JS.ACK.S.C.1.{sequence}.1.{STORED}.{pending}".encode(), None, payload)


def cut(frames: bytes) -> list[bytes]:
    """The messages of gRPC frames."""
    found, at = [], 0
    while at < len(frames):
        assert frames[at] == 0
        size = int.from_bytes(frames[at + 1 : at + 5], "big")
        found.append(frames[at + 5 : at + 5 + size])
        at += 5 + size
    assert at == len(frames)
    return found


def commands(frames: bytes) -> list[tuple[str, str, bytes]]:
    """PUB commands: subject, reply and payload of each."""
    found, at = [], 0
    while at < len(frames):
        line = frames[at:].partition(b"\r\n")[0]
        verb, subject, reply, size = line.decode().split(" ")
        assert verb == "PUB"
        begin = at + len(line) + 2
        at = begin + int(size) + 2
        assert frames[at - 2 : at] == b"\r\n"
        found.append((subject, reply, frames[begin : at - 2]))
    return found


# What is delivered


@TWINS
def test_a_message(twin: Any) -> None:
    framer = twin.MessageFramer("strüm", 3)
    envelope = new_message(b"value", key=b"key", headers={"a": b"1", "ü": b""}, ack_inbox="i", crc=True)
    (raw,) = cut(framer.frame([delivered(envelope, 8, "s.ü", 5)], 1, -1))
    headers = {"a": b"1", "ü": b"", "subject": "s.ü".encode(), "reply": b""}
    assert api_pb2.Message.FromString(raw) == api_pb2.Message(
        offset=7,
        key=b"key",
        value=b"value",
        timestamp=STORED,
        stream="strüm",
        partition=3,
        subject="s.ü",
        headers=headers,
    )
    assert (framer.sequence, framer.pending) == (8, 5)


@TWINS
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"plain",
        b"\xb9\x0e\x43\xb4",
        b"\xb9\x0e\x43\xb4\0\x08\0\x01",
        b"\xb9\x0e\x43\xb4\0\x09\0\0",
        b"\xb9\x0e\x43\xb4\0\xff\0\0",
        b"\xb9\x0e\x43\xb4\0\x0c\x01\0",
        b"\xb9\x0e\x43\xb4\0\x08\0\0\xff",
        b"\xb9\x0e\x43\xb4\x01\x08\0\0",
        marshal_ack(Ack(stream="s")),
    ],
)
def test_what_is_no_envelope_is_a_value(twin: Any, payload: bytes) -> None:
    (raw,) = cut(twin.MessageFramer("s", 0).frame([delivered(payload)], 1, -1))
    message = api_pb2.Message.FromString(raw)
    assert (message.value, message.key) == (payload, b"")


@TWINS
@pytest.mark.parametrize(
    ("least", "most", "expected", "sequence"),
    [
        (1, -1, [0, 1, 2, 4], 5),
        (3, -1, [2, 4], 5),
        (1, 3, [0, 1, 2], 3),
        (1, 4, [0, 1, 2], 5),
        (1, 0, [], 1),
        (9, -1, [], 5),
    ],
)
def test_bounds(twin: Any, least: int, most: int, expected: list[int], sequence: int) -> None:
    framer = twin.MessageFramer("s", 0)
    frames = framer.frame([delivered(b"x", number) for number in (1, 2, 3, 5)], least, most)
    assert [api_pb2.Message.FromString(raw).offset for raw in cut(frames)] == expected
    assert framer.sequence == sequence


@TWINS
@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"somebody",
        b"$JS.ACK.S.C.1.2.3",
        b"$JS.ACK.S.C.1.x.1.1.0",
        b"$JS.ACK.S.C.1.-2.1.1.0",
        b"$JS.ACK.S.C.1.99999999999999999999.1.1.0",
        b"$JS.ACK.a.b.c.S.C.1.2.3.4.5.6.7",
    ],
)
def test_replies_that_are_none(twin: Any, reply: bytes) -> None:
    framer = twin.MessageFramer("s", 0)
    assert framer.frame([("s", reply, None, b"x")], 1, -1) == b""
    assert framer.sequence == 0


@TWINS
@pytest.mark.parametrize("tail", ["", ".random"])
def test_replies_with_a_domain(twin: Any, tail: str) -> None:
    framer = twin.MessageFramer("s", 0)
    reply = f"$JS.ACK.hub.acc.S.C.1.7.1.{STORED}.9{tail}".encode()
    (raw,) = cut(framer.frame([("s", reply, None, b"x")], 1, -1))
    assert (api_pb2.Message.FromString(raw).offset, framer.sequence, framer.pending) == (6, 7, 9)


PAYLOADS = make.ANYTHING | st.builds(
    lambda value, key, headers: new_message(value, key=key, headers=headers),
    make.BYTES,
    make.BYTES,
    st.dictionaries(make.TEXT, make.BYTES, max_size=3),
)
DELIVERIES = st.lists(st.tuples(PAYLOADS, st.integers(0, 12), st.sampled_from(["s", "s.1", "ü"])), max_size=6)


@given(DELIVERIES, st.integers(0, 8), st.integers(-1, 10))
def test_both_frame_alike(deliveries: Any, least: int, most: int) -> None:
    found = []
    for twin in (readable.gate, _fastgate):
        framer = twin.MessageFramer("s", 1)
        frames = framer.frame([delivered(*one) for one in deliveries], least, most)
        found.append((frames, framer.sequence, framer.pending))
    assert found[0] == found[1]


def test_framers_of_quiet_subscriptions_do_not_keep_what_a_large_message_took() -> None:
    framers = [_fastgate.MessageFramer("s", 1) for _ in range(20)]
    large = delivered(bytes(1 << 20))
    tracemalloc.start()
    try:
        for framer in framers:
            framer.frame([large], 0, -1)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


# What is published


def pipe_of(twin: Any, max_message: int = 1 << 20) -> Any:
    pipe = twin.PublishPipe(INBOX, max_message, MAX_NAME)
    pipe.route("s", 0, "sub", "sub", "JS0")
    pipe.route("s", 1, "sub", "sub.1", "JS1")
    return pipe


def request(**fields: Any) -> bytes:
    return api_pb2.PublishRequest(
        **{"stream": "s", "value": b"v", "expectedOffset": -1, **fields}
    ).SerializeToString()


@TWINS
def test_requests_and_acks(twin: Any) -> None:
    pipe = pipe_of(twin)
    requests = [
        request(key=b"k", headers={"a": b"1", "ü": b""}, correlationId="one"),
        request(partition=1, correlationId="two", ackPolicy=api_pb2.ALL, ackInbox="ignored"),
        request(correlationId="three", ackPolicy=api_pb2.NONE),
    ]
    frames, taken, count, size = pipe.take(requests, 0, THEN)
    found = commands(frames)
    assert (taken, count, size) == (3, 3, sum(len(payload) for _, _, payload in found))
    assert [(subject, reply) for subject, reply, _ in found] == [
        ("sub", INBOX + "0"),
        ("sub.1", INBOX + "1"),
        ("sub", INBOX + "2"),
    ]
    first = unmarshal_message(found[0][2])
    assert (first.key, first.value, dict(first.headers)) == (b"k", b"v", {"a": b"1", "ü": b""})
    assert (first.ack_inbox, first.correlation_id) == ("", "")
    assert (pipe.pending, pipe.pending_bytes) == (3, sum(map(len, requests)))
    answers = [
        (INBOX + "1", b"", None, b'{"stream":"JS1","seq":11}'),
        (INBOX + "2", b"", None, b'{"stream":"JS0","seq":3}'),
        (INBOX + "0", b"", None, b'{"stream":"JS0","seq":1}'),
        (INBOX + "0", b"", None, b'{"stream":"JS0","seq":1}'),
    ]
    framed, others = pipe.acked(answers, NOW)
    assert others == []
    responses = [api_pb2.PublishResponse.FromString(raw) for raw in cut(framed)]
    assert responses == [
        api_pb2.PublishResponse(
            ack=api_pb2.Ack(
                stream="s",
                partitionSubject="sub",
                msgSubject="sub.1",
                offset=10,
                correlationId="two",
                ackPolicy=api_pb2.ALL,
                receptionTimestamp=THEN,
                commitTimestamp=NOW,
            ),
            correlationId="two",
        ),
        api_pb2.PublishResponse(
            ack=api_pb2.Ack(
                stream="s",
                partitionSubject="sub",
                msgSubject="sub",
                correlationId="one",
                receptionTimestamp=THEN,
                commitTimestamp=NOW,
            ),
            correlationId="one",
        ),
    ]
    assert (pipe.pending, pipe.pending_bytes, pipe.next_number) == (0, 0, 3)


@TWINS
@pytest.mark.parametrize(
    "odd",
    [
        request(stream="other"),
        request(partition=2),
        request(partition=-1),
        request(value=b"x" * 100),
        request(ackPolicy=7),
        request(headers={"h" * 32_768: b""}),
        request(correlationId="c" * (MAX_NAME + 1)),
        request(ackInbox="i" * (MAX_NAME + 1)),
        request() + b"\x0a",
        request() + b"\x3a\x01\xff",
        request() + b"\x78\x01",
        b"",
        b"\xff",
    ],
)
def test_what_is_left_to_others(twin: Any, odd: bytes) -> None:
    pipe = pipe_of(twin, 60)
    frames, taken, count, _ = pipe.take([request(), odd, request()], 0, THEN)
    assert (len(commands(frames)), taken, count, pipe.pending) == (1, 1, 1, 1)
    assert pipe.pending_bytes == len(request())
    assert pipe.take([request(), odd, request()], 2, THEN)[1:3] == (3, 1)


@TWINS
def test_names_of_the_longest_length_are_taken(twin: Any) -> None:
    longest = "n" * MAX_NAME
    assert pipe_of(twin).take([request(correlationId=longest, ackInbox=longest)], 0, THEN)[1] == 1


@TWINS
def test_requests_without_a_stream_go_to_the_route_without_a_name(twin: Any) -> None:
    pipe = pipe_of(twin)
    pipe.route("", 0, "sub", "sub", "JS0")
    assert pipe.take([request(stream="")] * 2, 0, THEN)[1:3] == (2, 2)


@TWINS
def test_acks_with_the_domain_of_the_route_are_plain(twin: Any) -> None:
    pipe = pipe_of(twin)
    pipe.route("s", 0, "sub", "sub", "JS0", domain="hub")
    pipe.take([request(correlationId=str(number)) for number in range(3)], 0, THEN)
    payloads = [
        b'{"stream":"JS0","domain":"hub","seq":7}',
        b'{"stream":"JS0","seq":8}',
        b'{"stream":"JS0","domain":"other","seq":9}',
    ]
    answers = [(f"{INBOX}{number}", b"", None, payload) for number, payload in enumerate(payloads)]
    frames, others = pipe.acked(answers, 0)
    found = [api_pb2.PublishResponse.FromString(raw) for raw in cut(frames)]
    assert [response.ack.offset for response in found] == [6]
    assert [payload for (_, _, _, payload), *_ in others] == payloads[1:]


@TWINS
def test_closed_route_takes_nothing_until_it_is_opened_again(twin: Any) -> None:
    pipe = pipe_of(twin)
    pipe.route("other", 0, "other", "other", "JS1")
    assert pipe.take([request()], 0, THEN)[2] == 1
    pipe.close_route("s", 0)
    pipe.close_route("s", 0)
    assert pipe.take([request()], 0, THEN) == (b"", 0, 0, 0)
    assert pipe.take([request(stream="other")], 0, THEN)[2] == 1
    pipe.route("s", 0, "sub", "sub", "JS0")
    assert pipe.take([request()], 0, THEN)[2] == 1


@TWINS
@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        (b"NATS/1.0 503\r\n\r\n", b""),
        (None, b'{"error":{"code":400,"err_code":10071,"description":"x"},"stream":"JS0","seq":0}'),
        (None, b'{"stream":"JS9","seq":1}'),
        (None, b'{"stream":"JS0","domain":"hub","seq":1}'),
        (None, b'{"stream":"JS0","seq":1,"duplicate": true}'),
        (None, b'{"stream":"JS0","seq":}'),
        (None, b'{"stream":"JS0","seq":1'),
        (None, b""),
    ],
)
def test_answers_that_are_no_plain_acks(twin: Any, headers: bytes | None, payload: bytes) -> None:
    pipe = pipe_of(twin)
    pipe.take([request(correlationId="id", ackPolicy=api_pb2.ALL)], 0, THEN)
    message = (INBOX + "0", b"", headers, payload)
    assert pipe.acked([message], NOW) == (b"", [(message, (b"s", 0), 1, b"id", THEN)])
    assert pipe.pending == 0


@TWINS
@pytest.mark.parametrize("subject", [INBOX + "5", INBOX + "x", INBOX, INBOX + "-0", INBOX + "9" * 30])
def test_answers_that_nobody_waits_for(twin: Any, subject: str) -> None:
    pipe = pipe_of(twin)
    pipe.take([request()], 0, THEN)
    assert pipe.acked([(subject, b"", None, b'{"stream":"JS0","seq":1}')], NOW) == (b"", [])
    assert pipe.pending == 1


@TWINS
def test_late_acks_are_given_up(twin: Any) -> None:
    pipe = pipe_of(twin)
    pipe.take([request(correlationId=str(number), ackPolicy=number % 3) for number in range(5)], 0, THEN)
    assert pipe.expire(3) == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert (pipe.pending, pipe.expire(3)) == (2, [])
    assert pipe.pending_bytes == sum(len(request(correlationId=str(n), ackPolicy=n % 3)) for n in (3, 4))
    assert pipe.acked([(INBOX + "1", b"", None, b'{"stream":"JS0","seq":1}')], NOW) == (b"", [])
    assert pipe.acked([(INBOX + "3", b"", None, b'{"stream":"JS0","seq":1}')], NOW)[0]


REQUESTS = make.ANYTHING | st.builds(
    request,
    key=make.BYTES,
    value=make.BYTES,
    stream=st.sampled_from(["s", "t", ""]),
    partition=st.integers(-1, 2),
    headers=st.dictionaries(make.TEXT, make.BYTES, max_size=3),
    correlationId=make.TEXT,
    ackInbox=make.TEXT,
    ackPolicy=st.sampled_from([0, 1, 2, 5]),
)
ANSWERS = st.tuples(
    st.integers(0, 5).map(lambda number: f"{INBOX}{number}"),
    st.just(b""),
    st.none() | st.just(b"NATS/1.0 503\r\n\r\n"),
    st.sampled_from([b'{"stream":"JS0","seq":7}', b'{"stream":"JS1","seq":1}', b"{}"])
    | st.binary(max_size=30),
)


@given(st.lists(REQUESTS, max_size=6), st.lists(ANSWERS, max_size=6))
def test_both_pipe_alike(requests: list[bytes], answers: list[Any]) -> None:
    found = []
    for twin in (readable.gate, _fastgate):
        pipe, at, steps = pipe_of(twin, 300), 0, []
        while at < len(requests):
            step = pipe.take(requests, at, THEN)
            steps.append(step)
            at = max(step[1], at + 1)
        before = pipe.pending_bytes
        found.append((steps, before, pipe.acked(answers, NOW), pipe.pending, pipe.pending_bytes))
    assert found[0] == found[1]


def test_policies_are_those_of_the_api() -> None:
    ours = AckPolicy.LEADER, AckPolicy.ALL, AckPolicy.NONE
    assert [int(policy) for policy in ours] == [api_pb2.LEADER, api_pb2.ALL, api_pb2.NONE]


@TWINS
@pytest.mark.parametrize("field", ["stream", "ackInbox", "correlationId"])
def test_request_with_text_that_is_no_utf8_is_not_taken(twin: Any, field: str) -> None:
    number = api_pb2.PublishRequest.DESCRIPTOR.fields_by_name[field].number
    sound = api_pb2.PublishRequest(stream="s", value=b"v").SerializeToString()
    request = bytes([number << 3 | 2, 2, 0xC3, 0x28]) + sound
    with pytest.raises(DecodeError):
        api_pb2.PublishRequest.FromString(request)
    pipe = twin.PublishPipe(INBOX, 1000, MAX_NAME)
    pipe.route("s", 0, "s", "s", "lift_s_0")
    assert pipe.take([request, sound], 0, THEN) == (b"", 0, 0, 0)
    assert pipe.take([sound], 0, THEN)[1:3] == (1, 1)
