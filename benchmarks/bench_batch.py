"""Batches of envelopes to and from Arrow columns, compared with copying the same bytes and with protobuf."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pytest

from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope._pb import api_pb2 as pb
from liftenvelope.arrow import MESSAGE_FIELDS, decode_batch, encode_batch

ROWS = 10_000
# Where perf finds the time at 100 B.
ENCODE_LIMIT = (
    "Of its time about 28 % goes to writing the rows' fields, 21 % to measuring them before, 18 % to making "
    "slices of the Arrow columns, 8 % to memcpy."
)
WRITE_LIMIT = (
    "The fields take as long as at 100 B, see that row, and the rest is the copy of the values into their "
    "places."
)
DECODE_LIMIT = (
    "Of its time about 32 % goes to reading fields and checking texts, 21 % to adding them to the columns, "
    "10 % to memcpy, the rest to allocations and the work for each batch."
)
# The least of 1,200 rounds on a busy machine. The peer's copy takes as long into memory that was just
# allocated: Arrow's pool keeps its pages, so there are no page faults.
COPY_LIMIT = (
    "Of 83 ns, the fields take 42, as in the row after the next, where binary_view=True copies no value, and "
    "a copy like the peer's takes 38. The target leaves 76 for both."
)
INBOX = "_INBOX.2zTH4SaNZeYPjF9tMYnmJK"
HEAD = bytes.fromhex("b90e43b400080000")


@dataclass(frozen=True)
class Batch:
    """Columns of a batch, and its envelopes as encoded by the package."""

    rows: int
    values: pa.Array
    keys: pa.Array
    ids: pa.Array
    envelopes: pa.Array


def _batch(size: int, rows: int) -> Batch:
    values = pa.array([i.to_bytes(4) * (size // 4) for i in range(rows)], pa.binary())
    keys = pa.array([b"key-%d" % (i % 100) for i in range(rows)], pa.binary())
    ids = pa.array([f"P-zf{i:04x}" for i in range(rows)])
    envelopes = encode_batch(values, keys=keys, ack_inbox=INBOX, correlation_ids=ids)
    return Batch(rows, values, keys, ids, envelopes)


def protobuf_encode(values: pa.Array, keys: pa.Array, ids: pa.Array) -> pa.Array:
    """The same job as encode_batch, from columns to a column."""
    columns = zip(values.to_pylist(), keys.to_pylist(), ids.to_pylist(), strict=True)
    made = [
        HEAD
        + pb.Message(offset=-1, key=key, value=value, ackInbox=INBOX, correlationId=id_).SerializeToString()
        for value, key, id_ in columns
    ]
    return pa.array(made, pa.binary())


def protobuf_decode(envelopes: pa.Array) -> pa.RecordBatch:
    """The same job as decode_batch, from a column to columns."""
    rows = [pb.Message.FromString(data[8:]) for data in envelopes.to_pylist()]
    columns = [
        pa.array([row.key or None for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([list(row.headers.items()) for row in rows], pa.map_(pa.string(), pa.binary())),
        pa.array([row.ackInbox or None for row in rows], pa.string()),
        pa.array([row.correlationId or None for row in rows], pa.string()),
        pa.array([row.ackPolicy for row in rows], pa.int32()),
        pa.array([row.offset for row in rows], pa.int64()),
        pa.nulls(len(rows), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, MESSAGE_FIELDS)


def _memcpy(compare: Comparison, batch: Batch) -> Round:
    """Copy the envelopes' bytes to memory that was written before, so that its pages are mapped."""
    source = batch.envelopes.buffers()[2]
    target = pa.allocate_buffer(source.size)
    ctypes.memset(target.address, 1, target.size)

    def copy(turns: Iterable[None]) -> None:
        places = target.address, source.address, source.size
        for _ in turns:
            ctypes.memmove(*places)

    return compare.timed(copy, per=batch.rows)


@pytest.mark.parametrize(("size", "bandwidth", "times"), [(100, None, 60), (1024, 0.5, None)])
def test_encode_batch(compare: Comparison, size: int, bandwidth: float | None, times: float | None) -> None:
    batch = _batch(size, compare.amount(ROWS, 100))
    assert protobuf_encode(batch.values, batch.keys, batch.ids).equals(batch.envelopes)

    def ours(turns: Iterable[None]) -> None:
        for _ in turns:
            encode_batch(batch.values, keys=batch.keys, ack_inbox=INBOX, correlation_ids=batch.ids)

    def theirs(turns: Iterable[None]) -> None:
        for _ in turns:
            protobuf_encode(batch.values, batch.keys, batch.ids)

    compare(
        f"encode_batch, {size} B",
        compare.timed(ours, per=batch.rows),
        Peer("warm memcpy of the envelopes", _memcpy(compare, batch), bandwidth, WRITE_LIMIT),
        Peer(
            "protobuf (upb)",
            compare.timed(theirs, per=batch.rows),
            times,
            ENCODE_LIMIT,
        ),
    )


@pytest.mark.parametrize(("size", "bandwidth", "times"), [(100, None, 60), (1024, 0.5, None)])
def test_decode_batch(compare: Comparison, size: int, bandwidth: float | None, times: float | None) -> None:
    batch = _batch(size, compare.amount(ROWS, 100))
    assert decode_batch(batch.envelopes).equals(protobuf_decode(batch.envelopes))

    def ours(turns: Iterable[None]) -> None:
        for _ in turns:
            decode_batch(batch.envelopes)

    def theirs(turns: Iterable[None]) -> None:
        for _ in turns:
            protobuf_decode(batch.envelopes)

    compare(
        f"decode_batch, {size} B",
        compare.timed(ours, per=batch.rows),
        Peer("warm memcpy of the envelopes", _memcpy(compare, batch), bandwidth, COPY_LIMIT),
        Peer(
            "protobuf (upb)",
            compare.timed(theirs, per=batch.rows),
            times,
            DECODE_LIMIT,
        ),
    )


def test_decode_batch_as_views(compare: Comparison) -> None:
    batch = _batch(1024, compare.amount(ROWS, 100))
    assert decode_batch(batch.envelopes, binary_view=True)["value"].to_pylist() == batch.values.to_pylist()

    def ours(turns: Iterable[None]) -> None:
        for _ in turns:
            decode_batch(batch.envelopes, binary_view=True)

    def copied(turns: Iterable[None]) -> None:
        for _ in turns:
            decode_batch(batch.envelopes)

    compare(
        "decode_batch(binary_view=True), 1024 B",
        compare.timed(ours, per=batch.rows),
        Peer("warm memcpy of the envelopes", _memcpy(compare, batch), 0.5),
        Peer("itself, with values copied", compare.timed(copied, per=batch.rows)),
    )
