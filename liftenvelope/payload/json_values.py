"""Values of Arrow columns as JSON can carry them, with times as text.

pyarrow makes a Python value of a time in nanoseconds only with pandas, which prints it differently. So times
become text in Arrow, also inside lists, maps and structs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    import pyarrow.compute as pc

    from liftenvelope.payload._formats import pa

__all__ = ["json_values", "time_texts"]

#: Decimals of a second, for each unit.
_DECIMALS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def time_texts(column: pa.Array) -> pa.Array:
    """Return timestamps as text with all decimals of their unit, in UTC if they have a zone.

    A cast to a timestamp without a zone comes first. Otherwise the text has the local time of the zone.
    """
    return column.cast(pa.timestamp(column.type.unit)).cast(pa.large_string())


def json_values(column: pa.Array) -> list[Any]:
    """Return the values of a column as Python objects, but times of any kind as text.

    A timestamp becomes ISO 8601 with all decimals of its unit, and a ``Z`` if it has a zone. A duration
    becomes the seconds of ISO 8601. Maps become lists of pairs, and bytes stay bytes.

    >>> import pyarrow as pa
    >>> json_values(pa.array([1_500, None], pa.duration("ms")))
    ['PT1.500S', None]
    """
    for is_kind, values_of in _VALUES:
        if is_kind(column.type):
            return values_of(column)
    return list(column.to_pylist())


def _timestamps(column: pa.Array) -> list[Any]:
    end = "" if column.type.tz is None else "Z"
    return [text and text.replace(" ", "T") + end for text in time_texts(column).to_pylist()]


def _times(column: pa.Array) -> list[Any]:
    return list(column.cast(pa.string()).to_pylist())


def _durations(column: pa.Array) -> list[Any]:
    places, counts = _DECIMALS[column.type.unit], column.cast(pa.int64()).to_pylist()
    return [None if count is None else _seconds(count, places) for count in counts]


def _structs(column: pa.Array) -> list[Any]:
    names, present = [field.name for field in column.type], column.is_valid().to_pylist()
    if len(set(names)) < len(names):
        raise ValueError(f"a struct must have each field once, got {names}")
    fields = [json_values(child) for child in column.flatten()]
    rows = zip(*fields, strict=True) if fields else [()] * len(column)
    return [
        dict(zip(names, row, strict=True)) if here else None for row, here in zip(rows, present, strict=True)
    ]


def _maps(column: pa.Array) -> list[Any]:
    """Return the pairs of each map; Arrow has no ``flatten`` for maps."""
    ends = column.offsets.to_pylist()
    begin, length = ends[0], ends[-1] - ends[0]
    keys, items = (json_values(child.slice(begin, length)) for child in (column.keys, column.items))
    pairs, present = list(zip(keys, items, strict=True)), column.is_valid().to_pylist()
    return [
        pairs[start - begin : stop - begin] if here else None
        for start, stop, here in zip(ends[:-1], ends[1:], present, strict=True)
    ]


def _lists(column: pa.Array) -> list[Any]:
    items, lengths = iter(json_values(column.flatten())), pc.list_value_length(column).to_pylist()
    return [None if length is None else list(islice(items, length)) for length in lengths]


def _seconds(value: int, places: int) -> str:
    seconds, rest = divmod(abs(value), 10**places)
    decimals = f".{rest:0{places}}" if places else ""
    return f"{'-' if value < 0 else ''}PT{seconds}{decimals}S"


#: Functions that return the values of a column, by its type. All other types need none.
_VALUES: Final[tuple[tuple[Callable[[Any], bool], Callable[[pa.Array], list[Any]]], ...]] = (
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_time, _times),
    (pa.types.is_duration, _durations),
    (pa.types.is_struct, _structs),
    (pa.types.is_map, _maps),
    (pa.types.is_list, _lists),
    (pa.types.is_large_list, _lists),
    (pa.types.is_fixed_size_list, _lists),
)
