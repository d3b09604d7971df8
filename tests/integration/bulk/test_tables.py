"""Streams into Iceberg and Delta tables, on real servers and with the formats' own libraries."""

from __future__ import annotations

import errno
import sqlite3
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from nats.js import JetStreamContext
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import parse_transform

from liftenvelope import bulk
from liftenvelope.bulk import (
    Gap,
    Progress,
    StreamRecreatedError,
    TableCommitError,
    TableError,
    TableSchemaError,
    TableWriter,
    TableWritten,
)
from liftenvelope.bulk._engine.crew import Outlet
from liftenvelope.bulk._engine.plan import BatchPlan
from liftenvelope.bulk._jetstream.requests import JetStreamRequests
from liftenvelope.bulk._jetstream.source import JetStreamSource
from liftenvelope.bulk.ranges import Range
from liftenvelope.bulk.tables import _target, _writer
from liftenvelope.errors import MissingExtraError, OffsetOutOfRangeError, StreamNotFoundError, UsageError
from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import make_stream, numbered, publish, with_jetstream


class Lake:
    """A table of one format in a folder, and another view of it by the format's own library."""

    def __init__(self, make: str, folder: Path, source: Any) -> None:
        self.make = make
        self.folder = folder
        self.source = source

    def writer(self, stream: str, **options: Any) -> TableWriter:
        if self.make == "delta":
            return bulk.delta_writer(self.source, stream, self.folder / "t", **options)
        return bulk.iceberg_writer(self.source, stream, "db.t", warehouse=self.folder, **options)

    def write(self, stream: str, **options: Any) -> TableWritten:
        with self.writer(stream, **options) as writer:
            return writer.catch_up()

    @property
    def catalog(self) -> SqlCatalog:
        uri = f"sqlite:///{self.folder}/catalog.db"
        return SqlCatalog("liftenvelope", uri=uri, warehouse=f"file://{self.folder}")

    @property
    def iceberg(self) -> Any:
        return self.catalog.load_table("db.t")

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.folder / "t")

    def create(self, schema: pa.Schema) -> None:
        if self.make == "delta":
            DeltaTable.create(self.folder / "t", schema)
        else:
            self.catalog.create_namespace("db")
            self.catalog.create_table("db.t", schema)

    def read(self) -> pa.Table:
        table = self.delta.to_pyarrow_table() if self.make == "delta" else self.iceberg.scan().to_arrow()
        return table.sort_by("offset") if "offset" in table.column_names else table

    def offsets(self) -> list[int]:
        found: list[int] = self.read()["offset"].to_pylist()
        return found


@pytest.fixture(params=["iceberg", "delta"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, server: NatsServer) -> Lake:
    folder = tmp_path / "lake"
    folder.mkdir()
    return Lake(request.param, folder, server.url)


@pytest.fixture
def stream(server: NatsServer, name: str) -> str:
    make_stream(server.url, name)
    return name


def more(lake: Lake, stream: str, count: int) -> None:
    publish(lake.source, numbered(stream, count))


def recreate(lake: Lake, stream: str, count: int) -> None:
    async def delete(js: JetStreamContext) -> None:
        await js.delete_stream(stream)

    with_jetstream(lake.source, delete)
    make_stream(lake.source, stream)
    more(lake, stream, count)


class TestRows:
    def test_table_has_what_a_read_has(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 70)
        publish(lake.source, [(f"{stream}.a", b"", {"One": "1", "Two": "2"})])
        seen: list[Progress] = []
        done = lake.write(stream, progress=seen.append, commit_rows=30, batch_rows=10)
        assert (done.rows, done.commits, dict(done.offsets)) == (71, 3, {0: 71})
        assert (seen[-1].rows, seen[-1].done, seen[-1].total) == (71, 71, 71)
        table, expected = lake.read(), bulk.read(lake.source, stream).read_all()
        for name in ("key", "value", "offset", "partition", "subject"):
            assert table[name].to_pylist() == expected[name].to_pylist(), name
        times = expected["timestamp"].cast(pa.timestamp("us", "UTC"), safe=False)
        assert table["timestamp"].to_pylist() == times.to_pylist()
        assert dict(table["headers"].to_pylist()[-1]) == {"One": b"1", "Two": b"2"}
        assert table.schema.field("offset").type == pa.int64()

    def test_later_calls_add_what_is_new(self, lake: Lake, stream: str) -> None:
        assert (done := lake.write(stream)).rows == 0
        assert dict(done.offsets) == {}
        more(lake, stream, 40)
        assert lake.write(stream, stop=25).rows == 25
        assert lake.write(stream, start=3).rows == 15
        with lake.writer(stream) as writer:
            assert writer.catch_up().commits == 0
            more(lake, stream, 2)
            assert writer.catch_up().rows == 2
        assert lake.offsets() == list(range(42))

    def test_subjects_are_filtered_and_the_rest_is_passed(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 12)
        for rows in (4, 0):
            done = lake.write(stream, subjects=f"{stream}.1")
            assert (done.rows, dict(done.offsets)) == (rows, {0: 12})
        assert lake.offsets() == [1, 4, 7, 10]

    def test_folder_with_a_blank_and_an_umlaut(self, lake: Lake, stream: str) -> None:
        lake.folder = lake.folder / "a läke"
        more(lake, stream, 5)
        lake.write(stream, partition_by="month(timestamp)")
        assert lake.offsets() == list(range(5))

    def test_idle_call_asks_nothing_of_the_table(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 5)
        with lake.writer(stream) as writer:
            first = writer.catch_up()
            lake.folder.rename(lake.folder.with_name("moved"))
            assert writer.catch_up() == TableWritten(0, 0, first.offsets, first.version)

    def test_polars_and_duckdb_read_the_table(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 20)
        lake.write(stream, partition_by=["day(timestamp)", "subject"])
        if lake.make == "delta":
            frame = pl.scan_delta(str(lake.folder / "t")).collect()
        else:
            # Without its own planner polars warns that it asks pyiceberg.
            with pytest.MonkeyPatch.context() as patched:
                patched.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
                frame = pl.scan_iceberg(lake.iceberg).collect()
        assert sorted(frame["offset"].to_list()) == list(range(20))
        files = str(lake.folder / "**" / "*.parquet")
        query = f"select count(*), count(distinct \"offset\") from read_parquet('{files}')"
        assert duckdb.connect().execute(query).fetchall() == [(20, 20)]

    def test_deleted_messages_are_passed_and_reported(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 10)

        async def delete(js: JetStreamContext) -> None:
            for sequence in (3, 4, 10):
                await js.delete_msg(stream, sequence)

        with_jetstream(lake.source, delete)
        gaps: list[Gap] = []
        assert dict(lake.write(stream, on_gap=gaps.append).offsets) == {0: 10}
        assert gaps == [Gap(0, 2, 4), Gap(0, 9, 10)]
        assert lake.offsets() == [0, 1, 4, 5, 6, 7, 8]

    def test_range_of_deleted_messages_is_passed_once(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 6)
        lake.write(stream, stop=5)

        async def delete(js: JetStreamContext) -> None:
            await js.delete_msg(stream, 6)

        with_jetstream(lake.source, delete)
        assert lake.write(stream).rows == 0
        assert (done := lake.write(stream)).commits == 0
        assert dict(done.offsets) == {0: 6}

    def test_partitions_of_a_liftbridge_stream(
        self, lake: Lake, gateway_server: LiftbridgeCluster, name: str
    ) -> None:
        lake.source = gateway_server.addresses
        gateway_server.create_stream(name, partitions=3)
        for count in (30, 3):
            rows = pa.table(
                {"value": [b"v"] * count, "partition": pa.array([0, 1, 1] * (count // 3), pa.int32())}
            )
            bulk.write(lake.source, name, rows)
            assert lake.write(name).rows == count
        assert dict(lake.write(name).offsets) == {0: 11, 1: 22}
        found = lake.read().select(["partition", "offset"]).to_pylist()
        assert len({(row["partition"], row["offset"]) for row in found}) == len(found) == 33


class TestTwoWriters:
    def test_rows_that_another_writer_committed_meanwhile_come_once(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 60)
        with lake.writer(stream) as other:
            others: list[int] = []

            def interfere(seen: Progress) -> None:
                if seen.done == 20 and not others:
                    others.append(other.catch_up().rows)

            done = lake.write(stream, progress=interfere, batch_rows=10, commit_rows=30)
        assert others == [60]
        assert (done.rows, dict(done.offsets)) == (0, {0: 60})
        assert lake.offsets() == list(range(60))

    def test_same_rows_that_another_writer_committed_are_not_counted(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 60)
        with lake.writer(stream, stop=30) as other:
            others: list[int] = []

            def interfere(seen: Progress) -> None:
                if seen.done == 20 and not others:
                    others.append(other.catch_up().rows)

            done = lake.write(stream, progress=interfere, batch_rows=10, commit_rows=30)
        assert (others, done.rows, done.commits) == ([30], 30, 1)
        assert lake.offsets() == list(range(60))

    def test_other_partition_committed_meanwhile_is_not_written_again(
        self, lake: Lake, gateway_server: LiftbridgeCluster, name: str
    ) -> None:
        """Commits of two partitions do not conflict in Delta, so the first writer learns of it by its own."""
        lake.source = gateway_server.addresses
        gateway_server.create_stream(name, partitions=2)
        for count in (10, 100):
            lake.write(name)  # the first commit of a stream conflicts with all others of it
            for partition in (0, 1):
                bulk.write(lake.source, name, pa.table({"value": [b"x"] * count}), partition=partition)
        with lake.writer(name, partitions=1) as other:
            others: list[int] = []

            def interfere(seen: Progress) -> None:
                if seen.done == 50:
                    others.append(other.catch_up().rows)

            with patch.object(_writer, "PARALLEL", 1):  # one partition after the other
                done = lake.write(name, progress=interfere, batch_rows=50, commit_rows=100)
        assert (others, done.rows, dict(done.offsets)) == ([100], 100, {0: 110, 1: 110})
        table = lake.read()
        for partition in (0, 1):
            rows = table.filter(pc.field("partition") == partition)
            assert sorted(rows["offset"].to_pylist()) == list(range(110))

    def test_both_go_on_where_the_other_ended(self, lake: Lake, stream: str) -> None:
        with lake.writer(stream) as one, lake.writer(stream) as two:
            for round_, writer in enumerate([one, two, two, one, two, one]):
                more(lake, stream, 7)
                assert writer.catch_up().rows == 7, round_
        assert lake.offsets() == list(range(42))

    def test_other_stream_in_the_table_breaks_nothing(self, lake: Lake, stream: str) -> None:
        second = f"{stream}-2"
        make_stream(lake.source, second)
        more(lake, stream, 20)
        more(lake, second, 30)
        with lake.writer(second, commit_rows=10, batch_rows=10) as other:
            done = lake.write(
                stream, progress=lambda seen: other.catch_up() if seen.done == 10 else None, batch_rows=10
            )
        assert (done.rows, lake.write(stream).rows, lake.write(second).rows) == (20, 0, 0)
        assert lake.read().num_rows == 50

    def test_table_that_another_writer_creates_meanwhile(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 5)
        module = "liftenvelope.bulk.tables._" + lake.make
        target = "DeltaTarget" if lake.make == "delta" else "IcebergTarget"
        create = getattr(__import__(module, fromlist=[target]), target)._create
        raced: list[int] = []

        def racing(self: Any, schema: pa.Schema) -> Any:
            if not raced:
                raced.append(1)
                lake.write(stream)
            return create(self, schema)

        with patch(f"{module}.{target}._create", racing):
            assert lake.write(stream).rows == 0
        assert lake.offsets() == list(range(5))


class TestCommits:
    @pytest.fixture
    def failing(self, lake: Lake) -> Iterator[list[str]]:
        """Outcomes of the next commits: "lost" before it, or "late", which is after it."""
        plan: list[str] = []
        owner, name = (deltalake, "write_deltalake") if lake.make == "delta" else (SqlCatalog, "commit_table")
        real = getattr(owner, name)

        def commit(*args: Any, **options: Any) -> Any:
            what = plan.pop(0) if plan else ""
            if what == "lost":
                raise ConnectionError("no answer")
            found = real(*args, **options)
            if what == "late":
                raise ConnectionError("no answer")
            return found

        with patch.object(owner, name, commit):
            yield plan

    @pytest.mark.parametrize("outcomes", [["lost"], ["late"], ["lost", "lost", "late"]], ids="-".join)
    def test_commit_without_an_answer_is_made_once(
        self, lake: Lake, stream: str, failing: list[str], outcomes: list[str]
    ) -> None:
        lake.write(stream)
        more(lake, stream, 12)
        failing += outcomes
        done = lake.write(stream)
        assert (done.rows, done.commits, failing) == (12, 1, [])
        assert lake.offsets() == list(range(12))

    def test_another_writer_goes_on_after_a_commit_without_an_answer(
        self, lake: Lake, stream: str, failing: list[str]
    ) -> None:
        lake.write(stream)
        more(lake, stream, 40)
        with lake.writer(stream, commit_rows=40) as other:
            others: list[int] = []

            def go_on(_: float) -> None:
                if not others:
                    others.append(other.catch_up().rows)

            failing += ["late"]
            clock = SimpleNamespace(sleep=go_on, monotonic=time.monotonic)
            with patch.object(_target, "time", clock):
                done = lake.write(stream, batch_rows=10, commit_rows=10)
        assert (others, done.rows, done.commits) == ([30], 10, 1)
        assert dict(done.offsets) == {0: 40}
        assert lake.offsets() == list(range(40))

    def test_commits_that_fail_for_long_end_the_call(
        self, lake: Lake, stream: str, failing: list[str]
    ) -> None:
        with lake.writer(stream, commit_wait=0) as writer:
            writer.catch_up()
            more(lake, stream, 3)
            failing += ["late"]
            with pytest.raises(TableCommitError, match="ConnectionError: no answer") as caught:
                writer.catch_up()
            assert caught.value.retriable
            more(lake, stream, 1)
            assert writer.catch_up().rows == 1
        assert lake.offsets() == list(range(4))

    def test_locked_catalogue(self, tmp_path: Path, server: NatsServer, stream: str) -> None:
        lake = Lake("iceberg", tmp_path, server.url)
        more(lake, stream, 3)
        lake.write(stream)
        more(lake, stream, 3)
        where = {"uri": f"sqlite:///{tmp_path}/catalog.db?timeout=0.01", "warehouse": f"file://{tmp_path}"}
        catalog = SqlCatalog("liftenvelope", **where)
        other = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with bulk.iceberg_writer(server.url, stream, "db.t", catalog=catalog, commit_wait=0.1) as writer:
            with pytest.raises(TableCommitError, match="database is locked"):
                writer.catch_up()
            other.execute("ROLLBACK")
            other.close()
            assert writer.catch_up().rows == 3
        assert lake.offsets() == list(range(6))

    def test_files_that_cannot_be_written_are_an_error_with_the_table_and_a_remedy(
        self, tmp_path: Path, server: NatsServer, stream: str
    ) -> None:
        """Root may write into every folder, so a file stands where the data files should be."""
        lake = Lake("iceberg", tmp_path, server.url)
        more(lake, stream, 3)
        lake.write(stream)
        data = tmp_path / "db" / "t" / "data"
        data.rename(tmp_path / "aside")
        data.touch()
        more(lake, stream, 3)
        with pytest.raises(FileExistsError, match=r"Iceberg table db.t: .*/data.*; .* call again") as caught:
            lake.write(stream)
        assert caught.value.errno == errno.EEXIST
        with pytest.raises(NotADirectoryError, match=r"catalog: .*; .* call again .*/data/w"):
            bulk.to_iceberg(server.url, stream, "db.t", warehouse=data / "w")
        data.unlink()
        (tmp_path / "aside").rename(data)
        assert lake.write(stream).rows == 3
        assert lake.offsets() == list(range(6))

    def test_error_of_delta_is_one_line_without_colours(
        self, tmp_path: Path, server: NatsServer, stream: str
    ) -> None:
        (tmp_path / "file").touch()
        more(Lake("delta", tmp_path, server.url), stream, 3)
        with pytest.raises(TableCommitError, match=r"Delta table .*/file/t: ") as caught:
            bulk.to_delta(server.url, stream, tmp_path / "file" / "t", commit_wait=0)
        assert not {"\n", "\x1b"} & set(str(caught.value))

    def test_error_of_a_callback_keeps_what_was_read(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 40)

        def stop(seen: Progress) -> None:
            if seen.done > 20:
                raise RuntimeError("enough")

        with pytest.raises(RuntimeError, match="enough"):
            lake.write(stream, progress=stop, batch_rows=10, commit_rows=100)
        assert lake.offsets() == list(range(30))
        assert lake.write(stream).rows == 10

    def test_error_of_a_callback_is_raised_although_another_writer_has_the_rows(
        self, lake: Lake, stream: str
    ) -> None:
        more(lake, stream, 40)
        with lake.writer(stream) as other:

            def stop(seen: Progress) -> None:
                other.catch_up()
                raise RuntimeError("enough")

            with pytest.raises(RuntimeError, match="enough"):
                lake.write(stream, progress=stop, batch_rows=10, commit_rows=100)
        assert lake.offsets() == list(range(40))


class TestOtherCommits:
    """Commits of other programs into the same table."""

    def test_offsets_survive_maintenance_of_delta(
        self, tmp_path: Path, server: NatsServer, stream: str
    ) -> None:
        lake = Lake("delta", tmp_path, server.url)
        more(lake, stream, 30)
        lake.write(stream, commit_rows=10, batch_rows=10)
        lake.delta.optimize.compact()
        lake.delta.create_checkpoint()
        lake.delta.vacuum(0, dry_run=False, enforce_retention_duration=False)
        lake.delta.cleanup_metadata()
        more(lake, stream, 1)
        assert lake.write(stream).rows == 1
        assert lake.offsets() == list(range(31))

    @pytest.mark.parametrize("make", ["delta", "iceberg"])
    def test_time_of_the_upkeep_is_in_the_table(
        self, tmp_path: Path, server: NatsServer, stream: str, make: str
    ) -> None:
        lake = Lake(make, tmp_path, server.url)
        with lake.writer(stream) as writer:
            assert writer.maintained_at() is None
            more(lake, stream, 3)
            writer.catch_up()
            assert writer.maintained_at() is None
            before = int(time.time())
            writer.maintain(compact=make == "delta")
            assert before <= (writer.maintained_at() or 0) <= time.time()
            more(lake, stream, 3)
            assert writer.catch_up().rows == 3
        with lake.writer(stream) as other:
            assert (other.maintained_at() or 0) >= before
        assert lake.offsets() == list(range(6))

    def _expire(self, lake: Lake, keep: int) -> None:
        ids = [one.snapshot_id for one in lake.iceberg.snapshots()][:-keep]
        lake.iceberg.maintenance.expire_snapshots().by_ids(ids).commit()

    def test_offsets_survive_other_snapshots_and_expiry(
        self, tmp_path: Path, server: NatsServer, stream: str
    ) -> None:
        lake = Lake("iceberg", tmp_path, server.url)
        more(lake, stream, 10)
        lake.write(stream)
        for _ in range(2):
            lake.iceberg.append(lake.read().slice(0, 0))
        assert lake.write(stream).commits == 0
        self._expire(lake, 1)
        more(lake, stream, 1)
        assert lake.write(stream).rows == 1
        assert lake.offsets() == list(range(11))

    def test_rollback_takes_rows_and_offsets_back(
        self, tmp_path: Path, server: NatsServer, stream: str
    ) -> None:
        lake = Lake("iceberg", tmp_path, server.url)
        more(lake, stream, 20)
        lake.write(stream, commit_rows=10, batch_rows=10)
        first = lake.iceberg.snapshots()[0].snapshot_id
        lake.iceberg.manage_snapshots().rollback_to_snapshot(first).commit()
        assert lake.offsets() == list(range(10))
        assert lake.write(stream).rows == 10
        assert lake.offsets() == list(range(20))

    def test_offsets_that_are_lost_end_the_call(
        self, tmp_path: Path, server: NatsServer, stream: str
    ) -> None:
        lake = Lake("iceberg", tmp_path, server.url)
        lake.write(stream)
        rows = bulk.read(server.url, stream).read_all()
        for _ in range(2):
            lake.iceberg.append(rows.cast(lake.read().schema))
        more(lake, stream, 5)
        lake.write(stream)
        second = lake.iceberg.snapshots()[1].snapshot_id
        lake.iceberg.manage_snapshots().rollback_to_snapshot(second).commit()
        gone = [one.snapshot_id for one in lake.iceberg.snapshots() if one.snapshot_id != second]
        lake.iceberg.maintenance.expire_snapshots().by_ids(gone).commit()
        with pytest.raises(TableError, match="lost them: it was rolled back"):
            lake.write(stream)


class TestStreams:
    def test_recreated_stream_is_refused(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 5)
        with lake.writer(stream) as writer:
            writer.catch_up()
            recreate(lake, stream, 9)
            with pytest.raises(StreamRecreatedError, match="with another stream_id") as caught:
                writer.catch_up()
        assert 0 < caught.value.known_ns < caught.value.created_ns
        with pytest.raises(StreamRecreatedError):
            lake.write(stream)
        assert lake.write(stream, stream_id="second").rows == 9
        assert lake.read().num_rows == 14

    def test_stream_recreated_while_it_is_read_is_not_committed(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 5)

        def interfere(seen: Progress) -> None:
            if seen.done == 5:
                recreate(lake, stream, 9)

        with pytest.raises(StreamRecreatedError):
            lake.write(stream, progress=interfere)
        assert lake.read().num_rows == 0

    def test_stream_recreated_before_its_first_row_is_refused(
        self, lake: Lake, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        more(lake, stream, 5)
        whole = JetStreamSource.read

        def late(source: JetStreamSource, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
            recreate(lake, stream, 9)
            whole(source, span, plan, outlet)

        monkeypatch.setattr(JetStreamSource, "read", late)
        with pytest.raises(StreamRecreatedError, match="with another stream_id"):
            lake.write(stream)
        assert lake.read().num_rows == 0

    def test_stream_that_ends_before_the_table(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 5)
        with patch.object(JetStreamRequests, "created", lambda _: 0):
            lake.write(stream)
            recreate(lake, stream, 2)
            with pytest.raises(OffsetOutOfRangeError, match="up to offset 4, and the stream ends at 1"):
                lake.write(stream)

    def test_missing_stream(self, lake: Lake, name: str) -> None:
        with pytest.raises(StreamNotFoundError):
            lake.write(name)

    def test_closed_writer(self, lake: Lake, stream: str) -> None:
        with lake.writer(stream) as writer:
            pass
        with pytest.raises(UsageError, match="the writer must be open"):
            writer.catch_up()


class TestSchema:
    def test_new_columns_are_added(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 3)
        lake.write(stream, columns=["offset", "value"])
        more(lake, stream, 3)
        lake.write(stream)
        more(lake, stream, 1)
        lake.write(stream, columns=["subject", "offset"])
        table = lake.read()
        assert table["subject"].to_pylist()[:4] == [None, None, None, f"{stream}.0"]
        assert table["value"].null_count == 1
        assert lake.offsets() == list(range(7))

    @pytest.mark.parametrize(
        "messages", [[b'{"a":1}', b'{"A":2}'], [b'{"a":1,"A":2}']], ids=["later", "first"]
    )
    def test_columns_that_differ_in_case_alone_are_refused_by_delta(
        self, server: NatsServer, stream: str, tmp_path: Path, messages: list[bytes]
    ) -> None:
        lake = Lake("delta", tmp_path, server.url)
        for message in messages[:-1]:
            publish(server.url, [(f"{stream}.x", message, None)])
            lake.write(stream, payload="json")
        publish(server.url, [(f"{stream}.x", messages[-1], None)])
        with pytest.raises(TableSchemaError, match="column 'A' must differ from column 'a' in more than"):
            lake.write(stream, payload="json")

    def test_other_type_names_column_and_types(self, lake: Lake, stream: str) -> None:
        lake.create(pa.schema([("offset", pa.int32()), ("value", pa.binary())]))
        with pytest.raises(
            TableSchemaError, match="column 'offset' must fit type int32 of the table"
        ) as caught:
            lake.write(stream)
        error = caught.value
        assert (error.column, error.table_type, error.stream_type) == ("offset", "int32", "int64")

    def test_required_column_that_the_stream_lacks(self, lake: Lake, stream: str) -> None:
        lake.create(
            pa.schema([pa.field("offset", pa.int64()), pa.field("customer", pa.string(), nullable=False)])
        )
        with pytest.raises(TableSchemaError, match="column 'customer' must have a value in every row"):
            lake.write(stream)

    def test_table_made_by_hand_gets_the_rows(self, lake: Lake, stream: str) -> None:
        required = pa.field("offset", pa.int64(), nullable=False)
        lake.create(pa.schema([required, pa.field("note", pa.string())]))
        more(lake, stream, 4)
        assert lake.write(stream, columns=["offset", "partition"]).rows == 4
        assert lake.read().to_pydict()["note"] == [None] * 4


class TestPartitioning:
    def test_rows_are_in_files_of_their_partitions(self, lake: Lake, stream: str) -> None:
        more(lake, stream, 9)
        lake.write(stream, partition_by=["hour(timestamp)", "subject"])
        more(lake, stream, 3)
        lake.write(stream)  # a table that exists keeps its partitioning
        if lake.make == "delta":
            assert lake.delta.metadata().partition_columns == ["timestamp_hour", "subject"]
            assert len(lake.delta.file_uris()) == 6
        else:
            names = [field.name for field in lake.iceberg.spec().fields]
            assert names == ["timestamp_hour", "subject"]
            scan = lake.iceberg.scan(row_filter=f"subject = '{stream}.1'")
            assert len(list(scan.plan_files())) == 2
            assert scan.to_arrow().num_rows == 4
        assert lake.offsets() == list(range(12))

    def test_partitions_of_nan_and_of_both_zeros_have_each_row_once(self, lake: Lake, stream: str) -> None:
        prices = pa.array([1.5, float("nan"), None, 0.0, -0.0, float("nan"), 0.0, float("inf")], pa.float64())
        rows = pa.table({"price": prices, "number": range(8)})
        bulk.write(lake.source, stream, rows, subject=f"{stream}.a", payload="arrow")
        assert lake.write(stream, payload="arrow", partition_by="price").rows == 8
        found = lake.read().sort_by("number")
        assert found["number"].to_pylist() == list(range(8))
        assert list(map(repr, found["price"])) == list(map(repr, prices))

    @pytest.mark.parametrize(("transform", "count"), [("day", 5), ("month", 4), ("year", 3)])
    def test_partitions_of_dates_of_an_iceberg_table_that_exists(
        self, server: NatsServer, stream: str, tmp_path: Path, transform: str, count: int
    ) -> None:
        lake = Lake("iceberg", tmp_path, server.url)
        texts = ["2024-01-31", "2024-02-01", "1969-12-31", "2024-02-29", "2024-02-01", None]
        days = pa.array([text and date.fromisoformat(text) for text in texts], pa.date32())
        lake.create(pa.schema([("day", pa.date32())]))
        with lake.iceberg.update_spec() as spec:
            spec.add_field("day", parse_transform(transform))
        rows = pa.table({"day": days, "number": range(len(days))})
        bulk.write(lake.source, stream, rows, subject=f"{stream}.a", payload="arrow")
        assert lake.write(stream, payload="arrow").rows == len(days)
        assert lake.read().sort_by("number")["day"].to_pylist() == days.to_pylist()
        assert len(lake.iceberg.inspect.partitions()) == count

    def test_partitions_that_need_another_package_are_refused_before_the_read(
        self, server: NatsServer, stream: str, tmp_path: Path
    ) -> None:
        lake = Lake("iceberg", tmp_path, server.url)
        lake.create(pa.schema([("subject", pa.string())]))
        with lake.iceberg.update_spec() as spec:
            spec.add_field("subject", parse_transform("bucket[4]"))
        more(lake, stream, 3)
        with (
            patch.dict(sys.modules, {"pyiceberg_core": None}),
            pytest.raises(MissingExtraError, match=r"run pip install 'pyiceberg\[pyiceberg-core\]'"),
        ):
            lake.write(stream)

    def test_other_partitioning_than_that_of_the_table(self, lake: Lake, stream: str) -> None:
        lake.write(stream, partition_by="subject")
        with pytest.raises(UsageError, match=r"partition_by must be that of .*subject.*, got .*partition"):
            lake.write(stream, partition_by="partition")

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ("colour", "must name columns of key, "),
            ("hour(offset)", "must name a column of timestamps, got type int64"),
            ("headers", "must name a column of plain values"),
        ],
    )
    def test_column_that_cannot_be_partitioned_by(
        self, lake: Lake, stream: str, given: str, text: str
    ) -> None:
        with pytest.raises(UsageError, match=text.replace("(", r"\(")):
            lake.write(stream, partition_by=given)
