"""Values of columns as JSON can carry them, with and without pandas."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from liftenvelope.payload.json_values import json_values

NS = 1_700_000_000_123_456_789
UTC = pa.timestamp("ns", "UTC")
STRUCT = pa.struct({"at": UTC, "n": pa.int32()})


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([NS, None], UTC), ["2023-11-14T22:13:20.123456789Z", None]),
        (pa.array([NS], pa.timestamp("ns", "Asia/Tokyo")), ["2023-11-14T22:13:20.123456789Z"]),
        (pa.array([NS], pa.timestamp("ns")), ["2023-11-14T22:13:20.123456789"]),
        (pa.array([1], pa.timestamp("s")), ["1970-01-01T00:00:01"]),
        (pa.array([1, None], pa.time64("ns")), ["00:00:00.000000001", None]),
        (pa.array([61], pa.time32("s")), ["00:01:01"]),
        (pa.array([1_000_000_001, None, -1], pa.duration("ns")), ["PT1.000000001S", None, "-PT0.000000001S"]),
        (pa.array([90], pa.duration("s")), ["PT90S"]),
        (
            pa.array([[1], None, [], [2, None]], pa.list_(pa.duration("ms"))),
            [["PT0.001S"], None, [], ["PT0.002S", None]],
        ),
        (pa.array([[1, 2], None], pa.list_(pa.duration("s"), 2)), [["PT1S", "PT2S"], None]),
        (pa.array([[1]], pa.large_list(pa.duration("s"))), [["PT1S"]]),
        (
            pa.array([{"at": NS, "n": 1}, None, {"at": None, "n": None}], STRUCT),
            [{"at": "2023-11-14T22:13:20.123456789Z", "n": 1}, None, {"at": None, "n": None}],
        ),
        (
            pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.duration("s"))),
            [[("a", "PT1S"), ("b", None)], None, []],
        ),
        (pa.array([{}, None], pa.struct([])), [{}, None]),
        (pa.array([b"\xff", None]), [b"\xff", None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_value(column: pa.Array, expected: list[object]) -> None:
    assert json_values(column) == expected
    doubled = pa.concat_arrays([column, column])
    assert json_values(doubled.slice(1, len(column))) == [*expected, *expected][1 : 1 + len(column)]


def test_struct_with_a_field_twice_loses_none() -> None:
    column = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(ValueError, match=r"a struct must have each field once, got \['a', 'a'\]"):
        json_values(column)


WITHOUT_PANDAS = """
import sys
class WithoutPandas:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, WithoutPandas())
import pyarrow as pa
from liftenvelope.bulk.files import to_lines
from liftenvelope.payload._json_text import JsonEncoder
ns = 1_700_000_000_123_456_789
column = pa.array([{"at": ns}], pa.struct({"at": pa.timestamp("ns", "UTC")}))
batch = pa.record_batch({"s": column})
print(*to_lines(pa.record_batch({"s": column, "d": pa.array([1], pa.duration("ns"))})))
print(JsonEncoder(batch.schema).encode(batch)[0].as_py().decode())
"""


def test_nanoseconds_without_pandas() -> None:
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    at = "2023-11-14T22:13:20.123456789Z"
    assert found == [f'{{"s": {{"at": "{at}"}}, "d": "PT0.000000001S"}}', f'{{"s":{{"at":"{at}"}}}}']
