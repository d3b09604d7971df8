"""Envelopes as columns of DataFrames, beside a function over Arrow batches that does nothing.

And beside functions that return the same structs without having read any envelope: so much is Spark's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.rounds import Comparison, Peer
from benchmarks.spark.streams import TASKS, drain, timed
from liftenvelope.envelope import new_message
from liftenvelope.spark._columns import ENVELOPE_DDL, decoded_structs
from liftenvelope.spark.functions import decode_envelopes, from_envelope

#: At most 1.3 times the time.
TARGET = 1 / 1.3
_COLUMNS = (
    "Eight columns go back to Spark where the other sends one; the row beside structs that are ready made "
    "says how much of it is the codec's."
)


class _ReadyMade:
    """The structs of a column of equal envelopes, each length of it read once in a task."""

    def __init__(self) -> None:
        self._made: dict[int, pa.StructArray] = {}

    def structs(self, envelopes: pa.Array) -> pa.StructArray:
        rows = len(envelopes)
        if rows not in self._made:
            self._made[rows] = decoded_structs(envelopes)
        return self._made[rows]


def _same_function(frame: Any) -> Any:
    from pyspark.sql.functions import arrow_udf

    ready = _ReadyMade()

    def made(envelopes: Any) -> Any:
        return ready.structs(envelopes)

    made.__annotations__ = {"envelopes": pa.Array, "return": pa.Array}
    return frame.select(arrow_udf(made, ENVELOPE_DDL)("value").alias("envelope"))


def _same_batches(frame: Any) -> Any:
    ready = _ReadyMade()

    def made(batches: Any) -> Any:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([ready.structs(batch["value"])], ["envelope"])

    return frame.mapInArrow(made, decode_envelopes(frame).schema)


@pytest.mark.parametrize("name", ["from_envelope", "decode_envelopes"])
def test_from_envelope(compare: Comparison, spark: Any, tmp_path: Path, name: str) -> None:
    count = compare.amount(3_000_000, 500)
    one = new_message(b"x" * 100, key=b"key")
    for part in range(TASKS):
        table = pa.table({"value": pa.array([one] * (count // TASKS), pa.binary())})
        pq.write_table(table, tmp_path / f"{part}.parquet")
    frame = spark.read.parquet(str(tmp_path))
    passed = frame.mapInArrow(lambda batches: batches, "value binary")
    if name == "from_envelope":
        ours, floor, kind = (
            frame.select(from_envelope("value").alias("envelope")),
            _same_function(frame),
            "arrow_udf",
        )
    else:
        ours, floor, kind = decode_envelopes(frame), _same_batches(frame), "mapInArrow"
    assert ours.schema == floor.schema
    assert ours.count() == count
    compare(
        f"{name}, 100 B: at most 1.3 of the other's time",
        timed(lambda: drain(ours), count),
        Peer("mapInArrow, passing through", timed(lambda: drain(passed), count), TARGET, _COLUMNS),
        Peer(f"{kind}, the structs ready made", timed(lambda: drain(floor), count)),
        rate=True,
        rounds=9,
    )
