"""Sources, in Spark, on real servers."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming import StreamingQuery

from liftenvelope.spark import lag
from liftenvelope.spark._options import source_options
from liftenvelope.spark._sources import BatchReader, JetStreamDataSource
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import make_stream, with_jetstream
from tests.spark.streams import Query, Stream, finish, numbers, patiently

pytestmark = pytest.mark.timeout(900)


class TestBatch:
    def test_all_of_a_stream(self, spark: SparkSession, stream: Stream) -> None:
        assert stream.read(spark).count() == 0
        stream.write(1_000)
        frame = stream.read(spark, minPartitions=5, includeHeaders=True)
        assert frame.rdd.getNumPartitions() >= 5
        assert numbers(frame) == stream.numbers
        row = frame.orderBy("offset", "partition").first()
        assert row is not None
        assert (row.topic, row.partition, row.offset, row.timestampType) == (stream.name, 0, 0, 1)
        assert row.timestamp_nanos // 1_000 == int(row.timestamp.timestamp() * 1_000_000)
        assert row.headers == []

    def test_a_part_of_it(self, spark: SparkSession, stream: Stream) -> None:
        stream.write(100)
        begin = {str(i): 10 for i in range(stream.partitions)}
        end = {str(i): 20 for i in range(stream.partitions)}
        begin_text, end_text = json.dumps({stream.name: begin}), json.dumps({stream.name: end})
        frame = stream.read(spark, startingOffsets=begin_text, endingOffsets=end_text)
        assert {row.offset for row in frame.collect()} == set(range(10, 20))

    @pytest.mark.parametrize("columns", ["value STRING", "value BINARY, offset BIGINT"])
    def test_other_columns_than_those_of_the_source_are_refused_before_any_row(
        self, spark: SparkSession, nats: NatsServer, name: str, columns: str
    ) -> None:
        make_stream(nats.url, name)
        stream = Stream("jetstream", nats.url, name)
        own, options = stream.read(spark).schema, {"servers": nats.url}
        batch = spark.read.format("jetstream").options(**options)
        assert batch.schema(own).load(name).count() == 0
        with pytest.raises(PySparkException, match="leave it out, and use select"):
            batch.schema(columns).load(name).collect()
        following = spark.readStream.format("jetstream").options(**options).schema(columns).load(name)
        with pytest.raises(PySparkException, match="must have exactly the columns"):
            finish(following.writeStream.format("noop"))

    def test_modules_are_no_garbage(
        self, spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path
    ) -> None:
        """A worker looks through what it has imported once, not after every task."""

        class Noting(BatchReader):
            def read(self, partition: InputPartition) -> Iterator[Any]:
                yield from BatchReader.read(self, partition)
                (tmp_path / str(os.getpid())).write_text(str(gc.get_freeze_count()))

        class NotingSource(JetStreamDataSource):
            @classmethod
            def name(cls) -> str:
                return "noting"

            def reader(self, schema: Any) -> DataSourceReader:
                return Noting(source_options(self.format, self.options, streaming=False))

        make_stream(nats.url, name)
        spark.dataSource.register(NotingSource)
        before = gc.get_freeze_count()
        for count in (10, 20):
            Stream("jetstream", nats.url, name).write(10)
            frame = (
                spark.read.format("noting").options(servers=nats.url, subscribe=name, minPartitions=2).load()
            )
            assert frame.count() == count
        frozen = [int(note.read_text()) for note in tmp_path.iterdir()]
        assert frozen
        assert min(frozen) > 10_000
        assert gc.get_freeze_count() == before

    def test_an_option_that_there_is_not(self, spark: SparkSession, stream: Stream) -> None:
        with pytest.raises(PySparkException, match="did you mean 'minPartitions'"):
            stream.read(spark, minPartition=5)

    def test_in_sql(self, spark: SparkSession, stream: Stream) -> None:
        stream.write(10)
        using = f"using {stream.format} options (servers '{stream.servers}', subscribe '{stream.name}')"
        spark.sql(f"create or replace temporary view t_rows {using}")
        assert spark.sql("select count(*) as n from t_rows").first() == (10,)
        with pytest.raises(PySparkException, match="use CREATE TEMPORARY VIEW"):
            spark.sql(f"create table t_table {using}")


class TestStream:
    def test_run_after_run(self, spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
        query = Query(stream.follow(spark, startingOffsets="earliest", maxOffsetsPerTrigger=70), tmp_path)
        for count in (0, 200, 0, 100):
            if count:
                stream.write(count)
            query.run()
            if stream.written:
                assert query.numbers(spark) == stream.numbers

    def test_a_crash_in_the_first_batch_skips_nothing(
        self, spark: SparkSession, stream: Stream, tmp_path: Path
    ) -> None:
        """It began at "latest"; when Spark asks again, that is a later one."""
        stream.write(50)
        query = (
            stream.follow(spark).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        )

        def begun() -> StreamingQuery:
            started: StreamingQuery = query.start()
            started.processAllAvailable()
            return started

        running = patiently(begun)
        try:
            stream.write(10)
            running.processAllAvailable()
        finally:
            running.stop()
        # Batch 0 may have been empty, and the messages may have come in two. As if the first batch with any
        # had never ended: its commit is gone, and so is all after it.
        offsets = sorted((tmp_path / "c" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        ends = [json.loads(path.read_text().splitlines()[-1])["offsets"][stream.name] for path in offsets]
        assert sum(ends[-1].values()) == 60
        first = next(path for path, end in zip(offsets, ends, strict=True) if sum(end.values()) > 50)
        for path in (tmp_path / "c" / "commits").glob("*"):
            path.unlink()
        for path in offsets:
            if path != first:
                path.unlink()
        first.rename(first.with_name("0"))
        for path in (tmp_path / "c" / "offsets").glob(".*.crc"):
            path.unlink()
        stream.write(5)
        again = Query(stream.follow(spark), tmp_path)
        again.checkpoint = tmp_path / "c"
        again.run()
        assert again.numbers(spark) == list(range(50, 65))

    def test_a_batch_that_was_not_committed_comes_again(
        self, spark: SparkSession, stream: Stream, tmp_path: Path
    ) -> None:
        stream.write(100)
        query = Query(stream.follow(spark, startingOffsets="earliest", maxOffsetsPerTrigger=40), tmp_path)
        query.run()
        newest = max((query.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        newest.unlink()
        stream.write(10)
        query.run()
        # Spark's file sink knows the batches that it has written.
        assert query.numbers(spark) == stream.numbers

    def test_the_lag_is_in_the_progress(self, spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
        stream.write(30)
        frame = stream.follow(spark, startingOffsets="earliest", maxOffsetsPerTrigger=10)

        def progress() -> list[Any]:
            query = frame.writeStream.format("noop").trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(300)
                return [*query.recentProgress, query.lastProgress]
            finally:
                query.stop()

        *found, last = [lag(one) for one in patiently(progress)]
        behind = [sum(row.rows for row in rows) for rows in found]
        assert 0 < behind[0] < 30
        assert behind == sorted(behind, reverse=True)
        assert {(row.source, row.stream) for rows in found for row in rows} == {(0, stream.name)}
        assert all(sum(row.end for row in rows) == 30 for rows in (*found, last))
        assert [row.rows for row in last] == [0] * len(last)


class TestLoss:
    @pytest.fixture
    def purged(self, spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path) -> Stream:
        """A stream whose retention has passed the checkpoint of a query."""
        make_stream(nats.url, name)
        stream = Stream("jetstream", nats.url, name)
        stream.write(10)
        Query(stream.follow(spark, startingOffsets="earliest"), tmp_path).run()
        stream.write(10)
        with_jetstream(nats.url, lambda js: js.purge_stream(name, seq=16))
        return stream

    def test_loss_ends_the_query(self, spark: SparkSession, purged: Stream, tmp_path: Path) -> None:
        with pytest.raises(PySparkException, match="message 10 is gone, the oldest is 15"):
            Query(purged.follow(spark), tmp_path).run()

    def test_loss_is_passed_over_without_fail_on_data_loss(
        self, spark: SparkSession, purged: Stream, tmp_path: Path
    ) -> None:
        query = Query(purged.follow(spark, failOnDataLoss=False), tmp_path)
        query.run()
        assert query.numbers(spark) == [*range(10), *range(15, 20)]
