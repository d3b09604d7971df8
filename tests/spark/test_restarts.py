"""Queries that are interrupted, run again or doubled read every row, and an exact number of times.

Crashes in the first batch and before a commit, and retention on JetStream, are in the other files.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from liftenvelope import bulk
from liftenvelope.testing import LiftbridgeCluster, NatsServer, run_liftbridge
from tests.cleaner_clock import CLEANER_INTERVAL, CleanerClock
from tests.integration.bulk_streams import jetstream, make_stream
from tests.spark.streams import Query, Stream, numbers, patiently

pytestmark = pytest.mark.timeout(900)

ROWS = "value binary"
#: So many rows of so many bytes are more than what lies between a server and a function that waits.
LONG = (20_000, 4_000)


def wait_for(what: str, is_there: Callable[[], object], seconds: float = 300.0) -> None:
    limit = time.monotonic() + seconds
    while not is_there():
        assert time.monotonic() < limit, f"no {what} after {seconds:g} s"
        time.sleep(0.05)


def held(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Passes rows on; after the first batch it waits until the test says that it may go on."""
    reading, go_on = folder / "reading", folder / "go-on"

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            reading.touch()
            wait_for("leave to go on", go_on.exists)

    return pass_on


class Running(Query):
    """A query that a test does things to while it runs."""

    @contextmanager
    def until_end(self, sign: Path) -> Iterator[StreamingQuery]:
        """The query from when its tasks have made a file, to the end of what there is."""
        query = patiently(lambda: self._begun(self._writer().trigger(availableNow=True), sign))
        try:
            yield query
        finally:
            query.stop()

    @contextmanager
    def forever(self) -> Iterator[StreamingQuery]:
        """The query from when it has read all there is."""
        query = patiently(lambda: self._caught_up(self._writer()))
        try:
            yield query
        finally:
            query.stop()

    def _writer(self) -> Any:
        writer = self._frame.writeStream.format("parquet").option("path", str(self.folder / "rows"))
        return writer.option("checkpointLocation", str(self.checkpoint))

    @staticmethod
    def _begun(writer: Any, sign: Path) -> StreamingQuery:
        query: StreamingQuery = writer.start()
        wait_for("batch", lambda: sign.exists() or not query.isActive)
        if not sign.exists():
            query.awaitTermination()  # raises what ended it
        return query

    @staticmethod
    def _caught_up(writer: Any) -> StreamingQuery:
        query: StreamingQuery = writer.start()
        query.processAllAvailable()
        return query


def write_wide(stream: Stream, count: int, size: int) -> None:
    """Write numbers with blanks behind them: so many of so many bytes."""
    columns: dict[str, Any] = {"value": [(b"%d" % i).ljust(size) for i in range(count)]}
    special: dict[str, Any] = {"subject": f"{stream.name}.x"} if stream.format == "jetstream" else {}
    if stream.format == "liftbridge":
        columns["partition"] = pa.array([i % stream.partitions for i in range(count)], pa.int32())
    bulk.write(stream.servers, stream.name, pa.table(columns), **special)
    stream.written = count


@pytest.fixture
def small_batches(spark: SparkSession) -> SparkSession:
    """A session that passes few rows at a time, so that a task has many batches."""
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    return session


class TestTasks:
    def test_failed_task_is_run_again(
        self, spark: SparkSession, small_batches: SparkSession, stream: Stream, tmp_path: Path
    ) -> None:
        stream.write(5_000)

        def fails_twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            for batch in batches:
                yield batch
                if context.attemptNumber() < 2:
                    raise ValueError("not yet")

        frame = stream.follow(small_batches, startingOffsets="earliest", maxOffsetsPerTrigger=3_000)
        query = Query(frame.select("value").mapInArrow(fails_twice, ROWS), tmp_path)
        query.run()
        assert query.numbers(spark) == stream.numbers

    def test_task_that_always_fails_ends_the_query(
        self, spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path
    ) -> None:
        """The next run reads uncommitted rows again."""
        make_stream(nats.url, name)
        stream = Stream("jetstream", nats.url, name)
        stream.write(300)
        mended = tmp_path / "mended"

        def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                if not mended.exists():
                    raise ValueError("always")

        frame = stream.follow(spark, startingOffsets="earliest").select("value").mapInArrow(fails, ROWS)
        query = Query(frame, tmp_path)
        with pytest.raises(PySparkException, match="always"):
            query.run()
        assert not list((tmp_path / "rows").glob("*.parquet"))
        mended.touch()
        stream.write(10)
        query.run()
        assert query.numbers(spark) == stream.numbers

    def test_the_one_that_reads_is_killed(
        self, spark: SparkSession, small_batches: SparkSession, stream: Stream, tmp_path: Path
    ) -> None:
        """SIGKILL for the process that is connected to the server, in the middle of what it reads."""
        write_wide(stream, *LONG)
        killed, port = tmp_path / "killed", int(stream.servers.rpartition(":")[2])

        def kills(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                if not killed.exists():
                    readers = connected_to(port)
                    killed.write_text(repr(readers))
                    for reader in readers:
                        with suppress(ProcessLookupError):
                            os.kill(reader, signal.SIGKILL)

        frame = stream.follow(small_batches, startingOffsets="earliest").select("value")
        query = Query(frame.mapInArrow(kills, ROWS), tmp_path)
        query.run()
        assert killed.read_text() != "[]"
        assert query.numbers(spark) == stream.numbers


def connected_to(port: int) -> list[int]:
    """The processes of Spark's tasks that have a connection to a port, but for this one."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    sockets = {f"socket:[{line.split()[9]}]" for line in lines if line.split()[2].endswith(f":{port:04X}")}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # The query's own questions to the server come from a process that is no worker.
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"pyspark.worker" in (process / "cmdline").read_bytes() and process.name != str(os.getpid()):
                found += [int(process.name)] * any(
                    link(file) in sockets for file in (process / "fd").glob("*")
                )
    return found


def link(file: Path) -> str:
    try:
        return str(file.readlink())
    except FileNotFoundError:  # closed meanwhile
        return ""


class TestServers:
    @pytest.fixture(params=["jetstream", "liftbridge"])
    def server(self, request: pytest.FixtureRequest) -> Iterator[NatsServer | LiftbridgeCluster]:
        """One that this test may kill."""
        if request.param == "jetstream":
            with jetstream() as nats:
                yield nats
        else:
            with run_liftbridge() as cluster:
                yield cluster

    @staticmethod
    def made(server: NatsServer | LiftbridgeCluster, name: str) -> Stream:
        if isinstance(server, NatsServer):
            make_stream(server.url, name)
            return Stream("jetstream", server.url, name)
        server.create_stream(name)
        return Stream("liftbridge", server.addresses[0], name)

    def test_killed_and_back_in_a_batch(
        self,
        spark: SparkSession,
        small_batches: SparkSession,
        server: NatsServer | LiftbridgeCluster,
        name: str,
        tmp_path: Path,
    ) -> None:
        stream = self.made(server, name)
        write_wide(stream, *LONG)
        frame = stream.follow(small_batches, startingOffsets="earliest", reconnectWait="120s").select("value")
        query = Running(frame.mapInArrow(held(tmp_path), ROWS), tmp_path)
        with query.until_end(tmp_path / "reading") as running:
            server.kill()
            (tmp_path / "go-on").touch()
            server.start()
            if isinstance(server, LiftbridgeCluster):
                stream.write(1)  # or it may not show its last messages
            assert running.awaitTermination(300)
        query.run()  # for the last one
        assert query.numbers(spark) == stream.numbers

    def test_killed_and_back_between_batches(
        self, spark: SparkSession, server: NatsServer | LiftbridgeCluster, name: str, tmp_path: Path
    ) -> None:
        stream = self.made(server, name)
        stream.write(100)
        frame = stream.follow(spark, startingOffsets="earliest", reconnectWait="120s").select("value")
        query = Query(frame, tmp_path)
        query.run()
        server.kill()
        server.start()
        stream.write(100)
        query.run()
        assert query.numbers(spark) == stream.numbers


class TestQueries:
    def test_two_on_one_checkpoint(
        self, spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path
    ) -> None:
        """Spark ends the first; what it has done, the second does not do again."""
        make_stream(nats.url, name)
        stream = Stream("jetstream", nats.url, name)
        frame = stream.follow(spark, startingOffsets="earliest").select("value")
        stream.write(100)
        query = Running(frame, tmp_path)
        with query.forever() as first:
            stream.write(50)
            with query.forever() as second:
                assert not first.isActive
                assert second.isActive
        assert query.numbers(spark) == stream.numbers

    def test_a_stream_is_added(
        self, spark: SparkSession, liftbridge_server: LiftbridgeCluster, name: str, tmp_path: Path
    ) -> None:
        """Its partitions are read from their beginning, though the query began at the end."""
        (address,) = liftbridge_server.addresses
        old = Stream("liftbridge", address, f"{name}-old")
        new = Stream("liftbridge", address, f"{name}-new", partitions=3)
        for one in (old, new):
            liftbridge_server.create_stream(one.name, partitions=one.partitions)
        old.write(10)
        Query(old.follow(spark), tmp_path).run()
        old.write(10)
        new.written = 1_000
        new.write(30)
        both = Query(old.follow(spark, subscribe=f"{old.name},{new.name}"), tmp_path)
        both.run()
        assert both.numbers(spark) == [*range(10, 20), *range(1_000, 1_030)]
        old.write(5)
        new.write(5)
        both.run()
        assert both.numbers(spark) == [*range(10, 25), *range(1_000, 1_035)]

    def test_an_uncommitted_batch_is_written_twice_at_most(
        self, spark: SparkSession, liftbridge_server: LiftbridgeCluster, name: str, tmp_path: Path
    ) -> None:
        """At least once: the batch whose commit is lost is there twice, and no other."""
        (address,) = liftbridge_server.addresses
        source, sink = (Stream("liftbridge", address, f"{name}-{one}") for one in ("a", "b"))
        for one in (source, sink):
            liftbridge_server.create_stream(one.name)
        source.write(250)
        frame = source.follow(spark, startingOffsets="earliest", maxOffsetsPerTrigger=100).select("value")
        sink.run(frame, tmp_path, **sink.sink())
        newest = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        newest.unlink()
        sink.run(frame, tmp_path, **sink.sink())
        found = bulk.read(address, sink.name, columns=["value"]).read_all()["value"].to_pylist()
        assert sorted(map(int, found)) == sorted([*range(250), *range(200, 250)])


class TestRetention:
    @pytest.fixture
    def overtaken(
        self, spark: SparkSession, liftbridge_server: LiftbridgeCluster, name: str, tmp_path: Path
    ) -> Stream:
        """A stream of Liftbridge whose retention has passed the checkpoint of a query."""
        settings: dict[str, Any] = {
            "retention_max_messages": 20,
            "segment_max_bytes": 1_000,
            "cleaner_interval": round(CLEANER_INTERVAL * 1000),
        }
        cleaner = CleanerClock()
        liftbridge_server.create_stream(name, **settings)
        cleaner.created()
        stream = Stream("liftbridge", liftbridge_server.addresses[0], name)
        stream.write(10)
        Query(stream.follow(spark, startingOffsets="earliest"), tmp_path).run()
        cleaner.wait()
        stream.write(200)
        # It takes whole segments: perhaps all of them but the one that is written to.
        wait_for("retention", lambda: bulk.count(stream.servers, stream.name) < 200)
        cleaner.wait()
        stream.write(5)
        return stream

    def test_loss_ends_the_query(self, spark: SparkSession, overtaken: Stream, tmp_path: Path) -> None:
        with pytest.raises(PySparkException, match="message 10 is gone"):
            Query(overtaken.follow(spark), tmp_path).run()

    def test_loss_is_passed_over_without_fail_on_data_loss(
        self, spark: SparkSession, overtaken: Stream, tmp_path: Path
    ) -> None:
        query = Query(overtaken.follow(spark, failOnDataLoss=False), tmp_path)
        query.run()
        found = query.numbers(spark)
        assert found == [*range(10), *range(found[10], 215)]
        assert 10 < found[10] <= 210


class TestRows:
    def test_large_ones(self, spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
        """Read, and written again."""
        size = 1_000_000  # a server of NATS takes 1 MiB, in which Liftbridge has its own bytes as well
        write_wide(stream, 12, size)
        frame = stream.read(spark).select("value")
        assert numbers(frame) == stream.numbers
        frame.write.format(stream.format).options(**stream.sink()).mode("append").save()
        (row,) = stream.read(spark).selectExpr("count(*) as n", "sum(length(value)) as bytes").collect()
        assert (row.n, row.bytes) == (24, 24 * size)

    def test_none(self, spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
        """Copy an empty stream into another one, again and again."""
        frame = stream.read(spark).select("value")
        assert frame.collect() == []
        frame.write.format(stream.format).options(**stream.sink()).mode("append").save()
        for _ in range(2):
            following = stream.follow(spark, startingOffsets="earliest").select("value")
            stream.run(following, tmp_path, **stream.sink())
        assert stream.read(spark).count() == 0

    def test_moments_are_the_same_in_every_time_zone(
        self, spark: SparkSession, nats: NatsServer, name: str
    ) -> None:
        make_stream(nats.url, name)
        stream = Stream("jetstream", nats.url, name)
        stream.write(5)
        stored = bulk.read(nats.url, name, columns=["timestamp"]).read_all()["timestamp"]
        for zone in ("UTC", "Asia/Kolkata", "America/St_Johns"):
            session = spark.newSession()
            session.conf.set("spark.sql.session.timeZone", zone)
            frame = stream.read(session).selectExpr(
                "unix_micros(timestamp) as micros", "timestamp_nanos as ns"
            )
            rows = frame.orderBy("ns").collect()
            assert [row.ns for row in rows] == stored.cast(pa.int64()).to_pylist()
            assert [row.micros for row in rows] == [row.ns // 1_000 for row in rows]
