"""Streams into Iceberg and Delta tables, beside the same stream into Parquet files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks import processor_time
from benchmarks.bulk_streams import make_stream, rows
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope import bulk
from liftenvelope.bulk.writing import write
from liftenvelope.testing import NatsServer

_BY_TABLE: Final = (
    "The library of the format converts the columns once more, and writes statistics, manifests and a log."
)


def _into(folder: Path, count: int, write_all: Callable[[Path], Any]) -> Round:
    def run() -> float:
        began = processor_time.own()
        assert write_all(folder).rows == count
        took = processor_time.own() - began
        shutil.rmtree(folder)
        return took / count

    return run


@pytest.mark.parametrize("make", ["iceberg", "delta"])
def test_stream_into_table_processor_time(
    compare: Comparison, jetstream: NatsServer, tmp_path: Path, make: str
) -> None:
    count, url = compare.amount(1_000_000, 500), jetstream.url
    stream = make_stream(url)
    write(url, stream, rows(count, 100), subject=stream)

    def into_table(folder: Path) -> bulk.TableWritten:
        if make == "delta":
            return bulk.to_delta(url, stream, folder)
        return bulk.to_iceberg(url, stream, "bench.rows", warehouse=folder)

    compare(
        f"bulk.to_{make}, JetStream, 100 B, processor time",
        _into(tmp_path / "table", count, into_table),
        Peer(
            "bulk.to_parquet",
            _into(tmp_path / "files", count, lambda folder: bulk.to_parquet(url, stream, folder)),
            0.5,
            _BY_TABLE,
        ),
        rounds=3,
    )
