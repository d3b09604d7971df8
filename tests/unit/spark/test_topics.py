"""A stream that fails leaves the outcome of the others known.

The writes are scripted: the refusals of a real server may come while rows are sent or after it.
"""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from liftenvelope.bulk import WriteFailedError
from liftenvelope.bulk._outgoing import Written
from liftenvelope.bulk.writing import TableWrite
from liftenvelope.spark._topics import TopicWrites

ROW = pa.record_batch({"value": ["x"]})


class ScriptedWrite:
    """Records its calls; fails in one of them."""

    def __init__(self, name: str, fails_in: str | None, calls: list[str]) -> None:
        self._name, self._fails_in, self._calls = name, fails_in, calls

    def _call(self, what: str) -> None:
        self._calls.append(f"{what} {self._name}")
        if what == self._fails_in:
            raise WriteFailedError(f"{self._name}: 0 rows are stored", 0, 1)

    def reader(self, data: Any) -> Any:
        return data

    def open(self) -> None:
        self._call("open")

    def add(self, _: Any) -> None:
        self._call("add")

    def settle(self) -> None:
        self._call("settle")

    def finish(self) -> Written:
        self._call("finish")
        return Written(1, 2, 0, {})

    def close(self) -> None:
        self._calls.append(f"close {self._name}")


def writes(calls: list[str], **fails_in: str) -> TopicWrites:
    return TopicWrites(lambda topic: cast("TableWrite", ScriptedWrite(topic, fails_in.get(topic), calls)))


def test_rows_are_counted_when_the_writes_end() -> None:
    calls: list[str] = []
    found = writes(calls)
    found.add({"a": ROW, "b": ROW})
    found.add({"b": ROW})
    found.finish()
    assert (found.rows, found.bytes, found.duplicates) == (2, 4, 0)
    first = ["open a", "add a", "open b", "add b", "settle a", "settle b"]
    assert calls == [*first, "add b", "settle b", "finish a", "close a", "finish b", "close b"]


@pytest.mark.parametrize("call", ["open", "add", "settle", "finish"])
def test_other_streams_are_settled_after_a_failure(call: str) -> None:
    calls: list[str] = []
    found = writes(calls, b=call)

    def run() -> None:
        for _ in range(2):
            found.add({"a": ROW, "b": ROW, "c": ROW})
        found.finish()

    with pytest.raises(WriteFailedError, match=r"^b: ") as caught:
        run()
    after = calls[calls.index(f"{call} b") + 1 :]
    assert after[0] == "close b"
    assert {one.removeprefix("settle ") for one in after[1:]} <= {"a", "c"}
    assert call == "finish" or "settle a" in after
    assert not hasattr(caught.value, "__notes__")
    found.close()


def test_error_names_the_other_streams_that_fail() -> None:
    found = writes([], b="settle", a="settle")
    with pytest.raises(WriteFailedError, match=r"^a: ") as caught:
        found.add({"a": ROW, "b": ROW})
    assert caught.value.__notes__ == ["stream b failed as well: b: 0 rows are stored"]
