"""Message ids of Spark's sink into JetStream. Without Spark."""

from __future__ import annotations

from itertools import product
from uuid import UUID

from liftenvelope.spark._writing import id_prefix


def test_ids_of_rows_have_at_most_24_bytes() -> None:
    query = UUID(int=2**127)
    task = f"{query}:123456789:4000"
    assert len(f"{id_prefix(task)}-{9_999_999}".encode()) == 24
    assert id_prefix(task) == id_prefix(task)


def test_tasks_have_different_ids() -> None:
    tasks = [f"{UUID(int=q)}:{b}:{p}" for q, b, p in product(range(5), range(20), range(20))]
    assert len({id_prefix(task) for task in tasks}) == len(tasks)


def test_ids_stay_the_same_between_versions() -> None:
    """A batch that runs again after an upgrade must have the ids of its first run."""
    assert id_prefix("query:1:2") == "ZI-tsdLq3Gc51-L5"
