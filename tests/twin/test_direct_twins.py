"""Both twins rewrite the same answers to direct requests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._native import _fastdirect
from liftenvelope.errors import UsageError
from tests.twin import readable

TWINS = pytest.mark.parametrize("twin", [readable.direct, _fastdirect], ids=["python", "cython"])
SID = 3


def answer(
    own: bytes = b"NATS/1.0",
    stream: bytes = b"S",
    subject: bytes = b"orders.new",
    sequence: bytes = b"17",
    moment: bytes = b"2026-01-31T12:00:00.123456789Z",
    payload: bytes = b"one",
    sid: int = SID,
) -> bytes:
    added = b"Nats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %b\r\nNats-Time-Stamp: %b\r\n" % (
        stream,
        subject,
        sequence,
        moment,
    )
    block = own + b"\r\n" + added + b"Nats-Num-Pending: 5\r\nNats-Last-Sequence: 16\r\n\r\n"
    return b"HMSG _INBOX.a %d %d %d\r\n%b%b\r\n" % (
        sid,
        len(block),
        len(block) + len(payload),
        block,
        payload,
    )


def rewriter(twin: Any) -> Any:
    made = twin.DirectFrames(b"S")
    made.follow(SID)
    return made


@TWINS
def test_an_answer_becomes_a_message_of_a_consumer(twin: Any) -> None:
    made, data = rewriter(twin), answer()
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    time_ns = int(moment.timestamp()) * 1_000_000_000 + 123_456_789
    expected = b"MSG orders.new 3 $JS.ACK.d.d.1.17.1.%d.5 3\r\none\r\n" % time_ns
    assert made.take(data, 0, len(data)) == (expected, len(data))
    data = answer(b"NATS/1.0\r\nA: 1\r\nNats-Stream: T\r\nB: 2") + answer(payload=b"")
    headers = b"NATS/1.0\r\nA: 1\r\nNats-Stream: T\r\nB: 2\r\n\r\n"
    second = b"HMSG orders.new 3 $JS.ACK.d.d.1.17.2.%d.5 %d %d\r\n" % (
        time_ns,
        len(headers),
        len(headers) + 3,
    )
    third = b"MSG orders.new 3 $JS.ACK.d.d.1.17.3.%d.5 0\r\n\r\n" % time_ns
    assert made.take(data, 0, len(data)) == (second + headers + b"one\r\n" + third, len(data))
    assert (made.delivery, made.foreign) == (3, False)
    made.follow(SID)
    assert made.delivery == 0
    data = answer(stream=b"MIRROR")
    made.take(data, 0, len(data))
    assert made.foreign


@TWINS
@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01T00:00:00Z",
        "2000-02-29T23:59:59.5Z",
        "2024-12-31T00:00:00.000000001Z",
        "2261-01-01T00:00:00.1Z",
    ],
)
def test_moments(twin: Any, text: str) -> None:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole + "+00:00").timestamp())
    data = answer(moment=text.encode())
    found, _ = rewriter(twin).take(data, 0, len(data))
    assert b".17.1.%d.5 3\r\n" % (seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))) in found


pieces = st.one_of(
    st.builds(
        answer,
        st.sampled_from([b"NATS/1.0", b"NATS/1.0\r\nA: 1", b"NATS/1.0 503", b"", b"NATS/1.0\r\n"]),
        st.sampled_from([b"S", b"T", b"", b"a\rb"]),
        st.sampled_from([b"a.b", b"", b"a b", "é".encode()]),
        st.sampled_from([b"1", b"0", b"01", b"999999999999999999", b"9" * 19, b"x"]),
        st.sampled_from(
            [
                b"2026-01-31T12:00:00Z",
                b"2026-01-31T12:00:00.Z",
                b"2026-13-31T12:00:00Z",
                b"1969-01-31T12:00:00Z",
                b"2026-01-31T12:00:00.1234567890Z",
                b"2026-01-31T12:00:00.12",
                b"2026-01-31 12:00:00Z",
                b"2026-02-31T12:00:00.5Z",
                b"",
            ]
        ),
        st.binary(max_size=80),
        st.sampled_from([SID, SID, SID, 4]),
    ),
    st.sampled_from(
        [b"PING\r\n", b"MSG a 3 1\r\nx\r\n", b"HMSG a 3 r 12 12\r\nNATS/1.0\r\n\r\n\r\n", b"HMSG a 3 9 8\r\n"]
    ),
    st.sampled_from(
        [b"HMSG a 3 12 12\r\nNATS/1.0\r\n\r\n\r\n", b"\n", b"\r\n", b"HMSG\r\n", b"HMSG a\tb 3 1 1\r\n"]
    ),
    st.binary(max_size=20),
)


@given(st.lists(pieces, max_size=5), st.lists(st.integers(0, 900), max_size=3))
def test_both_do_the_same(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frames)
    logs = []
    for twin in (readable.direct, _fastdirect):
        made, start, log = rewriter(twin), 0, []
        for end in [*sorted({cut for cut in cuts if cut < len(data)}), len(data)]:
            found, start = made.take(data, start, end)
            log.append((found, start, made.delivery, made.foreign))
        logs.append(log)
    assert logs[0] == logs[1]


@TWINS
def test_bad_arguments(twin: Any) -> None:
    with pytest.raises(UsageError, match="not a part of 3 bytes"):
        rewriter(twin).take(b"abc", 2, 1)
