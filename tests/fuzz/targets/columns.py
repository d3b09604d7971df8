"""Batches: columns decoded from rows, and Arrow buffers, sound and hostile, that are encoded."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from liftenvelope._native.batch import ENVELOPE_FIELDS
from tests.fuzz.target import ACKNOWLEDGES, MESSAGES, PUBLISHES, Chunks, Exact, Target, option
from tests.fuzz.targets.values import attempt, corpus

__all__ = ["TARGETS", "Faulty"]

VALUE, KEY, INBOX, IDENT, NAME, CONTENT = range(6)
NULL = 0x40
FAULT = 0x80


def decoded(kind: str, twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Decode rows into columns, whose memory has the size that was asked for and not a byte more."""
    options = chunks[0] if chunks else b""
    large, raw = bool(option(options, 0, 2)), bool(option(options, 1, 2))
    present = [row if row or not option(options, 2, 2) else None for row in chunks[1:]]
    views = kind == "message" and bool(option(options, 3, 2))
    if views:
        column = twin.Column.of_binary(*Faulty(present, [], exact).binary(large), large)
    else:
        rows = [None if row is None else exact(row) for row in present]
        column = twin.Column.of_sequence(rows, "rows", False)

    def allocate(size: int) -> Any:
        return exact(bytearray(size))

    if kind == "message":
        left_out = option(options, 4, 2 ** len(ENVELOPE_FIELDS))
        fields = tuple(name for i, name in enumerate(ENVELOPE_FIELDS) if not left_out >> i & 1)
        made = twin.MessageColumns(column, large, raw, allocate, views, fields)
        columns = made.columns()
        shown = views and "value" in fields
        return made.bad, columns | ({"value": viewed(columns["value"])} if shown else {})
    if kind == "ack":
        made = twin.AckColumns(column, large, allocate)
    else:
        made = twin.StoredColumns(column, allocate)
        if made.bad >= 0:
            return made.bad, {}
    return made.bad, made.columns()


def viewed(column: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values that views show: the twins' views point into different memory."""
    length, nulls, validity, views, data = column
    values: list[bytes] = []
    for size, at in struct.iter_unpack("=i8xi", bytes(views)):
        inline = bytes(views)[len(values) * 16 + 4 :][:size]
        values.append(inline if size <= 12 else bytes(data)[at : at + size])
    return length, nulls, validity, *values


def flat(found: tuple[Any, dict[str, Any]]) -> Any:
    """The buffers of columns as bytes."""
    return found[0], {name: as_bytes(column) for name, column in found[1].items()}


def as_bytes(column: Any) -> Any:
    if isinstance(column, tuple):
        return tuple(as_bytes(part) for part in column)
    return column if column is None or isinstance(column, int) else bytes(column)


def seeds_of_rows(kind: str, start: int) -> Iterable[Chunks]:
    data = [row[start:] for row in corpus(kind) if len(row) < 400]
    for at in range(0, len(data), 8):
        yield [bytes((at & 1, at >> 1 & 1, at >> 2 & 1, at >> 3 & 1)), *data[at : at + 8]]


class Faulty:
    """Rows of one column as Arrow has them, with faults that a hostile or broken producer puts in.

    A fault is a kind of one byte, an index of one byte and a number.
    """

    def __init__(self, rows: list[bytes | None], faults: list[bytes], exact: Exact) -> None:
        self.rows, self.exact, self.length, self.first = rows, exact, len(rows), 0
        self.faults = [(fault[0] % 8, fault[1], number_in(fault[2:10])) for fault in faults if len(fault) > 1]

    def _numbers(self, numbers: list[int], bits: int) -> list[int]:
        """With those that were asked for put in the place of others."""
        for kind, index, number in self.faults:
            if kind in (0, 1) and numbers:
                value = number if kind == 0 else numbers[index % len(numbers)] + (number % 7) - 3
                numbers[index % len(numbers)] = (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
            elif kind == 2:
                numbers = [0] * (index % 5) + numbers
                self.first += index % 5
        return numbers

    def _buffer(self, data: bytes, which: int) -> Any:
        """A buffer of exactly this size, or a shorter one, none at all, or one at an odd address."""
        for kind, index, number in self.faults:
            if index % 3 != which:
                continue
            if kind == 3:
                data = data[: max(len(data) - number % 9, 0)]
            elif kind == 4 and number % 4 == 0:
                return None
            elif kind == 5:
                return memoryview(self.exact(b"\0" + data))[1:]
        return self.exact(data)

    def _place(self) -> tuple[int, int]:
        length, first = self.length, self.first
        for kind, index, number in self.faults:
            if kind == 6:
                length += number if index % 4 == 0 else number % 5 - 2
            elif kind == 7:
                first += number if index % 4 == 0 else number % 5 - 2
        limit = (1 << 62) - 1  # both are numbers of 64 bits, and never negative
        return min(max(length, 0), limit), min(max(first, 0), limit)

    def _validity(self) -> Any:
        bits = sum((row is not None) << self.first + i for i, row in enumerate(self.rows))
        data = bits.to_bytes((self.first + len(self.rows) + 7) >> 3, "little")
        return self._buffer(data, 0) if None in self.rows else None

    def binary(self, large: bool) -> tuple[Any, ...]:
        """(length, first, validity, offsets, data), for 32-bit or 64-bit offsets."""
        ends = [0]
        for row in self.rows:
            ends.append(ends[-1] + len(row or b""))
        return self.ends(ends, large, b"".join(row or b"" for row in self.rows))

    def ends(self, ends: list[int], large: bool, data: bytes = b"") -> tuple[Any, ...]:
        """The same for offsets that are known."""
        ends = self._numbers(ends, 64 if large else 32)
        validity, place = self._validity(), self._place()
        packed = struct.pack(f"={len(ends)}{'q' if large else 'i'}", *ends)
        return (*place, validity, self._buffer(packed, 1), self._buffer(data, 2))

    def views(self) -> tuple[Any, ...]:
        """(length, first, validity, views, buffers)."""
        words, data = list[int](), b""
        for row in self.rows:
            part = row or b""
            inline = struct.unpack("=3i", part.ljust(12, b"\0")[:12])
            words += (len(part), *inline) if len(part) <= 12 else (len(part), inline[0], 0, len(data))
            data += part if len(part) > 12 else b""
        words = self._numbers(words, 32)
        missing = -len(words) % 4
        self.first = (self.first + missing) // 4
        validity, place = self._validity(), self._place()
        packed = struct.pack(f"={missing + len(words)}i", *[0] * missing, *words)
        buffer = self._buffer(data, 2)
        return (*place, validity, self._buffer(packed, 1), [] if buffer is None else [buffer])


def number_in(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


class Table:
    """The rows of each column, and its faults, out of chunks: a byte that says which, and the row."""

    def __init__(self, chunks: Chunks, exact: Exact) -> None:
        self.options = chunks[0] if chunks else b""
        self.exact = exact
        self.rows: list[list[bytes | None]] = [[] for _ in range(6)]
        self.faults: list[list[bytes]] = [[] for _ in range(6)]
        for chunk in chunks[1:]:
            kind = option(chunk, 0)
            if kind & FAULT:
                self.faults[kind % 6].append(chunk[1:])
            else:
                self.rows[kind % 6].append(None if kind & NULL else chunk[1:])

    def fit(self, which: int, count: int) -> None:
        """As many rows as there are values: fewer or more are refused at once, which is seen elsewhere."""
        if not option(self.options, 7, 16):
            self.rows[which] = (self.rows[which] + [b""] * count)[:count]

    def column(self, twin: Any, which: int) -> Any:
        faulty = Faulty(self.rows[which], self.faults[which], self.exact)
        form = option(self.options, which, 4)
        if form == 3:
            return twin.Column.of_sequence(self.rows[which], "rows", False)
        if form == 2:
            return twin.Column.of_views(*faulty.views())
        return twin.Column.of_binary(*faulty.binary(form == 1), form == 1)

    def headers(self, twin: Any, count: int) -> Any:
        """A map of names to values: the names that there are, dealt out to the rows."""
        entries = len(self.rows[NAME])
        self.fit(CONTENT, entries)
        ends = [min(i * option(self.options, 8, 5), entries) for i in range(count + 1)]
        names, values = self.column(twin, NAME), self.column(twin, CONTENT)
        faulty = Faulty([b""] * count, self.faults[option(self.options, 9, 6)], self.exact)
        return twin.HeaderColumn.of_map(*faulty.ends(ends, False)[:4], names, values)


def optional(table: Table, twin: Any, which: int, count: int) -> Any:
    if not table.rows[which]:
        return None
    table.fit(which, count)
    return table.column(twin, which)


def envelopes(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Encode Arrow columns as envelopes: into a column, and as NATS commands."""
    table = Table(chunks, exact)
    options = table.options
    values = table.column(twin, VALUE)
    count = len(table.rows[VALUE])
    log: list[Any] = [values.length, [values.row(i) for i in range(values.length)]]
    headers = table.headers(twin, count) if table.rows[NAME] else None
    parts = [optional(table, twin, which, count) for which in (KEY, INBOX, IDENT)]
    expected: Any = number_in(options[16:24])
    if option(options, 10, 3) == 0:
        expected = exact(b"".join(options[16:24].ljust(8, b"\xff") for _ in range(count)))
    policy, crc = option(options, 11, 3), bool(option(options, 12, 2))
    made = twin.Envelopes(values, parts[0], headers, *parts[1:], policy, expected, crc)
    limit, start = option(options, 13), option(options, 14, 5)
    log += [made.length, made.oversize(limit), made.first_null(), attempt(lambda: made.reach(start, limit))]
    log.append(attempt(lambda: written(made, start, option(options, 15, 3), exact)))
    numbers = struct.pack(f"={count}i", *(i % 2 for i in range(count)))
    which = None if option(options, 10, 2) else exact(numbers)
    subjects = [exact(b"first"), exact(b"second.one")][: option(options, 9, 3)]
    return [*log, attempt(lambda: made.frames(start, made.length, subjects, which))]


def written(made: Any, start: int, short: int, exact: Exact) -> Any:
    """Write into buffers that are just large enough, or a byte too short."""
    rows, stop = made.length - start, made.length
    room = made.reach(start, 1 << 40)[1]
    sizes = ((rows + 1) * 4, room, (rows + 7) >> 3)
    buffers = [exact(bytearray(max(size - (short == i), 0))) for i, size in enumerate(sizes, 1)]
    nulls = made.write(start, stop, *buffers)
    return nulls, [bytes(buffer) for buffer in (buffers if nulls else buffers[:2])]


def requests(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Encode Arrow columns as requests."""
    table = Table(chunks, exact)
    options = table.options
    values = table.column(twin, VALUE)
    count = len(table.rows[VALUE])
    headers = table.headers(twin, count) if table.rows[NAME] else None
    partitions = exact(options[16:20].ljust(4, b"\1") * count)
    keys = optional(table, twin, KEY, count)
    offsets = exact(options[12:20].ljust(8, b"\1") * count) if option(options, 11, 2) else None
    made = twin.Requests(exact(b"stream"), values, keys, headers, partitions, 2, exact(b"a-Z."), offsets)
    number = max(number_in(options[20:28]), 0) % 10**18
    log: list[Any] = [made.length, made.nbytes]
    limit, longest, at = option(options, 13) * 4, 30 + option(options, 14) * 4, 0
    while at < made.length:
        stop, frames = made.frames(at, made.length, number + at, limit, longest)
        log.append((stop, frames))
        if stop == at:
            break
        at = stop
    return log


def commands(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Encode Arrow columns as NATS commands, with subjects, indices and headers of their own."""
    table = Table(chunks, exact)
    options = table.options
    values, subjects = put_column(table, twin, VALUE), put_column(table, twin, KEY)
    count = len(table.rows[VALUE])
    log: list[Any] = [values.length, twin.plain_subjects(subjects, option(options, 0, 4))]
    indices = Faulty([b""] * count, table.faults[INBOX], exact)
    numbers = [i % max(len(table.rows[KEY]), 1) for i in range(count)]
    which = indices.ends(numbers, False)[3] if option(options, 1, 2) else None
    lines = None
    if table.rows[NAME]:
        bad, ends, data = header_lines(table, twin, count)
        log += [bad, ends, data]
        lines = twin.Column(count, 0, exact(ends), exact(data)) if bad < 0 else None
    made = twin.Commands(values, subjects, which, lines)
    parts = [b"", b"in.", b"Nats-Msg-Id: j-", b"C: 1\r\n"]
    form = twin.Form(*(exact(parts[option(options, 2 + i, 4)]) for i in range(5)))
    number, most = number_in(options[16:23].ljust(7, b"\0")) & (1 << 55) - 1, option(options, 13)
    start, stop = option(options, 14, 4), made.length
    log += [
        made.oversize(most, form, number, most),
        attempt(lambda: made.reach(start, stop, most)),
        attempt(lambda: made.encode(start, stop, form, number, most)),
        attempt(lambda: made.subject_at(start), IndexError) if made.length else None,
    ]
    return log


def put_column(table: Table, twin: Any, which: int) -> Any:
    rows = [row or b"" for row in table.rows[which]]
    length, first, _, offsets, data = Faulty(list(rows), table.faults[which], table.exact).binary(True)
    return twin.Column(length, first, offsets, data)


def header_lines(table: Table, twin: Any, count: int) -> Any:
    names, entries = put_column(table, twin, NAME), len(table.rows[NAME])
    table.fit(CONTENT, entries)
    values = put_column(table, twin, CONTENT)
    ends = [min(i * option(table.options, 8, 5), entries) for i in range(count + 1)]
    faulty = Faulty([b""] * count, table.faults[IDENT], table.exact)
    _, first, _, offsets, _ = faulty.ends(ends, False)
    return twin.header_lines(count, first, offsets, names, values, (b"Nats-Batch-Id", b"x"))


def seeds_of_tables() -> Iterator[Chunks]:
    rows = [
        b"\0value",
        b"\0",
        b"\0" + b"v" * 90,
        b"\1key",
        b"\2in.box",
        b"\3id",
        b"\4a",
        b"\5one",
        b"\4b",
        b"\5",
    ]
    for form in range(4):
        options = bytes([form] * 6 + [0, 0, 2, 0, form, 2, form, 60, form & 1, form])
        yield [options + b"\x08\0\0\0\0\0\0\0\0\0\0\0", *rows]
        yield [options, *rows, b"\x40", b"\4a", b"\5two", b"\4" + b"n" * 20, b"\5"]
        for kind in range(8):
            yield [options, *rows, b"\x84\0" + bytes((kind, 1)) + b"\x02\0\0\0"]
            yield [options, *rows, b"\x80" + bytes((kind, 1)) + b"\xff\xff\xff\x7f\0\0\0\0"]
    yield [
        b"",
        b"\0v",
        b"\1sub.ject",
        b"\1*",
        b"\1a..b",
        b"\4Nats-Batch-Id",
        b"\5x",
        b"\4bad name",
        b"\5\r\n",
    ]


WORDS = (
    b"\x80",
    b"\x81",
    b"\x84",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0\0\0\0\x80",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"subject",
    b"Nats-Batch-Id",
    b"\r\n",
)
TARGETS = (
    *(
        Target(
            f"columns-{kind}",
            "_fastbatch",
            partial(decoded, kind),
            partial(seeds_of_rows, "message" if kind == "stored" else kind, start),
            format=format_,
            plain=flat,
        )
        for kind, format_, start in (
            ("message", PUBLISHES, 0),
            ("ack", ACKNOWLEDGES, 0),
            ("stored", MESSAGES, 8),
        )
    ),
    Target("arrow-envelopes", "_fastbatch", envelopes, seeds_of_tables, WORDS),
    Target("arrow-requests", "_fastbatch", requests, seeds_of_tables, WORDS),
    Target("arrow-commands", "_fastput", commands, seeds_of_tables, WORDS),
)
