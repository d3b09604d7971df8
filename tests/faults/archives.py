"""An archive that is made while rows are written: its process is killed, stopped, and goes on."""

from __future__ import annotations

from typing import Final

import pyarrow.parquet as pq

from liftenvelope import bulk
from liftenvelope.bulk import Access
from tests.faults.bulk_writes import access_of, run_child, write_rows
from tests.faults.checker import Checker
from tests.faults.children import program
from tests.faults.messages import COLUMNS, columns_of
from tests.faults.running import Path, Run

__all__ = ["ARCHIVE"]

_PARTITIONS: Final = 2
#: Rows between two runs of the archiver, as a part of the goal.
_PART: Final = 0.34
_RECONNECT: Final = 60.0


def _work(run: Run) -> None:
    """Write and archive in turns."""
    command = program(
        "archive", source=run.scene.source, stream=run.stream, path=str(run.folder), access=access_of(run)
    )
    while not run.is_over():
        write_rows(run, part=_PART)
        run_child(run, "archiver", command, run.plan.timeout + _RECONNECT)


def _check(run: Run, rows: int) -> None:
    """Bring the archive to the end, and hold it to what was reported and to the stream."""
    access = Access(timeout=30, reconnect_wait=_RECONNECT)
    bulk.to_parquet(run.scene.direct_source, run.stream, run.folder, access=access)
    checker = Checker(run.messages, run.ledger, once=True, repeats=run.scene.is_liftbridge)
    for partition in range(run.messages.partitions):
        # Their names end with their first offset, in twenty digits.
        for file in sorted(run.folder.glob(f"{run.stream}-{partition}-*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches(columns=COLUMNS):
                checker.feed(partition, *columns_of(batch))
    for text in checker.finish():
        run.violate(f"in the archive: {text}")
    if checker.rows != rows:
        run.violate(f"the archive has {checker.rows} rows of {rows}")


ARCHIVE: Final = Path(_work, _PARTITIONS, check=_check)
