"""Arrow payloads: limits on what a message declares, schemas that change, exact columns."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.payload import ArrowBatches, _rows
from liftenvelope.payload._arrow import read_batch
from liftenvelope.payload._ipc import claims_of

ROWS = pa.record_batch({"a": [1, 2, 3], "s": ["x", None, "z"]})


def message(*batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_stream(sink, batches[0].schema, options=options) as stream:
        for batch in batches:
            stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def array(*values: bytes) -> pa.Array:
    return pa.array(values, pa.binary())


def reasons(kind: ArrowBatches, *values: bytes) -> list[tuple[int, str]]:
    found = kind.decoder().decode(array(*values))
    return [(value.index, value.reason) for value in found.bad]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_rows_are_equal_after_a_round_trip(compression: Any) -> None:
    kind = ArrowBatches(compression=compression)
    rows = pa.record_batch(
        {
            "d": pa.array(["x", "y", "x"]).dictionary_encode(),
            "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "t": pa.array([1, None, 2], pa.timestamp("ns")),
        }
    )
    values = kind.encoder(rows.schema).encode(rows)
    assert len(values) == 1
    found = kind.decoder(values).decode(values)
    assert (found.batches[0].equals(rows), found.bad) == (True, ())


class SplitTable:
    """FAKE: a table that Arrow does not combine into one chunk, as it does with 2 GiB in a column."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self.to_batches = lambda: batches

    @classmethod
    def from_batches(cls, batches: list[pa.RecordBatch], schema: pa.Schema) -> SplitTable:
        assert batches[0].schema == schema
        return cls(batches)

    def combine_chunks(self) -> SplitTable:
        return self


def test_message_whose_rows_do_not_fit_into_one_batch_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    value = pa.py_buffer(message(ROWS, ROWS))
    assert read_batch(value, ArrowBatches()).num_rows == 6
    monkeypatch.setattr(_rows, "pa", SimpleNamespace(Table=SplitTable))
    with pytest.raises(ValueError, match="more than 2 GiB in one column"):  # its reason
        read_batch(value, ArrowBatches())


def test_messages_anywhere_in_the_array_are_read() -> None:
    values = array(b"x", message(ROWS), b"yyy", message(ROWS, ROWS), message(ROWS.slice(0, 0))).slice(1)
    found = ArrowBatches(ROWS.schema).decoder().decode(values)
    assert [batch.num_rows for batch in found.batches] == [3, 1, 6, 0]
    assert [value.index for value in found.bad] == [1]
    assert found.batches[0].equals(ROWS)


def test_slice_of_an_array_of_another_type_is_read() -> None:
    values = pa.array([b"x", message(ROWS.slice(0, 1)), message(ROWS)], pa.large_binary()).slice(1)
    found = ArrowBatches(ROWS.schema).decoder().decode(values)
    assert ([batch.num_rows for batch in found.batches], found.bad) == ([1, 3], ())


def test_schema_is_that_of_the_first_good_message() -> None:
    decoder = ArrowBatches().decoder(array(b"oops", message(ROWS)))
    assert decoder.schema == ROWS.schema
    empty = message(pa.record_batch({}))
    assert ArrowBatches().decoder(array(empty, message(ROWS))).schema == ROWS.schema
    assert ArrowBatches().decoder(array(b"oops", empty)).schema == pa.schema([])
    with pytest.raises(UsageError, match="schema must be given"):
        ArrowBatches().decoder()


def test_other_schema_is_aligned_by_name_or_bad() -> None:
    moved = pa.record_batch({"new": [1.5], "s": ["q"], "a": [9]})
    short = pa.record_batch({"s": ["only"]})
    other = pa.record_batch({"a": ["text"]})
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    values = [message(batch) for batch in (moved, short, other, twice)]
    found = ArrowBatches(ROWS.schema).decoder().decode(array(*values))
    assert [batch.to_pylist() for batch in found.batches[:2]] == [
        [{"a": 9, "s": "q"}],
        [{"a": None, "s": "only"}],
    ]
    assert [(value.index, value.reason) for value in found.bad] == [
        (2, "column 'a' must be int64, got string"),
        (3, "column 'a' twice"),
    ]


def test_columns_are_chosen_with_their_prefix() -> None:
    decoder = ArrowBatches(ROWS.schema, prefix="p_").decoder(columns=["p_s"])
    assert decoder.decode(array(message(ROWS))).batches[0].to_pydict() == {"p_s": ["x", None, "z"]}


def test_rows_are_counted_if_no_column_is_chosen() -> None:
    rows = pa.record_batch({"a": [1, 2, 3]})
    kind = ArrowBatches(rows.schema)
    values = array(message(rows), b"bad", message(rows, rows))
    found = kind.decoder(columns=()).decode(values)
    assert [(part.num_rows, part.num_columns) for part in found.batches] == [(3, 0), (1, 0), (6, 0)]
    assert [value.index for value in found.bad] == [1]


@pytest.mark.parametrize("rest", [message(ROWS), b"x", bytes(7) + b"x"])
def test_bytes_behind_the_stream_make_a_message_bad(rest: bytes) -> None:
    kind = ArrowBatches(ROWS.schema)
    ((index, reason),) = reasons(kind, message(ROWS), message(ROWS) + rest, message(ROWS) + bytes(8))
    assert index == 1
    assert reason == f"{len(rest)} bytes follow the Arrow IPC stream: send each stream as a message"


class TestLimits:
    @pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
    def test_decoded_bytes_are_limited(self, compression: str | None) -> None:
        zeros = pa.record_batch({"a": [0] * 100_000})
        value = message(zeros, compression=compression)
        ((_, reason),) = reasons(ArrowBatches(zeros.schema, max_decoded_bytes=799_999), value)
        assert reason == "800000 bytes, more than max_decoded_bytes=799999"
        assert reasons(ArrowBatches(zeros.schema, max_decoded_bytes=800_000), value) == []

    def test_declared_size_of_a_compressed_buffer_is_not_believed(self) -> None:
        zeros = pa.record_batch({"a": [0] * 1_000})
        value = bytearray(message(zeros, compression="lz4"))
        at = value.find(struct.pack("<q", 8_000))
        value[at : at + 8] = struct.pack("<q", 2**60)
        ((_, reason),) = reasons(ArrowBatches(zeros.schema), bytes(value))
        assert reason == f"{2**60} bytes, more than max_decoded_bytes={2**28}"
        value[at : at + 8] = struct.pack("<q", -2)
        assert reasons(ArrowBatches(zeros.schema), bytes(value)) == [(0, "a buffer with a negative size")]
        value[at : at + 8] = struct.pack("<q", 7_999)
        assert len(reasons(ArrowBatches(zeros.schema), bytes(value))) == 1

    def test_rows_that_take_no_bytes_are_limited(self) -> None:
        nulls = pa.record_batch({"n": pa.nulls(2_000_000)})
        assert len(message(nulls)) < 1_000
        ((_, reason),) = reasons(ArrowBatches(nulls.schema), message(nulls))
        assert reason == "2000000 rows, more than max_rows=1000000"

    def test_rows_of_all_batches_of_a_message_are_counted(self) -> None:
        assert reasons(ArrowBatches(ROWS.schema, max_rows=6), message(ROWS, ROWS)) == []
        ((_, reason),) = reasons(ArrowBatches(ROWS.schema, max_rows=5), message(ROWS, ROWS))
        assert reason == "6 rows, more than max_rows=5"

    def test_nulls_for_missing_columns_are_limited(self) -> None:
        # Of each row: 8 bytes and a bit of validity, which counts as a byte.
        kind = ArrowBatches(pa.schema({"a": pa.int64(), "b": pa.int64()}), max_decoded_bytes=18_000)
        rows = pa.record_batch({"other": pa.nulls(1_000)})
        assert reasons(kind, message(rows)) == []
        ((_, reason),) = reasons(kind, message(pa.record_batch({"other": pa.nulls(1_001)})))
        assert reason == "18018 bytes with missing columns, more than max_decoded_bytes=18000"

    @pytest.mark.parametrize(
        "kind",
        [
            pa.binary(4_000),
            pa.list_(pa.int64(), 500),
            pa.struct({"f": pa.struct({"g": pa.binary(4_000)})}),
            pa.dictionary(pa.int64(), pa.string()),
            pa.list_(pa.string()),
        ],
        ids=str,
    )
    def test_small_messages_can_not_ask_for_gigabytes_of_nulls(self, kind: pa.DataType) -> None:
        fields = pa.schema([(f"c{number}", kind) for number in range(100)])
        values = array(
            message(pa.RecordBatch.from_arrays([pa.nulls(0, kind)] * 100, schema=fields)),
            message(pa.record_batch({"other": pa.nulls(1_000_000)})),
        )
        (bad,) = ArrowBatches().decoder(values).decode(values).bad
        assert bad.index == 1
        assert "bytes with missing columns, more than max_decoded_bytes" in bad.reason

    def test_schema_whose_rows_are_too_large_is_not_inferred(self) -> None:
        wide = pa.record_batch({"f": pa.nulls(0, pa.binary(1_000))})
        values = array(message(wide), message(ROWS))
        assert ArrowBatches(max_decoded_bytes=1_001).decoder(values).schema == wide.schema
        assert ArrowBatches(max_decoded_bytes=1_000).decoder(values).schema == ROWS.schema

    def test_rows_of_nulls_for_bad_messages_count_as_decoded(self) -> None:
        values = array(*[b"bad"] * 100)
        found = ArrowBatches(pa.schema({"f": pa.binary(4 * 2**20)})).decoder().decode(values)
        assert len(found.batches) == 4

    def test_dictionary_counts_as_bytes(self) -> None:
        words = pa.record_batch({"d": pa.array(["x" * 10_000]).dictionary_encode()})
        ((_, reason),) = reasons(ArrowBatches(words.schema, max_decoded_bytes=5_000), message(words))
        assert "more than max_decoded_bytes" in reason

    def test_wrong_options_are_refused(self) -> None:
        with pytest.raises(UsageError, match="compression must be one of 'lz4', 'zstd', None, got 'gzip'"):
            ArrowBatches(compression="gzip")  # type: ignore[arg-type]
        for name in ("max_decoded_bytes", "max_repeated_bytes"):
            limits: dict[str, Any] = {name: 0}
            with pytest.raises(UsageError, match=f"{name} must be at least 1"):
                ArrowBatches(**limits)
        with pytest.raises(UsageError, match="max_rows must be at least 1"):
            ArrowBatches(max_rows=0)
        with pytest.raises(UsageTypeError, match=r"schema must be a pyarrow\.Schema"):
            ArrowBatches("a")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_message_is_bad_or_valid(data: st.DataObject) -> None:
    value = bytearray(message(ROWS, compression=data.draw(st.sampled_from([None, "lz4"]))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at] = data.draw(st.integers(0, 255))
    value = value[: data.draw(st.integers(0, len(value)) | st.just(len(value)))]
    found = ArrowBatches(ROWS.schema).decoder().decode(array(bytes(value), message(ROWS)))
    found.batches[0].validate(full=True)
    assert found.batches[1].equals(ROWS)
    assert [bad.index for bad in found.bad] in ([], [0])


@given(st.binary(max_size=200), st.binary(max_size=64))
@settings(max_examples=200, deadline=None)
def test_claims_of_any_bytes_end(metadata: bytes, body: bytes) -> None:
    try:
        claims = claims_of(metadata, memoryview(body))
    except ValueError:
        return
    assert claims.nbytes >= 0
