"""Rows of an archive that become one message again."""

from __future__ import annotations

import pyarrow as pa
import pytest

from liftenvelope.bulk._archive.restore_payload import _by_offset
from liftenvelope.errors import UsageError


def test_rows_of_a_message_are_joined_over_batches() -> None:
    offsets = [[1, 1], [1, 2], [2], [3, 4, 4], [4]]
    batches = [pa.record_batch({"offset": pa.array(part, pa.int64())}) for part in offsets]
    found = [batch["offset"].to_pylist() for batch in _by_offset(iter(batches))]
    assert found == [[1, 1, 1], [2, 2], [3], [4, 4, 4]]


def test_message_beyond_2_gib_is_refused() -> None:
    half = 2**30  # nulls take no memory
    lists = pa.ListArray.from_arrays(pa.array([0, half], pa.int32()), pa.nulls(half))
    batch = pa.record_batch({"offset": pa.array([7], pa.int64()), "items": lists})
    with pytest.raises(UsageError, match="at most 2 GiB in a column of one message, got more at offset 7"):
        list(_by_offset(iter([batch, batch])))
