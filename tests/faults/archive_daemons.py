"""Archives of two daemons at once, on the disk or on an S3 server: they are killed, stopped, and start again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from liftenvelope import bulk
from liftenvelope.bulk import Access, ArchiveBusyError
from tests.faults.bulk_writes import access_of, write_rows
from tests.faults.checker import Checker
from tests.faults.children import Child
from tests.faults.messages import COLUMNS, columns_of
from tests.faults.running import Path, Run
from tests.s3 import S3Server, run_s3

__all__ = ["ARCHIVE_DAEMON", "ARCHIVE_S3"]

_PART: Final = 0.1
_RECONNECT: Final = 60.0
#: Seconds for a graceful stop, beside the reconnects of a run under way.
_STOP: Final = 120.0
_NAMES: Final = ("daemon1", "daemon2")


class _Daemons:
    """One run after the other.

    Args:
        on_s3: Whether the archive is on an S3 server.
    """

    def __init__(self, *, on_s3: bool) -> None:
        self._on_s3 = on_s3
        self._servers = ExitStack()
        self._s3: S3Server | None = None

    def work(self, run: Run) -> None:
        """Write rows while two daemons archive them, and stop the daemons."""
        self._servers = ExitStack()
        if self._on_s3:
            self._s3 = self._servers.enter_context(run_s3())
        config = run.folder / "pipeline.toml"
        config.write_text(self._config(run))
        log = self._servers.enter_context((run.folder / "daemons.log").open("ab"))
        command = [
            sys.executable,
            "-m",
            "liftenvelope",
            "archive",
            "--config",
            str(config),
            "--log-format",
            "json",
        ]
        # Their log goes into the run's folder, and their output is empty.
        shell = ["/bin/sh", "-c", f'exec "$@" 2>>{log.name}', "sh", *command]
        children = {name: Child(lambda _: shell, lambda _: None) for name in _NAMES}
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
        return str(run.folder / "archive") if self._s3 is None else self._s3.url("archive")

    def _stop(self, run: Run, children: dict[str, Child]) -> None:
        for child in children.values():
            if child.pid is not None:
                subprocess.run(["kill", "-TERM", str(child.pid)], check=False)
        for name, child in children.items():
            with run.timed(f"stop of {name}", _STOP):
                status = child.wait(_STOP * 2)
            # A signal that comes before the handler is set ends the process like any other.
            if status not in (0, -9, -15):
                run.violate(
                    f"{name} ended with status {status}: {(run.folder / 'daemons.log').read_text()[-800:]}"
                )

    def check(self, run: Run, rows: int) -> None:
        """Bring the archive to the end, and hold it to what was reported and to the stream."""
        try:
            self._finish(run)
            files = self._fetched(run)
        finally:
            self._servers.close()
            self._s3 = None
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
            filesystem, root = self._s3.filesystem, self._s3.path("archive")
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
