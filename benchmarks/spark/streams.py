"""Rounds of the Spark benchmarks: queries over a stream, and their time per row."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any

import pyarrow as pa

from benchmarks.rounds import Round

#: As many as local[2] runs at a time.
TASKS = 2
#: Micro-batches that don't count: the first ones load what the others have.
WARM = 3
PATIENCE = 600.0


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


def batches(writer: Callable[[], Any], count: int, size: int = 1) -> Round:
    """A round of a streaming query: the median of so many micro-batches, per row where they have so many."""

    def run() -> float:
        query = writer().start()
        limit = monotonic() + PATIENCE
        try:
            while len(found := _taken(query)) < WARM + count:
                assert monotonic() < limit, "the batches did not come"
                assert query.exception() is None, query.exception()
                sleep(0.05)
        finally:
            query.stop()
        return median(found[WARM:]) / size

    return run


def _taken(query: Any) -> list[float]:
    """Return the duration of each batch that had rows, in seconds."""
    found = [json.loads(progress.json) for progress in query.recentProgress]
    return [one["durationMs"]["triggerExecution"] / 1_000 for one in found if one["numInputRows"]]
