"""Bulk reads and writes: rows and acks from NATS and Liftbridge servers, and answers to direct requests."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from liftenvelope.envelope import new_message
from liftenvelope.errors import UsageError
from tests.fuzz.target import (
    MESSAGES,
    PUBLISHES,
    WHOLE,
    Chunks,
    Exact,
    Target,
    cuts_of,
    ends_of,
    option,
    unchanged,
)
from tests.fuzz.targets import nats
from tests.fuzz.targets.values import corpus, responses
from tests.sinks import spans
from tests.twin import test_bulk_requests as requests
from tests.twin import test_bulk_rows as columns
from tests.twin import test_direct_twins as direct
from tests.twin import test_put_twins as put

__all__ = ["TARGETS"]

MOST = 1_000
STOPS = (-1, -1, 0, 3, 8, 1_000)
BLOCK = b"NATS/1.0\r\nA: 1\r\nB: two \r\nA: 3\r\nno colon\r\n\r\n"


def nats_reader(twin: Any, options: bytes, limits: tuple[int, int], exact: Exact) -> Any:
    def allocate(size: int) -> Any:
        return exact(bytearray(size))

    reader = twin.NatsRows(columns.ALL, option(options, 0, 3), *limits, MOST, allocate)
    reader.follow(nats.SIDS[0], option(options, 1, 3), STOPS[option(options, 2, len(STOPS))])
    return reader


def walk_nats(reader: Any, twin: Any, data: bytes, ends: list[int], log: list[Any]) -> None:
    """Give all the data to the reader, up to what ends it."""
    start = 0
    for end in ends:
        while True:
            state, start = reader.feed(data, start, end)
            log.append((state, start, reader.next_offset, reader.pending, reader.rows, reader.nbytes))
            if state == twin.FULL:
                log.append(reader.take())
            elif state == twin.LINE:
                log.append(reader.line)
                start = reader.line[1]
            elif state == twin.MORE:
                log.append(reader.need)
                break
            else:
                log.append(reader.take())
                return
    log.append(reader.take())


def limits_of(options: bytes) -> tuple[int, int]:
    """Rows and bytes of a batch; seldom few of them, since a batch costs more than a row."""
    return (9, 2, 1, 40)[min(option(options, 6), 3)], (50, 1, 10_000)[min(option(options, 7), 2)]


def nats_rows(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    options, *rest = chunks
    data = exact(b"".join(map(nats.frame, rest)))
    log: list[Any] = []
    reader = nats_reader(twin, options, limits_of(options), exact)
    walk_nats(reader, twin, data, cuts_of(data, options), log)
    return log


def rows_as_values(log: list[Any]) -> list[Any]:
    """Return the rows that were taken, as Python values."""
    return [taken(entry) if isinstance(entry, tuple) and len(entry) == 5 else entry for entry in log]


def taken(entry: tuple[Any, ...]) -> Any:
    rows, first, last, gaps, found = entry
    return rows, first, last, gaps, columns.plain(found, rows)


def nats_flow(twin: Any, chunks: Chunks, step: int) -> Any:
    options, *rest = chunks
    data = b"".join(map(nats.frame, rest))
    log: list[Any] = []
    reader = nats_reader(twin, options, (MOST, WHOLE), unchanged)
    walk_nats(reader, twin, data, ends_of(data, step), log)
    lines = [entry for entry in log if isinstance(entry, tuple) and len(entry) == 4]
    return lines, log[-2] if isinstance(log[-2], tuple) else log[-3], taken(log[-1])


def seeds_of_nats() -> Iterator[Chunks]:
    envelope = new_message(b"v", key=b"k", headers={"B": b"2"}, ack_inbox="in", correlation_id="id", crc=True)
    messages = [
        nats.chunk(b"orders.%d" % (i % 2), columns.ack(i, i), BLOCK if i % 3 == 0 else b"", payload)
        for i, payload in enumerate((b"plain", envelope, b"", b"\xff" * 90, envelope), 1)
    ]
    for options in range(6):
        yield [
            bytes([options % 3, 0, options, options * 40, 0, options * 30, options % 5, options % 4]),
            *messages,
        ]
        yield [
            bytes([options % 3, 0, 0, options, 0, 0, 9, options]),
            *(nats.chunk(b"a", payload=b"x"), *messages, b"\6PING"),
        ]
    yield [
        b"\2\0\0\0\0\0\x09\x09",
        nats.chunk(b"a", columns.ack(1, 1, domain=True), BLOCK, b"x"),
        b"\7-ERR 'no'\r\n",
    ]


def stored_reader(twin: Any, options: bytes, limits: tuple[int, int], exact: Exact) -> Any:
    def allocate(size: int) -> Any:
        return exact(bytearray(size))

    reader = twin.StoredRows(columns.ALL, *limits, MOST, allocate)
    reader.follow(option(options, 1, 5), STOPS[option(options, 2, len(STOPS))])
    return reader


def grpc(chunk: bytes) -> bytes:
    """A gRPC message `form|payload`; a form of 1 has a wrong size, of 2 none at all, of 3 a wrong flag."""
    form, _, payload = chunk.partition(b"|")
    kind = option(form, 0, 16)
    if kind == 2:
        return payload
    size = max(len(payload) + (option(form, 1, 7) - 3 if kind == 1 else 0), 0)
    return bytes((kind == 3,)) + size.to_bytes(4, "big") + payload


def spans_of(start: int, end: int, step: int) -> bytes:
    """The range in spans of a length, as a sink gets payloads; 0 for one span."""
    starts = range(start, end, step or max(end - start, 1))
    return spans(*(place for at in starts for place in (at, min(at + (step or end), end))))


def walk_stored(reader: Any, twin: Any, data: bytes, ends: list[int], step: int, log: list[Any]) -> None:
    """Put all the data, in spans of a length, up to what ends the reader."""
    start = 0
    for end in ends:
        reader.put(data, spans_of(start, end, step))
        while True:
            log.append((reader.state, reader.next_offset, reader.rows, reader.nbytes, reader.stands, None))
            if reader.state not in (twin.MORE, twin.FULL):
                log += [reader.bad, reader.take()]
                return
            if reader.state == twin.MORE:
                break
            log.append(reader.take())
            reader.resume()
        start = end
    log += [reader.inside_message, reader.take()]


def stored_rows(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    options, *rest = chunks
    log: list[Any] = []
    reader = stored_reader(twin, options, limits_of(options), exact)
    data = exact(b"".join(map(grpc, rest)))
    walk_stored(reader, twin, data, cuts_of(data, options), option(options, 8, 64), log)
    return log


def stored_flow(twin: Any, chunks: Chunks, step: int) -> Any:
    options, *rest = chunks
    log: list[Any] = []
    reader = stored_reader(twin, options, (MOST, WHOLE), unchanged)
    data = b"".join(map(grpc, rest))
    walk_stored(reader, twin, data, ends_of(data, step), 0, log)
    return log[-3], log[-2], taken(log[-1])


def seeds_of_stored() -> Iterator[Chunks]:
    messages = [
        columns.stored(i, b"v" * i, key=b"k", subject="ab"[i % 2], headers={"a": b"1", "subject": b"x"})
        for i in range(5)
    ]
    for options in range(7):
        yield [
            bytes(
                [
                    0,
                    options % 2,
                    options,
                    options * 40,
                    0,
                    options * 30,
                    options % 5,
                    options % 4,
                    options * 3,
                ]
            ),
            b"|",
            *(b"|" + each for each in messages),
        ]
    yield [b"", *(b"|" + data[8:] for data in corpus("message")[:9])]


def publish_acks(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Answers to publishes, and between them what is sent."""
    options, *rest = chunks

    def allocate(size: int) -> Any:
        return exact(bytearray(size))

    window, partitions = 1 + option(options, 0, 9), 1 + option(options, 1, 3)
    acks = twin.PublishAcks(exact(requests.STREAM), exact(requests.IDENT), window, partitions, MOST, allocate)
    log: list[Any] = []
    for chunk in rest:
        if chunk[:1] == b"s":
            log.append(sent(acks, chunk, exact))
            continue
        data, start = exact(grpc(chunk)), 0
        for end in cuts_of(data, options):
            acks.put(data, spans_of(start, end, option(options, 6, 32)))
            if acks.state != twin.MORE:
                return [*log, acks.state, acks.bad, requests.state(acks)[:6]]
            start = end
        log += [requests.state(acks), acks.refused()]
    return log


def sent(acks: Any, chunk: bytes, exact: Exact) -> Any:
    which = [byte - 1 if byte < 200 else (byte - 228) << 24 for byte in chunk[1:]]
    stop = len(which) + (chunk[1] == 9 if len(chunk) > 1 else 0)
    try:
        acks.sent(exact(struct.pack(f"={len(which)}i", *which)), 0, stop)
    except UsageError as exc:
        return str(exc)
    return len(which)


def acks_flow(twin: Any, chunks: Chunks, step: int) -> Any:
    rest = chunks[1:]
    acks = twin.PublishAcks(requests.STREAM, requests.IDENT, 64, 3, MOST, bytearray)
    acks.sent(struct.pack("=9i", *[0, 1, 2] * 3), 0, 9)
    data, start = b"".join(grpc(chunk) for chunk in rest if chunk[:1] != b"s"), 0
    for end in ends_of(data, step):
        acks.put(data, spans(start, end))
        if acks.state != twin.MORE:
            return acks.state, acks.bad, requests.state(acks)[:6], acks.refused()
        start = end
    return acks.bad, requests.state(acks), acks.refused()


def seeds_of_acks() -> Iterator[Chunks]:
    answers = [requests.answer(i, offset=7 - i) for i in range(5)] + [requests.refusal(2)]
    answers += [requests.answer(1, ackError=2), requests.answer(3, stream="other"), requests.answer("a-Z.x")]
    for options in range(7):
        chunks = [b"s\1\2\3", *(b"|" + answer[5:] for answer in answers[options:]), b"s\3\1"]
        yield [
            bytes([4 + options, 2, 0, options * 40, 0, 0, options * 5]),
            *chunks,
            *(b"|" + answer[5:] for answer in answers[:options]),
        ]
    yield [b"\x08", b"s\1\1\1", *(b"|" + chunk[0] for chunk in responses()[:9])]


def put_acks(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Acks of what was put on the wire, in the form that JetStream sends them."""
    options, *rest = chunks
    number, size = option(options, 0, 5), 1 + option(options, 1, 9)
    table = twin.Acks(put.INBOX, nats.SIDS[0], number, size, bool(option(options, 2, 2)))
    if option(options, 8, 8):
        table.learn(exact(put.HEAD))
    data, log = exact(b"".join(map(nats.frame, rest))), list[Any]()
    start = 0
    for end in cuts_of(data, options):
        start = table.feed(data, start, end)
        log.append((start, put.counted(table)))
    log.append(table.take(option(options, 6, 12), option(options, 7), bool(option(options, 9, 2))))
    table.follow(exact(b"other."), 3)
    return [*log, table.feed(data, 0, len(data)), put.counted(table)]


def put_flow(twin: Any, chunks: Chunks, step: int) -> Any:
    options, *rest = chunks
    table = twin.Acks(put.INBOX, nats.SIDS[0], 0, 1 + option(options, 1, 9), bool(option(options, 2, 2)))
    table.learn(put.HEAD)
    data, start = b"".join(map(nats.frame, rest)), 0
    for end in ends_of(data, step):
        start = table.feed(data, start, end)
    return start, put.counted(table)


def seeds_of_put() -> Iterator[Chunks]:
    tails = (b"}", b',"duplicate": true}', b',"duplicate":true}', b',"x":1}', b" }")
    acks = [
        nats.chunk(put.INBOX + b"%d" % i, payload=b"%b%d%b" % (put.HEAD, i + 9, tails[i % 5]))
        for i in range(6)
    ]
    acks += [nats.chunk(put.INBOX + b"7"), nats.chunk(b"other.3", payload=put.HEAD + b"1}", form=0x40)]
    for options in range(7):
        yield [
            bytes([0, 4 + options, options, options * 40, 0, 0, options, 0, 1]),
            *acks[options % 3 :],
            *acks[: options % 3],
        ]


def direct_answers(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Answers to direct requests, which become a consumer's messages."""
    options, *rest = chunks
    data = exact(b"".join(map(nats.frame, rest)))
    return walk_direct(twin, data, cuts_of(data, options))


def walk_direct(twin: Any, data: bytes, ends: list[int]) -> list[Any]:
    made, start, log = twin.DirectFrames(b"S"), 0, list[Any]()
    made.follow(nats.SIDS[0])
    for end in ends:
        found, start = made.take(data, start, end)
        log.append((found, start, made.delivery, made.foreign))
    return log


def direct_flow(twin: Any, chunks: Chunks, step: int) -> Any:
    data = b"".join(map(nats.frame, chunks[1:]))
    log = walk_direct(twin, data, ends_of(data, step))
    return b"".join(found for found, *_ in log), log[-1][1:]


def seeds_of_direct() -> Iterator[Chunks]:
    moments = (b"2026-01-31T12:00:00.123456789Z", b"2000-02-29T23:59:59.5Z", b"1970-01-01T00:00:00Z")
    answers = [direct.answer(moment=moment, payload=b"x" * i * 40) for i, moment in enumerate(moments)]
    answers += [
        direct.answer(own=b"NATS/1.0\r\nA: 1"),
        direct.answer(stream=b"T"),
        direct.answer(subject=b"a b"),
    ]
    chunks = []
    for answer in answers:
        line, _, body = answer.partition(b"\r\n")
        size = int(line.split()[-2])
        chunks.append(nats.chunk(b"_INBOX.a", b"", body[:size], body[size:-2]))
    for options in range(7):
        yield [bytes([0, 0, 0, options * 40]), *chunks[options % 4 :], b"\6PING", *chunks[: options % 4]]


DIRECT_WORDS = (
    b"Nats-Stream: S\r\n",
    b"Nats-Subject: a.b\r\n",
    b"Nats-Sequence: 17\r\n",
    b"Nats-Time-Stamp: 2026-01-31T12:00:00.123456789Z\r\n",
    b"Nats-Num-Pending: 5\r\n",
    b"Nats-Last-Sequence: 16\r\n\r\n",
    b"2024-02-29T23:59:59.999999999Z",
    b"NATS/1.0",
)
PUT_WORDS = (put.INBOX, put.HEAD, b"}", b',"duplicate":true}', b',"duplicate": true}', b"other.")
TARGETS = (
    Target(
        "nats-rows",
        "_fastbulk",
        nats_rows,
        seeds_of_nats,
        nats.WORDS,
        format=PUBLISHES,
        bars=3,
        plain=rows_as_values,
        flow=nats_flow,
    ),
    Target(
        "stored-rows",
        "_fastbulk",
        stored_rows,
        seeds_of_stored,
        format=MESSAGES,
        bars=1,
        plain=rows_as_values,
        flow=stored_flow,
    ),
    Target(
        "publish-acks",
        "_fastbulk",
        publish_acks,
        seeds_of_acks,
        (requests.IDENT, requests.STREAM, b"s"),
        format=MESSAGES,
        bars=1,
        flow=acks_flow,
    ),
    Target("put-acks", "_fastput", put_acks, seeds_of_put, nats.WORDS + PUT_WORDS, flow=put_flow),
    Target(
        "direct", "_fastdirect", direct_answers, seeds_of_direct, nats.WORDS + DIRECT_WORDS, flow=direct_flow
    ),
)
