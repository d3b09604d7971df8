"""The rows that Spark gets and gives, as Arrow. Without Spark."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope.bulk._engine.schema import make_schema
from liftenvelope.envelope import new_message, unmarshal_message
from liftenvelope.errors import EnvelopeError, EnvelopeTooLargeError, UsageError
from liftenvelope.payload import ArrowBatches
from liftenvelope.spark._columns import (
    ENVELOPE_TYPE,
    checked_fields,
    decoded_structs,
    encoded_structs,
    with_columns,
)
from liftenvelope.spark._schema import (
    BATCH_BYTES,
    BATCH_ROWS,
    RowOptions,
    bulk_columns,
    check_sink,
    spark_batches,
    spark_ddl,
    spark_schema,
)
from liftenvelope.spark._session import recommended_conf, setting_warnings, worker_python
from liftenvelope.spark.errors import OptionError


def bulk_batch(rows: int, *, value: bytes = b"v", envelope: str = "none") -> pa.RecordBatch:
    """Return a batch as a bulk read returns it."""
    schema = make_schema(
        bulk_columns(spark_schema(RowOptions(headers=True, envelope=envelope))), unsigned=True
    )
    columns = {
        "key": [None, b"k"] * (rows // 2) + [None] * (rows % 2),
        "value": [value] * rows,
        "headers": [[("A", b"1"), ("A", b"2")] if i % 3 == 0 else [] for i in range(rows)],
        "offset": list(range(rows)),
        "timestamp": [1_700_000_000_123_456_789 + i for i in range(rows)],
        "subject": [f"s.{i % 2}" for i in range(rows)],
        "ack_inbox": ["inbox"] * rows,
        "correlation_id": ["id"] * rows,
        "ack_policy": [1] * rows,
        "expected_offset": [-1] * rows,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def payload_batches(columns: dict[str, pa.Array]) -> list[pa.RecordBatch]:
    """Return two rows with typed columns as Spark gets them."""
    kind = ArrowBatches(pa.schema([(name, column.type) for name, column in columns.items()]))
    schema = spark_schema(RowOptions(payload=kind))
    plain = bulk_batch(2)
    given = dict(zip(plain.schema.names, plain.columns, strict=True))
    batch = pa.record_batch({**given, "row": pa.array([0, 1], pa.int32()), **columns})
    found = list(spark_batches([batch], schema, "orders", 3))
    assert all(one.schema == schema for one in found)
    return found


def spark_rows(
    batch: pa.RecordBatch, *, headers: bool = True, envelope: str = "none"
) -> list[pa.RecordBatch]:
    schema = spark_schema(RowOptions(headers=headers, envelope=envelope))
    found = list(spark_batches([batch], schema, "orders", 3))
    for one in found:
        one.validate(full=True)
        assert one.schema == schema
    return found


class TestRows:
    def test_a_row(self) -> None:
        (batch,) = spark_rows(bulk_batch(2))
        assert batch.to_pylist()[0] == {
            "key": None,
            "value": b"v",
            "topic": "orders",
            "partition": 3,
            "offset": 0,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC),
            "timestampType": 1,
            "subject": "s.0",
            "timestamp_nanos": 1_700_000_000_123_456_789,
            "headers": [{"key": "A", "value": b"1"}, {"key": "A", "value": b"2"}],
        }
        assert batch["headers"].to_pylist()[1] == []

    def test_without_headers_and_with_envelopes(self) -> None:
        (batch,) = spark_rows(bulk_batch(1, envelope="columns"), headers=False, envelope="columns")
        assert "headers" not in batch.schema.names
        assert [batch[name][0].as_py() for name in ("ack_inbox", "correlation_id")] == ["inbox", "id"]

    def test_slices(self) -> None:
        whole = bulk_batch(10)
        (batch,) = spark_rows(whole.slice(3, 4))
        assert batch.to_pylist() == spark_rows(whole)[0].to_pylist()[3:7]

    def test_bounded_in_rows(self) -> None:
        found = spark_rows(bulk_batch(2 * BATCH_ROWS + 1))
        assert [batch.num_rows for batch in found] == [BATCH_ROWS, BATCH_ROWS, 1]
        assert pa.Table.from_batches(found)["offset"].to_pylist() == list(range(2 * BATCH_ROWS + 1))

    def test_bounded_in_bytes(self) -> None:
        found = spark_rows(bulk_batch(20, value=bytes(1024 * 1024)))
        assert all(batch.nbytes <= BATCH_BYTES for batch in found)
        assert pa.Table.from_batches(found)["offset"].to_pylist() == list(range(20))

    def test_a_large_row_stands_alone(self) -> None:
        found = spark_rows(bulk_batch(3, value=bytes(BATCH_BYTES + 1)))
        assert [batch.num_rows for batch in found] == [1, 1, 1]

    @pytest.mark.parametrize("first", [-3_001, -1_000, -1, 0, 1_700_000_000_123_456_000])
    def test_microseconds_that_have_begun(self, first: int) -> None:
        times = list(range(first, first + 3_500, 250))
        batch = bulk_batch(len(times))
        at = batch.schema.names.index("timestamp")
        batch = batch.set_column(at, batch.schema.field(at), pa.array(times, batch.schema.field(at).type))
        (found,) = spark_rows(batch)
        assert found["timestamp"].cast(pa.int64()).to_pylist() == [time // 1_000 for time in times]
        assert found["timestamp_nanos"].to_pylist() == times

    def test_types_of_a_payload_become_those_of_spark(self) -> None:
        view = pa.string_view()
        columns = {
            "v": pa.array(["x", None], view),
            "b": pa.array([b"x", None], pa.binary_view()),
            "c": pa.DictionaryArray.from_arrays(pa.array([1, None], pa.uint32()), pa.array(["x", "y"], view)),
            "t": pa.array([1_001, None], pa.timestamp("ns")),
            "d": pa.DictionaryArray.from_arrays(
                pa.array([0, None], pa.int8()), pa.array([1, 2**45], pa.timestamp("s"))
            ),
        }
        (found,) = payload_batches(columns)
        assert [found[name].to_pylist() for name in "vbc"] == [["x", None], [b"x", None], ["y", None]]
        assert found["t"].cast(pa.int64()).to_pylist() == [1, None]
        assert found["d"].cast(pa.int64()).to_pylist() == [1_000_000, None]

    def test_time_of_a_payload_beyond_microseconds_is_named(self) -> None:
        with pytest.raises(
            UsageError, match=r"field 't' must fit type timestamp\[us\] of Spark: .*; leave it"
        ):
            payload_batches({"t": pa.array([2**45, None], pa.timestamp("s"))})

    def test_decimal_with_a_negative_scale_is_refused(self) -> None:
        with pytest.raises(
            OptionError, match=r"'d' must have a type that Spark has, got decimal128\(5, -2\)"
        ):
            payload_batches({"d": pa.array([None, None], pa.decimal128(5, -2))})

    def test_what_is_the_same_in_every_row_of_batches_of_any_length(self) -> None:
        schema = spark_schema(RowOptions())
        lengths = [3, 1, 7, 2]
        found = list(spark_batches([bulk_batch(rows) for rows in lengths], schema, "orders", 3))
        assert [batch.num_rows for batch in found] == lengths
        for batch in found:
            batch.validate(full=True)
            for name, value in (("topic", "orders"), ("partition", 3), ("timestampType", 1)):
                assert batch[name].to_pylist() == [value] * batch.num_rows

    def test_nothing(self) -> None:
        assert spark_rows(bulk_batch(0)) == []

    def test_the_text_has_the_same_columns(self) -> None:
        for headers in (False, True):
            for envelope in ("none", "columns"):
                text = spark_ddl(RowOptions(headers=headers, envelope=envelope))
                names = re.findall(r"`(\w+)`", text)
                assert names == spark_schema(RowOptions(headers=headers, envelope=envelope)).names


class TestSinks:
    def test_what_was_read_can_be_written(self) -> None:
        rows = [
            ("key", "binary"),
            ("value", "binary"),
            ("topic", "string"),
            ("partition", "int"),
            ("offset", "bigint"),
            ("timestamp", "timestamp"),
            ("timestampType", "int"),
            ("subject", "string"),
            ("timestamp_nanos", "bigint"),
            ("headers", "array<struct<key:string,value:binary>>"),
        ]
        for format_ in ("liftbridge", "jetstream"):
            check_sink(format_, rows, topic=None)

    @pytest.mark.parametrize(
        ("columns", "text"),
        [
            ([("key", "binary")], "must have a column 'value', got key"),
            ([("value", "binary")], "the stream is not named"),
            ([("value", "int"), ("topic", "string")], "'value' must be binary or string, got int"),
            ([("valu", "string"), ("topic", "string")], "did you mean 'value'"),
            ([("value", "string"), ("topic", "int")], "'topic' must be string, got int"),
            (
                [("value", "string"), ("topic", "string"), ("msgId", "string")],
                "column 'msgId' needs deliveryGuarantee",
            ),
        ],
    )
    def test_refused(self, columns: list[tuple[str, str]], text: str) -> None:
        with pytest.raises(OptionError, match=text):
            check_sink("liftbridge", columns, topic=None)

    def test_a_subject_in_jetstream(self) -> None:
        with pytest.raises(OptionError, match="give the option subject, or a column 'subject'"):
            check_sink("jetstream", [("value", "string")], topic="S")
        check_sink("jetstream", [("value", "string")], topic="S", subject="s")
        check_sink("jetstream", [("value", "string"), ("subject", "string")], topic="S")

    def test_ids_in_envelopes(self) -> None:
        columns = [("value", "string"), ("subject", "string"), ("msgId", "string")]
        check_sink("jetstream", columns, topic="S")
        with pytest.raises(OptionError, match="leave out envelope=true"):
            check_sink("jetstream", columns, topic="S", envelope=True)


ENVELOPES = [new_message(b"one", key=b"k"), b"no envelope", None, new_message(b"two")]


class TestEnvelopes:
    def test_malformed_rows_say_why(self) -> None:
        found = decoded_structs(pa.array(ENVELOPES, pa.binary()))
        assert found.type == ENVELOPE_TYPE
        rows = found.to_pylist()
        assert [row["value"] for row in rows] == [b"one", None, None, b"two"]
        assert [row["key"] for row in rows] == [b"k", None, None, None]
        assert [bool(row["error"]) for row in rows] == [False, True, False, False]

    def test_malformed_rows_fail_when_asked_to(self) -> None:
        with pytest.raises(EnvelopeError, match="row 1"):
            decoded_structs(pa.array(ENVELOPES, pa.binary()), "fail")

    @pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
    def test_round_trip(self, kind: pa.DataType) -> None:
        rows = pa.array(
            [
                {"key": b"k", "value": b"v", "headers": [("A", b"1")]},
                {"key": None, "value": b"", "headers": None},
            ],
            pa.struct([("key", kind), ("value", kind), ("headers", pa.map_(pa.string(), kind))]),
        )
        envelopes = encoded_structs(rows)
        assert unmarshal_message(envelopes[0].as_py()).headers == {"A": b"1"}
        found = decoded_structs(envelopes).to_pylist()
        assert [(row["key"], row["value"]) for row in found] == [(b"k", b"v"), (None, b"")]

    def test_each_row_keeps_its_ack_inbox_and_ack_policy(self) -> None:
        given = [("a.b", 1), (None, None), (None, 0), ("c", None), ("a.b", 1), (None, 1)]
        rows = [
            {"key": b"k%d" % i, "value": b"%d" % i, "ack_inbox": inbox, "ack_policy": policy}
            for i, (inbox, policy) in enumerate(given)
        ]
        kind = pa.struct(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("ack_inbox", pa.string()),
                ("ack_policy", pa.int32()),
            ]
        )
        # A null struct has no fields, and a slice starts at an offset.
        structs = pa.array([{"value": b"other"}, *rows, None], kind)[1:]
        found = decoded_structs(encoded_structs(structs)).to_pylist()
        expected = [(b"k%d" % i, b"%d" % i, inbox, policy or 0) for i, (inbox, policy) in enumerate(given)]
        names = ("key", "value", "ack_inbox", "ack_policy")
        assert [tuple(row[name] for name in names) for row in found[:-1]] == expected
        assert found[-1]["value"] is None
        one_by_one = [encoded_structs(structs.slice(i, 1))[0] for i in range(len(structs))]
        assert encoded_structs(structs).to_pylist() == [envelope.as_py() for envelope in one_by_one]
        assert encoded_structs(structs[:0]).to_pylist() == []

    def test_error_names_the_row_of_the_batch_when_ack_inboxes_differ(self) -> None:
        long = [("k" * 70_000, b"1")]
        rows: list[dict[str, Any]]
        rows = [{"value": b"1", "headers": None, "ack_inbox": name} for name in ("a", "b", "a")]
        rows.append({"value": b"1", "headers": long, "ack_inbox": "b"})
        headers = pa.map_(pa.string(), pa.binary())
        kind = pa.struct([("value", pa.binary()), ("headers", headers), ("ack_inbox", pa.string())])
        with pytest.raises(EnvelopeTooLargeError, match="row 3: header name"):
            encoded_structs(pa.array(rows, kind))

    def test_rows_that_are_null_stay_null(self) -> None:
        rows = pa.array([None, {"value": b"v"}, {"value": None}], pa.struct([("value", pa.binary())]))
        assert [value is None for value in encoded_structs(rows).to_pylist()] == [True, False, True]

    @pytest.mark.parametrize(
        ("rows", "text"),
        [
            ([{"key": b"k"}], "no field 'value'"),
            ([{"value": b"v", "kee": b"k"}], "unknown field 'kee'"),
            ([{"value": b"v", "ack_policy": 0}, {"value": b"v", "ack_policy": 7}], "ack_policy must be"),
        ],
    )
    def test_refused(self, rows: list[dict[str, object]], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            encoded_structs(pa.array(rows))

    def test_what_is_no_struct(self) -> None:
        with pytest.raises(UsageError, match="must be a struct, such as struct\\(value\\), got binary"):
            encoded_structs(pa.array([b"v"]))

    def test_in_place_of_a_column(self) -> None:
        batch = pa.record_batch({"id": [1, 2], "value": pa.array(ENVELOPES[:2], pa.binary())})
        found = with_columns(batch, "value")
        assert found.schema.names == ["id", "envelope"]
        assert found["id"].to_pylist() == [1, 2]

    def test_an_unknown_choice(self) -> None:
        with pytest.raises(UsageError, match="on_malformed must be 'null' or 'fail', got 'ignore'"):
            checked_fields(["key"], "ignore")

    @pytest.mark.parametrize(
        "fields", [["value", "key"], ("error",), ["headers", "expected_offset", "value"]]
    )
    def test_some_fields_have_the_values_that_they_have_among_all(self, fields: Sequence[str]) -> None:
        array = pa.array(ENVELOPES, pa.binary())
        whole, found = decoded_structs(array), decoded_structs(array, "null", fields)
        found.validate(full=True)
        assert [field.name for field in found.type] == list(fields)
        assert found.flatten() == [whole.field(name) for name in fields]

    def test_malformed_rows_fail_also_without_the_field_error(self) -> None:
        array = pa.array(ENVELOPES, pa.binary())
        assert decoded_structs(array, "null", ["key"])[1].as_py() == {"key": None}
        with pytest.raises(EnvelopeError, match="row 1: "):
            decoded_structs(array, "fail", ["key"])


class TestSettings:
    def test_page_has_a_row_for_each_recommended_setting(self) -> None:
        page = (Path(__file__).resolve().parents[3] / "docs" / "spark.md").read_text("utf-8")
        rows = re.findall(r"^\| `(spark\.[\w.]+)` \| `(\w+)`", page, re.MULTILINE)
        assert dict(rows) == recommended_conf()

    @pytest.mark.parametrize(
        ("settings", "texts"),
        [
            ({}, []),
            (recommended_conf(), []),
            ({"spark.python.udf.pipelined.enabled": "true"}, ["known to break"]),
            ({"spark.sql.execution.arrow.maxRecordsPerBatch": "100000"}, ["known to hang"]),
            ({"spark.sql.execution.arrow.maxRecordsPerBatch": "0"}, ["known to hang"]),
            (
                {
                    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
                    "spark.python.unix.domain.socket.enabled": "true",
                },
                [],
            ),
        ],
    )
    def test_warnings(self, settings: dict[str, str], texts: list[str]) -> None:
        found = setting_warnings(settings.get)
        assert len(found) == len(texts)
        assert all(text in one for text, one in zip(texts, found, strict=True))


class TestWorkerPython:
    @pytest.mark.parametrize("master", ["local", "local[*]", "local[2,3]", "local-cluster[1,1,512]"])
    def test_local_workers_run_this_interpreter(self, master: str) -> None:
        assert worker_python(master, "python3", {}.get, {}) == sys.executable

    @pytest.mark.parametrize(
        ("current", "settings", "environ", "expected"),
        [
            ("/opt/python", {}, {"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
            ("python3", {}, {"PYSPARK_PYTHON": "python3"}, "python3"),
            ("/opt/python", {}, {}, "/opt/python"),
            ("python3", {"spark.pyspark.python": "/opt/python"}, {}, "/opt/python"),
        ],
    )
    def test_a_choice_of_the_user_stays(
        self, current: str, settings: dict[str, str], environ: dict[str, str], expected: str
    ) -> None:
        assert worker_python("local[2]", current, settings.get, environ) == expected

    @pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host"])
    def test_clusters_keep_their_own(self, master: str) -> None:
        assert worker_python(master, "python3", {}.get, {}) == "python3"


def test_batches_are_made_as_they_are_asked_for() -> None:
    asked: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for i in range(3):
            asked.append(i)
            yield bulk_batch(1)

    made = spark_batches(batches(), spark_schema(RowOptions(headers=True)), "s", 0)
    next(made)
    assert asked == [0]
