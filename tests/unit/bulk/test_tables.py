"""Writers of tables, without servers: options, types, partitions, and the state in a table."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope import bulk
from liftenvelope.bulk import StreamRecreatedError, TableError, TableSchemaError
from liftenvelope.bulk.tables._columns import convert, merged_schema, table_schema
from liftenvelope.bulk.tables._partitioning import PartitionBy, add_time_columns, parse_partitions
from liftenvelope.bulk.tables._state import TableState, dump_states, load_states
from liftenvelope.errors import UsageError

URL = "nats://localhost:1"


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"commit_rows": 0}, "commit_rows must be at least 1, got 0"),
            ({"commit_bytes": 0}, "commit_bytes must be at least 1, got 0"),
            ({"commit_seconds": 0}, "commit_seconds must be a positive number"),
            ({"commit_wait": -1}, "commit_wait must be a finite number of seconds, 0 or more"),
            ({"stream_id": ""}, "stream_id must not be empty"),
            ({"partition_by": [""]}, "partition_by must be names of columns, got ''"),
            ({"partition_by": ["a", "a"]}, "partition_by must name each partition once"),
            ({"partition_by": 5}, "partition_by must be names of columns, got 5"),
            ({"properties": ["a"]}, "properties must be a mapping, got list"),
            ({"columns": ["colour"]}, "columns must be some of key"),
            ({"progress": 3}, "progress must be a function"),
            ({"start": "then"}, "start must be"),
        ],
    )
    def test_wrong_values_are_named(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            bulk.to_delta(URL, "S", "t", **options)
        with pytest.raises(UsageError, match=text):
            bulk.to_iceberg(URL, "S", "db.t", catalog={"type": "in-memory"}, **options)

    @pytest.mark.parametrize("table", ["t", "", "a..b", ".t"])
    def test_table_needs_a_namespace(self, table: str) -> None:
        with pytest.raises(UsageError, match="table must"):
            bulk.to_iceberg(URL, "S", table, warehouse="w")

    def test_one_of_catalog_and_warehouse(self) -> None:
        with pytest.raises(UsageError, match="one of the two, got neither"):
            bulk.to_iceberg(URL, "S", "db.t")
        with pytest.raises(UsageError, match="one of the two, got both"):
            bulk.to_iceberg(URL, "S", "db.t", catalog="c", warehouse="w")
        with pytest.raises(UsageError, match="warehouse must be a path of the local file system"):
            bulk.to_iceberg(URL, "S", "db.t", warehouse="s3://bucket/w")
        with pytest.raises(UsageError, match="catalog must be a pyiceberg catalogue"):
            bulk.to_iceberg(URL, "S", "db.t", catalog=5)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="path must not be empty"):
            bulk.to_delta(URL, "S", "")


class TestTypes:
    @pytest.mark.parametrize(
        ("stream", "table"),
        [
            (pa.uint64(), pa.int64()),
            (pa.uint32(), pa.int64()),
            (pa.uint8(), pa.int32()),
            (pa.int16(), pa.int32()),
            (pa.float16(), pa.float32()),
            (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
            (pa.binary(16), pa.binary()),
            (pa.timestamp("ns", "UTC"), pa.timestamp("us", "UTC")),
            (pa.timestamp("s", "Europe/Vienna"), pa.timestamp("us", "UTC")),
            (pa.timestamp("ms"), pa.timestamp("us")),
            (pa.date64(), pa.date32()),
            (pa.time32("s"), pa.time64("us")),
            (pa.decimal128(9, 2), pa.decimal128(9, 2)),
            (pa.large_list(pa.uint8()), pa.list_(pa.int32())),
            (pa.map_(pa.string(), pa.uint32()), pa.map_(pa.string(), pa.int64())),
            (pa.struct([("a", pa.list_(pa.int8()))]), pa.struct([("a", pa.list_(pa.int32()))])),
        ],
        ids=str,
    )
    def test_mapping(self, stream: pa.DataType, table: pa.DataType) -> None:
        mapped = table_schema(pa.schema([pa.field("a", stream, nullable=False)]))
        assert mapped == pa.schema([pa.field("a", table)])
        assert table_schema(mapped) == mapped

    def test_columns_without_a_type_yet_are_left_out(self) -> None:
        assert table_schema(pa.schema([("a", pa.null()), ("b", pa.int64())])).names == ["b"]

    @pytest.mark.parametrize("kind", [pa.duration("s"), pa.decimal256(50, 2), pa.list_(pa.null())], ids=str)
    def test_types_that_tables_do_not_have(self, kind: pa.DataType) -> None:
        with pytest.raises(TableSchemaError, match=r"column 'a.*must have a type that tables have"):
            table_schema(pa.schema([("a", kind)]))

    @pytest.mark.parametrize(
        ("table", "stream", "fits"),
        [
            (pa.int64(), pa.int32(), True),
            (pa.int32(), pa.int64(), False),
            (pa.float64(), pa.float32(), True),
            (pa.float32(), pa.float64(), False),
            (pa.int64(), pa.float64(), False),
            (pa.string(), pa.binary(), False),
            (pa.timestamp("ns", "UTC"), pa.timestamp("us", "UTC"), True),
            (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
            (pa.decimal128(10, 2), pa.decimal128(9, 2), True),
            (pa.decimal128(10, 3), pa.decimal128(9, 2), False),
            (pa.list_(pa.int64()), pa.list_(pa.int32()), True),
            (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), False),
        ],
    )
    def test_narrower_types_fit_wider_ones(self, table: pa.DataType, stream: pa.DataType, fits: bool) -> None:
        schemas = pa.schema([("a", table)]), pa.schema([("a", stream)])
        if fits:
            assert merged_schema(*schemas) == schemas[0]
        else:
            with pytest.raises(TableSchemaError) as caught:
                merged_schema(*schemas)
            assert caught.value.column.startswith("a")
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    def test_nested_fields_are_added(self) -> None:
        table = pa.schema([("a", pa.struct([("x", pa.int64())])), ("z", pa.string())])
        stream = pa.schema([("b", pa.string()), ("a", pa.struct([("y", pa.string())]))])
        merged = merged_schema(table, stream)
        both = pa.struct([("x", pa.int64()), ("y", pa.string())])
        assert merged == pa.schema([("a", both), ("z", pa.string()), ("b", pa.string())])
        batch = pa.RecordBatch.from_pylist([{"b": "1", "a": {"y": "2"}}], schema=stream)
        assert convert(batch, merged).to_pylist() == [{"a": {"x": None, "y": "2"}, "z": None, "b": "1"}]

    def test_values_beyond_the_range_are_an_error(self) -> None:
        batch = pa.record_batch({"a": pa.array([2**63], pa.uint64())})
        with pytest.raises(TableSchemaError, match="column 'a' must fit type int64"):
            convert(batch, pa.schema([("a", pa.int64())]))

    def test_digits_beyond_microseconds_are_cut_off(self) -> None:
        batch = pa.record_batch({"a": pa.array([1_999, None], pa.timestamp("ns", "UTC"))})
        found = convert(batch, table_schema(batch.schema))
        assert found.column(0).cast(pa.int64()).to_pylist() == [1, None]

    @given(st.data())
    def test_any_batch_fits_its_own_table(self, data: st.DataObject) -> None:
        kinds: dict[pa.DataType, st.SearchStrategy[Any]] = {
            pa.uint64(): st.integers(0, 2**63 - 1),
            pa.int8(): st.integers(-128, 127),
            pa.string(): st.text(),
            pa.binary(): st.binary(),
            pa.bool_(): st.booleans(),
            pa.decimal128(5, 1): st.integers(-9999, 9999).map(lambda n: Decimal(n) / 10),
            pa.list_(pa.string()): st.lists(st.text(max_size=3), max_size=3),
        }
        chosen = data.draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=4))
        rows = data.draw(st.lists(st.tuples(*(st.none() | kinds[kind] for kind in chosen)), max_size=5))
        schema = pa.schema([(str(number), kind) for number, kind in enumerate(chosen)])
        columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(chosen)]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        target = table_schema(schema)
        assert merged_schema(target, target) == target
        assert convert(batch, target).to_pylist() == batch.to_pylist()


class TestPartitions:
    def test_columns_and_units_of_time(self) -> None:
        assert parse_partitions(None) is None
        assert parse_partitions("subject") == (PartitionBy("subject"),)
        found = parse_partitions(["hour(timestamp)", "day(a b)", "week(x)"])
        assert found == (PartitionBy("timestamp", "hour"), PartitionBy("a b", "day"), PartitionBy("week(x)"))
        assert [one.name for one in found] == ["timestamp_hour", "a b_day", "week(x)"]

    @given(st.datetimes(min_value=datetime(1900, 1, 1)), st.sampled_from(["hour", "day", "month"]))
    def test_time_columns_say_where_a_moment_is(self, moment: datetime, unit: str) -> None:
        batch = pa.record_batch({"t": pa.array([moment, None], pa.timestamp("us", "UTC"))})
        (found, nothing) = add_time_columns(batch, [PartitionBy("t", unit)]).column(f"t_{unit}").to_pylist()
        expected = {
            "hour": f"{moment:%Y-%m-%d-%H}",
            "day": moment.date(),
            "month": f"{moment:%Y-%m}",
        }
        assert (found, nothing) == (expected[unit], None)
        assert moment + timedelta(0) == moment


class TestState:
    @given(
        st.dictionaries(
            st.text(max_size=5),
            st.builds(
                TableState,
                st.integers(0, 2**63 - 1),
                st.dictionaries(st.integers(0, 10**6), st.integers(0, 2**63 - 1), max_size=3),
            ),
            max_size=3,
        )
    )
    def test_states_are_read_as_they_were_written(self, states: dict[str, TableState]) -> None:
        assert load_states(dump_states(states)) == states

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "null",
            "[1]",
            "{",
            '{"a":1}',
            '{"a":{}}',
            '{"a":{"created":-1,"next":{}}}',
            "[" * 100_000,
            '{"a":{"created":1,"next":{"0":"1"}}}',
            '{"a":{"created":1,"next":{"x":1}}}',
        ],
        ids=lambda text: text[:40],
    )
    def test_text_that_something_else_wrote(self, text: str) -> None:
        with pytest.raises(TableError, match="must be JSON of this package"):
            load_states(text)

    def test_number_of_streams_is_limited(self) -> None:
        with pytest.raises(TableError, match="at most 1000 streams, got 1001"):
            dump_states({str(number): TableState() for number in range(1001)})

    def test_error_of_a_recreated_stream_can_be_pickled(self) -> None:
        error = StreamRecreatedError("text", "S", 1, 2)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.stream, again.known_ns, again.created_ns) == ("text", "S", 1, 2)
