"""Streams into Parquet files, on real servers."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from nats.js import JetStreamContext

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import ArchiveBusyError, Progress, RetentionError
from liftenvelope.bulk._archive.files import ArchiveFile
from liftenvelope.bulk._engine.crew import Outlet
from liftenvelope.bulk._engine.plan import BatchPlan
from liftenvelope.bulk._jetstream.source import JetStreamSource
from liftenvelope.bulk.ranges import Range
from liftenvelope.errors import LiftEnvelopeError, OffsetOutOfRangeError, UsageError
from liftenvelope.payload import Json
from liftenvelope.testing import LiftbridgeCluster
from tests.integration.bulk_streams import make_stream, numbered, publish, with_jetstream


def archived(path: Path, *columns: str) -> pa.Table:
    """All files of a folder in the order of their names."""
    files = sorted(str(file) for file in path.glob("*.parquet"))
    return ds.dataset(files, format="parquet").to_table(columns=list(columns) or None)


def covered(path: Path) -> list[tuple[int, int]]:
    found = [pq.read_metadata(file).metadata for file in sorted(path.glob("*.parquet"))]
    return [(int(one[b"liftenvelope.start"]), int(one[b"liftenvelope.stop"])) for one in found]


def test_what_is_archived(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 500))
    seen: list[Progress] = []
    done = bulk.to_parquet(url, name, tmp_path / "a" / "b", progress=seen.append, envelope="columns")
    assert [file.name for file in done.files] == [f"{name}-0-{0:020}-{500:020}.parquet"]
    assert done.rows == 500
    assert done.bytes == (tmp_path / "a" / "b" / done.files[0].name).stat().st_size
    assert (seen[-1].done, seen[-1].total) == (500, 500)
    table = pq.read_table(done.files[0])
    expected = bulk.read(url, name, envelope="columns").read_all()
    assert table.select(["value", "offset", "timestamp", "partition"]) == expected.select(
        ["value", "offset", "timestamp", "partition"]
    )
    assert table["subject"].to_pylist() == expected["subject"].to_pylist()
    assert list((tmp_path / "a" / "b").iterdir()) == list(done.files)


def test_archive_goes_on_where_the_files_end(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    assert bulk.to_parquet(url, name, tmp_path, stop=60).rows == 60
    assert bulk.to_parquet(url, name, tmp_path).rows == 40
    assert bulk.to_parquet(url, name, tmp_path).files == ()
    publish(url, numbered(name, 10))
    assert bulk.to_parquet(url, name, tmp_path, start=5).rows == 10
    assert covered(tmp_path) == [(0, 60), (60, 100), (100, 110)]
    assert archived(tmp_path, "offset")["offset"].to_pylist() == list(range(110))


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_beginning_to_archive_a_stream_that_deletes_acked_messages_is_logged(
    url: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, retention: str
) -> None:
    make_stream(url, name, retention=retention, allow_direct=True)
    for rows in (5, 3):
        publish(url, numbered(name, rows))
        assert bulk.to_parquet(url, name, tmp_path).rows == rows
    lines = [one.message for one in caplog.records if one.name == "liftenvelope.bulk"]
    text = f"{name}: its retention deletes acknowledged messages, and a copy lacks those deleted before a run"
    assert [line for line in lines if "its retention" in line] == [text] * (retention == "workqueue")


@pytest.mark.parametrize("on_gap", [None, lambda _: None], ids=["server filters", "reader filters"])
def test_archive_of_a_rare_subject_outlives_retention(
    url: str, name: str, tmp_path: Path, on_gap: Any
) -> None:
    """Retention passes the last match, but not the offsets that runs without a match have seen."""
    make_stream(url, name, max_msgs=10)
    options: Any = {"subjects": f"{name}.wanted", "on_gap": on_gap}
    for _ in range(3):
        publish(url, [(f"{name}.other", b"", None)] * 8)
        assert bulk.to_parquet(url, name, tmp_path, **options).rows == 0
    assert covered(tmp_path) == [(0, 24)]
    publish(url, [(f"{name}.wanted", b"", None)])
    assert bulk.to_parquet(url, name, tmp_path, **options).rows == 1
    assert covered(tmp_path) == [(0, 25)]
    for _ in range(3):
        publish(url, [(f"{name}.other", b"", None)] * 8)
        assert bulk.to_parquet(url, name, tmp_path, **options).rows == 0
    assert covered(tmp_path) == [(0, 25), (25, 49)]
    (blank,) = tmp_path.glob("*49.parquet")
    kept = blank.read_bytes()
    publish(url, [(f"{name}.wanted", b"", None)])
    assert bulk.to_parquet(url, name, tmp_path, **options).rows == 1
    blank.write_bytes(kept)  # as of a run that is killed before it deletes what it has replaced
    assert bulk.to_parquet(url, name, tmp_path, **options).files == ()
    assert covered(tmp_path) == [(0, 25), (25, 50)]
    assert archived(tmp_path, "offset")["offset"].to_pylist() == [24, 49]
    publish(url, [(f"{name}.other", b"", None)] * 20)
    with pytest.raises(RetentionError):  # nobody knows the subjects of what is gone
        bulk.to_parquet(url, name, tmp_path, **options)


@pytest.mark.parametrize("payload", [None, "json", Json(pa.schema({"id": pa.int64()}))])
def test_archive_that_begins_and_ends_without_a_match_is_restored(
    url: str, name: str, tmp_path: Path, payload: Any
) -> None:
    make_stream(url, name)
    options: Any = {"subjects": f"{name}.wanted", "partition_by": ["dt"], "payload": payload}
    for subject in ("other", "wanted", "other"):
        publish(url, [(f"{name}.{subject}", b'{"id":1}', None)])
        bulk.to_parquet(url, name, tmp_path, **options)
    assert len([*tmp_path.rglob("*.parquet")]) == 2

    async def purge(js: JetStreamContext) -> None:
        await js.purge_stream(name)

    with_jetstream(url, purge)
    assert bulk.restore(tmp_path, url, name, payload=payload, verify=True).rows == 1


@pytest.mark.parametrize("batch_rows", [7, 1000])
def test_files_by_rows(url: str, name: str, tmp_path: Path, batch_rows: int) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 95))

    async def delete(js: JetStreamContext) -> None:
        for sequence in (20, 21, 41, 95):
            await js.delete_msg(name, sequence)

    with_jetstream(url, delete)
    done = bulk.to_parquet(url, name, tmp_path, rotate_rows=20, batch_rows=batch_rows)
    assert [pq.read_metadata(file).num_rows for file in done.files] == [20, 20, 20, 20, 11]
    spans = covered(tmp_path)
    assert [start for start, _ in spans][1:] == [stop for _, stop in spans][:-1]
    assert (spans[0][0], spans[-1][1]) == (0, 95)
    gone = {19, 20, 40, 94}
    assert archived(tmp_path, "offset")["offset"].to_pylist() == [i for i in range(95) if i not in gone]
    assert bulk.to_parquet(url, name, tmp_path).files == ()


def test_files_by_bytes(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 200, 1000))
    done = bulk.to_parquet(url, name, tmp_path, rotate_bytes=20_000, batch_rows=10, compression="none")
    assert len(done.files) > 5
    assert archived(tmp_path, "offset")["offset"].to_pylist() == list(range(200))


def test_a_failure_keeps_what_was_read(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 300))

    def fail(progress: Progress) -> None:
        if progress.rows >= 150:
            raise LiftEnvelopeError("enough")

    with pytest.raises(LiftEnvelopeError, match="enough"):
        bulk.to_parquet(url, name, tmp_path, batch_rows=50, progress=fail)
    assert covered(tmp_path) == [(0, 150)]
    bulk.to_parquet(url, name, tmp_path)
    assert archived(tmp_path, "offset")["offset"].to_pylist() == list(range(300))


@pytest.mark.parametrize("error", [ValueError("mine"), BrokenPipeError("no reader"), SystemExit(3)])
@pytest.mark.parametrize("rotate_rows", [None, 40])
def test_error_of_a_callback_keeps_what_was_read(
    url: str, name: str, tmp_path: Path, error: BaseException, rotate_rows: int | None
) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 300))

    def fail(progress: Progress) -> None:
        if progress.rows >= 150:
            raise error

    with pytest.raises(type(error)):
        bulk.to_parquet(url, name, tmp_path, batch_rows=50, rotate_rows=rotate_rows, progress=fail)
    assert covered(tmp_path)[-1][1] == 150
    assert all(file.suffix == ".parquet" for file in tmp_path.iterdir())
    assert bulk.to_parquet(url, name, tmp_path).rows == 150
    assert archived(tmp_path, "offset")["offset"].to_pylist() == list(range(300))


def test_batch_that_can_not_be_written_is_not_covered(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow can fail in the middle of a row group: a function around the call stands for it."""
    make_stream(url, name)
    publish(url, numbered(name, 300))
    real, calls = pq.ParquetWriter.write_batch, list[int]()

    def write(writer: Any, batch: pa.RecordBatch) -> None:
        calls.append(1)
        real(writer, batch.slice(0, 10) if len(calls) == 3 else batch)
        if len(calls) == 3:
            raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, "write_batch", write)
        with pytest.raises(MemoryError):
            bulk.to_parquet(url, name, tmp_path, batch_rows=50)
    assert list(tmp_path.iterdir()) == []
    assert bulk.to_parquet(url, name, tmp_path).rows == 300


def test_draft_of_a_killed_run_is_replaced(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    (tmp_path / f"{name}-0-{0:020}.parquet.part").write_bytes(b"half of a file")
    assert bulk.to_parquet(url, name, tmp_path).rows == 100
    assert [file.suffix for file in tmp_path.iterdir()] == [".parquet"]


#: An archive job that is killed so many seconds after so many batches, at once for 0; or that may write no
#: longer files.
JOB = """
import os, resource, signal, sys, threading
from liftenvelope import bulk

url, name, folder, batches, seconds, size = sys.argv[1:]
seen = []
def note(progress):
    seen.append(progress)
    if len(seen) == int(batches):
        if not float(seconds):
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL)).start()
if int(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
try:
    bulk.to_parquet(url, name, folder, batch_rows=50, rotate_rows=400, progress=note)
except OSError as exc:
    sys.exit(f"{exc.errno}: {exc}")
"""


def run_job(
    url: str, name: str, folder: Path, batches: int = -1, seconds: float = 0.0, size: int = 0
) -> tuple[int, str]:
    """Return the exit status of an archive job in a process of its own, and what it said."""
    command = [sys.executable, "-c", JOB, url, name, str(folder), str(batches), str(seconds), str(size)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


@pytest.mark.timeout(900)
def test_runs_that_are_killed_at_any_moment(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 4_000, 300))
    chance, status, killed = random.Random(5), -9, 0
    while status == -9:
        # A batch takes a few milliseconds; a file ends after eight. The first run is killed at once: on a
        # busy machine the others may come to their end before they are.
        seconds = chance.random() * 0.02 if killed else 0.0
        status, said = run_job(url, name, tmp_path, batches=chance.randrange(15, 45), seconds=seconds)
        killed += status == -9
        assert status in (0, -9), said
    assert killed > 0
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".parquet"] * 10
    assert archived(tmp_path, "offset")["offset"].to_pylist() == list(range(4_000))


@pytest.mark.timeout(900)
def test_a_disk_that_is_full(url: str, name: str, tmp_path: Path) -> None:
    """A limit of the size of files fails as a full disk does, a little later."""
    make_stream(url, name)
    publish(url, numbered(name, 500, 20))
    publish(url, ((f"{name}.x", os.urandom(1_000), None) for _ in range(500)))
    status, said = run_job(url, name, tmp_path, size=100_000)
    assert status == 1
    assert said.startswith(f"{errno.EFBIG}: ")
    assert f"{name}-0-{400:020}.parquet.part" in said
    assert "run again when it can be written" in said
    assert covered(tmp_path) == [(0, 400)]
    assert [file.suffix for file in tmp_path.iterdir()] == [".parquet"]
    assert run_job(url, name, tmp_path)[0] == 0
    assert archived(tmp_path, "offset")["offset"].to_pylist() == list(range(1_000))


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", ["add_key_value_metadata", "close", "write_batch"])
def test_an_interrupt(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, moment: str
) -> None:
    """An interrupt is raised when a call returns: stood for by a function around it, to meet the moment."""
    make_stream(url, name)
    publish(url, numbered(name, 200))
    real, calls = getattr(pq.ParquetWriter, call), list[int]()

    def interrupted(writer: Any, *arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 3 and moment == "before":
            raise KeyboardInterrupt
        real(writer, *arguments, **options)
        if len(calls) == 3 and moment == "after":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            bulk.to_parquet(url, name, tmp_path, batch_rows=20, rotate_rows=30)
    # What had been read is kept, and is in the metadata.
    found = archived(tmp_path, "offset")["offset"].to_pylist()
    assert found == list(range(covered(tmp_path)[-1][1]))
    assert len(found) >= 20
    assert all(file.suffix == ".parquet" for file in tmp_path.iterdir())
    bulk.to_parquet(url, name, tmp_path)
    assert archived(tmp_path, "offset")["offset"].to_pylist() == list(range(200))


def test_two_runs_at_once(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    others: list[str] = []

    def again(progress: Progress) -> None:
        with pytest.raises(ArchiveBusyError, match="another run writes into") as caught:
            bulk.to_parquet(url, name, tmp_path)
        others.append(str(caught.value))

    assert bulk.to_parquet(url, name, tmp_path, batch_rows=60, progress=again).rows == 100
    assert len(others) == 2
    assert [file.suffix for file in tmp_path.iterdir()] == [".parquet"]
    assert bulk.to_parquet(url, name, tmp_path).rows == 0


def test_what_a_killed_run_has_left_is_no_hindrance(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    for leftover in (f"{name}-0-{7:020}.parquet.part", f".{name}-0.lock"):
        (tmp_path / leftover).write_bytes(b"half")
    others = [f"{name}-1-{0:020}.parquet.part", f"{name}x-0-{0:020}.parquet.part", "notes.txt"]
    for other in others:
        (tmp_path / other).write_bytes(b"of others")
    assert bulk.to_parquet(url, name, tmp_path).rows == 100
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        [*others, f"{name}-0-{0:020}-{100:020}.parquet"]
    )


def test_files_that_other_runs_rename_or_delete_meanwhile_do_no_harm(
    url: str, name: str, tmp_path: Path
) -> None:
    """A link without a target is listed and not there, as a file that is gone a moment later."""
    make_stream(url, name)
    publish(url, numbered(name, 10))
    for gone in ("other-0-00000000000000000000.parquet.part", f"{name}-1-{0:020}-{9:020}.parquet"):
        (tmp_path / gone).symlink_to(tmp_path / "nothing")
    assert bulk.to_parquet(url, name, tmp_path).rows == 10
    assert bulk.to_parquet(url, name, tmp_path).rows == 0


def test_where_there_are_no_locks(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stood for by a function: such a file system is not at hand."""

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, "no locks")

    make_stream(url, name)
    publish(url, numbered(name, 10))
    monkeypatch.setattr(fcntl, "flock", fail)
    assert bulk.to_parquet(url, name, tmp_path).rows == 10


def delete_stream(url: str, name: str) -> None:
    async def delete(js: JetStreamContext) -> None:
        await js.delete_stream(name)

    with_jetstream(url, delete)


@pytest.mark.parametrize(
    ("count", "fault"),
    [
        (40, "goes up to offset 99, and the stream ends at 39"),
        (
            100,
            "must be the archived one, created at 20.*T.*, got one created at 20.*T.*: choose another folder",
        ),
        (
            120,
            "must be the archived one, created at 20.*T.*, got one created at 20.*T.*: choose another folder",
        ),
    ],
)
def test_a_stream_that_was_made_anew(url: str, name: str, tmp_path: Path, count: int, fault: str) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    bulk.to_parquet(url, name, tmp_path)
    delete_stream(url, name)
    make_stream(url, name)
    publish(url, numbered(name, count))
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match=fault) as caught:
            bulk.to_parquet(url, name, tmp_path)
        assert (caught.value.wanted, caught.value.newest) == (100, count - 1)
    assert bulk.to_parquet(url, name, tmp_path / "new").rows == count


def test_stream_made_anew_after_a_run_was_planned_is_not_archived(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    whole = JetStreamSource.read

    def late(source: JetStreamSource, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        monkeypatch.setattr(JetStreamSource, "read", whole)
        delete_stream(url, name)
        make_stream(url, name)
        publish(url, numbered(name, 50))
        whole(source, span, plan, outlet)

    monkeypatch.setattr(JetStreamSource, "read", late)
    with pytest.raises(OffsetOutOfRangeError, match="made anew while it was read, before offset 0"):
        bulk.to_parquet(url, name, tmp_path)
    assert bulk.to_parquet(url, name, tmp_path).rows == 50, "the folder is empty"


def test_stream_restored_from_the_archive_is_archived_on(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    bulk.to_parquet(url, name, tmp_path)
    delete_stream(url, name)
    make_stream(url, name)
    assert bulk.restore(tmp_path, url, name).keeps_offsets
    publish(url, numbered(name, 5))
    assert bulk.to_parquet(url, name, tmp_path).rows == 5
    assert bulk.to_parquet(url, name, tmp_path).rows == 0
    assert archived(tmp_path, "offset")["offset"].to_pylist() == list(range(105))


def test_stream_restored_from_a_backup_is_archived_on(url: str, name: str, tmp_path: Path) -> None:
    """Servers from 2.15 on give a restored stream a new creation time."""
    backup = Path(__file__).parent / "backups" / "nats-2.15"
    bulk.restore_backup(backup, url, name, config={"subjects": [f"{name}.>"]})
    assert bulk.to_parquet(url, name, tmp_path).rows == 7
    delete_stream(url, name)
    bulk.restore_backup(backup, url, name, config={"subjects": [f"{name}.>"]})
    publish(url, numbered(name, 5))
    assert bulk.to_parquet(url, name, tmp_path).rows == 5
    assert archived(tmp_path, "offset")["offset"].to_pylist() == [1, 2, 5, 6, 7, 8, 9, *range(10, 15)]


def test_archive_of_an_older_version_without_a_creation_time_goes_on(
    url: str, name: str, tmp_path: Path
) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    (file,) = bulk.to_parquet(url, name, tmp_path).files
    metadata = dict(pq.read_metadata(file).metadata)
    del metadata[b"liftenvelope.created"], metadata[b"ARROW:schema"]
    pq.write_table(pq.read_table(file).replace_schema_metadata(metadata), file)
    publish(url, numbered(name, 5))
    assert bulk.to_parquet(url, name, tmp_path).rows == 5


def test_an_end_before_that_of_the_archive(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    bulk.to_parquet(url, name, tmp_path, stop=60)
    assert bulk.to_parquet(url, name, tmp_path, stop=30).files == ()
    assert bulk.to_parquet(url, name, tmp_path).rows == 40


def test_a_folder_that_can_not_be_written(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft whose place is taken by a folder: who runs as root is refused nothing else."""
    make_stream(url, name)
    publish(url, numbered(name, 10))
    draft = tmp_path / f"{name}-0-{0:020}.parquet.part"
    real = ArchiveFile.__init__

    def block(*arguments: Any) -> None:
        draft.mkdir()
        real(*arguments)

    monkeypatch.setattr(ArchiveFile, "__init__", block)
    with pytest.raises(OSError, match=r"\.parquet\.part"):
        bulk.to_parquet(url, name, tmp_path)


def test_retention_was_faster(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name, max_msgs=50)
    publish(url, numbered(name, 30))
    bulk.to_parquet(url, name, tmp_path)
    publish(url, numbered(name, 100))
    with pytest.raises(RetentionError, match="message 30 is gone"):
        bulk.to_parquet(url, name, tmp_path)
    assert bulk.to_parquet(url, name, tmp_path, on_retention="skip").rows == 50


def test_partitions_have_files_of_their_own(
    liftbridge_server: LiftbridgeCluster, name: str, tmp_path: Path
) -> None:
    address = liftbridge_server.addresses[0]
    with liftenvelope.connect_blocking(address, ack_wait=60) as client:
        client.create_stream(name, name, partitions=3)
        for partition in (0, 2):
            client.publish_many(name, [b"%d" % i for i in range(200)], partition=partition)
        done = bulk.to_parquet(client, name, tmp_path, rotate_rows=150)
        assert sorted(file.name for file in done.files) == [
            f"{name}-{partition}-{start:020}-{stop:020}.parquet"
            for partition in (0, 2)
            for start, stop in ((0, 150), (150, 200))
        ]
        client.publish_many(name, [b"x"] * 5, partition=1)
        assert bulk.to_parquet(address, name, tmp_path).rows == 5
    table = archived(tmp_path, "partition", "offset")
    for partition, count in ((0, 200), (1, 5), (2, 200)):
        rows = table.filter(pa.compute.equal(table["partition"], partition))
        assert rows["offset"].to_pylist() == list(range(count))


def test_a_partition_that_is_added_later(
    liftbridge_server: LiftbridgeCluster, name: str, tmp_path: Path
) -> None:
    address = liftbridge_server.addresses[0]
    with liftenvelope.connect_blocking(address, ack_wait=60) as client:
        client.create_stream(name, name, partitions=2)
        for partition in (0, 1):
            client.publish_many(name, [b"%d" % i for i in range(30)], partition=partition)
        assert bulk.to_parquet(client, name, tmp_path, partitions=0, stop=20).rows == 20
        assert bulk.to_parquet(client, name, tmp_path).rows == 40
    rows = archived(tmp_path, "partition", "offset").to_pylist()
    assert [(row["partition"], row["offset"]) for row in rows] == [(p, i) for p in (0, 1) for i in range(30)]


def test_a_folder_of_a_server_of_another_kind(
    url: str, liftbridge_server: LiftbridgeCluster, name: str, tmp_path: Path
) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 5))
    bulk.to_parquet(url, name, tmp_path)
    with liftenvelope.connect_blocking(liftbridge_server.addresses, ack_wait=60) as client:
        client.create_stream(name, name)
        client.publish_many(name, [b"x"] * 9, partition=0)
        with pytest.raises(UsageError, match="server of another kind, choose another folder"):
            bulk.to_parquet(client, name, tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rotate_rows": 0}, "rotate_rows must be at least 1, got 0"),
        ({"rotate_bytes": 0}, "rotate_bytes must be at least 1, got 0"),
        ({"compression": "zip"}, "compression must be a codec of pyarrow, got 'zip'"),
        ({"columns": ["value"]}, "'offset'"),
    ],
)
def test_arguments(url: str, tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        bulk.to_parquet(url, "x", tmp_path, **options)


def test_files_of_others(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 1))
    file = tmp_path / f"{name}-0-{0:020}.parquet"
    file.write_bytes(b"no parquet")
    with pytest.raises(UsageError, match="must be a Parquet file"):
        bulk.to_parquet(url, name, tmp_path)
    pq.write_table(pa.table({"offset": [1]}), file)
    with pytest.raises(UsageError, match="must be a file of this archive"):
        bulk.to_parquet(url, name, tmp_path)
    with pytest.raises(UsageError, match="path must be a folder"):
        bulk.to_parquet(url, name, file)
