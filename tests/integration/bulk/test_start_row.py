"""Reads that resume inside a message that carries many rows, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.js import JetStreamContext

from liftenvelope import bulk
from liftenvelope.errors import UsageError
from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import jetstream, make_stream, publish, with_jetstream

COUNT = 100
#: Rows of a message.
PACKED = 9
ROWS = pa.table({"id": range(COUNT), "item": [f"item {number}" for number in range(COUNT)]})


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        make_stream(running.url, "ROWS")
        bulk.write(running.url, "ROWS", ROWS, subject="ROWS.a", payload="arrow", pack_rows=PACKED)
        yield running


@settings(max_examples=30)
@given(at=st.integers(0, COUNT - 1), columns=st.sampled_from([None, ["id"], ["row", "subject", "id"]]))
def test_every_row_after_any_place_is_read_once(
    server: NatsServer, at: int, columns: list[str] | None
) -> None:
    offset, row = divmod(at, PACKED)
    read = bulk.read(server.url, "ROWS", payload="arrow", columns=columns, start=offset, start_row=row)
    table = read.read_all()
    assert table["id"].to_pylist() == list(range(at, COUNT))
    if columns != ["id"]:
        assert table["row"].to_pylist() == [number % PACKED for number in range(at, COUNT)]


def test_rows_beyond_the_message_are_passed(server: NatsServer) -> None:
    found = bulk.read(server.url, "ROWS", payload="arrow", start=3, start_row=PACKED + 5).read_all()
    assert found["offset"][0].as_py() == 4
    assert found["id"].to_pylist() == list(range(4 * PACKED, COUNT))


def test_parallel_read_passes_the_rows_of_one_message(server: NatsServer) -> None:
    found = bulk.read(server.url, "ROWS", payload="arrow", start=2, start_row=4, parallel=3).read_all()
    assert sorted(found["id"].to_pylist()) == list(range(2 * PACKED + 4, COUNT))


def test_scan_resumes_inside_a_message(server: NatsServer) -> None:
    scan = bulk.scan(server.url, "ROWS", payload="arrow", start=2, start_row=4)
    rest = list(range(2 * PACKED + 4, COUNT))
    assert scan.to_arrow(["id"]).read_all()["id"].to_pylist() == rest
    lazy = scan.to_polars()
    assert lazy.select(pl.len()).collect().item() == len(rest)
    assert lazy.filter(pl.col("offset") < 3).select("row", "id").collect().rows() == [
        (row, 2 * PACKED + row) for row in range(4, PACKED)
    ]
    assert lazy.filter(pl.col("offset") >= 3).select("id").collect()["id"].to_list() == rest[PACKED - 4 :]
    with duckdb.connect() as db:
        db.register("orders", scan.to_dataset())
        assert db.execute("SELECT min(id), count(*) FROM orders").fetchall() == [(rest[0], len(rest))]


def test_tail_resumes_inside_a_message(server: NatsServer) -> None:
    reader = bulk.tail(server.url, "ROWS", payload="arrow", start=10, start_row=8)
    assert reader.read_next_batch()["id"].to_pylist() == [98]
    assert reader.read_next_batch()["id"].to_pylist() == [99]


def test_bad_message_at_the_start_is_kept(server: NatsServer, name: str) -> None:
    make_stream(server.url, name)
    publish(server.url, [(f"{name}.a", b"oops", None)])
    bulk.write(server.url, name, ROWS, subject=f"{name}.a", payload="arrow", pack_rows=COUNT)
    read = bulk.read(server.url, name, payload="arrow", on_bad="column", start=0, start_row=3).read_all()
    assert read["offset"].to_pylist() == [0, *[1] * COUNT]
    assert read["bad_value"][0].as_py() == b"oops"


def test_rows_of_the_message_after_a_deleted_one_are_kept(server: NatsServer, name: str) -> None:
    make_stream(server.url, name)
    bulk.write(server.url, name, ROWS, subject=f"{name}.a", payload="arrow", pack_rows=PACKED)

    async def delete(js: JetStreamContext) -> None:
        await js.delete_msg(name, 3)

    with_jetstream(server.url, delete)
    found = bulk.read(server.url, name, payload="arrow", start=2, start_row=5).read_all()
    assert found["id"].to_pylist() == list(range(3 * PACKED, COUNT))


def test_partition_of_liftbridge(gateway_server: LiftbridgeCluster, name: str) -> None:
    address = gateway_server.addresses[0]
    gateway_server.create_stream(name, partitions=2)
    for partition in (0, 1):
        bulk.write(address, name, ROWS, partition=partition, payload="arrow", pack_rows=PACKED)
    found = bulk.read(address, name, partitions=1, payload="arrow", start=1, start_row=2).read_all()
    assert found["id"].to_pylist() == list(range(PACKED + 2, COUNT))
    with pytest.raises(UsageError, match="partitions must be one number with start_row=2, got None"):
        bulk.read(address, name, payload="arrow", start=1, start_row=2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"start": 1}, "start_row must be 0 unless messages carry many rows"),
        ({"start": 1, "payload": "json"}, "start_row must be 0 unless messages carry many rows"),
        ({"payload": "arrow"}, "start must be an offset of at least 0 with start_row=5, got 'earliest'"),
        ({"payload": "arrow", "start": -1}, "start must be an offset of at least 0 with start_row=5, got -1"),
        ({"payload": "arrow", "start": 1, "start_row": -1}, "start_row must be at least 0, got -1"),
    ],
)
def test_arguments(options: dict[str, Any], text: str) -> None:
    for call in (bulk.read, bulk.tail, bulk.scan):
        given = {"start": "earliest", "start_row": 5, **options}
        with pytest.raises(UsageError, match=text):
            call("nats://127.0.0.1:1", "x", **given)
