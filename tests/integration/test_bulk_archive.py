"""Streams into Parquet files, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from nats.js import JetStreamContext

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import Progress, RetentionError
from liftenvelope.errors import LiftEnvelopeError, UsageError
from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import jetstream, make_stream, numbered, publish, with_jetstream


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        yield running


@pytest.fixture
def url(server: NatsServer) -> str:
    return server.url


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
    assert [file.name for file in done.files] == [f"{name}-0-{0:020}.parquet"]
    assert done.rows == 500
    assert done.bytes == done.files[0].stat().st_size
    assert (seen[-1].done, seen[-1].total) == (500, 500)
    table = pq.read_table(done.files[0])
    expected = bulk.read(url, name, envelope="columns").read_all()
    assert table.select(["value", "offset", "timestamp", "partition"]) == expected.select(
        ["value", "offset", "timestamp", "partition"]
    )
    assert table["subject"].to_pylist() == expected["subject"].to_pylist()
    assert list((tmp_path / "a" / "b").iterdir()) == list(done.files)


def test_it_goes_on_where_the_files_end(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    assert bulk.to_parquet(url, name, tmp_path, stop=60).rows == 60
    assert bulk.to_parquet(url, name, tmp_path).rows == 40
    assert bulk.to_parquet(url, name, tmp_path).files == ()
    publish(url, numbered(name, 10))
    assert bulk.to_parquet(url, name, tmp_path, start=5).rows == 10
    assert covered(tmp_path) == [(0, 60), (60, 100), (100, 110)]
    assert archived(tmp_path, "offset")["offset"].to_pylist() == list(range(110))


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


def test_a_run_that_was_killed(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))

    def crash(progress: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bulk.to_parquet(url, name, tmp_path, progress=crash)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"{name}-0-{0:020}.parquet.part").write_bytes(b"half of a file")
    assert bulk.to_parquet(url, name, tmp_path).rows == 100
    assert [file.suffix for file in tmp_path.iterdir()] == [".parquet"]


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
    with liftenvelope.connect_blocking(address) as client:
        client.create_stream(name, name, partitions=3)
        for partition in (0, 2):
            client.publish_many(name, [b"%d" % i for i in range(200)], partition=partition)
        done = bulk.to_parquet(client, name, tmp_path, rotate_rows=150)
        assert sorted(file.name for file in done.files) == [
            f"{name}-{partition}-{start:020}.parquet" for partition in (0, 2) for start in (0, 150)
        ]
        client.publish_many(name, [b"x"] * 5, partition=1)
        assert bulk.to_parquet(address, name, tmp_path).rows == 5
    table = archived(tmp_path, "partition", "offset")
    for partition, count in ((0, 200), (1, 5), (2, 200)):
        rows = table.filter(pa.compute.equal(table["partition"], partition))
        assert rows["offset"].to_pylist() == list(range(count))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rotate_rows": 0}, "rotate_rows=0"),
        ({"rotate_bytes": 0}, "rotate_bytes=0"),
        ({"compression": "zip"}, "compression='zip'"),
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
    with pytest.raises(UsageError, match="no Parquet file"):
        bulk.to_parquet(url, name, tmp_path)
    pq.write_table(pa.table({"offset": [1]}), file)
    with pytest.raises(UsageError, match="not a file of this archive"):
        bulk.to_parquet(url, name, tmp_path)
    with pytest.raises(UsageError, match="expected a folder"):
        bulk.to_parquet(url, name, file)
