"""An archive job holds no more than it may. `make soak` runs it with 5 GiB."""

from __future__ import annotations

from pathlib import Path

from benchmarks.archive_memory import TARGET, measured


def test_memory_of_an_archive_job(tmp_path: Path) -> None:
    found = measured("jetstream", 96, str(tmp_path))
    assert found["rows"] == 96 * 1024
    assert found["before"] < found["peak"] < TARGET
