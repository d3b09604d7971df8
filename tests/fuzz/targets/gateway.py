"""Gateway: deliveries to subscribers, their acks, publish requests and the answers of JetStream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from liftenvelope.envelope import new_message
from tests.fuzz.target import MESSAGES, PUBLISHES, Chunks, Exact, Target, option
from tests.fuzz.targets import nats
from tests.fuzz.targets.values import corpus
from tests.twin import test_bulk_rows as columns
from tests.twin import test_gate_twins as gate

__all__ = ["TARGETS"]

NOW = 1_800_000_000_123_456_789
WORDS = ("", "a", "in.box", "a.*", "\u00fc", "x" * 40)


def text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def delivery(chunk: bytes, exact: Exact) -> Any:
    """A message that JetStream delivered: a byte for nothing, then `subject|reply|payload`."""
    subject, reply, payload = [*chunk[1:].split(b"|", 2), b"", b""][:3]
    return text(subject), exact(reply), None, exact(payload)


def acks(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Write the acks of deliveries."""
    options, *rest = chunks
    words = [WORDS[option(options, i, len(WORDS))] for i in (0, 1)]
    prefixes = ((b"",), (b"in", b"_lift."), ())[option(options, 4, 3)]
    made = twin.Acknowledger(*words, (1, 60, 1 << 20)[option(options, 2, 3)], prefixes)
    log: list[Any] = []
    size = 1 + option(options, 3, 8)
    for at in range(0, len(rest), size):
        batch = [delivery(chunk, exact) for chunk in rest[at : at + size]]
        log.append(
            (
                made.take(batch, NOW),
                made.reply,
                made.stream_sequence,
                made.delivery,
                made.gap,
                made.repeated,
                made.refused,
            )
        )
        if made.gap:
            made.begin()
    return [*log, twin.is_ack_inbox(exact(options[5:]), prefixes)]


def framed(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Frame deliveries for subscribers."""
    options, *rest = chunks
    made = twin.MessageFramer(WORDS[option(options, 0, len(WORDS))], option(options, 1, 3))
    least, most = option(options, 2, 9), option(options, 3, 12) - 1
    log: list[Any] = []
    size = 1 + option(options, 4, 8)
    for at in range(0, len(rest), size):
        batch = [delivery(chunk, exact) for chunk in rest[at : at + size]]
        log.append((made.frame(batch, least, most), made.sequence, made.pending))
    return log


def seeds_of_deliveries() -> Iterator[Chunks]:
    envelopes = [
        new_message(b"v" * i, key=b"k", headers={"a": b"1"}, ack_inbox="in", crc=i > 2) for i in range(4)
    ]
    for options in range(9):
        chunks = [
            b"\0s.%d|%b|%b" % (i % 2, columns.ack(i + 1, i + 1, domain=options % 4 == 3), envelope)
            for i, envelope in enumerate(envelopes)
        ]
        yield [bytes([options, options, 2, options, 5]) + b"in.box", *chunks]
        yield [bytes([1, 1, 0, 0, options]) + b"a..b", *chunks[options % 4 :], *chunks[: options % 4]]
    for envelope in corpus("message")[:40]:
        if len(envelope) < 400:
            yield [b"\1\1\2\0\0", b"\0s|" + columns.ack(1, 1) + b"|" + envelope]


def published(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Take requests, answers to them, and operations: `form|content`, by the first letter of the form."""
    options, *rest = chunks
    pipe, number = gate.pipe_of(twin, (60, 1 << 20, 1 << 20)[option(options, 0, 3)]), option(options, 1, 5)
    requests: list[Any] = []
    log: list[Any] = []
    for chunk in rest:
        form, _, content = chunk.partition(b"|")
        kind = form[:1]
        if kind == b"r":
            requests.append(exact(content))
            continue
        if requests:
            log.append(pipe.take(requests, 0, NOW - 1))
            requests = []
        if kind == b"a":
            headers = content if form[-1:] == b"h" else None
            answer = (gate.INBOX + text(form[1:].rstrip(b"h")), b"", headers, exact(content))
            log.append(pipe.acked([answer], NOW))
        elif kind == b"e":
            log.append(pipe.expire(option(form, 1, 12)))
        elif kind == b"c":
            pipe.close_route(text(content), option(form, 1))
        elif kind == b"o":
            pipe.route(text(content), option(form, 1), "sub", "sub.1", "JS1", domain=text(form[2:]))
    log.append(pipe.take(requests, min(number, len(requests)), NOW - 1))
    return [*log, pipe.pending, pipe.pending_bytes, pipe.next_number]


def seeds_of_requests() -> Iterator[Chunks]:
    requests = [
        gate.request(key=b"k", headers={"a": b"1", "\u00fc": b""}, correlationId="one"),
        gate.request(partition=1, correlationId="two", ackPolicy=1, ackInbox="ignored"),
        gate.request(correlationId="three", ackPolicy=2),
        gate.request(stream="other", value=b"x" * 70),
    ]
    chunks = [b"r|" + request for request in requests]
    answers = [b'a%d|{"stream":"JS%d","seq":%d}' % (i, i % 2, i + 1) for i in range(4)]
    for options in range(4):
        yield [bytes([options, 0]), *chunks[options:], *answers, b"e\2|", *chunks[:options]]
    yield [b"\1", chunks[0], b"c|", chunks[1], b"o\1|s", chunks[1], b"a0h|NATS/1.0 503\r\n\r\n", b"e\x0b|"]


REPLIES = (b"$JS.ACK.s.c.1.2.2.17.0", b"$JS.ACK.h.a.s.c.1.3.3.17.0.x", b"|", b".", b"9223372036854775807")
ANSWERS = (
    b'{"stream":"JS0","seq":',
    b'{"stream":"JS1","seq":',
    b"}",
    b"r|",
    b"a0|",
    b"a1h|",
    b"e\1|",
    b"c|",
    b"o\0|",
)
TARGETS = (
    Target("acks", "_fastacks", acks, seeds_of_deliveries, nats.WORDS + REPLIES, format=PUBLISHES, bars=2),
    Target(
        "framed", "_fastgate", framed, seeds_of_deliveries, nats.WORDS + REPLIES, format=PUBLISHES, bars=2
    ),
    Target("published", "_fastgate", published, seeds_of_requests, ANSWERS, format=MESSAGES, bars=1),
)
