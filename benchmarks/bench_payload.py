"""Payload formats: typed columns of 100-byte rows, beside a loop with ``from_pylist``, and record batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import msgpack
import pyarrow as pa

from benchmarks import processor_time
from benchmarks.bulk_streams import make_stream, rows
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope import bulk
from liftenvelope.payload import Json, Msgpack, PayloadFormat
from liftenvelope.testing import NatsServer

#: Limits of packed reads and writes, with the processor time of 100-byte rows in messages of 10,000.
_READ: Final = (
    "Copies are the limit: the server, the socket and the columns each copy 100 bytes for a row. A bare "
    "socket that only receives the same bytes gets 12 M rows/s (1.2 GB/s) on two cores: the server takes "
    "50 ns of processor time for a row, the socket 22. The reader takes 12 more to copy the row into the "
    "column of values, and 30 to check and convert record batches."
)
_WRITE: Final = (
    "Copies are the limit: of a row, the server takes 60 to 130 ns of processor time, the more the faster "
    "its heap grows, and the writer 70. A bare socket that only sends the same bytes and awaits the acks "
    "gets 9 M rows/s (0.9 GB/s) on two cores."
)

#: What Msgpack does beyond its peer.
_CHECKS: Final = (
    "Both spend 0.5 us in msgpack and 0.25 us in Arrow. Ours also looks for timestamps and sizes, 0.05 us, "
    "and compares the types of fields, 0.15 us. Blocks that fit the caches take off as much."
)
#: What limits Json.
_MARKERS: Final = (
    "Of 1.1 us, pyarrow's reader takes 1.0: a third of that for the markers that bind each row to its "
    "message."
)


def _orders(count: int) -> pa.Table:
    """Return rows of 100 bytes: two numbers and two texts, with Arrow's offsets."""
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "customer": [f"customer-{number % 1_000}" for number in range(count)],
            "price": pa.array([number / 4 for number in range(count)], pa.float64()),
            "note": ["x" * 62] * count,
        }
    )


def _decoding(kind: PayloadFormat, values: pa.Array) -> Round:
    decoder = kind.decoder()

    def run() -> float:
        began = processor_time.own()
        assert decoder.decode(values).batches[0].num_rows == len(values)
        return (processor_time.own() - began) / len(values)

    return run


def _loop(loads: Callable[[bytes], Any], schema: pa.Schema, values: pa.Array) -> Round:
    def run() -> float:
        began = processor_time.own()
        found = pa.Table.from_pylist([loads(value) for value in values.to_pylist()], schema=schema)
        assert found.num_rows == len(values)
        return (processor_time.own() - began) / len(values)

    return run


def test_decode_json(compare: Comparison) -> None:
    batch = _orders(compare.amount(65_536, 500)).combine_chunks().to_batches()[0]
    values = Json().encoder(batch.schema).encode(batch)
    compare(
        "payload=Json, processor time of decoding 100-byte rows",
        _decoding(Json(batch.schema), values),
        Peer("json.loads and from_pylist", _loop(json.loads, batch.schema, values), 3, _MARKERS),
        rate=True,
    )


def test_decode_msgpack(compare: Comparison) -> None:
    batch = _orders(compare.amount(65_536, 500)).combine_chunks().to_batches()[0]
    values = Msgpack().encoder(batch.schema).encode(batch)
    compare(
        "payload=Msgpack, processor time of decoding 100-byte rows",
        _decoding(Msgpack(batch.schema), values),
        Peer("msgpack.unpackb and from_pylist", _loop(msgpack.unpackb, batch.schema, values), 1, _CHECKS),
        rate=True,
    )


def _reading(url: str, stream: str, count: int, payload: str | None) -> Round:
    def run() -> float:
        began = perf_counter()
        assert sum(batch.num_rows for batch in bulk.read(url, stream, payload=payload)) == count
        return (perf_counter() - began) / count

    return run


def _writing(url: str, stream: str, table: pa.Table, payload: str | None) -> Round:
    def run() -> float:
        began = perf_counter()
        bulk.write(url, stream, table, subject=stream, payload=payload)
        seconds: float = (perf_counter() - began) / table.num_rows
        return seconds

    return run


def test_read_record_batches(compare: Comparison, jetstream: NatsServer) -> None:
    """Messages of up to 10,000 rows, beside one message for each row of 100 bytes."""
    count, url = compare.amount(2_000_000, 2_000), jetstream.url
    table, plain = _orders(count), rows(count // 10, 100)
    packed, single = make_stream(url), make_stream(url)
    bulk.write(url, packed, table, subject=packed, payload="arrow")
    bulk.write(url, single, plain, subject=single)
    assert bulk.read(url, packed, payload="arrow").read_all().drop(["offset", "row"]).equals(table)
    compare(
        'bulk.read(payload="arrow"), 100-byte rows',
        _reading(url, packed, count, "arrow"),
        Peer("unpacked", _reading(url, single, count // 10, None), 5, _READ),
        rate=True,
        rounds=3,
    )


def test_write_record_batches(compare: Comparison, jetstream: NatsServer) -> None:
    count, url = compare.amount(2_000_000, 2_000), jetstream.url
    table, plain = _orders(count), rows(count // 10, 100)
    packed, single = make_stream(url), make_stream(url)
    compare(
        'bulk.write(payload="arrow"), 100-byte rows',
        _writing(url, packed, table, "arrow"),
        Peer("unpacked", _writing(url, single, plain, None), 5, _WRITE),
        rate=True,
        rounds=3,
    )
