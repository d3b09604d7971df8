"""Record batches are encoded for the wire, for every type that a column may have."""

from __future__ import annotations

import re
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope import _native
from liftenvelope.bulk._writes.portions import Portions, regrouped
from liftenvelope.errors import UsageError, UsageTypeError

MAPS = pa.map_(pa.string(), pa.binary())
FORM = _native.put.Form(b"in.")
_COMMAND = re.compile(rb"(H?)PUB (\S+) in\.(\d+)(?: (\d+))? (\d+)\r\n")

#: Subject, lines of headers, value.
Sent = tuple[bytes, list[bytes], bytes]


def sent(batch: pa.RecordBatch, rows: int = 3, subject: str | None = None, **options: Any) -> list[Sent]:
    """Return the messages that a server would read from all portions of a batch."""
    settings = {"envelope": False, "message_id": False, **options}
    found: list[Sent] = []
    number = 0
    for portion in Portions(subject, **settings).of(batch, rows, sys.maxsize):
        assert portion.first == number
        assert portion.stop - portion.first == min(rows, batch.num_rows - number)
        data = portion.commands.encode(0, portion.commands.length, FORM, portion.first, portion.first)
        found += parsed(data, number)
        number = portion.stop
    assert number == batch.num_rows
    return found


def parsed(data: bytes, number: int) -> list[Sent]:
    found: list[Sent] = []
    at = 0
    while at < len(data):
        head = _COMMAND.match(data, at)
        assert head is not None
        assert int(head[3]) == number + len(found)
        body, headers, size = head.end(), int(head[4] or 0), int(head[5])
        block = data[body : body + headers]
        lines = block.removeprefix(b"NATS/1.0\r\n").removesuffix(b"\r\n\r\n").split(b"\r\n") if block else []
        assert bool(head[1]) == bool(block)
        assert data[body + size : body + size + 2] == b"\r\n"
        found.append((head[2], lines, data[body + headers : body + size]))
        at = body + size + 2
    return found


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(2),
        pa.dictionary(pa.int8(), pa.binary()),
    ],
    ids=str,
)
@pytest.mark.parametrize("start", [0, 2])
def test_types_of_values(kind: pa.DataType, start: int) -> None:
    items = ["aa", "bb", "cc", "aa", "dd", "ee", "bb"]
    raw = [item.encode() for item in items]
    column = (
        pa.array(raw, pa.binary()).cast(kind)
        if not pa.types.is_dictionary(kind)
        else pa.array(raw).dictionary_encode()
    )
    batch = batch_of(value=column).slice(start)
    assert sent(batch, subject="s") == [(b"s", [], value) for value in raw[start:]]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
@pytest.mark.parametrize("start", [0, 4])
def test_types_of_subjects(kind: pa.DataType, start: int) -> None:
    names = ["a", "b.c", "a", "ü.x", "b.c", "d", "a", "e"]
    column = pa.array(names).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(names, kind)
    batch = batch_of(value=[b"%d" % i for i in range(8)], subject=column).slice(start)
    assert sent(batch) == [(names[i].encode(), [], b"%d" % i) for i in range(start, 8)]


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["A", "B", "Nats-Msg-Id", "Nats-Batch-Id"]), st.text("xyz ü", max_size=3)
            )
        ),
        min_size=1,
        max_size=9,
    ),
    st.integers(0, 8),
    st.booleans(),
)
def test_headers(rows: list[list[tuple[str, str]]], start: int, message_id: bool) -> None:
    maps = pa.array([[(name, value.encode()) for name, value in row] for row in rows], MAPS)
    batch = batch_of(value=[b""] * len(rows), headers=maps).slice(min(start, len(rows)))
    dropped = {"Nats-Batch-Id", *(["Nats-Msg-Id"] if message_id else [])}
    expected = [
        [f"{name}: {value}".encode() for name, value in dict(row).items() if name not in dropped]
        for row in rows[start:]
    ]
    found = sent(batch, subject="s", message_id=message_id)
    assert [lines for _, lines, _ in found] == expected


@pytest.mark.parametrize(
    ("maps", "expected"),
    [
        (pa.array([None, [("A", b"1")], None], MAPS), [[], [b"A: 1"], []]),
        (pa.array([[("A", None)], [], []], MAPS), [[b"A: "], [], []]),
        (pa.array([[("A", "x")], [], []], pa.map_(pa.large_string(), pa.string())), [[b"A: x"], [], []]),
        (pa.nulls(3), [[], [], []]),
    ],
)
def test_other_headers(maps: pa.Array, expected: list[list[bytes]]) -> None:
    found = sent(batch_of(value=["a", "b", "c"], headers=maps), subject="s")
    assert [lines for _, lines, _ in found] == expected


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"value": [b"", None]}, "row 1 must have a value, got null"),
        ({"value": [1]}, "'value' must be of binary or string, got int64"),
        ({"value": [b""], "headers": [1]}, "'headers' must be a map"),
        ({"value": [b"", b""], "subject": ["a", None]}, "row 1 must have a subject, got null"),
        ({"value": [b""], "subject": pa.array([b"\xff"])}, "subject must be UTF-8 text"),
        ({"value": [b""], "subject": ["a b"]}, "'a b'"),
        ({"value": [b""], "subject": ["a.*"]}, "wildcard"),
        (
            {"value": [b"", b""], "headers": pa.array([[], [("A", b"\n")]], MAPS)},
            "row 1: header 'A' must not have a line end",
        ),
        (
            {"value": [b""], "headers": pa.array([[("", b"")]], MAPS)},
            "row 0: header name must have visible ASCII",
        ),
        (
            {"value": [b""], "headers": pa.array([[("A", b"\xff")]], MAPS)},
            "row 0: headers must be UTF-8 text",
        ),
        ({"value": [b""], "key": [b"k"]}, "envelope=True"),
    ],
)
def test_rows_that_are_refused(columns: dict[str, Any], text: str) -> None:
    batch = batch_of(**columns)
    with pytest.raises((UsageError, UsageTypeError), match=re.escape(text)):
        sent(batch, subject=None if "subject" in columns else "s")


def test_a_row_is_named_by_its_number_in_all_the_data() -> None:
    portions = Portions("s", envelope=False, message_id=False)
    list(portions.of(batch_of(value=[b"a"] * 10), 4, sys.maxsize))
    with pytest.raises(UsageError, match="row 12 must have a value, got null"):
        list(portions.of(batch_of(value=[b"a", b"b", None]), 4, sys.maxsize))


def test_keys_that_say_nothing() -> None:
    for keys in ([None, None], [b"", b""], pa.nulls(2)):
        assert len(sent(batch_of(value=[b"a", b"b"], key=keys), subject="s")) == 2


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 7))
def test_regrouped(sizes: list[int], rows: int) -> None:
    numbers = iter(range(100))
    batches = [
        batch_of(value=pa.array([b"%d" % next(numbers) for _ in range(size)], pa.binary())) for size in sizes
    ]
    found = list(regrouped(iter(batches), rows))
    assert [batch.num_rows for batch in found[:-1]] == [rows] * max(len(found) - 1, 0)
    assert all(batch.num_rows for batch in found)
    values = [value for batch in found for value in batch["value"].to_pylist()]
    assert values == [b"%d" % i for i in range(sum(sizes))]


def test_portions_by_bytes() -> None:
    portions = Portions("s", envelope=False, message_id=False)
    batch = batch_of(value=[b"x" * 100] * 50)
    assert [portion.commands.length for portion in portions.of(batch, 1_000, 1_000)] == [10] * 5
    assert [portion.commands.length for portion in portions.of(batch, 1_000, 1)] == [1] * 50
