"""Trace context in the headers of rows to publish, as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from liftenvelope._checks import require
from liftenvelope.otel._propagation import BAGGAGE

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = require("pyarrow", "bulk")
    pc = require("pyarrow.compute", "bulk")

__all__ = ["header_rows", "with_fields"]

_HEADERS: Final = "headers"
_MAP: Final = pa.map_(pa.string(), pa.binary())
#: Bytes for what surrounds the headers of a row, and for the separators of each header.
_AROUND: Final = 512
_BETWEEN: Final = 8
_CAST_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


def header_rows(batch: pa.RecordBatch, limit: int) -> Iterator[dict[str, bytes]]:
    """Yield the headers of the first rows of a batch that have any."""
    if _HEADERS in batch.schema.names and pa.types.is_map(batch.column(_HEADERS).type):
        yield from (dict(row) for row in batch.column(_HEADERS).slice(0, limit).to_pylist() if row)


def with_fields(batch: pa.RecordBatch, fields: Mapping[str, str], most: int) -> pa.RecordBatch:
    """Return a batch whose rows have the fields of a context in their headers.

    A row that has a field of a trace keeps its trace, and a row that has baggage its baggage. A row that
    might be too large with the fields stays as it is, as do rows that can't be published: the write raises
    its own error.

    Args:
        batch: Rows to publish.
        fields: Fields by name.
        most: Largest message in bytes.
    """
    if not fields or not batch.num_rows:
        return batch
    try:
        headers = _headers_of(batch)
        fits = _fitting(batch, headers, sum(map(len, (*fields, *fields.values()))), most)
    except _CAST_ERRORS:
        return batch
    for is_baggage in (False, True):
        group = {name: value for name, value in fields.items() if (name.lower() == BAGGAGE) is is_baggage}
        if group:
            headers = _added(headers, group, fits)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True)) | {_HEADERS: headers}
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _headers_of(batch: pa.RecordBatch) -> pa.Array:
    if _HEADERS not in batch.schema.names:
        return pa.nulls(batch.num_rows, _MAP)
    return batch.column(_HEADERS).cast(_MAP)


def _as_lists(headers: pa.Array) -> pa.Array:
    """Return maps as lists of structs, which kernels take."""
    fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    entries = pa.StructArray.from_arrays([headers.keys, headers.items], fields=fields)
    buffers = headers.buffers()[:2]
    return pa.Array.from_buffers(
        pa.list_(entries.type), len(headers), buffers, headers.null_count, headers.offset, children=[entries]
    )


def _fitting(batch: pa.RecordBatch, headers: pa.Array, more: int, most: int) -> pa.Array:
    """Return for each row if it is certainly small enough with that many more bytes."""
    sizes = pa.repeat(pa.scalar(more + _AROUND, pa.int64()), batch.num_rows)
    for name in {"value", "key"}.intersection(batch.schema.names):
        lengths = pc.binary_length(batch.column(name).cast(pa.large_binary()))
        sizes = pc.add(sizes, pc.fill_null(lengths, 0))
    lists = _as_lists(headers)
    names, values = lists.flatten().flatten()
    if len(names):
        parts = pc.add(pc.binary_length(names), pc.add(pc.fill_null(pc.binary_length(values), 0), _BETWEEN))
        rows = (
            pa.table({"row": pc.list_parent_indices(lists), "size": parts})
            .group_by("row")
            .aggregate([("size", "sum")])
        )
        by_row = pc.index_in(_numbers(batch.num_rows), rows["row"].combine_chunks())
        sizes = pc.add(sizes, pc.fill_null(rows["size_sum"].combine_chunks().take(by_row), 0))
    return pc.less_equal(sizes, most)


def _numbers(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())


def _added(headers: pa.Array, group: Mapping[str, str], fits: pa.Array) -> pa.Array:
    """Return headers with a group of fields, in the rows that fit and have none of them."""
    lists = _as_lists(headers)
    names, values = lists.flatten().flatten()
    parents = pc.list_parent_indices(lists).cast(pa.int64())
    known = pa.array([name.lower() for name in group])
    numbers = _numbers(len(headers))
    taken = parents.filter(pc.is_in(pc.utf8_lower(names), known))
    wanted = pc.and_(fits, pc.invert(pc.is_in(numbers, taken)))
    rows = numbers.filter(wanted)
    order = pc.sort_indices(pa.concat_arrays([parents, *[rows] * len(group)]))  # a stable sort
    names = pa.concat_arrays([names, *(pa.repeat(name, len(rows)) for name in group)])
    made = (pa.repeat(pa.scalar(value.encode(), pa.binary()), len(rows)) for value in group.values())
    values = pa.concat_arrays([values, *made])
    counts = pc.add(
        pc.fill_null(pc.list_value_length(lists), 0), pc.multiply(wanted.cast(pa.int32()), len(group))
    )
    ends = pc.cumulative_sum(counts.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.MapArray.from_arrays(offsets, names.take(order), values.take(order))
