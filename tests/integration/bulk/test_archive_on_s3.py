"""Archives on an S3 server, and in folders of a Hive layout."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper

from liftenvelope import bulk
from liftenvelope.bulk import ArchiveBusyError, Progress
from liftenvelope.bulk._archive import claims
from liftenvelope.errors import UsageError
from tests.integration.bulk_streams import make_stream, numbered, publish
from tests.s3 import S3Server, run_s3

WORK = "_liftenvelope"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with run_s3() as running:
        yield running


def objects(s3: S3Server, folder: str) -> list[str]:
    """Names of all objects below a folder."""
    found = s3.filesystem.get_file_info(pafs.FileSelector(s3.path(folder), recursive=True))
    return sorted(
        one.path.removeprefix(f"{s3.path(folder)}/") for one in found if one.type is pafs.FileType.File
    )


def offsets(s3: S3Server, folder: str) -> list[int]:
    table = ds.dataset(s3.path(folder), format="parquet", filesystem=s3.filesystem).to_table(["offset"])
    found: list[int] = table["offset"].to_pylist()
    return sorted(found)


def file_name(stream: str, start: int, stop: int) -> str:
    return f"{stream}-0-{start:020}-{stop:020}.parquet"


def test_archive_by_url_goes_on_where_it_ended(url: str, s3: S3Server, name: str) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    done = bulk.to_parquet(url, name, s3.url(name), stop=60)
    assert [str(file) for file in done.files] == [f"{s3.path(name)}/{file_name(name, 0, 60)}"]
    assert s3.filesystem.get_file_info(str(done.files[0])).size == done.bytes
    assert bulk.to_parquet(url, name, s3.path(name), filesystem=s3.filesystem).rows == 40
    assert bulk.to_parquet(url, name, s3.url(name)).files == ()
    assert objects(s3, name) == [file_name(name, 0, 60), file_name(name, 60, 100)]
    assert offsets(s3, name) == list(range(100))


def test_offsets_without_a_match_are_covered_by_an_object_that_is_replaced(
    url: str, s3: S3Server, name: str
) -> None:
    make_stream(url, name)
    seen = []
    for subject in ("other", "wanted", "other", "other"):
        publish(url, [(f"{name}.{subject}", b"", None)])
        bulk.to_parquet(url, name, s3.url(name), subjects=f"{name}.wanted")
        seen.append(objects(s3, name))
    first, last = file_name(name, 0, 2), file_name(name, 2, 4)
    assert seen == [[file_name(name, 0, 1)], [first], [first, file_name(name, 2, 3)], [first, last]]
    assert offsets(s3, name) == [1]


def test_second_run_is_refused_while_the_first_one_works(url: str, s3: S3Server, name: str) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    others: list[str] = []

    def again(_: Progress) -> None:
        with pytest.raises(ArchiveBusyError, match="another run writes into") as caught:
            bulk.to_parquet(url, name, s3.url(name))
        others.append(str(caught.value))

    assert bulk.to_parquet(url, name, s3.url(name), batch_rows=60, progress=again).rows == 100
    assert len(others) == 2
    assert objects(s3, name) == [file_name(name, 0, 100)]


def test_two_runs_that_begin_at_once_store_each_row_once(url: str, s3: S3Server, name: str) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 300))
    gate, refused = threading.Barrier(2), list[ArchiveBusyError]()

    def archive() -> None:
        gate.wait(60)
        try:
            bulk.to_parquet(url, name, s3.url(name), rotate_rows=100)
        except ArchiveBusyError as exc:
            refused.append(exc)

    threads = [threading.Thread(target=archive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    bulk.to_parquet(url, name, s3.url(name), rotate_rows=100)
    assert offsets(s3, name) == list(range(300))
    assert not any(one.startswith(WORK) for one in objects(s3, name))


def leave_claim(s3: S3Server, name: str, run: str, content: Any) -> str:
    path = f"{s3.path(name)}/{WORK}/{name}.{run}"
    for suffix, raw in ((".claim", json.dumps(content).encode()), (f"-0-{0:020}.part", b"half")):
        with s3.filesystem.open_output_stream(path + suffix) as out:
            out.write(raw)
    return f"{path}.claim"


def test_claim_of_a_process_that_ended_here_is_taken_over_at_once(url: str, s3: S3Server, name: str) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    owner = [*claims._process(os.getpid())[:3], "1"]  # this process id, of an earlier process
    leave_claim(s3, name, "0" * 16, {"partitions": [0], "owner": owner})
    assert bulk.to_parquet(url, name, s3.url(name)).rows == 10
    assert objects(s3, name) == [file_name(name, 0, 10)]


def test_claim_of_another_machine_holds_until_it_expires(
    url: str, s3: S3Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    claim = leave_claim(s3, name, "1" * 16, {"partitions": [0, 7], "owner": ["elsewhere", "pid", "1", "1"]})
    with pytest.raises(ArchiveBusyError):
        bulk.to_parquet(url, name, s3.url(name))
    monkeypatch.setattr(claims, "LEASE", 1.0)
    began = s3.filesystem.get_file_info(claim).mtime_ns
    rows: int | None = None
    while rows is None:  # S3 tells times in whole seconds
        assert time.time_ns() - began < 60e9
        with contextlib.suppress(ArchiveBusyError):
            rows = bulk.to_parquet(url, name, s3.url(name)).rows
    assert rows == 10
    assert objects(s3, name) == [file_name(name, 0, 10)]


def test_run_that_ends_while_its_claim_is_looked_at_is_no_hindrance(
    url: str, s3: S3Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    leave_claim(s3, name, "3" * 16, {"partitions": [0], "owner": ["elsewhere", "pid", "1", "1"]})
    content_of, ended = claims._content_of, []

    def end_first(filesystem: pafs.FileSystem, path: str) -> Any:
        claims.remove(filesystem, path)
        ended.append(path)
        return content_of(filesystem, path)

    monkeypatch.setattr(claims, "_content_of", end_first)
    assert bulk.to_parquet(url, name, s3.url(name)).rows == 10
    assert len(ended) == 1
    assert objects(s3, name) == [file_name(name, 0, 10)]


def test_claim_on_other_partitions_is_no_hindrance(url: str, s3: S3Server, name: str) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    leave_claim(s3, name, "2" * 16, {"partitions": [3], "owner": ["elsewhere", "pid", "1", "1"]})
    assert bulk.to_parquet(url, name, s3.url(name)).rows == 10
    assert len(objects(s3, name)) == 3


def test_run_that_was_taken_for_dead_publishes_nothing(url: str, s3: S3Server, name: str) -> None:
    """The other run deletes claim and draft, as it does after a suspension that is longer than the lease."""
    make_stream(url, name)
    publish(url, numbered(name, 10))

    def take_over(_: Progress) -> None:
        for one in objects(s3, name):
            s3.filesystem.delete_file(f"{s3.path(name)}/{one}")

    with pytest.raises(ArchiveBusyError):  # the stream's close completes a draft: it is there, unclaimed
        bulk.to_parquet(url, name, s3.url(name), progress=lambda seen: expire(seen, take_over))
    assert objects(s3, name) == []
    assert bulk.to_parquet(url, name, s3.url(name)).rows == 10


def expire(seen: Progress, take_over: Any) -> None:
    take_over(seen)
    found = [one for one in threading.enumerate() if one.name == "archive claim"]
    for thread in found:
        claim = thread._target.__self__  # type: ignore[attr-defined]
        claim._expires = time.clock_gettime(claims._CLOCK)


def test_files_of_two_runs_that_overlap_are_reduced_to_one_chain(url: str, s3: S3Server, name: str) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 120))
    bulk.to_parquet(url, name, s3.url(name), stop=100)
    bulk.to_parquet(url, name, s3.url(f"{name}-late"))
    late = file_name(name, 0, 120)
    s3.filesystem.copy_file(f"{s3.path(name)}-late/{late}", f"{s3.path(name)}/{late}")
    bulk.to_parquet(url, name, s3.url(name))
    assert offsets(s3, name) == list(range(120))


def test_server_that_is_gone_fails_the_run_and_the_next_one_goes_on(url: str, name: str) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    with run_s3() as s3:
        where = s3.url(name)
        with pytest.raises(OSError, match="run again when it can be written") as caught:
            bulk.to_parquet(url, name, where, progress=lambda _: s3.process.kill())
        assert s3.secret not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "s3://"}, "path must"),
        ({"path": "x", "filesystem": "s3"}, "filesystem must be a pyarrow.fs.FileSystem, got str"),
        (
            {"path": "s3://b/x?region=us-east-1", "rotate_bytes": 5 * 2**30},
            "rotate_bytes must be at most 4294",
        ),
        ({"path": "x", "rotate_seconds": 0}, "rotate_seconds must be a positive number"),
        ({"path": "x", "partition_by": "dt"}, "partition_by must be a list of names, got 'dt'"),
        ({"path": "x", "partition_by": ["hour"]}, "partition_by must have 'dt' before 'hour'"),
        ({"path": "x", "partition_by": ["dt", "dt"]}, "partition_by must have each name once"),
        ({"path": "x", "partition_by": ["day"]}, "partition_by must be one of"),
        ({"path": "x", "partition_by": ["dt"], "columns": ["offset"]}, "columns must have 'timestamp'"),
    ],
)
def test_arguments(
    tmp_path: Path, options: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=text):
        bulk.to_parquet("nats://127.0.0.1:1", "x", **options)


def test_duckdb_reads_an_archive_in_the_store(url: str, s3: S3Server, name: str) -> None:
    """By the file system of pyarrow: the extension httpfs of DuckDB is a download."""
    make_stream(url, name)
    publish(url, numbered(name, 50))
    for stop in (20, None):
        bulk.to_parquet(url, name, s3.url(name), stop=stop, rotate_rows=15, partition_by=["dt"])
    with duckdb.connect() as db:
        db.register_filesystem(ArrowFSWrapper(s3.filesystem))
        path = f"{ArrowFSWrapper(s3.filesystem).protocol}://{s3.path(name)}/*/*.parquet"
        found = db.read_parquet(path, hive_partitioning=True)
        assert sorted(found.project('"offset", value').fetchall()) == [
            (number, value) for number, (_, value, _) in enumerate(numbered(name, 50))
        ]


@pytest.mark.parametrize("place", ["local", "s3"])
def test_hive_folders_are_read_by_duckdb_polars_and_pyarrow(
    url: str, s3: S3Server, name: str, tmp_path: Path, place: str
) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 50))
    where = str(tmp_path) if place == "local" else s3.url(name)
    for stop in (20, None):
        bulk.to_parquet(url, name, where, partition_by=["partition", "dt", "hour"], stop=stop, rotate_rows=15)
    times = bulk.read(url, name, columns=["timestamp"]).read_all()["timestamp"].to_pylist()
    folders = {f"partition=0/dt={at:%Y-%m-%d}/hour={at:%H}" for at in times}
    if place == "s3":
        assert {one.rpartition("/")[0] for one in objects(s3, name)} == folders
        assert offsets(s3, name) == list(range(50))
        for one in objects(s3, name):  # for readers without S3: the same folders on the disk
            raw = s3.filesystem.open_input_stream(f"{s3.path(name)}/{one}").read()
            (tmp_path / one).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / one).write_bytes(raw)
    found = duckdb.read_parquet(f"{tmp_path}/**/*.parquet", hive_partitioning=True).project('"offset", dt')
    assert sorted(row[0] for row in found.fetchall()) == list(range(50))
    frame = pl.scan_parquet(f"{tmp_path}/**/*.parquet", hive_partitioning=True).collect()
    assert sorted(frame["offset"].to_list()) == list(range(50))
    assert {str(one) for one in frame["dt"].to_list()} == {f"{at:%Y-%m-%d}" for at in times}
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table(["offset", "hour"])
    assert sorted(table["offset"].to_pylist()) == list(range(50))


def test_file_ends_where_the_hour_does(url: str, name: str, tmp_path: Path) -> None:
    """Times of servers can't be chosen: a schema of the run stands for them."""
    from liftenvelope.bulk._archive.layout import Layout

    hour = 3600 * 10**9
    times = pa.array([5, 6, hour, hour + 1, 5, 25 * hour, None], pa.timestamp("ns", "UTC"))
    batch = pa.record_batch({"offset": list(range(7)), "timestamp": times})
    found = [(folder, part["offset"].to_pylist()) for folder, part in Layout(["dt", "hour"]).divide(batch, 3)]
    assert found == [
        ("dt=1970-01-01/hour=00", [0, 1]),
        ("dt=1970-01-01/hour=01", [2, 3]),
        ("dt=1970-01-01/hour=00", [4]),
        ("dt=1970-01-02/hour=01", [5]),
        ("dt=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__", [6]),
    ]
    by_day = [folder for folder, _ in Layout(["dt", "partition"]).divide(batch.slice(0, 6), 3)]
    assert by_day == ["dt=1970-01-01/partition=3", "dt=1970-01-02/partition=3"]


def test_files_by_seconds(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 40))
    done = bulk.to_parquet(url, name, tmp_path, batch_rows=10, rotate_seconds=1e-9)
    assert [pq.read_metadata(file).num_rows for file in done.files] == [10] * 4


def test_archive_of_an_older_version_goes_on(url: str, name: str, tmp_path: Path) -> None:
    """Their files have no end in their names."""
    make_stream(url, name)
    publish(url, numbered(name, 100))
    for file in bulk.to_parquet(url, name, tmp_path, stop=60, rotate_rows=30).files:
        (tmp_path / file.name).rename(
            tmp_path / (file.name[: -len("-01234567890123456789.parquet")] + ".parquet")
        )
    assert bulk.to_parquet(url, name, tmp_path).rows == 40
    assert len(list(tmp_path.iterdir())) == 3
    table = ds.dataset(tmp_path, format="parquet").to_table(["offset"])
    assert sorted(table["offset"].to_pylist()) == list(range(100))
