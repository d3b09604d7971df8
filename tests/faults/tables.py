"""Tables that two processes write at once while rows arrive: they are killed, stopped, and go on.

Besides the faults of the plan, the catalogue of Iceberg tables is locked, and the disk of the tables is
filled. The writers are forked from a process that has imported all libraries, so that they start quickly.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path as Folder
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from liftenvelope import bulk
from liftenvelope.bulk import Access, TableOptions, TableWriter
from liftenvelope.errors import LiftEnvelopeError
from tests.faults.bulk_writes import access_of, write_rows
from tests.faults.checker import Checker
from tests.faults.messages import COLUMNS, columns_of
from tests.faults.running import Path, Run

__all__ = ["READERS", "TABLE_PATHS", "keep_table", "open_writer"]

_PARTITIONS: Final = 2
#: Name of the Iceberg table.
_TABLE: Final = "faults.rows"
#: Seconds between two looks of a writer at a stream without new rows.
_PAUSE: Final = 0.05
#: Rows between two looks at the writers, as a part of the goal.
_PART: Final = 0.06
_RECONNECT: Final = 60.0
#: Seconds to wait for any sign of the writers. Killed and stopped ones give none.
_SIGN: Final = 10.0
_DISK: Final = 64 * 1024 * 1024
#: Chance of a trouble with the catalogue or the disk after a write.
_TROUBLE: Final = 0.1
#: Errors that the faults explain; every other one of a writer is a violation.
_EXPECTED: Final = frozenset(
    {
        "CallTimeoutError",
        "NoJetStreamError",
        "NoSuchStreamError",  # a Liftbridge server that has just started knows no streams
        "OSError",
        "ReadLostError",
        "TableCommitError",
        "TransportError",
    }
)


_FORKS: Final = multiprocessing.get_context("forkserver")


def _catalog(place: str) -> dict[str, str]:
    """Return the properties of the catalogue of Iceberg tables, which waits for a lock for a second."""
    return {
        "name": "faults",
        "uri": f"sqlite:///{place}/catalog.db?timeout=1",
        "warehouse": f"file://{place}",
    }


def open_writer(
    make: str,
    source: list[str],
    stream: str,
    place: str,
    access: dict[str, Any],
    *,
    partitioned: bool,
    typed: TableOptions | None = None,
) -> TableWriter:
    """Return a writer of a table that makes many small commits.

    Args:
        make: Format of the table.
        source: As for :func:`liftenvelope.bulk.read`.
        stream: Name of the stream.
        place: Folder of the table.
        access: Options of the access.
        partitioned: True for a table with partitions by the hour.
        typed: Options for a stream with a payload.
    """
    options: TableOptions = {"access": Access(**access), "batch_rows": 50, "commit_rows": 100}
    if partitioned:
        options["partition_by"] = "hour(timestamp)"
    options |= typed or {}
    if make == "delta":
        return bulk.delta_writer(source, stream, f"{place}/table", **options)
    return bulk.iceberg_writer(source, stream, _TABLE, catalog={"type": "sql", **_catalog(place)}, **options)


def keep_table(tell: Any, options: dict[str, Any]) -> None:
    """Bring a table up to date again and again, until the parent has ended."""
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            with open_writer(**options) as writer:
                while os.getppid() == parent:
                    done = writer.catch_up()
                    tell.send_bytes(json.dumps({"rows": done.rows, "commits": done.commits}).encode())
                    time.sleep(0 if done.rows else _PAUSE)
        except (LiftEnvelopeError, OSError) as exc:
            name = type(exc).__name__ if isinstance(exc, LiftEnvelopeError) else "OSError"
            text = f"{exc!r} {exc.__cause__!r}"[:2_000]
            tell.send_bytes(json.dumps({"error": name, "text": text}).encode())
            time.sleep(_PAUSE)


class _Writer:
    """A process that brings the table up to date again and again. It may be killed and started again."""

    def __init__(self, options: dict[str, Any], tell: Any) -> None:
        self._options = options
        self._tell = tell
        self._process: Any = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.is_running else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        if not self.is_running:
            self._process = _FORKS.Process(target=keep_table, args=(self._tell, self._options), daemon=True)
            self._process.start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()


class _Writers:
    """Two writers of the same stream into the same table."""

    def __init__(self, run: Run, options: dict[str, Any]) -> None:
        self._run = run
        # Messages shorter than PIPE_BUF are in the pipe as a whole or not at all, also of one that is killed.
        self._told, tell = _FORKS.Pipe(duplex=False)
        self._writers = {name: _Writer(options, tell) for name in ("table1", "table2")}
        self.rows = self.commits = 0

    def _take(self, told: dict[str, Any]) -> None:
        self.rows += told.get("rows", 0)
        self.commits += told.get("commits", 0)
        if error := told.get("error"):
            self._run.ledger.errors[error] += 1
            if error not in _EXPECTED:
                self._run.violate(f"a writer of the table failed: {told}")

    def await_sign(self) -> None:
        """Wait until a writer has told anything, or for a time."""
        if self._told.poll(_SIGN):
            while self._told.poll():
                self._take(json.loads(self._told.recv_bytes()))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start them for the injector, and kill them at the end."""
        for writer in self._writers.values():
            writer.start()
        self._run.processes.update(self._writers)
        try:
            yield
        finally:
            self._run.injector.end()
            for name, writer in self._writers.items():
                del self._run.processes[name]
                writer.kill()
            self._told.close()


def _mount(folder: Folder) -> bool:
    """Mount a small file system for the tables, if root runs the campaign; tell whether."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)]
    return not os.geteuid() and not subprocess.run(command, capture_output=True, check=False).returncode


def _unmount(folder: Folder) -> None:
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def _lock(folder: Folder, seconds: float) -> None:
    """Lock the catalogue for some time, as another process may do."""
    with sqlite3.connect(folder / "catalog.db", timeout=30, isolation_level=None) as catalog:
        catalog.execute("BEGIN EXCLUSIVE")
        time.sleep(seconds)
        catalog.execute("ROLLBACK")
    catalog.close()


def _fill(folder: Folder, seconds: float) -> None:
    """Leave no space on the file system of the tables for some time."""
    ballast = folder / "ballast"
    try:
        with open(ballast, "wb", buffering=0) as file:
            while file.write(bytes(64 * 1024)):
                pass
    except OSError:
        time.sleep(seconds)
    finally:
        ballast.unlink()


def _work(make: str, run: Run) -> None:
    place = run.folder / "lake"
    troubles: list[Callable[[Folder, float], None]] = [_fill] if _mount(place) else []
    troubles += [_lock] if make == "iceberg" else []
    chance = random.Random(f"tables {run.plan.seed}")
    _FORKS.set_forkserver_preload([__name__])
    writers = _Writers(run, {"access": access_of(run), **_options(make, run, run.scene.source)})
    try:
        with writers.running():
            writers.await_sign()
            while not run.is_over():
                write_rows(run, part=_PART)
                if troubles and writers.commits and chance.random() < _TROUBLE:
                    chance.choice(troubles)(place, chance.choice([0.1, 0.5, 2.0]))
                writers.await_sign()
    except BaseException:
        _unmount(place)
        raise


def _options(make: str, run: Run, source: list[str]) -> dict[str, Any]:
    place = str(run.folder / "lake")
    return {
        "make": make,
        "source": source,
        "stream": run.stream,
        "place": place,
        "partitioned": run.plan.again,
    }


def _check(make: str, run: Run, rows: int) -> None:
    """Bring the table to the end, and hold it to what was reported and to the stream."""
    place = run.folder / "lake"
    access = {"timeout": 30.0, "reconnect_wait": _RECONNECT}
    try:
        with open_writer(access=access, **_options(make, run, run.scene.direct_source)) as writer:
            writer.catch_up()
        table = READERS[make, run.plan.seed % 2](place)
    finally:
        _unmount(place)
    checker = Checker(run.messages, run.ledger, once=True, repeats=run.scene.is_liftbridge)
    for partition in range(run.messages.partitions):
        mine = table.filter(pc.field("partition") == partition).sort_by("offset").select(COLUMNS)
        checker.feed(partition, *columns_of(mine))
    for text in checker.finish():
        run.violate(f"in the table: {text}")
    if checker.rows != rows:
        run.violate(f"the table has {checker.rows} rows of {rows}")


def _iceberg(place: Folder) -> Any:
    return SqlCatalog(**_catalog(str(place))).load_table(_TABLE)


#: Readers of the tables; a seed takes the one or the other.
READERS: Final[dict[tuple[str, int], Callable[[Folder], pa.Table]]] = {
    ("iceberg", 0): lambda place: _iceberg(place).scan().to_arrow(),
    ("iceberg", 1): lambda place: pl.scan_iceberg(_iceberg(place)).collect().to_arrow(),
    ("delta", 0): lambda place: DeltaTable(place / "table").to_pyarrow_table(),
    ("delta", 1): lambda place: pl.scan_delta(str(place / "table")).collect().to_arrow(),
}

TABLE_PATHS: Final = {
    f"table-{make}": Path(partial(_work, make), _PARTITIONS, check=partial(_check, make))
    for make in ("iceberg", "delta")
}
