"""A scan as a polars LazyFrame: reads the columns and messages that the query needs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import require
from liftenvelope.bulk.narrowing import Condition, Narrowing, Operator

if TYPE_CHECKING:
    import polars as pl
    from polars.io import plugins

    from liftenvelope.bulk._scan.reads import ScanReads
else:
    pl = require("polars", None)
    plugins = require("polars.io.plugins", None)

__all__ = ["conditions_of", "lazy_frame"]

_COMPARISONS: Final[dict[str, Operator]] = {"Eq": "=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
#: The comparison with its sides exchanged.
_EXCHANGED: Final[dict[Operator, Operator]] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def lazy_frame(reads: ScanReads) -> pl.LazyFrame:
    """Return a LazyFrame over a scan."""

    def batches(
        columns: list[str] | None, predicate: pl.Expr | None, limit: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        # polars 2 gives both to ``head(n).filter(p)``: the limit counts all rows, and p filters the first n.
        narrows = conditions_of(predicate) if predicate is not None and limit is None else ()
        narrowing = Narrowing().all_of(narrows)
        left = limit
        for batch in reads.read(columns or None, narrowing):
            frame = _frame(pl.DataFrame(batch))
            if left is not None:
                frame = frame.head(left)
                left -= len(frame)
            if predicate is not None:  # every condition, since most are not exact
                frame = frame.filter(predicate)
            yield frame
            if left == 0:
                return

    schema = _frame(pl.DataFrame(reads.schema.empty_table())).schema
    return plugins.register_io_source(batches, schema=schema)


def _frame(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with texts in place of categories, which polars compares by other rules."""
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String))


def conditions_of(predicate: pl.Expr) -> list[Condition]:
    """Return the conditions of a predicate that all of its rows meet, as far as they are understood.

    Polars has no stable interface to the tree of an expression. This reads its JSON form, and leaves out all
    that it does not know: such a condition narrows nothing, and the rows are filtered by it afterwards.
    """
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except (ValueError, pl.exceptions.PolarsError):
        return []
    return list(_conditions(tree))


def _conditions(node: Any) -> Iterator[Condition]:
    match node:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            yield from _conditions(left)
            yield from _conditions(right)
        case {"BinaryExpr": {"left": left, "op": str(name), "right": right}} if name in _COMPARISONS:
            operator = _COMPARISONS[name]
            yield from _condition(left, operator, right)
            yield from _condition(right, _EXCHANGED[operator], left)
        case {"Function": {"input": [column, value], "function": {"StringExpr": "StartsWith"}}}:
            yield from _condition(column, "prefix", value)
        case {"Function": {"input": [column, value], "function": {"Boolean": "IsIn" | {"IsIn": _}}}}:
            yield from _condition(column, "in", value)
        case {"Function": {"input": [column, low, high], "function": {"Boolean": {"IsBetween": _}}}}:
            yield from _condition(column, ">=", low)
            yield from _condition(column, "<=", high)


def _condition(column: Any, operator: Operator, value: Any) -> Iterator[Condition]:
    """Yield a condition if one side is a column and the other a literal."""
    match column, value:
        case {"Column": str(name)}, {"Literal": _}:
            found = _value(value, name, operator)
            if found is not None:
                yield name, operator, found


def _value(node: Any, name: str, operator: Operator) -> Any:
    """Return the value of a literal, times as nanoseconds; None if it is none that is used."""
    try:
        literal = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
        found = pl.select(literal.dt.epoch("ns") if name == "timestamp" else literal).to_series()
    except (ValueError, pl.exceptions.PolarsError):
        return None
    if operator != "in":
        return found.item() if len(found) == 1 else None
    values = found.item() if found.dtype == pl.List and len(found) == 1 else found
    return values.to_list() if isinstance(values, pl.Series) else None
