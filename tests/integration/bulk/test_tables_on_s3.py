"""Iceberg and Delta tables on an S3 server, by calls and by the archive daemon."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from liftenvelope import bulk
from liftenvelope.archive import ArchiveDaemon, read_archive_config
from liftenvelope.bulk import Progress, TableCommitError, TableWriter, TableWritten
from tests.integration.bulk_streams import make_stream, numbered, publish
from tests.s3 import S3Server, run_s3


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with run_s3() as running:
        yield running


class Lake:
    """A table of one format on the server, and another view of it by the format's own library."""

    def __init__(self, make: str, s3: S3Server, url: str, stream: str, folder: Path) -> None:
        self.make = make
        self.s3 = s3
        self.url = url
        self.stream = stream
        self.place = f"s3://{s3.path(stream)}"
        self.catalog = {
            "name": "lake",
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": self.place,
            **s3.iceberg_options,
        }

    def writer(self, **options: Any) -> TableWriter:
        if self.make == "delta":
            storage = self.s3.delta_options
            return bulk.delta_writer(self.url, self.stream, self.place, storage_options=storage, **options)
        return bulk.iceberg_writer(self.url, self.stream, "db.t", catalog=self.catalog, **options)

    def write(self, **options: Any) -> TableWritten:
        with self.writer(**options) as writer:
            return writer.catch_up()

    @property
    def iceberg(self) -> Any:
        return SqlCatalog(**self.catalog).load_table("db.t")

    def read(self) -> pa.Table:
        if self.make == "delta":
            table = DeltaTable(self.place, storage_options=self.s3.delta_options).to_pyarrow_table()
        else:
            table = self.iceberg.scan().to_arrow()
        return table.sort_by("offset")

    def offsets(self) -> list[int]:
        found: list[int] = self.read()["offset"].to_pylist()
        return found

    @property
    def target(self) -> dict[str, Any]:
        """The table ``[pipeline.target]`` of the daemon's file."""
        if self.make == "delta":
            return {"kind": "delta", "path": self.place, "storage_options": self.s3.delta_options}
        return {"kind": "iceberg", "table": "db.t", "catalog": self.catalog}


@pytest.fixture(params=["iceberg", "delta"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, url: str, s3: S3Server, name: str) -> Lake:
    make_stream(url, name)
    return Lake(request.param, s3, url, name, tmp_path)


def more(lake: Lake, count: int) -> None:
    publish(lake.url, numbered(lake.stream, count))


def test_later_calls_add_what_is_new(lake: Lake) -> None:
    more(lake, 40)
    done = lake.write(partition_by="subject", commit_rows=20, batch_rows=10)
    assert (done.rows, done.commits, dict(done.offsets)) == (40, 2, {0: 40})
    more(lake, 5)
    assert lake.write().rows == 5
    assert lake.write().commits == 0
    table, expected = lake.read(), bulk.read(lake.url, lake.stream).read_all()
    for column in ("offset", "value", "subject"):
        assert table[column].to_pylist() == expected[column].to_pylist()
    files = lake.s3.filesystem.get_file_info(pafs.FileSelector(lake.s3.path(lake.stream), recursive=True))
    assert sum(f"subject={lake.stream}." in file.path for file in files if file.is_file) >= 3


def test_polars_reads_the_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    more(lake, 20)
    lake.write()
    if lake.make == "delta":
        frame = pl.scan_delta(lake.place, storage_options=lake.s3.delta_options).collect()
    else:
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        frame = pl.scan_iceberg(lake.iceberg, storage_options=lake.s3.delta_options).collect()
    assert sorted(frame["offset"].to_list()) == list(range(20))


def test_two_writers_at_once_store_each_row_once(lake: Lake) -> None:
    """Both read the same rows before either commits: the object store or the catalogue refuses the second."""
    more(lake, 100)
    gate, written = threading.Barrier(2), list[TableWritten]()

    def write() -> None:
        waited = False

        def meet(_: Progress) -> None:
            nonlocal waited
            if not waited:
                waited = True
                gate.wait(60)

        written.append(lake.write(batch_rows=25, commit_rows=50, progress=meet))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sum(done.rows for done in written) == 100
    assert [dict(done.offsets) for done in written] == [{0: 100}] * 2
    assert lake.offsets() == list(range(100))


def test_server_that_is_gone_fails_the_call_and_names_no_secret(
    lake: Lake, tmp_path: Path, url: str, name: str
) -> None:
    more(lake, 10)
    with run_s3() as other:
        away = Lake(lake.make, other, url, name, tmp_path)
        with pytest.raises(TableCommitError) as caught:
            away.write(commit_wait=0.1, progress=lambda _: other.process.kill())
        assert other.secret not in str(caught.value)


def pipeline_of(lake: Lake, folder: Path) -> str:
    """Write the daemon's file with a pipeline for the table; return its path."""
    target = {key: value for key, value in lake.target.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in lake.target.items() if isinstance(value, dict)}
    lines = ["[[pipeline]]", 'name = "lake"', f'source = "{lake.url}"', f'stream = "{lake.stream}"']
    for title, table in (("target", target), *((f"target.{key}", value) for key, value in tables.items())):
        lines.append(f"[pipeline.{title}]")
        # Keys such as s3.endpoint stand there without quotes, as users write them.
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    config = folder / "pipeline.toml"
    config.write_text("\n".join(lines) + "\n")
    return str(config)


def test_daemon_writes_the_table(lake: Lake, tmp_path: Path) -> None:
    for rows in (30, 60):
        more(lake, 30)
        daemon = ArchiveDaemon(read_archive_config(pipeline_of(lake, tmp_path)))
        assert asyncio.run(daemon.run(once=True)), daemon.states[0].error
        assert lake.offsets() == list(range(rows))


def test_check_of_the_daemon_prints_no_secret(lake: Lake, tmp_path: Path) -> None:
    config = pipeline_of(lake, tmp_path)
    line = [sys.executable, "-m", "liftenvelope", "archive", "--config", config, "--check"]
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (pipeline,) = json.loads(done.stdout)["pipeline"]
    assert lake.s3.secret not in done.stdout
    assert f"127.0.0.1:{lake.s3.port}" in json.dumps(pipeline["target"])
