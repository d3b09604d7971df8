"""Both twins write the same commands for the same rows, and count the same acks."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._native import _fastput
from liftenvelope.errors import UsageError
from tests.twin import readable

TWINS = pytest.mark.parametrize("twin", [readable.put, _fastput], ids=["python", "cython"])
SID = 3
INBOX = b"_INBOX.a+b."


def column(twin: Any, rows: list[bytes], first: int = 0) -> Any:
    ends = [0] * first
    data = b"".join(rows)
    at = 0
    for row in rows:
        ends.append(at)
        at += len(row)
    ends.append(at)
    return twin.Column(len(rows), first, struct.pack(f"={len(ends)}q", *ends), data)


def outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except UsageError as exc:
        return type(exc), str(exc)


tables = st.integers(0, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.binary(max_size=90), min_size=n, max_size=n),
        st.one_of(
            st.none(), st.lists(st.sampled_from([b"", b"A: 1\r\n", b"B: x\r\n" * 9]), min_size=n, max_size=n)
        ),
        st.lists(st.integers(0, 2), min_size=n, max_size=n),
        st.sampled_from(["single", "which", "own"]),
    )
)
forms = st.tuples(
    *[st.sampled_from([b"", b"x.y.", b"Nats-Msg-Id: job-"])] * 4, st.sampled_from([b"", b"C: 1\r\n"])
)


def commands(twin: Any, table: Any, first: int) -> Any:
    values, lines, which, kind = table
    names = [b"orders.new", b"a", b"b" * 40]
    subjects = {"single": names[:1], "which": names, "own": [names[item] for item in which]}[kind]
    indices = struct.pack(f"={len(which)}i", *which) if kind == "which" else None
    extra = None if lines is None else column(twin, lines, first)
    return twin.Commands(column(twin, values, first), column(twin, subjects), indices, extra)


@given(tables, forms, st.integers(0, 10**12), st.integers(0, 10**6), st.integers(0, 200), st.integers(0, 3))
def test_commands(table: Any, form: Any, number: int, count: int, limit: int, first: int) -> None:
    found = []
    for twin in (readable.put, _fastput):
        made = commands(twin, table, first)
        look = twin.Form(*form)
        log: list[Any] = [made.length, made.oversize(limit, look, number, count)]
        for start in range(made.length + 1):
            stop = made.reach(start, made.length, limit)
            log += [stop, made.encode(start, stop, look, number + start, count)]
        log += [made.subject_at(i) for i in range(made.length)]
        found.append(log)
    assert found[0] == found[1]


@TWINS
def test_a_command_is_what_the_server_reads(twin: Any) -> None:
    made = twin.Commands(column(twin, [b"one", b""]), column(twin, [b"s"]), None, None)
    assert made.encode(0, 2, twin.Form(b"in."), 9, 9) == b"PUB s in.9 3\r\none\r\nPUB s in.10 0\r\n\r\n"
    assert made.encode(1, 2, twin.Form(), 1, 1) == b"PUB s 0\r\n\r\n"
    form = twin.Form(
        b"in.", b".0.$FI", b"Nats-Msg-Id: j-", b"Nats-Batch-Sequence: ", b"Nats-Batch-Commit: 1\r\n"
    )
    block = b"NATS/1.0\r\nNats-Msg-Id: j-9\r\nNats-Batch-Sequence: 1\r\nNats-Batch-Commit: 1\r\n\r\n"
    head = b"HPUB s in.1.0.$FI %d %d\r\n" % (len(block), len(block) + 3)
    assert made.encode(0, 1, form, 9, 1) == head + block + b"one\r\n"
    assert made.oversize(len(block) + 2, form, 9, 1) == (0, len(block) + 3)
    assert made.oversize(len(block) + 3, form, 9, 1) == (-1, 0)
    assert [made.subject_at(i) for i in (0, 1)] == [b"s", b"s"]
    with pytest.raises(IndexError):
        made.subject_at(2)


@TWINS
@pytest.mark.parametrize(
    "arguments",
    [
        (2, 0, struct.pack("=2q", 0, 1), b"abc"),
        (1, 0, struct.pack("=2q", 0, 4), b"abc"),
        (1, 0, struct.pack("=2q", 2, 1), b"abc"),
        (1, 0, struct.pack("=2q", -1, 1), b"abc"),
        (1, -1, struct.pack("=2q", 0, 1), b"abc"),
        (-1, 0, struct.pack("=2q", 0, 1), b"abc"),
        (1, 0, None, None),
    ],
)
def test_broken_columns(twin: Any, arguments: Any) -> None:
    with pytest.raises(UsageError, match="the Arrow array is broken"):
        twin.Column(*arguments)


@TWINS
def test_columns_that_do_not_fit(twin: Any) -> None:
    three, two = column(twin, [b"a", b"b", b"c"]), column(twin, [b"a", b"b"])
    for arguments in (
        (three, two, None, None),
        (three, three, None, two),
        (three, two, struct.pack("=3i", 0, 1, 2), None),
        (three, two, struct.pack("=3i", 0, 1, -1), None),
        (three, two, struct.pack("=2i", 0, 1), None),
    ):
        with pytest.raises(UsageError, match="the Arrow array is broken"):
            twin.Commands(*arguments)
    made = twin.Commands(three, three, None, None)
    for start, stop in ((-1, 1), (2, 1), (0, 4)):
        with pytest.raises(UsageError, match="not rows"):
            made.encode(start, stop, twin.Form(), 0, 0)
        with pytest.raises(UsageError, match="not rows"):
            made.reach(start, stop, 9)


subjects = st.one_of(
    st.text("ab.*> ~\x7fé", max_size=8).map(str.encode),
    st.sampled_from([b"", b"a" * 3_500, b"a" * 3_501, b"a.b", b"a..b", b".a", b"a.", b"*", b"a.>", b"a*.b>"]),
)


@given(st.lists(subjects, max_size=5), st.integers(0, 3))
def test_plain_subjects(names: list[bytes], start: int) -> None:
    found = [twin.plain_subjects(column(twin, names), start) for twin in (readable.put, _fastput)]
    assert found[0] == found[1]


@TWINS
def test_what_is_plain(twin: Any) -> None:
    names = [b"a", b"a.b-c", b"a*.b", b"x" * 3_500, b"a.*", b"", "é".encode()]
    assert [twin.plain_subjects(column(twin, names), start) for start in range(8)] == [
        4,
        4,
        4,
        4,
        4,
        5,
        6,
        -1,
    ]


words = st.one_of(
    st.sampled_from([b"A", b"b-c", b"Nats-Batch-Id", b"a:b", b"a b", b""]), st.binary(max_size=4)
)


@given(st.lists(st.lists(st.tuples(words, words), max_size=12), max_size=4), st.integers(0, 2))
def test_header_lines(rows: list[list[tuple[bytes, bytes]]], first: int) -> None:
    ends = [0] * first
    for row in [[], *rows]:
        ends.append(ends[-1] + len(row) if ends else 0)
    packed = struct.pack(f"={len(ends)}i", *ends)
    names, values = ([pair[which] for row in rows for pair in row] for which in (0, 1))
    found = [
        twin.header_lines(
            len(rows), first, packed, column(twin, names), column(twin, values), (b"Nats-Batch-Id", b"x")
        )
        for twin in (readable.put, _fastput)
    ]
    assert found[0] == found[1]


@TWINS
def test_lines_of_headers(twin: Any) -> None:
    names, values = [b"A", b"B", b"A", b"C"], [b"1", b"", b"2", b"x y"]
    made = column(twin, names), column(twin, values)
    ends = struct.pack("=4i", 0, 3, 3, 4)
    assert twin.header_lines(3, 0, ends, *made, (b"B",)) == (
        -1,
        struct.pack("=4q", 0, 6, 6, 14),
        b"A: 2\r\nC: x y\r\n",
    )
    assert twin.header_lines(0, 0, None, column(twin, []), column(twin, []), ())[0] == -1
    with pytest.raises(UsageError, match="outside of its entries"):
        twin.header_lines(1, 0, struct.pack("=2i", 0, 5), *made, ())
    assert (
        twin.header_lines(2, 0, struct.pack("=3i", 0, 1, 2), made[0], column(twin, [b"1", b"\n"]), ())[0] == 1
    )


HEAD = b'{"stream":"S","seq":'


def frame(number: int, data: bytes, sid: int = SID, inbox: bytes = INBOX) -> bytes:
    return b"MSG %b%d %d %d\r\n%b\r\n" % (inbox, number, sid, len(data), data)


acks = st.one_of(
    st.builds(
        lambda number, sequence, tail: frame(number, b"%b%d%b" % (HEAD, sequence, tail)),
        st.integers(0, 12),
        st.integers(0, 30),
        st.sampled_from([b"}", b',"duplicate": true}', b',"duplicate":true}', b',"x":1}', b" }"]),
    ),
    st.builds(frame, st.integers(0, 12), st.sampled_from([b"", b"{}"])),
    st.sampled_from(
        [b"PING\r\n", frame(1, b"", sid=4), frame(1, b"", inbox=b"_INBOX.a"), b"MSG _INBOX.a+b.x 3 0\r\n"]
    ),
)


def counted(table: Any) -> tuple[int, ...]:
    return (table.floor, table.acked, table.duplicates, table.first, table.last)


@given(st.lists(acks, max_size=8), st.lists(st.integers(0, 300), max_size=3), st.booleans(), st.booleans())
def test_acks(frames: list[bytes], cuts: list[int], empty: bool, knows: bool) -> None:
    data = b"".join(frames)
    logs = []
    for twin in (readable.put, _fastput):
        table = twin.Acks(INBOX, SID, 2, 5, empty)
        if knows:
            table.learn(HEAD)
        start, log = 0, []
        for end in [*sorted({cut for cut in cuts if cut < len(data)}), len(data)]:
            start = table.feed(data, start, end)
            log.append((start, counted(table)))
        logs.append(log)
    assert logs[0] == logs[1]


@TWINS
def test_acks_in_any_order_count_once(twin: Any) -> None:
    table = twin.Acks(INBOX, SID, 0, 3, False)
    table.learn(HEAD)
    data = b"".join(
        frame(number, b"%b%d}" % (HEAD, sequence))
        for number, sequence in ((1, 12), (1, 12), (0, 11), (3, 14), (9, 20))
    )
    assert table.feed(data, 0, len(data)) == len(data)
    assert counted(table) == (2, 3, 0, 11, 14)
    assert table.take(2, 10, True)
    assert not table.take(2, 10, True)
    assert counted(table) == (4, 4, 1, 10, 14)
    table.follow(b"other.", 9)
    again = frame(4, HEAD + b"15}")
    assert table.feed(again, 0, len(again)) == 0
    again = frame(4, HEAD + b"15}", 9, b"other.")
    assert table.feed(again, 0, len(again)) == len(again)
    assert counted(table) == (5, 5, 1, 10, 15)


@TWINS
def test_bad_arguments(twin: Any) -> None:
    for number, size in ((-1, 1), (0, 0)):
        with pytest.raises(
            UsageError, match=f"number must be at least 0 and size at least 1, got {number} and {size}"
        ):
            twin.Acks(INBOX, SID, number, size, False)
    with pytest.raises(UsageError, match="not a part of 3 bytes"):
        twin.Acks(INBOX, SID, 0, 1, False).feed(b"abc", 0, 4)
