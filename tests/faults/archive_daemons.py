"""Two archive daemons at once, on the disk or an S3 server: they are killed, stopped, and start again."""

from __future__ import annotations

import asyncio
import atexit
import json
import multiprocessing
import os
import signal
import time
from contextlib import ExitStack
from functools import cache
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from liftenvelope import bulk
from liftenvelope.archive import ArchiveDaemon, read_archive_config
from liftenvelope.bulk import Access, ArchiveBusyError
from liftenvelope.cli._serving.logging import start_logging
from tests.faults.bulk_writes import access_of, write_rows
from tests.faults.checker import Checker
from tests.faults.messages import COLUMNS, columns_of
from tests.faults.running import Path, Run
from tests.s3 import S3Server, run_s3

__all__ = ["ARCHIVE_DAEMON", "ARCHIVE_S3"]

_PART: Final = 0.1
_RECONNECT: Final = 60.0
#: Seconds for a graceful stop, beside the reconnects of a run under way.
_STOP: Final = 120.0
_NAMES: Final = ("daemon1", "daemon2")


def _serve(config: str, log: str) -> None:
    """Run a daemon, as ``liftenvelope archive`` does."""
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    start_logging("info", "json", "warn")
    succeeded = asyncio.run(ArchiveDaemon(read_archive_config(config)).run())
    os._exit(0 if succeeded else 1)  # as the command: threads of runs that did not end in time are left


@cache
def _forks() -> Any:
    """Processes that need not import the package again, which takes longer than all of their work."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@cache
def _s3() -> S3Server:
    """One server for all runs of this process."""
    servers = ExitStack()
    atexit.register(servers.close)
    return servers.enter_context(run_s3())


class _Forked:
    """A daemon that may be killed and started again."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: Any = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.is_running else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and bool(self._process.is_alive())

    def start(self) -> None:
        self._process = _forks().Process(target=_serve, args=self._arguments, daemon=True)
        self._process.start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def stop(self, timeout: float) -> int | None:
        """Send SIGTERM and wait; return the exit status, None if it goes on."""
        if self.pid is not None:
            os.kill(self._process.pid, signal.SIGTERM)
        self._process.join(timeout)
        status: int | None = self._process.exitcode
        return status


class _Daemons:
    """One run after the other.

    Args:
        on_s3: Whether the archive is on an S3 server.
    """

    def __init__(self, *, on_s3: bool) -> None:
        self._on_s3 = on_s3
        self._s3: S3Server | None = None

    def work(self, run: Run) -> None:
        """Write rows while two daemons archive them, and stop the daemons."""
        self._s3 = _s3() if self._on_s3 else None
        config = run.folder / "pipeline.toml"
        config.write_text(self._config(run))
        log = str(run.folder / "daemons.log")
        children = {name: _Forked(str(config), log) for name in _NAMES}
        try:
            for name, child in children.items():
                child.start()
                run.processes[name] = child
            while not run.is_over():
                write_rows(run, part=_PART)
            self._stop(run, children)
        finally:
            for name, child in children.items():
                child.kill()
                run.processes.pop(name, None)

    def _config(self, run: Run) -> str:
        access = {key: value for key, value in access_of(run).items() if key != "address_map"}
        lines = [
            "[archive]",
            "retry_wait = 1",
            f"stop_timeout = {_STOP}",
            "[[pipeline]]",
            'name = "faults"',
            f"source = {json.dumps(','.join(run.scene.source))}",
            f"stream = {json.dumps(run.stream)}",
            "interval = 0.2",
            "batch_rows = 1000",
            "[pipeline.access]",
            *(f"{key} = {json.dumps(value)}" for key, value in access.items()),
            "[pipeline.target]",
            f"path = {json.dumps(self._place(run))}",
            "rotate_rows = 5000",
            'partition_by = ["dt", "hour"]',
        ]
        return "\n".join(lines) + "\n"

    def _place(self, run: Run) -> str:
        return str(run.folder / "archive") if self._s3 is None else self._s3.url(run.folder.name)

    def _stop(self, run: Run, children: dict[str, _Forked]) -> None:
        for name, child in children.items():
            with run.timed(f"stop of {name}", _STOP):
                status = child.stop(_STOP * 2)
            # A signal that comes before its handler is set ends the process like any other.
            if status not in (0, -signal.SIGKILL, -signal.SIGTERM):
                log = (run.folder / "daemons.log").read_text()
                run.violate(f"{name} ended with status {status}: {log[-800:]}")

    def check(self, run: Run, rows: int) -> None:
        """Bring the archive to the end, and hold it to what was reported and to the stream."""
        self._finish(run)
        files = self._fetched(run)
        checker = Checker(run.messages, run.ledger, once=True, repeats=run.scene.is_liftbridge)
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(columns=COLUMNS):
                checker.feed(0, *columns_of(batch))
        for text in checker.finish():
            run.violate(f"in the archive: {text}")
        names = [str(file) for file in files]
        seen: dict[str, Any] = {
            "checker": checker.rows,
            "DuckDB": duckdb.read_parquet(names).aggregate('count(distinct "offset")').fetchall()[0][0],
            "polars": pl.scan_parquet(names).select(pl.len()).collect().item(),
        }
        for reader, count in seen.items():
            if count != rows:
                run.violate(f"{reader} reads {count} rows of {rows} in the archive")

    def _finish(self, run: Run) -> None:
        access = Access(timeout=30, reconnect_wait=_RECONNECT)
        deadline = time.monotonic() + _STOP
        while True:
            try:
                bulk.to_parquet(
                    run.scene.direct_source,
                    run.stream,
                    self._place(run),
                    access=access,
                    partition_by=["dt", "hour"],
                )
                return
            except ArchiveBusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _fetched(self, run: Run) -> list[Any]:
        """Files of the archive on the disk, in the order of their offsets."""
        folder = run.folder / "archive"
        if self._s3 is not None:
            filesystem, root = self._s3.filesystem, self._s3.path(run.folder.name)
            for one in filesystem.get_file_info(pafs.FileSelector(root, recursive=True)):
                if one.type is pafs.FileType.File:
                    target = folder / one.path.removeprefix(f"{root}/")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(filesystem.open_input_stream(one.path).read())
        files = [path for path in folder.rglob("*") if path.is_file()]
        odd = [path.name for path in files if path.suffix != ".parquet"]
        if odd:
            run.violate(f"the archive has files that nobody deleted: {odd[:5]}")
        return sorted((path for path in files if path.suffix == ".parquet"), key=lambda path: path.name)


_ON_DISK: Final = _Daemons(on_s3=False)
_ON_S3: Final = _Daemons(on_s3=True)
ARCHIVE_DAEMON: Final = Path(_ON_DISK.work, check=_ON_DISK.check)
ARCHIVE_S3: Final = Path(_ON_S3.work, check=_ON_S3.check)
