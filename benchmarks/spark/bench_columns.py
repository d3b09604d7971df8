"""Envelopes as columns of DataFrames, beside a function over Arrow batches that does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.rounds import Comparison, Peer
from benchmarks.spark.streams import TASKS, drain, timed
from liftenvelope.envelope import new_message
from liftenvelope.spark.functions import decode_envelopes, from_envelope

#: At most 1.3 times the time.
TARGET = 1 / 1.3
_COLUMNS = (
    "Eight columns go back to Spark where the other sends one; its own rows of them cost more than the codec."
)


@pytest.mark.parametrize("name", ["from_envelope", "decode_envelopes"])
def test_from_envelope(compare: Comparison, spark: Any, tmp_path: Path, name: str) -> None:
    count = compare.amount(1_000_000, 500)
    one = new_message(b"x" * 100, key=b"key")
    for part in range(TASKS):
        table = pa.table({"value": pa.array([one] * (count // TASKS), pa.binary())})
        pq.write_table(table, tmp_path / f"{part}.parquet")
    frame = spark.read.parquet(str(tmp_path))
    passed = frame.mapInArrow(lambda batches: batches, "value binary")
    function = frame.select(from_envelope("value").alias("envelope"))
    ours = function if name == "from_envelope" else decode_envelopes(frame)
    assert ours.count() == count
    compare(
        f"{name}, 100 B: at most 1.3 of the other's time",
        timed(lambda: drain(ours), count),
        Peer("mapInArrow, passing through", timed(lambda: drain(passed), count), TARGET, _COLUMNS),
        rate=True,
        rounds=5,
    )
