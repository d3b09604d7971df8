"""What rounds are made of: queries over a stream, and their time per row."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import pyarrow as pa

from benchmarks.rounds import Round

#: As many as local[2] runs at a time.
TASKS = 2


def rows(count: int, size: int, headers: int = 0) -> pa.Table:
    """Rows of so many bytes, each with so many headers."""
    columns: dict[str, Any] = {"value": pa.array([b"x" * size] * count, pa.binary())}
    if headers:
        entries = [(f"Header-{i}", b"value-%d" % i) for i in range(headers)]
        columns["headers"] = pa.array([entries] * count, pa.map_(pa.string(), pa.binary()))
    return pa.table(columns)


def drain(frame: Any) -> None:
    """Have Spark read every row and column, and do nothing with them."""
    frame.write.format("noop").mode("overwrite").save()


def timed(work: Callable[[], object], count: int) -> Round:
    """A round of something that does so many operations at once."""

    def run() -> float:
        began = perf_counter()
        work()
        return (perf_counter() - began) / count

    return run


def load(spark: Any, format_: str, **options: object) -> Any:
    """A batch DataFrame."""
    return spark.read.format(format_).options(**options).load()
