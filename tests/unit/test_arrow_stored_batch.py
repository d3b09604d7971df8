"""liftenvelope.arrow.stored_batch, on whichever backend is active."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from liftenvelope import arrow
from liftenvelope.arrow import STORED_SCHEMA, decode_batch, stored_batch
from liftenvelope.envelope import Message, marshal_message, new_message
from liftenvelope.errors import (
    EnvelopeTooLargeError,
    MalformedEnvelopeError,
    TruncatedEnvelopeError,
    UsageTypeError,
)


def payload(value: bytes = b"", **fields: Any) -> bytes:
    return marshal_message(Message(value, **fields))[8:]


FULL: dict[str, Any] = {
    "key": b"k",
    "headers": {"subject": b"t", "h": b"w", "reply": b"r", "é": b""},
    "offset": 300,
    "timestamp_ns": 1_700_000_000_123_456_789,
    "stream": "s",
    "partition": -3,
    "subject": "t",
    "reply_subject": "ü",
    "ack_inbox": "i",
    "correlation_id": "c",
    "ack_policy": 1,
}


def plain(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    batch.validate(full=True)
    at = batch.schema.get_field_index("timestamp")
    return dict(batch.set_column(at, "timestamp", batch["timestamp"].cast(pa.int64())).to_pydict())


class TestColumns:
    def test_every_field(self) -> None:
        assert plain(stored_batch([payload(b"v", **FULL)])) == {
            "offset": [300],
            "key": [b"k"],
            "value": [b"v"],
            "timestamp": [1_700_000_000_123_456_789],
            "stream": ["s"],
            "partition": [-3],
            "subject": ["t"],
            "reply_subject": ["ü"],
            "headers": [[("h", b"w"), ("é", b"")]],
            "correlation_id": ["c"],
        }

    def test_what_is_absent_is_empty_not_null(self) -> None:
        batch = stored_batch([b"", payload(b"v")])
        assert plain(batch) == {
            "offset": [0, 0],
            "key": [b"", b""],
            "value": [b"", b"v"],
            "timestamp": [0, 0],
            "stream": ["", ""],
            "partition": [0, 0],
            "subject": ["", ""],
            "reply_subject": ["", ""],
            "headers": [[], []],
            "correlation_id": ["", ""],
        }
        assert [column.null_count for column in batch.columns] == [0] * 10

    def test_the_schema(self) -> None:
        assert stored_batch([]).schema.equals(STORED_SCHEMA)
        assert {field.name: str(field.type) for field in STORED_SCHEMA} == {
            "offset": "int64",
            "key": "binary",
            "value": "binary",
            "timestamp": "timestamp[ns, tz=UTC]",
            "stream": "string",
            "partition": "int32",
            "subject": "string",
            "reply_subject": "string",
            "headers": "map<string, binary>",
            "correlation_id": "string",
        }
        assert not any(field.nullable for field in STORED_SCHEMA)

    def test_none(self) -> None:
        batch = stored_batch([])
        batch.validate(full=True)
        assert batch.num_rows == 0

    def test_last_of_a_repeated_header_counts(self) -> None:
        entries = bytes.fromhex("4a060a0161120131" + "4a060a0162120132" + "4a060a0161120133")
        assert plain(stored_batch([entries]))["headers"] == [[("a", b"3"), ("b", b"2")]]

    def test_names_that_begin_alike_stay(self) -> None:
        headers = {"replying": b"1", "subjects": b"2", "repl": b"3"}
        batch = stored_batch([payload(headers=headers | {"reply": b""})])
        assert plain(batch)["headers"] == [list(headers.items())]

    def test_envelopes_keep_headers_of_those_names(self) -> None:
        headers = {"subject": b"a", "reply": b"b"}
        batch = decode_batch([new_message(b"v", headers=headers)])
        assert batch["headers"].to_pylist() == [list(headers.items())]

    def test_many_of_every_size(self) -> None:
        headers = [{"reply": b"", **{f"h{j}": b"x" * j for j in range(i % 12)}} for i in range(3_000)]
        payloads = [
            payload(b"v" * (i % 700), offset=i, stream="s" * (i % 40), headers=headers[i])
            for i in range(3_000)
        ]
        columns = plain(stored_batch(payloads))
        assert columns["offset"] == list(range(3_000))
        assert [len(value) for value in columns["value"]] == [i % 700 for i in range(3_000)]
        assert [len(stream) for stream in columns["stream"]] == [i % 40 for i in range(3_000)]
        assert [dict(row) | {"reply": b""} for row in columns["headers"]] == headers

    def test_a_large_value(self) -> None:
        assert stored_batch([payload(bytes(5_000_000)), b""])["value"].to_pylist() == [bytes(5_000_000), b""]

    def test_any_bytes_like(self) -> None:
        rows: list[Any] = [bytearray(payload(b"a")), memoryview(payload(b"b")), payload(b"c")]
        assert stored_batch(rows)["value"].to_pylist() == [b"a", b"b", b"c"]

    def test_the_batch_outlives_its_input(self) -> None:
        payloads = [payload(b"%d" % i) for i in range(100)]
        batch = stored_batch(payloads)
        payloads.clear()
        assert batch["value"].to_pylist() == [b"%d" % i for i in range(100)]


class TestFaults:
    def test_cut_at_every_byte(self) -> None:
        whole = payload(b"value")  # one field
        for size in range(1, len(whole)):
            with pytest.raises(TruncatedEnvelopeError) as caught:
                stored_batch([whole, whole[:size], b"\x00"])
            assert str(caught.value).startswith("message 1: ")

    def test_text_and_offset(self) -> None:
        with pytest.raises(MalformedEnvelopeError) as caught:
            stored_batch([b"", b"", b"\x08\x01\x2a\x02a\xff"])
        assert caught.value.args == ("message 2: stream is not valid UTF-8", 5)

    def test_trailing_bytes(self) -> None:
        with pytest.raises(MalformedEnvelopeError, match=r"^message 0: field number 0"):
            stored_batch([payload(b"v") + b"\x00"])

    @pytest.mark.parametrize("odd", [None, b"", (b"",), pa.array([b""])])
    def test_what_is_no_list(self, odd: Any) -> None:
        with pytest.raises(UsageTypeError, match=r"^payloads must be a list, got"):
            stored_batch(odd)

    @pytest.mark.parametrize("odd", [None, "text", 5])
    def test_what_is_not_bytes(self, odd: Any) -> None:
        with pytest.raises(UsageTypeError, match=r"^payloads\[1\] must be bytes-like, got"):
            stored_batch([b"", odd])

    def test_more_than_an_array_holds(self) -> None:
        megabytes = bytes(2**24)  # the same object again and again: only the sizes count
        with pytest.raises(EnvelopeTooLargeError, match="the messages have more than 2 GiB together"):
            stored_batch([megabytes] * 128)


def test_stored_batch_is_exported() -> None:
    assert {"STORED_SCHEMA", "stored_batch"} <= set(arrow.__all__)
