"""Random schemas and rows that the formats can carry."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

__all__ = ["batches", "json_types", "object_types"]

_DATES = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
_UTC = _DATES.map(lambda value: value.replace(tzinfo=datetime.UTC))
_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
#: Values by type. Finite floats, because JSON has no others.
_JSON: dict[Any, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.string(): _TEXT,
    pa.timestamp("us", "UTC"): _UTC,
}
_VALUES = {**_JSON, pa.binary(): st.binary(max_size=8)}


def _types(leaves: list[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.one_of(
            inner.map(pa.list_),
            st.lists(inner, min_size=1, max_size=2).map(
                lambda kinds: pa.struct([(f"f{number}", kind) for number, kind in enumerate(kinds)])
            ),
        ),
        max_leaves=3,
    )


json_types = _types(list(_JSON))
object_types = _types(list(_VALUES))


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        return st.none() | st.lists(values_of(kind.value_type), max_size=3)
    if pa.types.is_struct(kind):
        # A null struct and a struct of nulls are one thing to some formats.
        return st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    return st.none() | _VALUES[kind]


@st.composite
def batches(draw: st.DrawFn, types: st.SearchStrategy[Any]) -> pa.RecordBatch:
    """Return a batch of a random schema, whose names need escapes at times."""
    names = draw(st.lists(_TEXT.filter(bool), min_size=1, max_size=3, unique=True))
    schema = pa.schema([(name, draw(types)) for name in names])
    count = draw(st.integers(1, 6))
    columns = [pa.array([draw(values_of(field.type)) for _ in range(count)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
