"""liftenvelope.arrow, as documented, on whichever backend is active."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope._native import batch
from liftenvelope.arrow import (
    ACK_FIELDS,
    MESSAGE_FIELDS,
    decode_acks,
    decode_batch,
    encode_batch,
    encoded_columns,
)
from liftenvelope.envelope import (
    Ack,
    AckError,
    AckPolicy,
    Message,
    marshal_ack,
    marshal_message,
    new_message,
    unmarshal_message,
)
from liftenvelope.errors import (
    BadMagicError,
    ChecksumError,
    EnvelopeTooLargeError,
    TruncatedEnvelopeError,
    UsageError,
    UsageTypeError,
    WrongTypeError,
)
from tests.unit.broken_arrow import with_more_rows

HEADERS = pa.map_(pa.string(), pa.binary())
BROKEN = "the Arrow array is broken: "

# Every Arrow type that holds bytes.
KINDS = [
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(3),
    pa.dictionary(pa.int8(), pa.binary()),
    pa.dictionary(pa.int32(), pa.large_string()),
]


def buffers(*parts: bytes | None) -> list[pa.Buffer | None]:
    return [None if part is None else pa.py_buffer(part) for part in parts]


def int32s(*numbers: int) -> bytes:
    return struct.pack(f"={len(numbers)}i", *numbers)


def map_array(offsets: bytes, names: pa.Array, values: pa.Array, validity: bytes | None = None) -> pa.Array:
    fields = [pa.field("key", names.type, nullable=False), pa.field("value", values.type)]
    entries = pa.StructArray.from_arrays([names, values], fields=fields)
    length = len(offsets) // 4 - 1
    kind = pa.map_(names.type, values.type)
    return pa.MapArray.from_buffers(kind, length, buffers(validity, offsets), children=[entries])


class TestEncode:
    def test_defaults(self) -> None:
        result = encode_batch([b"a", b"", None])
        assert result.type == pa.binary()
        assert result.to_pylist() == [new_message(b"a"), new_message(b""), None]
        assert result.null_count == 1

    def test_every_option(self) -> None:
        result = encode_batch(
            [b"a", b"b"],
            keys=[b"k", None],
            headers=[{"h": b"1", "ü": b""}, None],
            ack_inbox="inbox.ü",
            correlation_ids=["id", None],
            ack_policy=AckPolicy.ALL,
            expected_offsets=[7, -1],
            crc=True,
        )
        common: Any = {"ack_inbox": "inbox.ü", "ack_policy": AckPolicy.ALL, "crc": True}
        headers = {"h": b"1", "ü": b""}
        first = new_message(b"a", key=b"k", headers=headers, correlation_id="id", expected_offset=7, **common)
        assert result.to_pylist() == [first, new_message(b"b", **common)]

    @pytest.mark.parametrize("kind", KINDS, ids=str)
    def test_types_of_values_and_keys(self, kind: pa.DataType) -> None:
        rows = [b"abc", None, b"\x41\x42\x43", b"xyz"]
        array = (
            pa.array(rows, pa.binary()).cast(kind)
            if not pa.types.is_dictionary(kind)
            else dictionary(rows, kind)
        )
        for given, expected in ((array, rows), (array.slice(1, 2), rows[1:3])):
            result = encode_batch(given, keys=given)
            assert result.to_pylist() == [row and new_message(row, key=row) for row in expected]

    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary()], ids=str)
    def test_types_of_correlation_ids(self, kind: pa.DataType) -> None:
        ids = pa.array(["skipped", "ü1", None, ""]).cast(kind).slice(1)
        expected = [new_message(b"v", correlation_id=row) for row in ("ü1", None, None)]
        assert encode_batch([b"v"] * 3, correlation_ids=ids).to_pylist() == expected

    def test_any_iterable_of_bytes_like(self) -> None:
        rows = (cast(b"abc") for cast in (bytes, bytearray, memoryview))
        assert encode_batch(rows).to_pylist() == [new_message(b"abc")] * 3

    def test_long_views(self) -> None:
        rows = [b"short", b"x" * 13, None, b"", b"y" * 5000]
        for array in (
            pa.array(rows, pa.binary_view()),
            pa.array([b"?" * 20, *rows], pa.binary_view()).slice(1),
        ):
            assert encode_batch(array).to_pylist() == [
                None if row is None else new_message(row) for row in rows
            ]

    def test_nulls_only(self) -> None:
        assert encode_batch(pa.nulls(3), keys=pa.nulls(3), headers=pa.nulls(3)).to_pylist() == [None] * 3
        assert encode_batch(
            [b"v"], keys=pa.nulls(1), correlation_ids=pa.nulls(1), headers=pa.nulls(1)
        ).to_pylist() == [new_message(b"v")]

    def test_one_offset_for_all_or_one_for_each(self) -> None:
        for given, expected in [
            (5, [5, 5]),
            ((1, None), [1, -1]),
            (pa.array([None, 2**40]), [-1, 2**40]),
            (pa.array([9, 1, 2], pa.uint8()).slice(1), [1, 2]),
            (pa.chunked_array([[1], [0]]), [1, 0]),
            (pa.nulls(2), [-1, -1]),
        ]:
            rows = [new_message(b"v", expected_offset=offset) for offset in expected]
            assert encode_batch([b"v", b"v"], expected_offsets=given).to_pylist() == rows

    def test_a_row_without_a_value_needs_nothing_else(self) -> None:
        ids = pa.array([b"\xff", b"1"], pa.binary())
        headers = pa.array([[(b"\xff", b"")], None], pa.map_(pa.binary(), pa.binary()))
        result = encode_batch([None, b"v"], keys=[b"k", b"k"], correlation_ids=ids, headers=headers)
        assert result.to_pylist() == [None, new_message(b"v", key=b"k", correlation_id="1")]


def dictionary(rows: list[bytes | None], kind: pa.DictionaryType) -> pa.Array:
    cells = pa.array(rows, pa.binary()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        cells.indices.cast(kind.index_type), cells.dictionary.cast(kind.value_type)
    )


class TestEncodeHeaders:
    def test_maps_of_any_text_and_bytes(self) -> None:
        rows = [[("a", b"1"), ("b", None)], None, [], [("ü", b"")]]
        expected = [new_message(b"v", headers=h) for h in ({"a": b"1", "b": b""}, None, {}, {"ü": b""})]
        for names in (pa.string(), pa.large_string()):
            for values in (pa.binary(), pa.large_binary()):
                array = pa.array([None, [("pad", b"")], *rows], pa.map_(names, values)).slice(2)
                assert encode_batch([b"v"] * 4, headers=array).to_pylist() == expected
        texts = pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string()))
        assert encode_batch([b"v"], headers=texts).to_pylist() == [new_message(b"v", headers={"a": b"1"})]

    def test_chunked_maps(self) -> None:
        headers = pa.chunked_array([[[("a", b"1")]], [None, [("b", b"2")]]], HEADERS)
        expected = [new_message(b"v", headers=h) for h in ({"a": b"1"}, None, {"b": b"2"})]
        assert encode_batch([b"v"] * 3, headers=headers).to_pylist() == expected

    def test_entries_under_a_null_map_are_not_read(self) -> None:
        names, values = pa.array(["a", "b"]), pa.array([b"1", b"2"])
        headers = map_array(int32s(0, 1, 2), names, values, validity=b"\x02")
        assert encode_batch([b"v"] * 2, headers=headers).to_pylist() == [
            new_message(b"v"),
            new_message(b"v", headers={"b": b"2"}),
        ]

    @pytest.mark.parametrize("distinct", [1, 3, 40])
    def test_last_value_of_a_repeated_name_counts(self, distinct: int) -> None:
        entries = [(f"h{i % distinct}", b"%d" % i) for i in range(2 * distinct)]
        result = encode_batch([b"v", b"w"], headers=pa.array([entries, [("x", b"y")]], HEADERS))
        assert result.to_pylist() == [
            new_message(b"v", headers=dict(entries)),
            new_message(b"w", headers={"x": b"y"}),
        ]

    def test_sliced_entries(self) -> None:
        """The children of a map array may themselves be slices."""
        names, values = pa.array(["?", "a", "b"]).slice(1), pa.array([b"?", b"?", b"1", b"2"]).slice(2)
        headers = map_array(int32s(0, 1, 2), names, values)
        assert encode_batch([b"v"] * 2, headers=headers).to_pylist() == [
            new_message(b"v", headers={name: value}) for name, value in (("a", b"1"), ("b", b"2"))
        ]

    def test_the_most_that_the_server_stores(self) -> None:
        many = {f"h{i}": b"" for i in range(65_535)}
        long = {"x" * 32_767: b"1"}
        for headers in ([many, long], pa.array([list(many.items()), list(long.items())], HEADERS)):
            result = encode_batch([b"v", b"v"], headers=headers)
            assert [unmarshal_message(row.as_py()).headers for row in result] == [many, long]

    @pytest.mark.parametrize("as_map", [True, False])
    @pytest.mark.parametrize(
        ("headers", "text"),
        [
            ({f"h{i}": b"" for i in range(65_536)}, "row 1: headers must be at most 65535, got 65536"),
            (
                {"x" * 32_768: b""},
                "row 1: header name 'xxxxxxxxxxxxxxxxxxxx'... must be at most 32767 bytes, got 32768",
            ),
            ({"é" * 16_384: b""}, "row 1: header name .* must be at most 32767 bytes, got 32768"),
        ],
        ids=["many", "long", "long in UTF-8"],
    )
    def test_what_would_crash_the_server(self, as_map: bool, headers: dict[str, bytes], text: str) -> None:
        rows: Any = [None, headers]
        if as_map:
            rows = pa.array([None, list(headers.items())], HEADERS)
        with pytest.raises(EnvelopeTooLargeError, match=text):
            encode_batch([b"v", b"v"], headers=rows)

    def test_null_name(self) -> None:
        """Arrow itself allows none in a map, but other producers' buffers may have one."""
        names = batch.Column.of_sequence([None], "names", False)
        headers = batch.HeaderColumn.of_map(2, 0, None, int32s(0, 0, 1), names, names)
        values = batch.Column.same(b"v", 2)
        with pytest.raises(UsageError, match=r"^row 1: a header name must not be null$"):
            batch.Envelopes(values, None, headers, None, None, 0, -1, False)

    def test_null_values_are_empty(self) -> None:
        headers = map_array(int32s(0, 1), pa.array(["a"]), pa.array([None], pa.binary()))
        assert encode_batch([b"v"], headers=headers).to_pylist() == [new_message(b"v", headers={"a": b""})]


class TestEncodeErrors:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"keys": [b"k"]}, "keys has 1 rows, values 2"),
            ({"correlation_ids": ["1", "2", "3"]}, "correlation_ids has 3 rows, values 2"),
            ({"headers": []}, "headers has 0 rows, values 2"),
            ({"expected_offsets": [1]}, "expected_offsets must have as many rows as values, 2, got 1"),
            ({"ack_policy": 3}, "ack_policy must be one of LEADER, ALL, NONE, got 3"),
            ({"expected_offsets": 2**63}, f"expected_offsets must fit in 64 bits, got {2**63}"),
            ({"expected_offsets": [0, 2**63]}, rf"expected_offsets\[1\] must fit in 64 bits, got {2**63}"),
            (
                {"expected_offsets": pa.array([0, 2**63], pa.uint64())},
                "expected_offsets must fit in 64 bits: .*9223372036854775808",
            ),
            ({"ack_inbox": "\ud800"}, "ack_inbox must not contain a lone surrogate"),
            ({"correlation_ids": ["1", "\ud800"]}, r"correlation_ids\[1\] must not contain a lone surrogate"),
            ({"correlation_ids": pa.array([b"1", b"\xff"])}, "row 1: strings must be valid UTF-8"),
            ({"headers": [{}, {"\ud800": b""}]}, "row 1: header name must not contain a lone surrogate"),
        ],
    )
    def test_values(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            encode_batch([b"a", b"b"], **options)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"keys": b"kk"}, "keys must be an Arrow array or an iterable of rows, got bytes"),
            ({"keys": 5}, "keys must be an Arrow array or an iterable of rows, got int"),
            ({"keys": [b"k", "k"]}, r"keys\[1\] must be bytes-like, got str"),
            ({"keys": pa.array([1, 2])}, "keys must be an Arrow array of binary or string, got int64"),
            ({"keys": [b"k", memoryview(b"kkkk")[::2]]}, r"keys\[1\] must be contiguous"),
            (
                {"correlation_ids": "12"},
                "correlation_ids must be an Arrow array or an iterable of rows, got str",
            ),
            ({"correlation_ids": ["1", b"2"]}, r"correlation_ids\[1\] must be str, got bytes"),
            ({"headers": {"a": b"1"}}, "headers must be an Arrow array or an iterable of rows, got dict"),
            ({"headers": 5}, "headers must be an Arrow array or an iterable of rows, got int"),
            ({"headers": [None, [("a", b"1")]]}, "row 1: headers must be a mapping, got list"),
            ({"headers": [None, {"a": "1"}]}, "row 1: header 'a' must be bytes-like, got str"),
            (
                {"headers": pa.array([b"1", b"2"])},
                r"headers must be an Arrow array of map<string, binary>, got binary",
            ),
            (
                {"headers": pa.array([None, [(1, b"")]], pa.map_(pa.int8(), pa.binary()))},
                "header names must be .* int8",
            ),
            ({"expected_offsets": 1.5}, "expected_offsets must be an integer, got float"),
            ({"expected_offsets": [1, "2"]}, r"expected_offsets\[1\] must be an integer, got str"),
            ({"expected_offsets": pa.array([1.0, 2.0])}, "expected_offsets must be integers, got double"),
            ({"ack_inbox": b"inbox"}, "ack_inbox must be str, got bytes"),
            ({"ack_policy": "ALL"}, "ack_policy must be an integer, got str"),
        ],
    )
    def test_types(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(UsageTypeError, match=text):
            encode_batch([b"a", b"b"], **options)

    def test_the_first_faulty_row_is_named(self) -> None:
        ids = pa.array([b"1", b"\xff", b"\xff"], pa.binary())
        headers = pa.array([[("a", b"")], None, [("x" * 40_000, b"")]], HEADERS)
        with pytest.raises(UsageError, match=r"^row 1: strings must be"):
            encode_batch([b"v"] * 3, correlation_ids=ids, headers=headers)
        with pytest.raises(EnvelopeTooLargeError, match=r"^row 2: header name"):
            encode_batch([b"v"] * 3, headers=headers)


class TestEmpty:
    @pytest.mark.parametrize("kind", [*KINDS, pa.null()], ids=str)
    def test_no_rows(self, kind: pa.DataType) -> None:
        empty = pa.nulls(0, kind)  # pyarrow 22 makes no array of every dictionary type from a list
        headers = pa.array([], HEADERS)
        result = encode_batch(empty, keys=empty, headers=headers, expected_offsets=[], ack_inbox="i")
        assert result.type == pa.binary()
        assert len(result) == 0
        assert decode_batch(empty).num_rows == decode_acks(empty).num_rows == 0
        assert decode_batch(empty).schema.names == list(MESSAGE_FIELDS)
        assert decode_acks(empty).schema.names == list(ACK_FIELDS)

    def test_no_chunks(self) -> None:
        empty = pa.chunked_array([], pa.binary())
        assert encode_batch(empty).equals(empty)
        assert decode_batch(empty).num_rows == 0

    def test_no_data_buffer(self) -> None:
        """Arrow leaves the data buffer out where all rows are empty; they are not null for that."""
        for large, offsets in ((False, bytes(12)), (True, bytes(24))):
            column = batch.Column.of_binary(2, 0, None, offsets, None, large)
            assert [column.row(0), column.row(1)] == [b"", b""]
            envelopes = batch.Envelopes(column, column, None, None, None, 0, -1, False)
            assert envelopes.first_null() is None
            assert envelopes.reach(0, 10_000) == (2, 2 * len(new_message(b"")))
        empty = pa.array([b"", b""])
        assert decode_batch(empty, on_error="raw")["value"].to_pylist() == [b"", b""]
        assert batch.Column.of_binary(0, 0, None, None, None, False).length == 0


class TestChunks:
    def test_chunked_values_give_a_chunked_array(self) -> None:
        rows = [b"a", None, b"c"]
        for kind in (pa.binary(), pa.large_string(), pa.binary_view()):
            result = encode_batch(pa.chunked_array([rows[:1], rows[1:]], pa.binary()).cast(kind))
            assert isinstance(result, pa.ChunkedArray)
            assert result.to_pylist() == [row and new_message(row) for row in rows]

    def test_spans_end_at_a_limit(self) -> None:
        """encode_batch() cuts its chunks at 2 GiB."""
        batch = encoded_columns([b"a", None, b"bb", b"c" * 100])
        sizes = [len(new_message(row)) if row else 0 for row in (b"a", None, b"bb", b"c" * 100)]
        assert batch.reach(0, sum(sizes)) == (4, sum(sizes))
        assert batch.reach(0, sum(sizes) - 1) == (3, sum(sizes[:3]))
        assert batch.reach(0, sizes[0]) == (2, sizes[0])
        assert batch.reach(0, sizes[0] - 1) == (0, 0)
        assert batch.reach(2, sizes[2]) == (3, sizes[2])
        assert batch.reach(4, 0) == (4, 0)

    def test_a_span_written_by_itself(self) -> None:
        values = pa.array([b"a", b"b", None, b"c"])
        batch = encoded_columns(values, keys=values)
        stop, size = batch.reach(1, 10_000)
        offsets, data, validity = bytearray(16), bytearray(size), bytearray(1)
        assert batch.write(1, stop, offsets, data, validity) == 1
        array = pa.Array.from_buffers(pa.binary(), 3, buffers(bytes(validity), bytes(offsets), bytes(data)))
        assert array.to_pylist() == [new_message(b"b", key=b"b"), None, new_message(b"c", key=b"c")]


class TestDecode:
    def test_columns(self) -> None:
        first = Message(
            b"v", key=b"k", headers={"a": b"", "ü": b"2"}, offset=7, ack_inbox="i", correlation_id="ü"
        )
        batch = decode_batch([marshal_message(first), marshal_message(Message()), None])
        assert batch.schema == pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("headers", HEADERS),
                ("ack_inbox", pa.string()),
                ("correlation_id", pa.string()),
                ("ack_policy", pa.int32()),
                ("expected_offset", pa.int64()),
                ("error", pa.string()),
            ]
        )
        assert batch.to_pylist() == [
            {
                "key": b"k",
                "value": b"v",
                "headers": [("a", b""), ("ü", b"2")],
                "ack_inbox": "i",
                "correlation_id": "ü",
                "ack_policy": 0,
                "expected_offset": 7,
                "error": None,
            },
            {
                **dict.fromkeys(MESSAGE_FIELDS),
                "value": b"",
                "headers": [],
                "ack_policy": 0,
                "expected_offset": 0,
            },
            dict.fromkeys(MESSAGE_FIELDS),
        ]
        batch.validate(full=True)

    def test_acks(self) -> None:
        ack = Ack(
            stream="s",
            partition_subject="p",
            msg_subject="m",
            offset=-5,
            ack_inbox="i",
            correlation_id="c",
            ack_policy=AckPolicy.NONE,
            reception_timestamp_ns=1_700_000_000_123_456_789,
            commit_timestamp_ns=-1,
            error=AckError.TOO_LARGE,
        )
        batch = decode_acks([marshal_ack(ack, crc=True), None, marshal_ack(Ack())])
        batch.validate(full=True)
        stamps = {"reception_timestamp", "commit_timestamp"}
        rows = batch.drop_columns(list(stamps)).to_pylist()
        assert rows == [
            {
                "stream": "s",
                "partition_subject": "p",
                "msg_subject": "m",
                "offset": -5,
                "ack_inbox": "i",
                "correlation_id": "c",
                "ack_policy": 2,
                "ack_error": 3,
                "error": None,
            },
            dict.fromkeys(name for name in ACK_FIELDS if name not in stamps),
            {
                **dict.fromkeys(("stream", "partition_subject", "msg_subject"), ""),
                **dict.fromkeys(("ack_inbox", "correlation_id", "error")),
                **dict.fromkeys(("offset", "ack_policy", "ack_error"), 0),
            },
        ]
        for name, numbers in (
            ("reception_timestamp", [1_700_000_000_123_456_789, None, 0]),
            ("commit_timestamp", [-1, None, 0]),
        ):
            assert batch[name].type == pa.timestamp("ns", "UTC")
            assert batch[name].view(pa.int64()).to_pylist() == numbers

    @pytest.mark.parametrize("number", [3, -1, 2**31 - 1, -(2**31)])
    def test_numbers_without_a_name_are_kept(self, number: int) -> None:
        assert decode_batch([marshal_message(Message(ack_policy=number))])["ack_policy"].to_pylist() == [
            number
        ]
        acks = decode_acks([marshal_ack(Ack(ack_policy=number, error=number))])
        assert acks["ack_policy"].to_pylist() == acks["ack_error"].to_pylist() == [number]

    @pytest.mark.parametrize("kind", KINDS[:6] + KINDS[7:8], ids=str)
    def test_types_of_input(self, kind: pa.DataType) -> None:
        rows = [new_message(b"v%d" % i, key=b"k", crc=False) for i in range(5)]
        plain = [b"text" for _ in rows]  # no envelope is valid UTF-8, for its magic
        rows = plain if "string" in str(kind) else rows
        values = rows if rows is plain else [b"v%d" % i for i in range(5)]
        array = (
            dictionary(list(rows), kind)
            if pa.types.is_dictionary(kind)
            else pa.array(rows, pa.binary()).cast(kind)
        )
        for given, expected in ((array, values), (array.slice(2, 2), values[2:4])):
            batch = decode_batch(given, on_error="raw")
            batch.validate(full=True)
            assert batch["value"].to_pylist() == expected

    def test_width_of_offsets_follows_the_input(self) -> None:
        envelope = new_message(b"v", correlation_id="c")
        for kind in (pa.large_binary(), pa.binary_view()):
            batch = decode_batch(pa.array([envelope], kind))
            assert batch["value"].type == batch["key"].type == pa.large_binary()
            assert batch["correlation_id"].type == pa.large_string()
            batch.validate(full=True)
        assert (
            decode_acks(pa.array([marshal_ack(Ack())], pa.large_binary()))["stream"].type == pa.large_string()
        )

    @pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
    @pytest.mark.parametrize("on_error", ["null", "raw"])
    def test_binary_views_have_the_same_values(self, kind: pa.DataType, on_error: Any) -> None:
        sizes = (0, 1, 4, 12, 13, 1000)
        rows = [new_message(bytes(size), key=b"k") for size in sizes] + [None, b"", b"junk", b"long junk" * 9]
        for array in (pa.array(rows, kind), pa.array(rows, kind).slice(3, 5), pa.array([b"", None], kind)):
            views = decode_batch(array, on_error=on_error, binary_view=True)
            views.validate(full=True)
            assert views["value"].type == pa.binary_view()
            copied = decode_batch(array, on_error=on_error)
            assert views["value"].to_pylist() == copied["value"].to_pylist()
            assert views.drop_columns("value").equals(copied.drop_columns("value"))

    def test_binary_views_of_no_rows(self) -> None:
        for array in (pa.array([], pa.binary()), pa.chunked_array([], pa.binary()), pa.nulls(2, pa.binary())):
            batch = decode_batch(array, binary_view=True)
            batch.validate(full=True)
            assert batch["value"].to_pylist() == [None] * len(array)

    @pytest.mark.parametrize(
        "array", [[b""], pa.array([b""], pa.binary_view()), pa.array([1]), pa.array([b"abc"], pa.binary(3))]
    )
    def test_binary_views_need_one_data_buffer(self, array: Any) -> None:
        found = array.type if isinstance(array, pa.Array) else "list"
        text = f"array must be an Arrow array of binary with binary_view=True, got {found}"
        with pytest.raises(UsageTypeError, match=f"^{re.escape(text)}$"):
            decode_batch(array, binary_view=True)
        with pytest.raises(UsageError, match="binary_view must be one of False, True, got 'yes'"):
            decode_batch(array, binary_view="yes")  # type: ignore[arg-type]

    @pytest.mark.parametrize("binary_view", [False, True])
    @pytest.mark.parametrize(
        "fields",
        [*([name] for name in MESSAGE_FIELDS), ["value", "key"], ("error", "headers"), MESSAGE_FIELDS],
    )
    def test_some_fields_are_those_of_all(self, fields: Sequence[str], binary_view: bool) -> None:
        options: dict[str, Any] = {"ack_inbox": "in", "ack_policy": AckPolicy.ALL}
        rows = [new_message(b"v" * 20, key=b"k", headers={"h": b"1"}, correlation_id="c", **options)]
        for kind in (pa.binary(), pa.large_binary()):
            array = pa.array([*rows, new_message(b""), None, b"junk"], kind)
            for on_error in ("null", "raw"):
                how: Any = {"on_error": on_error, "binary_view": binary_view}
                found = decode_batch(array, fields=fields, **how)
                found.validate(full=True)
                assert found.equals(decode_batch(array, **how).select(list(fields)))

    def test_invalid_row_is_raised_whatever_the_fields_are(self) -> None:
        damaged = new_message(b"v", headers={"h": b"1"})[:-1]
        for name in MESSAGE_FIELDS:
            with pytest.raises(TruncatedEnvelopeError, match=r"^row 1: "):
                decode_batch([None, damaged], fields=[name])

    def test_unknown_fields(self) -> None:
        expected = "fields must be some of 'key', 'value', .*, 'error', "
        for fields, got in ((["offset"], "got 'offset'"), (["key"] * 2, "each once, got 'key' twice")):
            with pytest.raises(UsageError, match=expected + got):
                decode_batch([], fields=fields)
        with pytest.raises(UsageTypeError, match=expected + "in a list, got 'key'"):
            decode_batch([], fields="key")

    def test_chunks_are_put_together(self) -> None:
        rows = [new_message(b"a"), None, new_message(b"b")]
        batch = decode_batch(pa.chunked_array([rows[:2], rows[2:]], pa.binary()))
        assert batch["value"].to_pylist() == [b"a", None, b"b"]

    def test_many_headers(self) -> None:
        headers = {f"header-{i}": b"%d" % i for i in range(70_000)}
        plain = {f"{i}": b"" for i in range(17)}
        rows = [large_message(headers), large_message(plain), large_message({})]
        assert decode_batch(rows)["headers"].to_pylist() == [list(h.items()) for h in (headers, plain, {})]

    @pytest.mark.parametrize("distinct", [1, 5, 12, 40])
    def test_last_value_of_a_repeated_header_counts(self, distinct: int) -> None:
        entries = [(f"h{i % distinct}", b"%d" % i) for i in range(distinct * 3)]
        body = b"".join(header_field(name, value) for name, value in entries)
        result = decode_batch([bytes.fromhex("b90e43b400080000") + body])
        assert result["headers"].to_pylist() == [list(dict(entries).items())]

    def test_columns_grow_past_what_the_first_rows_promise(self) -> None:
        rows = [
            new_message(b"", key=b"k" * size, correlation_id="i" * size)
            for size in (0, 1, 5000, 20, 70_000, 0)
        ]
        batch = decode_batch(rows * 50)
        assert [len(key or b"") for key in batch["key"].to_pylist()] == [0, 1, 5000, 20, 70_000, 0] * 50
        assert batch["correlation_id"].to_pylist()[4] == "i" * 70_000
        batch.validate(full=True)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def header_field(name: str, value: bytes) -> bytes:
    key = name.encode()
    entry = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(value)) + value
    return b"\x4a" + varint(len(entry)) + entry


def large_message(headers: dict[str, bytes]) -> bytes:
    """With more headers than we would write, but can read."""
    return bytes.fromhex("b90e43b400080000") + b"".join(header_field(*item) for item in headers.items())


class TestOnError:
    rows = (
        new_message(b"v", key=b"k"),
        b"no envelope",
        None,
        b"",
        new_message(b"v", crc=True)[:-1],
        marshal_ack(Ack()),
    )
    errors = (
        None,
        "not an envelope: it begins with 6e6f2065, not b90e43b4 (at byte 0)",
        None,
        "an envelope has at least 8 bytes, not 0 (at byte 0)",
        "the header's CRC-32C is ",
        "expected an envelope of type PUBLISH, found ACK (1) (at byte 7)",
    )

    @pytest.mark.parametrize(
        ("row", "kind", "text"),
        [
            (b"no envelope", BadMagicError, "^row 2: not an envelope: it begins with 6e6f2065"),
            (b"", TruncatedEnvelopeError, "^row 2: an envelope has at least 8 bytes, not 0"),
            (new_message(b"v", crc=True)[:-1], ChecksumError, "^row 2: the header's CRC-32C is "),
            (marshal_ack(Ack()), WrongTypeError, "^row 2: expected an envelope of type PUBLISH"),
        ],
    )
    def test_raise(self, row: bytes, kind: type[Exception], text: str) -> None:
        rows = [new_message(b"v"), None, row, b"another"]
        with pytest.raises(kind, match=text) as caught:
            decode_batch(rows)
        assert caught.value.offset in (0, 7, 8)  # type: ignore[attr-defined]
        with pytest.raises(WrongTypeError, match=r"^row 1: expected an envelope of type ACK"):
            decode_acks([None, new_message(b"v")], on_error="raise")

    def test_null(self) -> None:
        batch = decode_batch(self.rows, on_error="null")
        batch.validate(full=True)
        assert batch["value"].to_pylist() == [b"v", *[None] * 5]
        self.check(batch)

    def test_raw(self) -> None:
        batch = decode_batch(self.rows, on_error="raw")
        batch.validate(full=True)
        assert batch["value"].to_pylist() == [b"v", *self.rows[1:]]
        self.check(batch)

    def check(self, batch: pa.RecordBatch) -> None:
        assert batch["key"].to_pylist() == [b"k", *[None] * 5]
        for name in ("headers", "ack_inbox", "correlation_id", "ack_policy", "expected_offset"):
            assert batch[name].to_pylist()[1:] == [None] * 5
        for found, expected in zip(batch["error"].to_pylist(), self.errors, strict=True):
            assert found == expected or (expected and found.startswith(expected))

    def test_acks(self) -> None:
        batch = decode_acks([marshal_ack(Ack(stream="s")), new_message(b"v"), None], on_error="null")
        batch.validate(full=True)
        assert batch["stream"].to_pylist() == ["s", None, None]
        assert batch["offset"].to_pylist() == [0, None, None]
        assert batch["error"].to_pylist()[::2] == [None, None]
        assert "expected an envelope of type ACK" in batch["error"][1].as_py()

    def test_unknown(self) -> None:
        with pytest.raises(UsageError, match="on_error must be one of 'raise', 'null', 'raw', got 'skip'"):
            decode_batch([], on_error="skip")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="on_error must be one of 'raise', 'null', got 'raw'"):
            decode_acks([], on_error="raw")  # type: ignore[arg-type]

    @pytest.mark.parametrize("decode", [decode_batch, decode_acks])
    def test_input_that_is_not_bytes_is_refused(self, decode: Callable[[Any], pa.RecordBatch]) -> None:
        with pytest.raises(
            UsageTypeError, match="array must be an Arrow array of binary or string, got int64"
        ):
            decode(pa.array([1]))
        with pytest.raises(UsageTypeError, match=r"array\[1\] must be bytes-like, got str"):
            decode([None, "x"])
        with pytest.raises(
            UsageTypeError, match="array must be an Arrow array or an iterable of rows, got bytes"
        ):
            decode(b"one envelope")


OUTSIDE = BROKEN + "its offsets point outside of its data"
SHORT = BROKEN + "its offsets are too short"
BITS = BROKEN + "its validity bitmap is too short"
VIEWS = BROKEN + "its views point outside of its data"


def view(size: int, buffer: int, offset: int) -> bytes:
    return struct.pack("=i4sii", size, b"xxxx", buffer, offset)


def lying(kind: pa.DataType, length: int, offsets: bytes, data: bytes) -> pa.Array:
    """An array whose offsets change once it is made: pyarrow refuses to make it with these."""
    content = bytearray(len(offsets))
    array = pa.Array.from_buffers(kind, length, [None, pa.py_buffer(content), pa.py_buffer(data)])
    content[:] = offsets
    return array


class TestBrokenArrays:
    """Buffers that lie, as another library may hand them over: an error, never a crash."""

    @pytest.mark.parametrize(
        ("kind", "offsets"),
        [
            (pa.binary(), int32s(0, 1, 5)),
            (pa.binary(), int32s(-1, 1, 2)),
            (pa.binary(), int32s(0, 3, 2, 4)),
            (pa.binary(), int32s(2**31 - 1, -(2**31))),
            (pa.string(), int32s(0, 9)),
            (pa.large_binary(), struct.pack("=2q", 0, 2**62)),
            (pa.large_string(), struct.pack("=3q", 0, -(2**63), 1)),
        ],
    )
    def test_offsets(self, kind: pa.DataType, offsets: bytes) -> None:
        length = len(offsets) // (8 if "large" in str(kind) else 4) - 1
        array = lying(kind, length, offsets, b"abcd")
        for call in (encode_batch, decode_batch, decode_acks):
            with pytest.raises(UsageError, match=OUTSIDE):
                call(array)
        with pytest.raises(UsageError, match=OUTSIDE):
            encode_batch([b"v"] * length, keys=array)
        for chunks in ([array, array], [pa.array([b"good"]).cast(kind), array]):
            with pytest.raises(UsageError, match=BROKEN):
                encode_batch(pa.chunked_array(chunks))

    @pytest.mark.parametrize(
        "bad",
        [
            view(13, 0, 8),
            view(13, 0, 2**31 - 1),
            view(2**31 - 1, 0, 2**31 - 1),
            view(13, 0, -1),
            view(13, 1, 0),
            view(13, -1, 0),
            view(-1, 0, 0),
        ],
    )
    def test_views(self, bad: bytes) -> None:
        parts = buffers(None, view(13, 0, 7) + bad, b"x" * 20)
        array = pa.Array.from_buffers(pa.binary_view(), 2, parts)
        for call in (encode_batch, decode_batch, decode_acks):
            with pytest.raises(UsageError, match=VIEWS):
                call(array)

    @pytest.mark.parametrize(
        ("length", "first", "parts", "text"),
        [
            (2, 0, (None, int32s(0, 1), b"abcd"), SHORT),
            (1, 1, (None, int32s(0, 1), b"abcd"), SHORT),
            (1, 0, (None, None, b"abcd"), SHORT),
            (1, 2**62, (None, int32s(0, 1), b"abcd"), SHORT),
            (2**62, 0, (None, int32s(0, 1), b"abcd"), SHORT),
            (9, 0, (b"\xff", int32s(*range(10)), b"abcdefghi"), BITS),
            (1, 8, (b"\xff", int32s(*range(10)), b"abcdefghi"), BITS),
            (1, 0, (None, int32s(0, 1), None), OUTSIDE),
        ],
    )
    def test_short_buffers(
        self, length: int, first: int, parts: tuple[bytes | None, bytes | None, bytes | None], text: str
    ) -> None:
        """pyarrow refuses to make such arrays, so these go to the batch codec itself."""
        with pytest.raises(UsageError, match=text):
            batch.Column.of_binary(length, first, *parts, False)

    @pytest.mark.parametrize(
        ("length", "first", "validity", "text"),
        [
            (3, 0, None, "its views are too short"),
            (1, 2, None, "its views are too short"),
            (1, 2**62, None, "its views are too short"),
            (2**62, 0, None, "its views are too short"),
            (2, 0, b"", "its validity bitmap is too short"),
        ],
    )
    def test_short_views(self, length: int, first: int, validity: bytes | None, text: str) -> None:
        with pytest.raises(UsageError, match=BROKEN + text):
            batch.Column.of_views(length, first, validity, view(0, 0, 0) * 2, [])

    def test_unaligned_buffers_are_read_all_the_same(self) -> None:
        offsets = pa.py_buffer(memoryview(b"?" + int32s(0, 1, 3))[1:])
        array = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
        assert encode_batch(array).to_pylist() == [new_message(b"a"), new_message(b"bc")]

    @pytest.mark.parametrize(
        ("length", "first", "validity", "offsets", "text"),
        [
            (2, 0, None, int32s(0, 1, 3), "its offsets point outside of its entries"),
            (2, 0, None, int32s(-1, 1, 2), "its offsets point outside of its entries"),
            (2, 0, None, int32s(0, 2, 1), "its offsets point outside of its entries"),
            (2, 0, b"", int32s(0, 2, 2), "its validity bitmap is too short"),
            (2, 0, None, int32s(0, 2), "its offsets are too short"),
            (2, 2**62, None, int32s(0, 2, 2), "its offsets are too short"),
            (2**62, 0, None, None, "its offsets are too short"),
        ],
    )
    def test_maps(
        self, length: int, first: int, validity: bytes | None, offsets: bytes | None, text: str
    ) -> None:
        names = batch.Column.of_sequence([b"a", b"b"], "names", False)
        with pytest.raises(UsageError, match=BROKEN + text):
            batch.HeaderColumn.of_map(length, first, validity, offsets, names, names)

    def test_more_names_than_values(self) -> None:
        names, values = (batch.Column.of_sequence(rows, "x", False) for rows in ([b"a", b"b"], [b"1"]))
        with pytest.raises(UsageError, match=BROKEN + "its offsets point outside of its entries"):
            batch.HeaderColumn.of_map(1, 0, None, int32s(0, 2), names, values)

    def test_names_of_headers(self) -> None:
        names = lying(pa.string(), 2, int32s(0, 3, 1), b"ab")
        headers = map_array(int32s(0, 1, 2), names, pa.array([b"1", b"2"]))
        with pytest.raises(UsageError, match=OUTSIDE):
            encode_batch([b"v", b"v"], headers=headers)

    def test_dictionaries(self) -> None:
        outside = pa.Array.from_buffers(pa.int8(), 2, buffers(None, b"\x00\x05"))
        for indices, values in (
            (outside, pa.array([b"a"])),
            (pa.array([0, 1], pa.int8()), lying(pa.binary(), 2, int32s(0, 3, 1), b"a")),
        ):
            array = pa.DictionaryArray.from_arrays(indices, values, safe=False)
            with pytest.raises(UsageError, match=BROKEN):
                encode_batch(array)

    @pytest.mark.parametrize(
        "numbers", [pa.array([7] * 1234), pa.array([7, None] * 617), pa.array([7] * 1234, pa.int32())]
    )
    @pytest.mark.parametrize("chunked", [False, True])
    def test_expected_offsets(self, numbers: pa.Array, chunked: bool) -> None:
        array = with_more_rows(pa.record_batch([numbers], ["number"])).column(0)
        offsets = pa.chunked_array([array]) if chunked else array
        with pytest.raises(UsageError, match=BROKEN + "Buffer #"):
            encode_batch(pa.nulls(len(array)), expected_offsets=offsets)

    def test_fixed_size_values(self) -> None:
        values = pa.array([b"abc"] * 1234, pa.binary(3))
        with pytest.raises(UsageError, match=BROKEN + "Buffer #1 too small"):
            encode_batch(with_more_rows(pa.record_batch([values], ["value"])).column(0))


def test_threads_decode_and_encode_at_once() -> None:
    """The GIL is released: what the calls share must be nothing."""
    batches = [[b"%d-%d" % (worker, i) * (1 + i % 40) for i in range(3000)] for worker in range(4)]
    headers = [[{f"w{worker}": b"%d" % i} for i in range(3000)] for worker in range(4)]

    def there_and_back(worker: int) -> tuple[list[Any], list[Any]]:
        values = pa.array(batches[worker])
        decoded = decode_batch(
            encode_batch(values, keys=values, headers=headers[worker], crc=worker % 2 == 0)
        )
        assert decoded["key"].equals(values)
        return decoded["value"].to_pylist(), decoded["headers"].to_pylist()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(there_and_back, [worker for _ in range(3) for worker in range(4)]))
    assert results == [
        (batches[w], [list(h.items()) for h in headers[w]]) for _ in range(3) for w in range(4)
    ]


def test_threads_share_their_input() -> None:
    envelopes = encode_batch(
        [b"x" * (i % 300) for i in range(5000)], correlation_ids=[f"{i}" for i in range(5000)]
    )
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(decode_batch, [envelopes, envelopes])
    assert one.equals(two)
    assert one["correlation_id"].to_pylist() == [f"{i}" for i in range(5000)]
