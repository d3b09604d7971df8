"""Lazy scans with typed columns, beside full reads, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftenvelope import bulk
from liftenvelope.bulk._scan.reads import ScanReads
from liftenvelope.errors import StreamNotFoundError, UsageError
from liftenvelope.payload import ArrowBatches, BadPayloadError, Json
from liftenvelope.testing import NatsServer
from tests.integration.bulk.test_scan import ask
from tests.integration.bulk_streams import BulkThreads, jetstream, make_stream, publish

COUNT = 300
ROWS = 10
SCHEMA = pa.schema({"id": pa.int64(), "item": pa.string(), "price": pa.float64()})
#: Offsets of messages that are no JSON objects.
BAD = range(COUNT // 2, COUNT, 50)


def item(number: int) -> dict[str, Any]:
    return {"id": number, "item": ("tea", "milk", "rice")[number % 3], "price": number / 4}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        for stream in ("JSON", "ARROW", "EMPTY"):
            make_stream(running.url, stream)
        values = [b"oops" if at in BAD else json.dumps(item(at)).encode() for at in range(COUNT)]
        publish(running.url, [(f"JSON.{at % 2}", value, None) for at, value in enumerate(values)])
        rows = pa.Table.from_pylist([item(number) for number in range(COUNT)], SCHEMA)
        bulk.write(running.url, "ARROW", rows, subject="ARROW.0", payload="arrow", pack_rows=ROWS)
        yield running


@pytest.fixture
def reads() -> Iterator[list[tuple[list[str] | None, int]]]:
    """Columns and offsets of the reads of scans."""
    found, start = list[tuple[list[str] | None, int]](), ScanReads.start

    def recorded(self: Any, opened: Any, columns: Any, narrowing: Any, spans: Any) -> Any:
        names = None if columns is None else list(columns)
        found.append((names, sum(span.stop - span.start for span in spans)))
        return start(self, opened, columns, narrowing, spans)

    with patch.object(ScanReads, "start", recorded):
        yield found


def json_scan(server: NatsServer, **options: Any) -> bulk.Scan:
    return bulk.scan(server.url, "JSON", payload=Json(SCHEMA), on_bad="column", **options)


def test_schema_has_the_columns_of_stream_and_payload(server: NatsServer) -> None:
    stream = ["key", "headers", "offset", "timestamp", "partition", "subject"]
    scan = json_scan(server)
    assert scan.schema.names == [*stream, "id", "item", "price", "bad_reason", "bad_value"]
    assert scan.schema.field("id").type == pa.int64()
    inferred = bulk.scan(server.url, "ARROW", payload="arrow")
    assert inferred.schema.names == [*stream, "row", "id", "item", "price"]
    assert scan.to_arrow().schema == scan.schema
    assert scan.to_arrow(["price", "offset"]).schema.names == ["price", "offset"]


numbers = st.integers(-3, COUNT + 3)
#: Conditions as polars and as DuckDB write them.
conditions = st.one_of(
    st.builds(lambda n: (pl.col("offset") >= n, f'"offset" >= {n}'), numbers),
    st.builds(lambda n: (pl.col("offset") < n, f'"offset" < {n}'), numbers),
    st.builds(lambda n: (pl.col("id") >= n, f"id >= {n}"), numbers),
    st.builds(lambda n: (pl.col("price") < n, f"price < {n}"), st.integers(0, COUNT // 4)),
    st.sampled_from([(pl.col("item") == word, f"item = '{word}'") for word in ("tea", "milk", "none")]),
    st.just((pl.col("bad_reason").is_null(), "bad_reason IS NULL")),
    st.just((pl.col("subject") == "JSON.1", "subject = 'JSON.1'")),
)
predicates = st.recursive(
    conditions,
    lambda inner: st.one_of(
        st.builds(lambda a, b: (a[0] & b[0], f"({a[1]} AND {b[1]})"), inner, inner),
        st.builds(lambda a, b: (a[0] | b[0], f"({a[1]} OR {b[1]})"), inner, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=25)
@given(predicate=predicates)
def test_queries_return_what_they_return_of_a_full_read(server: NatsServer, predicate: Any) -> None:
    expression, condition = predicate
    whole = pl.DataFrame(
        bulk.read(
            server.url,
            "JSON",
            payload=Json(SCHEMA),
            on_bad="column",
            columns=["offset", "subject", "id", "item", "price"],
        ).read_all()
    ).with_columns(pl.col("subject").cast(pl.String))
    expected = whole.filter(expression).select("offset", "id", "price").sort("offset").rows()
    lazy = json_scan(server).to_polars().filter(expression).select("offset", "id", "price")
    assert lazy.collect().sort("offset").rows() == expected
    query = f'SELECT "offset", id, price FROM orders WHERE {condition} ORDER BY 1'
    assert ask(json_scan(server).to_dataset(), query) == expected


def test_only_the_offsets_and_columns_of_a_query_are_read(
    server: NatsServer, reads: list[tuple[list[str] | None, int]]
) -> None:
    lazy = json_scan(server).to_polars()
    found = lazy.filter((pl.col("offset") >= 100) & (pl.col("offset") < 104)).select("item").collect()
    assert found["item"].to_list() == ["milk", "rice", "tea", "milk"]
    assert (sorted(reads[-1][0] or []), reads[-1][1]) == (["item", "offset"], 4)
    orders = json_scan(server).to_dataset()
    assert ask(orders, 'SELECT sum(id) FROM orders WHERE "offset" BETWEEN 10 AND 19') == [(145,)]
    assert (sorted(reads[-1][0] or []), reads[-1][1]) == (["id", "offset"], 10)
    table = orders.to_table(columns=["price"], filter=pc.field("offset") >= COUNT - 5)
    assert (table.column_names, table.num_rows, reads[-1][1]) == (["price"], 5, 5)


def test_values_are_not_read_for_a_query_of_other_columns(server: NatsServer) -> None:
    with patch("liftenvelope.bulk._scan.reads.make_plan", side_effect=InterruptedError) as plan:
        with pytest.raises(InterruptedError):
            json_scan(server).to_arrow(["offset", "subject"])
        assert plan.call_args.args[0] == ["offset", "subject"]
        for scan in (json_scan(server), bulk.scan(server.url, "JSON", payload=Json(SCHEMA))):
            with pytest.raises(InterruptedError):
                scan.to_arrow(["offset", "id"])
            assert "value" in plan.call_args.args[0]
        with pytest.raises(InterruptedError):  # a bad message must fail it
            bulk.scan(server.url, "JSON", payload=Json(SCHEMA)).to_arrow(["offset"])
        assert "value" in plan.call_args.args[0]


def test_bad_message_fails_only_the_queries_that_read_it(server: NatsServer) -> None:
    scan = bulk.scan(server.url, "JSON", payload="json")
    lazy = scan.to_polars()
    assert lazy.filter(pl.col("offset") < BAD[0]).select(pl.len()).collect().item() == BAD[0]
    with pytest.raises(BadPayloadError, match=f"message {BAD[0]} is bad"):
        scan.to_arrow(["id"]).read_all()
    bad = json_scan(server).to_polars().filter(pl.col("bad_reason").is_not_null())
    assert bad.select("offset", "bad_value").collect().rows() == [(at, b"oops") for at in BAD]


def test_rows_of_packed_messages(server: NatsServer, reads: list[tuple[list[str] | None, int]]) -> None:
    scan = bulk.scan(server.url, "ARROW", payload="arrow")
    lazy = scan.to_polars()
    found = lazy.filter(pl.col("offset") == 7).select("row", "id").collect()
    assert found.rows() == [(at, 7 * ROWS + at) for at in range(ROWS)]
    assert reads[-1][1] == 1
    assert lazy.select(pl.len()).collect().item() == COUNT
    orders = scan.to_dataset()
    assert ask(orders, 'SELECT count(*), sum(price) FROM orders WHERE "offset" < 2 AND "row" < 5') == [
        (10, sum(item(number)["price"] for number in (*range(5), *range(10, 15))))
    ]
    assert reads[-1][1] == 2


def test_inferred_schema_is_that_of_all_queries(server: NatsServer, name: str) -> None:
    make_stream(server.url, name)
    publish(server.url, [(f"{name}.a", b'{"id": 1}', None)])
    scan = bulk.scan(server.url, name, payload="json", on_bad="column")
    publish(server.url, [(f"{name}.a", b'{"id": 2, "more": 3}', None), (f"{name}.a", b'{"id": "x"}', None)])
    found = scan.to_polars().select("id", "bad_reason").collect()
    assert found["id"].to_list() == [1, 2, None]
    assert found["bad_reason"].null_count() == 2
    assert "more" not in scan.schema.names


def test_field_with_the_name_of_a_column_needs_a_prefix(server: NatsServer, name: str) -> None:
    make_stream(server.url, name)
    publish(server.url, [(f"{name}.a", b'{"offset": 5}', None)])
    with pytest.raises(UsageError, match="give the format a prefix"):
        bulk.scan(server.url, name, payload="json")
    lazy = bulk.scan(server.url, name, payload=Json(prefix="order_")).to_polars()
    assert lazy.filter(pl.col("order_offset") == 5).select("offset").collect().item() == 0


def test_arguments(server: NatsServer) -> None:
    with pytest.raises(UsageError, match="payload must have a schema: there is no message"):
        bulk.scan(server.url, "EMPTY", payload="json")
    assert bulk.scan(server.url, "EMPTY", payload=Json(SCHEMA)).to_polars().collect().is_empty()
    with pytest.raises(UsageError, match="on_bad must be 'fail' without payload"):
        bulk.scan(server.url, "JSON", on_bad="column")
    letter: Any = bulk.DeadLetter(stream="EMPTY", subject="EMPTY.a")
    with pytest.raises(UsageError, match="on_bad must be one of"):
        bulk.scan(server.url, "JSON", payload="json", on_bad=letter)
    with pytest.raises(StreamNotFoundError):
        bulk.scan(server.url, "MISSING", payload=ArrowBatches())


def test_abandoned_query_and_sample_end_their_threads(server: NatsServer) -> None:
    threads = BulkThreads()
    reader = bulk.scan(server.url, "ARROW", payload="arrow").to_arrow()
    reader.read_next_batch()
    del reader
    threads.wait_until_gone()
