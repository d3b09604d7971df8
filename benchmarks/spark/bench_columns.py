"""Envelopes as columns of DataFrames, beside a function over Arrow batches that does nothing.

And beside functions that return the same structs without having read any envelope: so much is Spark's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.rounds import Comparison, Peer
from benchmarks.spark.streams import TASKS, drain, timed
from liftenvelope.arrow import MESSAGE_FIELDS
from liftenvelope.envelope import new_message
from liftenvelope.spark._columns import decoded_structs, envelope_ddl
from liftenvelope.spark.functions import decode_envelopes, from_envelope

#: At most 1.3 times the time, and 1.2 times for two fields.
TARGET, TARGET_OF_TWO = 1 / 1.3, 1 / 1.2
TWO = ("key", "value")
_COLUMNS = (
    "Eight columns go back to Spark where the other sends one, and headers cost Spark most; the row "
    "beside structs that are ready made says how much of it is the codec's. fields= leaves out columns."
)
_TWO_COLUMNS = "Two columns go back to Spark where the other sends one."


class _ReadyMade:
    """The structs of a column of equal envelopes, each length of it read once in a task."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = fields
        self._made: dict[int, pa.StructArray] = {}

    def structs(self, envelopes: pa.Array) -> pa.StructArray:
        rows = len(envelopes)
        if rows not in self._made:
            self._made[rows] = decoded_structs(envelopes, fields=self._fields)
        return self._made[rows]


def _same_function(frame: Any) -> Any:
    from pyspark.sql.functions import arrow_udf

    ready = _ReadyMade(MESSAGE_FIELDS)

    def made(envelopes: Any) -> Any:
        return ready.structs(envelopes)

    made.__annotations__ = {"envelopes": pa.Array, "return": pa.Array}
    return frame.select(arrow_udf(made, envelope_ddl(MESSAGE_FIELDS))("value").alias("envelope"))


def _same_batches(frame: Any, fields: Sequence[str]) -> Any:
    ready = _ReadyMade(fields)

    def made(batches: Any) -> Any:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([ready.structs(batch["value"])], ["envelope"])

    return frame.mapInArrow(made, decode_envelopes(frame, fields=fields).schema)


def _envelopes(spark: Any, folder: Path, count: int) -> Any:
    """A DataFrame of equal envelopes, one file for each task."""
    one = new_message(b"x" * 100, key=b"key")
    for part in range(TASKS):
        table = pa.table({"value": pa.array([one] * (count // TASKS), pa.binary())})
        pq.write_table(table, folder / f"{part}.parquet")
    return spark.read.parquet(str(folder))


@pytest.mark.parametrize("name", ["from_envelope", "decode_envelopes"])
def test_from_envelope(compare: Comparison, spark: Any, tmp_path: Path, name: str) -> None:
    count = compare.amount(3_000_000, 500)
    frame = _envelopes(spark, tmp_path, count)
    passed = frame.mapInArrow(lambda batches: batches, "value binary")
    if name == "from_envelope":
        ours, floor, kind = (
            frame.select(from_envelope("value").alias("envelope")),
            _same_function(frame),
            "arrow_udf",
        )
    else:
        ours, floor, kind = decode_envelopes(frame), _same_batches(frame, MESSAGE_FIELDS), "mapInArrow"
    assert ours.schema == floor.schema
    assert ours.count() == count
    compare(
        f"{name}, 100 B: at most 1.3 of the other's time",
        timed(lambda: drain(ours), count),
        Peer(
            "mapInArrow, passing through",
            timed(lambda: drain(passed), count),
            # With all fields, decode_envelopes is for information: its row with two has the target.
            TARGET if name == "from_envelope" else None,
            _COLUMNS,
        ),
        Peer(f"{kind}, the structs ready made", timed(lambda: drain(floor), count)),
        rate=True,
        rounds=9,
    )


def test_decode_two_fields(compare: Comparison, spark: Any, tmp_path: Path) -> None:
    count = compare.amount(3_000_000, 500)
    frame = _envelopes(spark, tmp_path, count)
    passed = frame.mapInArrow(lambda batches: batches, "value binary")
    ours, floor = decode_envelopes(frame, fields=TWO), _same_batches(frame, TWO)
    assert ours.schema == floor.schema
    assert ours.where("envelope.key = binary('key') and length(envelope.value) = 100").count() == count
    compare(
        "decode_envelopes, key and value, 100 B: at most 1.2 of the other's time",
        timed(lambda: drain(ours), count),
        Peer("mapInArrow, passing through", timed(lambda: drain(passed), count), TARGET_OF_TWO, _TWO_COLUMNS),
        Peer("mapInArrow, the structs ready made", timed(lambda: drain(floor), count)),
        rate=True,
        rounds=9,
    )
