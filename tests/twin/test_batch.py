"""Both twins of the batch codec do the same, and both what the codec does with one message at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liftenvelope import _arrow_rows, arrow
from liftenvelope._checks import storable_headers
from liftenvelope._native import _fastbatch
from liftenvelope.envelope import (
    Ack,
    Message,
    marshal_ack,
    marshal_message,
    new_message,
    unmarshal_ack,
    unmarshal_message,
)
from liftenvelope.errors import EnvelopeError, LiftEnvelopeError
from tests.twin import readable

TWINS = (_fastbatch, readable.batch)

# Sizes around those at which the ways to copy change, and at which a length takes a second byte.
blobs = st.binary(max_size=20) | st.integers(0, 300).map(lambda n: bytes(i & 0xFF for i in range(n)))
texts = st.text(max_size=12) | st.integers(0, 140).map(lambda n: "x" * n)
int64s = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 300)
int32s = st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 3)


@contextmanager
def twin(module: ModuleType) -> Iterator[None]:
    """liftenvelope.arrow on one of the twins."""
    used = vars(arrow)["batch"]
    for user in (arrow, _arrow_rows):
        vars(user)["batch"] = module
    try:
        yield
    finally:
        for user in (arrow, _arrow_rows):
            vars(user)["batch"] = used


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the class and text of its error."""
    try:
        return call()
    except LiftEnvelopeError as exc:
        return type(exc), str(exc)


def on_both(call: Callable[[], Any]) -> Any:
    """The outcome, once it is sure that the twins have the same."""
    outcomes = []
    for module in TWINS:
        with twin(module):
            outcomes.append(outcome(call))
    first, second = outcomes
    assert type(first) is type(second)
    if isinstance(first, pa.RecordBatch):
        assert first.schema.equals(second.schema, check_metadata=True)
    assert first == second
    if not isinstance(first, tuple | bytes):
        first.validate(full=True)
        second.validate(full=True)
    return first


@st.composite
def binary_forms(draw: st.DrawFn, rows: list[bytes | None]) -> Any:
    """The same rows in one of the forms that the functions take."""
    form = draw(st.sampled_from(["list", "binary", "large", "view", "sliced", "chunked", "dictionary"]))
    kinds = {"large": pa.large_binary(), "view": pa.binary_view()}
    if form == "list":
        return [
            None if row is None else draw(st.sampled_from([bytes, bytearray, memoryview]))(row)
            for row in rows
        ]
    if form in ("binary", *kinds):
        return pa.array(rows, kinds.get(form, pa.binary()))
    if form == "dictionary":
        return pa.array(rows, pa.binary()).dictionary_encode()
    kind = draw(st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]))
    if form == "sliced":
        before, after = (draw(st.lists(st.none() | st.binary(max_size=15), max_size=9)) for _ in "ab")
        return pa.array([*before, *rows, *after], kind).slice(len(before), len(rows))
    cut = draw(st.integers(0, len(rows)))
    return pa.chunked_array([rows[:cut], rows[cut:]], kind)


@st.composite
def text_forms(draw: st.DrawFn, rows: list[str | None]) -> Any:
    form = draw(st.sampled_from([None, pa.string(), pa.large_string(), pa.string_view()]))
    if form is None:
        return rows
    padding = draw(st.integers(0, 9))
    return pa.array([*["pad"] * padding, *rows], form).slice(padding)


@st.composite
def header_forms(draw: st.DrawFn, rows: list[dict[str, bytes] | None]) -> Any:
    if draw(st.booleans()):
        return rows
    kind = pa.map_(
        draw(st.sampled_from([pa.string(), pa.large_string()])),
        draw(st.sampled_from([pa.binary(), pa.large_binary()])),
    )
    padding: list[Any] = draw(st.lists(st.sampled_from([None, {}, {"pad": b"1"}]), max_size=9))
    entries = [None if row is None else list(row.items()) for row in [*padding, *rows]]
    return pa.array(entries, kind).slice(len(padding))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[dict[str, Any]], Any, dict[str, Any]]:
    """Rows as arguments of new_message(), and the same as arguments of encode_batch()."""
    length = draw(st.integers(0, 20))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=length, max_size=length))

    values = column(st.none() | blobs)
    constants = {
        "ack_inbox": draw(st.none() | texts),
        "ack_policy": draw(st.integers(0, 2)),
        "crc": draw(st.booleans()),
    }
    rows: list[dict[str, Any]] = [{"value": value, **constants} for value in values]
    options: dict[str, Any] = dict(constants)

    def add(one: str, many: str, cells: list[Any], form: Any) -> None:
        options[many] = form
        for row, cell in zip(rows, cells, strict=True):
            row[one] = cell

    if draw(st.booleans()):
        keys = column(st.none() | blobs)
        add("key", "keys", keys, draw(binary_forms(keys)))
    if draw(st.booleans()):
        ids = column(st.none() | texts)
        add("correlation_id", "correlation_ids", ids, draw(text_forms(ids)))
    if draw(st.booleans()):
        headers = column(st.none() | st.dictionaries(texts, blobs, max_size=4))
        add("headers", "headers", headers, draw(header_forms(headers)))
    if draw(st.booleans()):
        offsets = column(int64s)
        form = offsets if draw(st.booleans()) else pa.array([0, *offsets], pa.int64()).slice(1)
        add("expected_offset", "expected_offsets", offsets, form)
    return rows, draw(binary_forms(values)), options


def encoded(row: dict[str, Any]) -> bytes | None:
    return None if row["value"] is None else new_message(**row)


@given(batches())
def test_encode_batch(drawn: tuple[list[dict[str, Any]], Any, dict[str, Any]]) -> None:
    rows, values, options = drawn
    result = on_both(lambda: arrow.encode_batch(values, **options))
    assert result.to_pylist() == [encoded(row) for row in rows]
    assert isinstance(result, pa.ChunkedArray) == isinstance(values, pa.ChunkedArray)


@given(batches(), st.data())
def test_frames_of_any_span(
    drawn: tuple[list[dict[str, Any]], Any, dict[str, Any]], data: st.DataObject
) -> None:
    rows, values, options = drawn
    subjects = data.draw(st.lists(st.sampled_from([b"a", b"orders", b"x" * 40]), min_size=1, max_size=3))
    chosen = data.draw(st.lists(st.integers(0, len(subjects) - 1), min_size=len(rows), max_size=len(rows)))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    which = data.draw(st.sampled_from([None, struct.pack(f"={len(chosen)}i", *chosen)]))
    expected = b""
    for i in range(start, stop):
        envelope = encoded(rows[i]) or b""
        subject = subjects[chosen[i] if which is not None else 0]
        expected += b"PUB %s %d\r\n%s\r\n" % (subject, len(envelope), envelope)
    assert (
        on_both(lambda: arrow.encoded_columns(values, **options).frames(start, stop, subjects, which))
        == expected
    )


@given(batches(), st.integers(0, 1500))
def test_measures(drawn: tuple[list[dict[str, Any]], Any, dict[str, Any]], limit: int) -> None:
    rows, values, options = drawn
    sizes = [len(encoded(row) or b"") for row in rows]

    def measures() -> tuple[Any, ...]:
        batch = arrow.encoded_columns(values, **options)
        assert batch.length == len(rows)
        reached = tuple(batch.reach(start, limit) for start in range(batch.length + 1))
        measured = tuple(batch.size_of(start, stop) for start, (stop, _) in enumerate(reached))
        assert measured == tuple(total for _, total in reached)
        return batch.first_null(), batch.oversize(limit), reached

    first_null, oversize, reached = on_both(measures)
    assert first_null == next((i for i, row in enumerate(rows) if row["value"] is None), None)
    assert oversize == next(((i, size) for i, size in enumerate(sizes) if size > limit), None)
    for start, (stop, total) in enumerate(reached):
        assert total == sum(sizes[start:stop]) <= limit
        assert stop == len(rows) or total + sizes[stop] > limit


@given(batches(), st.data())
def test_rows_that_cannot_be_encoded(
    drawn: tuple[list[dict[str, Any]], Any, dict[str, Any]], data: st.DataObject
) -> None:
    """Bytes that may be no UTF-8, where strings are wanted: the same error for the same row."""
    rows, values, options = drawn
    loose = st.lists(st.none() | st.binary(max_size=4), min_size=len(rows), max_size=len(rows))
    ids = data.draw(loose)
    names = data.draw(
        st.lists(st.lists(st.binary(max_size=2), max_size=3), min_size=len(rows), max_size=len(rows))
    )
    options["correlation_ids"] = pa.array(ids, pa.binary())
    options["headers"] = pa.array(
        [[(name, b"%d" % i) for i, name in enumerate(row)] for row in names],
        pa.map_(pa.binary(), pa.binary()),
    )
    result = on_both(lambda: arrow.encode_batch(values, **options))
    faulty = next(
        (
            i
            for i, row in enumerate(rows)
            if row["value"] is not None and not (sound(ids[i]) and all(map(sound, names[i])))
        ),
        None,
    )
    if faulty is not None:
        assert result[1] == f"row {faulty}: strings must be valid UTF-8"
        return
    for row, ident, keys in zip(rows, ids, names, strict=True):
        if row["value"] is None:
            continue  # nothing else of it is looked at
        row["correlation_id"] = (ident or b"").decode()
        row["headers"] = {name.decode(): b"%d" % i for i, name in enumerate(keys)}
    assert result.to_pylist() == [encoded(row) for row in rows]


def sound(text: bytes | None) -> bool:
    try:
        (text or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


# Decoding


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


HEADER = bytes.fromhex("b90e43b400080000")
ACK_HEADER = bytes.fromhex("b90e43b400080001")

messages = st.builds(
    Message,
    blobs,
    key=blobs,
    headers=st.dictionaries(texts, blobs, max_size=12),
    offset=int64s,
    timestamp_ns=int64s,
    stream=texts,
    partition=int32s,
    subject=texts,
    reply_subject=texts,
    ack_inbox=texts,
    correlation_id=texts,
    ack_policy=int32s,
)
acks = st.builds(
    Ack,
    stream=texts,
    partition_subject=texts,
    msg_subject=texts,
    offset=int64s,
    ack_inbox=texts,
    correlation_id=texts,
    ack_policy=int32s,
    reception_timestamp_ns=int64s,
    commit_timestamp_ns=int64s,
    error=int32s,
)
names = st.sampled_from([b"", b"a", b"b", "ü".encode(), b"long" * 9]) | st.binary(max_size=2)
entries = st.builds(
    lambda name, value: (
        (b"" if name is None else delimited(1, name)) + (b"" if value is None else delimited(2, value))
    ),
    st.none() | names,
    st.none() | blobs,
)
# Of any length, also with needless zeros at the end, of more than 64 bits, or of more than ten bytes.
odd_varints = st.builds(
    lambda body, last: bytes([*body, last]),
    st.lists(st.integers(0x80, 0xFF), max_size=10) | st.integers(0, 10).map(lambda n: [0x80] * n),
    st.integers(0, 0x7F) | st.integers(0, 2),
)
fields = (
    st.builds(delimited, st.integers(1, 14), blobs)
    | st.builds(delimited, st.just(9), entries)
    | st.builds(lambda number, value: varint(number << 3) + varint(value), st.integers(1, 14), int64s)
    | st.builds(
        lambda tag, number: bytes([tag]) + number, st.sampled_from([0x08, 0x20, 0x40, 0x60]), odd_varints
    )
    | st.sampled_from([b"\x6d1234", b"\x6912345678", b"\x73\x08\x01\x74"])
    | st.binary(max_size=3)
)
wild = st.builds(
    lambda header, parts: header + b"".join(parts),
    st.sampled_from([HEADER, HEADER, ACK_HEADER, b"", HEADER[:5] + b"\x0a\x00\x00\xff\xff"]),
    st.lists(fields, max_size=12),
)


@st.composite
def stored(draw: st.DrawFn, sound: st.SearchStrategy[bytes]) -> list[bytes | None]:
    """Rows as a server might give them: most of them sound, some null, damaged, or something else."""
    rows = draw(st.lists(st.none() | sound | wild, max_size=20))
    for i, row in enumerate(rows):
        if row and draw(st.integers(0, 9)) == 0:
            at = draw(st.integers(0, len(row) - 1))
            rows[i] = draw(st.sampled_from([row[:at], row[:at] + bytes([row[at] ^ 0x81]) + row[at + 1 :]]))
    return rows


def opened(reader: Callable[[bytes], Any], row: bytes | None) -> Any:
    """The message or ack, an EnvelopeError, or None."""
    try:
        return None if row is None else reader(row)
    except EnvelopeError as exc:
        return exc


def expected_message(row: bytes | None, on_error: str) -> dict[str, Any]:
    message = opened(unmarshal_message, row)
    if not isinstance(message, Message):
        value = row if on_error == "raw" else None
        error = None if message is None else str(message)
        return dict.fromkeys(arrow.MESSAGE_FIELDS) | {"value": value, "error": error}
    return {
        "key": message.key or None,
        "value": message.value,
        "headers": list(message.headers.items()),
        "ack_inbox": message.ack_inbox or None,
        "correlation_id": message.correlation_id or None,
        "ack_policy": int(message.ack_policy),
        "expected_offset": message.offset,
        "error": None,
    }


def expected_ack(row: bytes | None) -> dict[str, Any]:
    ack = opened(unmarshal_ack, row)
    if not isinstance(ack, Ack):
        return dict.fromkeys(arrow.ACK_FIELDS) | {"error": None if ack is None else str(ack)}
    return {
        "stream": ack.stream,
        "partition_subject": ack.partition_subject,
        "msg_subject": ack.msg_subject,
        "offset": ack.offset,
        "ack_inbox": ack.ack_inbox or None,
        "correlation_id": ack.correlation_id or None,
        "ack_policy": int(ack.ack_policy),
        "reception_timestamp": ack.reception_timestamp_ns,
        "commit_timestamp": ack.commit_timestamp_ns,
        "ack_error": int(ack.error),
        "error": None,
    }


def first_error(reader: Callable[[bytes], Any], rows: list[bytes | None]) -> tuple[type, str] | None:
    for i, row in enumerate(rows):
        found = opened(reader, row)
        if isinstance(found, EnvelopeError):
            return type(found), str(type(found)(f"row {i}: {found.args[0]}", found.offset))
    return None


def ints(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Timestamps as numbers: Python's datetime can't hold them all."""
    columns = [
        column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


@given(stored(st.builds(lambda m, crc: marshal_message(m, crc=crc), messages, st.booleans())), st.data())
@example(
    [
        HEADER
        + b"".join(delimited(9, delimited(1, b"%d" % (i % 20)) + delimited(2, b"%d" % i)) for i in range(70))
    ],
    None,
)
def test_decode_batch(rows: list[bytes | None], data: st.DataObject | None) -> None:
    array = pa.array(rows, pa.binary()) if data is None else data.draw(binary_forms(rows))
    on_error: Any = "null" if data is None else data.draw(st.sampled_from(["raise", "null", "raw"]))
    result = on_both(lambda: arrow.decode_batch(array, on_error=on_error))
    error = first_error(unmarshal_message, rows)
    if on_error == "raise" and error is not None:
        assert result == error
    else:
        assert result.to_pylist() == [expected_message(row, on_error) for row in rows]


@given(
    stored(st.builds(lambda m, crc: marshal_message(m, crc=crc), messages, st.booleans())),
    st.sampled_from([pa.binary(), pa.large_binary()]),
    st.sampled_from(["null", "raw"]),
    st.integers(0, 3),
)
def test_decode_batch_as_views(
    rows: list[bytes | None], kind: pa.DataType, on_error: Any, first: int
) -> None:
    array = pa.array([b"not among them"] * first + rows, kind).slice(first)
    result = on_both(lambda: arrow.decode_batch(array, on_error=on_error, binary_view=True))
    result.validate(full=True)
    assert result["value"].type == pa.binary_view()
    assert result.to_pylist() == [expected_message(row, on_error) for row in rows]


@given(
    stored(st.builds(lambda m, crc: marshal_message(m, crc=crc), messages, st.booleans())),
    st.lists(st.sampled_from(arrow.MESSAGE_FIELDS), min_size=1, unique=True),
    st.sampled_from(["null", "raw"]),
    st.booleans(),
)
def test_decode_some_fields(
    rows: list[bytes | None], fields: list[str], on_error: Any, binary_view: bool
) -> None:
    array = pa.array(rows, pa.binary())
    result = on_both(
        lambda: arrow.decode_batch(array, on_error=on_error, binary_view=binary_view, fields=fields)
    )
    result.validate(full=True)
    expected = [expected_message(row, on_error) for row in rows]
    assert result.to_pylist() == [{name: row[name] for name in fields} for row in expected]


def test_views_copy_no_value() -> None:
    array = pa.array([marshal_message(Message(bytes(1 << 20)))] * 8)
    data, before = array.buffers()[2], pa.total_allocated_bytes()
    values = arrow.decode_batch(array, binary_view=True)["value"]
    assert values.buffers()[2].address == data.address
    assert pa.total_allocated_bytes() - before < 10_000
    del array, data
    assert values.to_pylist() == [bytes(1 << 20)] * 8


@given(stored(st.builds(lambda a, crc: marshal_ack(a, crc=crc), acks, st.booleans())), st.data())
def test_decode_acks(rows: list[bytes | None], data: st.DataObject) -> None:
    array = data.draw(binary_forms(rows))
    on_error: Any = data.draw(st.sampled_from(["raise", "null"]))
    result = on_both(lambda: arrow.decode_acks(array, on_error=on_error))
    error = first_error(unmarshal_ack, rows)
    if on_error == "raise" and error is not None:
        assert result == error
    else:
        assert ints(result).to_pylist() == [expected_ack(row) for row in rows]


@given(batches())
def test_what_is_encoded_is_decoded(drawn: tuple[list[dict[str, Any]], Any, dict[str, Any]]) -> None:
    rows, values, options = drawn
    result = on_both(lambda: arrow.decode_batch(arrow.encode_batch(values, **options)))
    assert result["value"].to_pylist() == [row["value"] for row in rows]
    found = [None if row is None else dict(row) for row in result["headers"].to_pylist()]
    assert found == [None if row["value"] is None else storable_headers(row.get("headers")) for row in rows]


@given(st.data())
def test_each_column_may_be_the_same_for_all_rows(data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 5))
    cells = [data.draw(blobs), data.draw(blobs), data.draw(texts).encode(), data.draw(texts).encode()]
    constant = [data.draw(st.booleans()) for _ in cells]
    present = [True, *(data.draw(st.booleans()) for _ in cells[1:])]
    policy, offset, crc = data.draw(st.integers(0, 2)), data.draw(int64s), data.draw(st.booleans())

    def frames(module: ModuleType) -> Any:
        values, keys, inboxes, idents = (
            None
            if not is_present
            else module.Column.same(cell, length)
            if is_constant
            else module.Column.of_sequence([cell] * length, "cells", False)
            for cell, is_constant, is_present in zip(cells, constant, present, strict=True)
        )
        batch = module.Envelopes(values, keys, None, inboxes, idents, policy, offset, crc)
        assert batch.reach(0, 10_000)[0] == length
        return batch.frames(0, length, [b"s"], None)

    value, key, inbox, ident = (cell if there else b"" for cell, there in zip(cells, present, strict=True))
    envelope = new_message(
        value,
        key=key,
        ack_inbox=inbox.decode(),
        correlation_id=ident.decode(),
        ack_policy=policy,
        expected_offset=offset,
        crc=crc,
    )
    expected = b"PUB s %d\r\n%s\r\n" % (len(envelope), envelope)
    assert [frames(module) for module in TWINS] == [expected * length] * 2


@pytest.mark.parametrize("module", TWINS)
def test_offsets_that_the_caller_changes_later_are_those_of_the_call(module: ModuleType) -> None:
    offsets = bytearray(struct.pack("=2q", 1, 2))
    column = module.Column.of_sequence([b"a", b"b"], "values", False)
    batch = module.Envelopes(column, None, None, None, None, 0, offsets, False)
    frames = batch.frames(0, 2, [b"s"], None)
    offsets[:] = struct.pack("=2q", 2**60, 2**60)
    assert batch.frames(0, 2, [b"s"], None) == frames


@pytest.mark.parametrize("module", TWINS)
def test_a_constant_that_is_no_text(module: ModuleType) -> None:
    values, bad = module.Column.same(b"v", 2), module.Column.same(b"\xff", 2)
    for columns in ((None, None, bad, None), (None, None, None, bad)):
        with pytest.raises(ValueError, match=r"^row 0: strings must be valid UTF-8$"):
            module.Envelopes(values, *columns, 0, -1, False)
    assert module.Envelopes(values, bad, None, None, None, 0, -1, False).first_null() is None


@pytest.mark.parametrize("module", TWINS)
@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (3, "ack_policy must be one of LEADER, ALL, NONE, got 3"),
        (-1, "ack_policy must be one of LEADER, ALL, NONE, got -1"),
        (2**40, "ack_policy must fit in 32 bits, got 1099511627776"),
    ],
)
@pytest.mark.parametrize("length", [0, 1])
def test_unknown_ack_policy_is_refused(module: ModuleType, policy: int, text: str, length: int) -> None:
    column = module.Column.same(b"v", length)
    with pytest.raises(ValueError, match=f"^{text}$"):
        module.Envelopes(column, None, None, None, None, policy, -1, False)
    with pytest.raises(ValueError, match=f"^{text}$"):
        module.Requests(b"s", column, None, None, bytes(4 * length), policy, b"")


# Buffers that are not what they claim to be


@given(st.data())
def test_broken_offsets(data: st.DataObject) -> None:
    """Random offsets over random data: the same rows or the same error, never a crash."""
    width, kind = data.draw(st.sampled_from([("i", pa.binary()), ("q", pa.large_binary())]))
    ends = data.draw(st.lists(st.integers(-1, 12) | st.integers(-(2**31), 2**31 - 1), max_size=6))
    content = data.draw(st.none() | st.binary(max_size=12))
    length = data.draw(st.integers(0, 6) | st.just(2**40))
    first = data.draw(st.integers(0, 3) | st.sampled_from([2**40, 2**62]))
    validity = data.draw(st.none() | st.binary(max_size=2))
    offsets = memoryview(b"x" + struct.pack(f"={len(ends)}{width}", *ends))[data.draw(st.integers(0, 1)) :]
    buffers = (validity, offsets, content)

    def rows(module: ModuleType) -> Any:
        column = module.Column.of_binary(length, first, *buffers, kind == pa.large_binary())
        return [column.row(i) for i in range(column.length)]

    fast, plain = (outcome(lambda: rows(module)) for module in TWINS)  # noqa: B023 - called at once
    assert fast == plain


@given(st.data())
def test_broken_views(data: st.DataObject) -> None:
    edges = st.integers(-1, 20) | st.integers(-(2**31), 2**31 - 1)
    views = b"".join(
        struct.pack("=4i", *row)
        for row in data.draw(st.lists(st.tuples(edges, edges, edges, edges), max_size=4))
    )
    buffers = data.draw(st.lists(st.binary(max_size=24), max_size=3))
    length, first = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 2) | st.just(2**62))
    validity = data.draw(st.none() | st.binary(max_size=1))

    def rows(module: ModuleType) -> Any:
        column = module.Column.of_views(length, first, validity, views, buffers)
        return [column.row(i) for i in range(column.length)]

    fast, plain = (outcome(lambda: rows(module)) for module in TWINS)  # noqa: B023 - called at once
    assert fast == plain


@given(st.data())
def test_broken_maps(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.none() | st.sampled_from([b"a", b"b", b"\xff"]), max_size=5))
    values = data.draw(
        st.lists(st.none() | st.binary(max_size=3), min_size=len(names), max_size=len(names) + 1)
    )
    ends = data.draw(
        st.lists(st.integers(-1, 6), max_size=6) | st.lists(st.integers(0, 3), max_size=6).map(sorted)
    )
    length, first = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 2))
    validity = data.draw(st.none() | st.binary(max_size=1))

    def envelopes(module: ModuleType) -> Any:
        headers = module.HeaderColumn.of_map(
            length,
            first,
            validity,
            struct.pack(f"={len(ends)}i", *ends),
            module.Column.of_sequence(names, "names", False),
            module.Column.of_sequence(values, "values", False),
        )
        batch = module.Envelopes(module.Column.same(b"v", length), None, headers, None, None, 0, -1, False)
        return batch.frames(0, length, [b"s"], None)

    fast, plain = (outcome(lambda: envelopes(module)) for module in TWINS)  # noqa: B023 - called at once
    assert fast == plain


@pytest.mark.parametrize("module", TWINS)
def test_spans_and_targets_are_checked(module: ModuleType) -> None:
    column = module.Column.of_sequence([b"a", None], "values", False)
    batch = module.Envelopes(column, None, None, None, None, 0, -1, False)
    size = batch.reach(0, 10_000)[1]
    room = [bytearray(12), bytearray(size), bytearray(1)]
    assert batch.write(0, 2, *room) == 1
    assert bytes(room[1]) == new_message(b"a")
    assert room[2][0] & 3 == 1
    for short in range(3):
        given_room = [part[:-1] if i == short else part for i, part in enumerate(room)]
        assert outcome(lambda: batch.write(0, 2, *given_room))[1] == "the buffers are too small for the span"  # noqa: B023
    for start in (-1, 3):
        text = f"rows {start} to {start} are not a span of 2 rows"
        assert outcome(lambda: batch.reach(start, 9))[1] == text  # noqa: B023
    for start, stop in ((-1, 1), (0, 3), (2, 1)):
        text = f"rows {start} to {stop} are not a span of 2 rows"
        assert outcome(lambda: batch.write(start, stop, *room))[1] == text  # noqa: B023
        assert outcome(lambda: batch.frames(start, stop, [b"s"], None))[1] == text  # noqa: B023
    assert outcome(lambda: batch.frames(0, 2, [], None))[1] == "row 0: subject 0 of 0"
    which = struct.pack("=2i", 0, -1)
    assert outcome(lambda: batch.frames(0, 2, [b"s"], which))[1] == "row 1: subject -1 of 1"
    assert outcome(lambda: batch.frames(0, 2, [b"s"], which[:-1]))[1] == "which must have 2 rows"
    with pytest.raises(ValueError, match="expected_offsets must have 2 rows"):
        module.Envelopes(column, None, None, None, None, 0, bytes(15), False)
    for i in (-1, 2) if module is _fastbatch else (2,):
        with pytest.raises(IndexError):
            column.row(i)


@pytest.mark.parametrize("module", TWINS)
def test_an_empty_column_is_harmless(module: ModuleType) -> None:
    assert (
        module.Envelopes(module.Column(), None, None, None, None, 0, -1, True).frames(0, 0, [b"s"], None)
        == b""
    )
