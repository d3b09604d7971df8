"""Lazy scans beside a full read, on a real server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftenvelope import bulk
from liftenvelope.bulk._scan.reads import ScanReads
from liftenvelope.bulk.narrowing import Narrowing
from liftenvelope.errors import StreamNotFoundError, UsageError
from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import BulkThreads, jetstream, make_stream, offsets, publish

COUNT = 400


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        choose = random.Random(3)
        make_stream(running.url, "SCAN")
        subjects = [f"SCAN.{choose.choice('abc')}.{choose.randrange(4)}" for _ in range(COUNT)]
        publish(running.url, [(subject, b"%d" % at, None) for at, subject in enumerate(subjects)])
        yield running


@pytest.fixture(scope="module")
def everything(server: NatsServer) -> pa.Table:
    return bulk.read(server.url, "SCAN").read_all()


class Reads:
    """The narrowings and columns that scans have read with."""

    def __init__(self) -> None:
        self.columns: list[list[str] | None] = []
        self.narrowings: list[Narrowing] = []
        self.offsets: list[int] = []

    def last(self) -> tuple[list[str] | None, int]:
        return self.columns[-1], self.offsets[-1]


@pytest.fixture
def reads() -> Iterator[Reads]:
    found, start = Reads(), ScanReads.start

    def recorded(self: Any, opened: Any, columns: Any, narrowing: Any, spans: Any) -> Any:
        found.columns.append(None if columns is None else list(columns))
        found.narrowings.append(narrowing)
        found.offsets.append(sum(span.stop - span.start for span in spans))
        return start(self, opened, columns, narrowing, spans)

    with patch.object(ScanReads, "start", recorded):
        yield found


def ask(dataset: object, query: str) -> list[Any]:
    """Return the rows of a query on a dataset that DuckDB knows as ``orders``."""
    with duckdb.connect() as connection:
        connection.register("orders", dataset)
        return list(connection.execute(query).fetchall())


numbers = st.integers(-3, COUNT + 3)
subjects = st.sampled_from([f"SCAN.{word}.{number}" for word in "abcd" for number in range(5)])
#: Conditions as polars and as DuckDB write them. Comparisons stand on both sides, and not all are understood.
simple = st.one_of(
    st.builds(lambda n: (pl.col("offset") >= n, f'"offset" >= {n}'), numbers),
    st.builds(lambda n: (n > pl.col("offset"), f'{n} > "offset"'), numbers),
    st.builds(lambda n: (pl.col("offset") == n, f'"offset" = {n}'), numbers),
    st.builds(
        lambda a, b: (pl.col("offset").is_between(a, b), f'"offset" BETWEEN {a} AND {b}'), numbers, numbers
    ),
    st.builds(lambda n: (pl.col("offset") % 7 == n % 7, f'"offset" % 7 = {n % 7}'), st.integers(0, 6)),
    st.builds(lambda s: (pl.col("subject") == s, f"subject = '{s}'"), subjects),
    st.builds(lambda s: (pl.col("subject") != s, f"subject <> '{s}'"), subjects),
    st.builds(
        lambda found: (pl.col("subject").is_in(found), f"subject IN ({', '.join(map(repr, found))})"),
        st.lists(subjects, min_size=1, max_size=3),
    ),
    st.builds(
        lambda s, n: (pl.col("subject").str.starts_with(s[:n]), f"starts_with(subject, '{s[:n]}')"),
        subjects,
        st.integers(4, 8),
    ),
    st.builds(lambda n: (pl.col("partition") == n, f"partition = {n}"), st.integers(0, 1)),
)
predicates = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(lambda a, b: (a[0] & b[0], f"({a[1]} AND {b[1]})"), inner, inner),
        st.builds(lambda a, b: (a[0] & b[0], f"({a[1]} AND {b[1]})"), inner, inner),
        st.builds(lambda a, b: (a[0] | b[0], f"({a[1]} OR {b[1]})"), inner, inner),
        st.builds(lambda a: (~a[0], f"(NOT {a[1]})"), inner),
    ),
    max_leaves=4,
)


@settings(max_examples=25)
@given(predicate=predicates, limit=st.none() | st.integers(0, 5))
def test_queries_of_polars_and_duckdb_return_what_they_return_of_a_full_read(
    server: NatsServer, everything: pa.Table, predicate: Any, limit: int | None
) -> None:
    scan, (expression, condition) = bulk.scan(server.url, "SCAN"), predicate
    whole = pl.DataFrame(everything).with_columns(pl.col("subject").cast(pl.String))
    expected = whole.filter(expression).select("offset", "value").rows()
    lazy = scan.to_polars().filter(expression).select("offset", "value")
    found = (lazy if limit is None else lazy.head(limit)).collect().rows()
    assert found == expected[:limit]
    orders = scan.to_dataset()
    rows = ask(orders, f'SELECT "offset", value FROM orders WHERE {condition}')
    assert sorted(rows) == expected


@settings(max_examples=25)
@given(predicate=predicates, limit=st.integers(0, COUNT))
def test_polars_filters_the_first_rows_of_a_scan(
    server: NatsServer, everything: pa.Table, predicate: Any, limit: int
) -> None:
    whole = pl.DataFrame(everything).with_columns(pl.col("subject").cast(pl.String))
    lazy = bulk.scan(server.url, "SCAN").to_polars()
    found, expected = (
        frame.head(limit).filter(predicate[0]).select("offset", "value").collect().rows()
        for frame in (lazy, whole.lazy())
    )
    assert found == expected


def test_polars_reads_only_what_its_query_needs(server: NatsServer, reads: Reads) -> None:
    lazy = bulk.scan(server.url, "SCAN").to_polars()
    assert reads.columns == []
    some = lazy.filter((pl.col("offset") >= 100) & (pl.col("offset") < 110)).select("offset").collect()
    assert some["offset"].to_list() == list(range(100, 110))
    assert reads.last() == (["offset"], 10)
    lazy.filter(pl.col("subject").is_in(["SCAN.a.1", "x"])).select("value").collect()
    assert sorted(reads.columns[-1] or []) == ["subject", "value"]
    assert reads.narrowings[-1].subjects is not None
    assert reads.narrowings[-1].subjects.filters == ("SCAN.a.1", "x")
    later = datetime.now(UTC) + timedelta(hours=1)
    assert lazy.filter(pl.col("timestamp") > later).collect().is_empty()
    assert reads.offsets[-1] == 0
    assert lazy.filter(pl.col("timestamp") < later).select(pl.len()).collect().item() == COUNT
    assert lazy.filter(pl.col("partition") == 1).collect().is_empty()
    assert reads.offsets[-1] == 0
    assert lazy.select(pl.len()).collect().item() == COUNT
    assert reads.columns[-1] == ["offset"]
    assert lazy.head(3).select("offset").collect()["offset"].to_list() == [0, 1, 2]


def test_duckdb_reads_only_what_its_query_needs(server: NatsServer, reads: Reads) -> None:
    orders = bulk.scan(server.url, "SCAN").to_dataset()
    assert ask(orders, 'SELECT "offset" FROM orders WHERE "offset" BETWEEN 100 AND 109') == [
        (number,) for number in range(100, 110)
    ]
    assert reads.last() == (["offset"], 10)
    ask(orders, "SELECT value FROM orders WHERE subject = 'SCAN.a.1' AND \"offset\" < 50")
    assert (sorted(reads.columns[-1] or []), reads.offsets[-1]) == (["offset", "subject", "value"], 50)
    assert reads.narrowings[-1].subjects is not None
    assert reads.narrowings[-1].subjects.filters == ("SCAN.a.1",)
    assert ask(orders, "SELECT count(*) FROM orders") == [(COUNT,)]
    assert reads.columns[-1] == ["key"]  # it asks for the first column
    assert ask(orders, "SELECT * FROM orders WHERE subject = 'none'") == []


def test_dataset_serves_pyarrow_and_refuses_what_needs_files(server: NatsServer, reads: Reads) -> None:
    dataset = bulk.scan(server.url, "SCAN").to_dataset()
    table = dataset.to_table(columns=["value"], filter=pc.field("offset") >= 390)
    assert (table.column_names, table.num_rows, reads.offsets[-1]) == (["value"], 10, 10)
    assert dataset.count_rows() == COUNT
    assert dataset.head(2).num_rows == 2
    assert repr(dataset) == "<StreamDataset of SCAN>"
    calls: list[Any] = [dataset.get_fragments, dataset.sort_by, lambda: dataset.partition_expression]
    for call in calls:
        with pytest.raises(UsageError, match="no files and no fragments"):
            call()


def test_scan_reads_as_arrow_within_its_own_bounds(server: NatsServer) -> None:
    scan = bulk.scan(server.url, "SCAN", start=100, stop=160, subjects="SCAN.a.*", parallel=2)
    expected = offsets(bulk.read(server.url, "SCAN", start=100, stop=160, subjects="SCAN.a.*").read_all())
    assert sorted(offsets(scan.to_arrow(["offset"]).read_all())) == expected
    assert sorted(pa.table(scan)["offset"].to_pylist()) == expected
    lazy = scan.to_polars()
    both = lazy.filter(pl.col("subject").is_in(["SCAN.a.1", "SCAN.b.1"])).collect()
    assert set(both["subject"]) == {"SCAN.a.1"}
    assert lazy.filter(pl.col("subject") == "SCAN.b.1").collect().is_empty()


def test_abandoned_scan_ends_its_threads(server: NatsServer) -> None:
    threads = BulkThreads()
    reader = bulk.scan(server.url, "SCAN").to_arrow()
    reader.read_next_batch()
    del reader
    bulk.scan(server.url, "SCAN").to_polars().head(1).collect()
    threads.wait_until_gone()


def test_scan_of_liftbridge_narrows_offsets_and_partitions(
    liftbridge_server: LiftbridgeCluster, reads: Reads
) -> None:
    address = liftbridge_server.addresses[0]
    liftbridge_server.create_stream("scanned", partitions=2)
    for partition in (0, 1):
        bulk.write(address, "scanned", pa.table({"value": [b"x"] * 20}), partition=partition)
    lazy = bulk.scan(address, "scanned").to_polars()
    found = lazy.filter((pl.col("partition") == 1) & (pl.col("offset") >= 15)).collect()
    assert found["offset"].to_list() == [15, 16, 17, 18, 19]
    assert reads.offsets[-1] == 5
    orders = bulk.scan(address, "scanned").to_dataset()
    query = "SELECT count(*) FROM orders WHERE subject = 'scanned.1' AND \"offset\" >= 15 AND partition = 1"
    assert ask(orders, query) == [(5,)]
    assert reads.offsets[-1] == 5


def test_errors_come_when_a_query_runs(server: NatsServer) -> None:
    missing = bulk.scan(server.url, "MISSING")
    with pytest.raises(StreamNotFoundError):
        missing.to_arrow()
    with pytest.raises(UsageError, match="must not have an empty token"):
        bulk.scan(server.url, "SCAN", subjects="a..b")
    with pytest.raises(UsageError, match="via must be 'auto' for Liftbridge"):
        bulk.scan("localhost:9292", "SCAN", via="direct")
