"""Cores of Spark's sources and sinks, on real servers, without Spark. tests/spark has the rest."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import nats
import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope._backoff import Patience
from liftenvelope.bulk import RetentionError, WriteFailedError
from liftenvelope.bulk.writing import TableWrite
from liftenvelope.errors import NoSuchStreamError, StreamNotFoundError, TransportError, UsageError
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.spark import _topics, _writing
from liftenvelope.spark._broker import SourceBroker, read_span
from liftenvelope.spark._options import SourceOptions, sink_options, source_options
from liftenvelope.spark._planning import Extents, Span
from liftenvelope.spark._source_cores import BatchSource, StreamingSource
from liftenvelope.spark._writing import TaskWritten, write_task
from liftenvelope.spark.errors import DataLossError, OptionError
from liftenvelope.testing import LiftbridgeCluster, NatsServer, run_liftbridge, run_nats_server
from tests.integration.bulk_streams import BulkThreads, jetstream, make_stream, with_jetstream


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        yield running


@pytest.fixture
def url(server: NatsServer, name: str) -> str:
    """URL of a server that has an empty stream with the name of the test."""
    make_stream(server.url, name)
    return server.url


@pytest.fixture
def address(liftbridge_server: LiftbridgeCluster, name: str) -> str:
    """Likewise, of two partitions."""
    liftbridge_server.create_stream(name, partitions=2)
    return liftbridge_server.addresses[0]


def fill(servers: str, name: str, first: int, stop: int) -> None:
    """Numbers as values; in Liftbridge the even ones go to partition 0."""
    columns: dict[str, Any] = {"value": [b"%d" % i for i in range(first, stop)]}
    if servers.startswith("nats"):
        bulk.write(servers, name, pa.table(columns), subject=f"{name}.x")
        return
    columns["partition"] = pa.array([i % 2 for i in range(first, stop)], pa.int32())
    bulk.write(servers, name, pa.table(columns))


def options(servers: str, name: str, *, streaming: bool = True, **given: object) -> SourceOptions:
    format_ = "jetstream" if servers.startswith("nats") else "liftbridge"
    return source_options(format_, {"servers": servers, "subscribe": name, **given}, streaming=streaming)


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(value) for batch in batches for value in batch["value"].to_pylist()]


def values_of(spans: list[Span], source: BatchSource | StreamingSource) -> list[int]:
    return sorted(number for span in spans for number in numbers(source.read(span)))


class TestBatch:
    @pytest.mark.parametrize("servers", ["url", "address"])
    def test_parts_are_the_whole(self, servers: str, name: str, request: pytest.FixtureRequest) -> None:
        where: str = request.getfixturevalue(servers)
        source = BatchSource(options(where, name, streaming=False, minPartitions=7))
        assert source.spans() == []
        fill(where, name, 0, 100)
        spans = source.spans()
        assert len(spans) >= 7
        assert values_of(spans, source) == list(range(100))

    def test_by_time(self, url: str, name: str) -> None:
        fill(url, name, 0, 3)
        rows = bulk.read(url, name).read_all()
        time.sleep(0.01)
        moment = time.time_ns() // 1_000_000
        fill(url, name, 3, 5)
        after = BatchSource(options(url, name, streaming=False, startingTimestamp=moment))
        assert values_of(after.spans(), after) == [3, 4]
        before = BatchSource(options(url, name, streaming=False, endingTimestamp=moment))
        assert values_of(before.spans(), before) == [0, 1, 2]
        late = options(url, name, streaming=False, startingTimestamp=moment + 3_600_000)
        with pytest.raises(OptionError, match="startingOffsetsByTimestampStrategy=latest"):
            BatchSource(late).spans()
        assert rows.num_rows == 3

    def test_offsets_of_jetstream_are_sequences_less_1(self, url: str, name: str) -> None:
        fill(url, name, 0, 5)
        given = {"startingOffsets": f'{{"{name}": 2}}', "endingOffsets": f'{{"{name}": {{"0": 4}}}}'}
        source = BatchSource(options(url, name, streaming=False, **given))
        (batch,) = [batch for span in source.spans() for batch in source.read(span)]
        assert batch["offset"].to_pylist() == [2, 3]
        assert with_jetstream(url, lambda js: js.get_msg(name, 3)).data == batch["value"][0].as_py()

    def test_no_such_stream(self, url: str, address: str) -> None:
        with pytest.raises(StreamNotFoundError):
            BatchSource(options(url, "nowhere", streaming=False)).spans()
        with pytest.raises(NoSuchStreamError):
            BatchSource(options(address, "nowhere", streaming=False)).spans()

    def test_a_place_in_a_partition_that_there_is_not(self, address: str, name: str) -> None:
        given = options(address, name, startingOffsets=f'{{"{name}": {{"0": 0, "1": 0, "2": 0}}}}')
        with pytest.raises(OptionError, match=r"\[2\], which is not read; leave it out"):
            StreamingSource(given).initial()

    @pytest.mark.parametrize("servers", ["url", "address"])
    def test_a_beginning_beyond_the_end(
        self, servers: str, name: str, request: pytest.FixtureRequest
    ) -> None:
        where: str = request.getfixturevalue(servers)
        fill(where, name, 0, 4)
        format_, end = ("jetstream", 4) if servers == "url" else ("liftbridge", 2)
        given = {
            "servers": where,
            "assign": f'{{"{name}": [0]}}',
            "startingOffsets": f'{{"{name}": {end + 1}}}',
        }
        batch = BatchSource(source_options(format_, given, streaming=False))
        stream = StreamingSource(source_options(format_, given, streaming=True))
        for work in (batch.spans, stream.initial):
            with pytest.raises(OptionError, match=f"must be at most {end}, .*, got {end + 1}"):
                work()
        lenient = source_options(format_, {**given, "failOnDataLoss": "false"}, streaming=False)
        assert BatchSource(lenient).spans() == []

    def test_one_partition(self, address: str, name: str) -> None:
        fill(address, name, 0, 10)
        given = {"servers": address, "assign": f'{{"{name}": [1]}}'}
        source = BatchSource(source_options("liftbridge", given, streaming=False))
        assert values_of(source.spans(), source) == [1, 3, 5, 7, 9]


class TestStream:
    @pytest.mark.parametrize("servers", ["url", "address"])
    def test_batch_after_batch(self, servers: str, name: str, request: pytest.FixtureRequest) -> None:
        where: str = request.getfixturevalue(servers)
        fill(where, name, 0, 10)
        source = StreamingSource(options(where, name, maxOffsetsPerTrigger=4))
        start = source.initial()
        fill(where, name, 10, 20)
        assert source.initial() == start  # "latest" stays where it was
        found: list[int] = []
        while (end := source.latest(start, limited=True)) != start:
            spans = source.spans(start, end)
            assert sum(span.stop - span.start for span in spans) <= 4
            # What reads is another process, and what a restart knows is the end alone.
            found += values_of(spans, pickle.loads(pickle.dumps(source)))
            assert source.spans({"anything": "else"}, end) == spans
            start = end
        assert sorted(found) == list(range(10, 20))
        assert source.newest()["offsets"] == start["offsets"]
        source.close()
        assert source.latest(start, limited=True) == start

    def test_to_where_it_ends_now(self, url: str, name: str) -> None:
        source = StreamingSource(options(url, name, startingOffsets="earliest"))
        fill(url, name, 0, 5)
        source.stop_here()
        fill(url, name, 5, 9)
        start = source.initial()
        end = source.latest(start, limited=False)
        assert values_of(source.spans(start, end), source) == list(range(5))
        assert source.latest(end, limited=False) == end

    def test_deleted_messages_are_no_loss(self, url: str, name: str) -> None:
        fill(url, name, 0, 10)
        for sequence in (4, 10):
            with_jetstream(url, lambda js, seq=sequence: js.delete_msg(name, seq))  # type: ignore[misc]
        source = BatchSource(options(url, name, streaming=False, minPartitions=3))
        assert values_of(source.spans(), source) == [0, 1, 2, 4, 5, 6, 7, 8]

    def test_retention(self, url: str, name: str) -> None:
        fill(url, name, 0, 10)
        with_jetstream(url, lambda js: js.purge_stream(name, seq=6))
        span = Span(name, 0, 2, 10)
        with pytest.raises(RetentionError, match="message 2 is gone"):
            list(read_span(options(url, name), span))
        with pytest.warns(RuntimeWarning, match="3 of 8 offsets from 2 were deleted before they were read"):
            assert numbers(read_span(options(url, name, failOnDataLoss=False), span)) == [5, 6, 7, 8, 9]

    def test_deleted_offsets_take_no_batches_of_their_own(self, url: str, name: str) -> None:
        source = StreamingSource(options(url, name, maxOffsetsPerTrigger=10, failOnDataLoss=False))
        start = source.initial()
        fill(url, name, 0, 500)
        with_jetstream(url, lambda js: js.purge_stream(name, seq=491))
        with pytest.warns(RuntimeWarning, match="490 of 490 offsets from 0 were deleted before they were"):
            end = source.latest(start, limited=True)
        assert values_of(source.spans(start, end), source) == list(range(490, 500))
        assert source.latest(end, limited=True) == end
        source.close()

    def test_deletions_of_a_stream_with_holes_are_no_loss(self, url: str, name: str) -> None:
        make_stream(url, f"{name}-K", max_msgs_per_subject=1)
        source = StreamingSource(options(url, f"{name}-K", failOnDataLoss=False))
        start = source.initial()
        fill(url, f"{name}-K", 0, 5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            end = source.latest(start, limited=True)
        assert values_of(source.spans(start, end), source) == [4]
        source.close()

    def test_a_stream_that_was_made_anew(self, url: str, name: str) -> None:
        fill(url, name, 0, 10)
        span = Span(name, 0, 0, 10)
        with_jetstream(url, lambda js: js.delete_stream(name))
        make_stream(url, name)
        fill(url, name, 0, 3)
        with pytest.raises(DataLossError, match="ends at offset 3"):
            list(read_span(options(url, name), span))
        with pytest.warns(RuntimeWarning, match="7 of 10 offsets from 0 were deleted"):
            assert numbers(read_span(options(url, name, failOnDataLoss=False), span)) == [0, 1, 2]

    def test_a_reader_that_is_left_early(self, url: str, name: str) -> None:
        fill(url, name, 0, 30_000)
        threads = BulkThreads()
        reading = read_span(options(url, name), Span(name, 0, 0, 30_000))
        next(reading)
        reading.close()  # type: ignore[attr-defined]
        threads.wait_until_gone()


def create_stream(url: str, name: str, *, allow_batched: bool) -> None:
    """Create a stream with a setting that nats-py does not know."""

    async def create() -> None:
        nc = await nats.connect(url)
        async with JetStream(nc) as js:
            config = StreamConfig(name=name, subjects=(f"{name}.>",), allow_batched=allow_batched)
            await js.create_stream(config)
        await nc.close()

    asyncio.run(create())


def identified(ids: Sequence[str | None]) -> pa.RecordBatch:
    """Rows with a column ``msgId``, whose values are named after their ids."""
    return pa.record_batch({"value": [f"v-{one}" for one in ids], "msgId": pa.array(ids, pa.string())})


class _Hiding(SourceBroker):
    """A broker that shows less than it has for a while: a mock, since a server's crash can't be timed."""

    def __init__(self, given: SourceOptions, ends: list[int]) -> None:
        super().__init__(given)
        self._ends = ends

    def _extents(self, part: tuple[str, int]) -> Extents:
        return Extents(0, self._ends.pop(0) if len(self._ends) > 1 else self._ends[0], 10)


class TestHidden:
    def given(self, wait: str) -> SourceOptions:
        return options("127.0.0.1:1", "s", reconnectWait=wait)

    def test_what_does_not_show_is_waited_for(self) -> None:
        broker = _Hiding(self.given("60s"), [0, 5, 10])
        broker.await_readable(Span("s", 0, 0, 10))
        assert broker._ends == [10]

    def test_not_for_ever(self) -> None:
        broker = _Hiding(self.given("1ms"), [5])
        with pytest.raises(TransportError, match="shows only 5 of 10"):
            broker.await_readable(Span("s", 0, 0, 10))

    def test_a_read_that_came_short_is_no_success(self) -> None:
        broker = _Hiding(self.given("1ms"), [5])
        broker.check_whole(Span("s", 0, 2, 10), 8)
        with pytest.raises(TransportError, match="read 5 of 8 offsets from 2"):
            broker.check_whole(Span("s", 0, 2, 10), 5)


@pytest.fixture
def retrying(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the threads in which a request failed and will be repeated."""
    names: set[str] = set()
    failed = Patience.failed

    def noted(patience: Patience, now: float) -> float | None:
        pause = failed(patience, now)
        if pause is not None:
            names.add(threading.current_thread().name)
        return pause

    monkeypatch.setattr(Patience, "failed", noted)
    return names


def wait_for_retries(retrying: set[str], **works: Future[Any]) -> None:
    """Poll until these works, named after their threads, have failed once and go on."""
    end = time.monotonic() + 120
    while not retrying.issuperset(works):
        assert time.monotonic() < end, retrying
        assert not any(work.done() for work in works.values())
        time.sleep(0.01)
    assert not any(work.done() for work in works.values())


class TestServerRestarts:
    @pytest.mark.parametrize("kind", ["jetstream", "liftbridge"])
    def test_query_waits_for_a_server_that_restarts(self, kind: str, name: str, retrying: set[str]) -> None:
        with run_nats_server(jetstream=True) if kind == "jetstream" else run_liftbridge() as server:
            if isinstance(server, NatsServer):
                make_stream(server.url, name)
                where = server.url
            else:
                server.create_stream(name)
                where = server.addresses[0]
            bulk.write(where, name, pa.table({"value": [b"0", b"1"], "subject": [f"{name}.x"] * 2}))
            given = options(where, name, startingOffsets="earliest", reconnectWait="120s")
            source = StreamingSource(given)
            start = source.initial()
            end = source.latest(start, limited=False)
            (span,) = source.spans(start, end)
            # A killed Liftbridge server hides its newest messages after its restart.
            if isinstance(server, NatsServer):
                server.kill()
            else:
                server.stop()
            retrying.clear()
            with ThreadPoolExecutor(2, "query") as pool:
                planned = pool.submit(source.latest, start, limited=False)
                read = pool.submit(lambda: numbers(source.read(span)))
                wait_for_retries(retrying, query_0=planned, query_1=read)
                server.start()
                assert planned.result(120) == end
                assert read.result(120) == [0, 1]
            source.close()

    def test_restarted_query_waits_for_its_server(self, name: str, retrying: set[str]) -> None:
        with run_nats_server(jetstream=True) as server:
            make_stream(server.url, name)
            fill(server.url, name, 0, 2)
            given = options(server.url, name, startingOffsets="earliest", reconnectWait="120s")
            with closing(StreamingSource(given)) as first:
                end = first.latest(first.initial(), limited=False)
            server.kill()
            retrying.clear()
            with closing(StreamingSource(given)) as source, ThreadPoolExecutor(1, "query") as pool:
                planned = pool.submit(source.latest, end, limited=False)
                wait_for_retries(retrying, query_0=planned)
                server.start()
                assert planned.result(120) == end

    def test_new_query_fails_at_once_without_a_server(self, name: str) -> None:
        source = StreamingSource(options("nats://127.0.0.1:1", name, reconnectWait="600s"))
        begun = time.monotonic()
        with pytest.raises(TransportError):
            source.initial()
        assert time.monotonic() - begun < 60

    def test_query_fails_after_reconnect_wait(self, name: str) -> None:
        with run_nats_server(jetstream=True) as server:
            make_stream(server.url, name)
            source = StreamingSource(options(server.url, name, reconnectWait="500ms"))
            start = source.initial()
            server.kill()
            begun = time.monotonic()
            with pytest.raises(TransportError):
                source.latest(start, limited=False)
            assert time.monotonic() - begun >= 0.5
            source.close()


class Topics:
    """Streams to write to by the column ``topic``."""

    def __init__(self, where: str, name: str, cluster: LiftbridgeCluster | None) -> None:
        self.where = where
        self.names = [f"{name}-{i}" for i in range(4)]
        self.format = "jetstream" if cluster is None else "liftbridge"
        self.sink = sink_options(self.format, {"servers": where}, streaming=False)
        for one in self.names:
            if cluster is None:
                make_stream(where, one)
            else:
                cluster.create_stream(one)

    def rows(self, numbers: Sequence[int], names: Sequence[str] | None = None) -> pa.RecordBatch:
        topics = [self.names[i % 4] for i in numbers] if names is None else list(names)
        columns = {"value": [str(i) for i in numbers], "topic": topics}
        return pa.record_batch({**columns, "subject": [f"{topic}.x" for topic in topics]})

    def stored(self, name: str) -> list[int]:
        found = bulk.read(self.where, name, columns=["value"]).read_all()["value"].to_pylist()
        return [int(value) for value in found]


@pytest.fixture(params=["jetstream", "liftbridge"])
def topics(request: pytest.FixtureRequest, url: str, name: str) -> Topics:
    if request.param == "jetstream":
        return Topics(url, name, None)
    cluster: LiftbridgeCluster = request.getfixturevalue("liftbridge_server")
    return Topics(cluster.addresses[0], name, cluster)


class TestTopics:
    def opened(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Names of the streams that a task connects for."""
        found = []

        def make(source: Any, stream: str, **given: Any) -> TableWrite:
            found.append(stream)
            return TableWrite(source, stream, **given)

        monkeypatch.setattr(_writing, "TableWrite", make)
        return found

    def test_each_stream_has_one_connection(self, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = self.opened(monkeypatch)
        batches = [topics.rows(range(first, first + 40)) for first in range(0, 200, 40)]
        assert write_task(topics.sink, batches, None) == TaskWritten(200, 490, 0)
        assert opened == topics.names
        for i, name in enumerate(topics.names):
            assert topics.stored(name) == list(range(i, 200, 4))

    def test_open_connections_are_limited(self, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = self.opened(monkeypatch)
        monkeypatch.setattr(_topics, "_OPEN", 2)
        batches = [topics.rows(range(first, first + 8)) for first in range(0, 24, 8)]
        assert write_task(topics.sink, batches, None).rows == 24
        # Two per batch were open already.
        assert len(opened) == 4 + 2 + 2
        for i, name in enumerate(topics.names):
            assert topics.stored(name) == list(range(i, 24, 4))

    def test_idle_connections_are_closed(self, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = self.opened(monkeypatch)
        monkeypatch.setattr(_topics, "_IDLE", 0.0)
        assert write_task(topics.sink, [topics.rows(range(4)), topics.rows(range(4, 8))], None).rows == 8
        assert opened == topics.names * 2
        assert topics.stored(topics.names[1]) == [1, 5]

    def test_rows_of_other_streams_are_stored_when_one_fails(self, topics: Topics, name: str) -> None:
        first, second, *_ = topics.names
        nowhere = f"{name}-none"
        batches = [
            topics.rows(range(8)),
            topics.rows(range(8, 11), [first, nowhere, second]),
            topics.rows(range(11, 12)),
        ]
        with pytest.raises((StreamNotFoundError, NoSuchStreamError), match=nowhere):
            write_task(topics.sink, batches, None)
        assert topics.stored(first) == [0, 4, 8]
        assert topics.stored(second) == [1, 5, 10]


class TestSinks:
    def test_no_rows(self) -> None:
        given = sink_options("jetstream", {"servers": "127.0.0.1:1", "topic": "S"}, streaming=True)
        assert write_task(given, [], None) == TaskWritten()
        with pytest.raises(TransportError):
            write_task(given, [], None, is_first=True)
        by_column = sink_options("jetstream", {"servers": "127.0.0.1:1"}, streaming=True)
        assert write_task(by_column, [], None, is_first=True) == TaskWritten()

    @pytest.mark.parametrize(
        ("format_", "error"), [("jetstream", StreamNotFoundError), ("liftbridge", NoSuchStreamError)]
    )
    def test_first_task_checks_the_stream_without_rows(
        self, url: str, address: str, name: str, format_: str, error: type[Exception]
    ) -> None:
        given = {"servers": url if format_ == "jetstream" else address, "topic": name}
        sink = sink_options(format_, given, streaming=False)
        assert write_task(sink, [], None, is_first=True) == TaskWritten()
        nowhere = sink_options(format_, {**given, "topic": f"{name}-none"}, streaming=False)
        assert write_task(nowhere, [], None) == TaskWritten()
        with pytest.raises(error, match="-none"):
            write_task(nowhere, [], None, is_first=True)

    def test_each_row_once(self, url: str, name: str) -> None:
        given = {"servers": url, "topic": name, "subject": f"{name}.x"}
        sink = sink_options("jetstream", given, streaming=True)
        batches = [pa.record_batch({"value": ["1", "2"]}), pa.record_batch({"value": ["3"]})]
        assert write_task(sink, batches, "query:0:1") == TaskWritten(3, 3, 0)
        # The same rows in batches of another size.
        again = [pa.record_batch({"value": [text]}) for text in "123"]
        assert write_task(sink, again, "query:0:1") == TaskWritten(3, 3, 3)
        assert write_task(sink, again, "query:1:1") == TaskWritten(3, 3, 0)

    @pytest.mark.parametrize("kind", ["list", "map"])
    def test_headers_and_ids(self, url: str, name: str, kind: str) -> None:
        sink = sink_options("jetstream", {"servers": url, "topic": name}, streaming=False)
        rows: list[Any] = [[("A", b"1")], None, []]
        column = pa.array(rows, pa.map_(pa.string(), pa.binary()))
        if kind == "list":
            lists = [row and [{"key": key, "value": value} for key, value in row] for row in rows]
            entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
            column = pa.array(lists, pa.list_(entry))
        batch = pa.record_batch(
            {
                "value": ["1", "2", "3"],
                "headers": column,
                "subject": [f"{name}.x"] * 3,
                "msgId": ["a", "b", "b"],
                "offset": [1, 2, 3],
            }
        )
        assert write_task(sink, [batch.slice(0, 2), batch.slice(2)], None) == TaskWritten(3, 3, 1)
        headers = bulk.read(url, name, columns=["headers"]).read_all()["headers"].to_pylist()
        assert headers == [[("A", b"1"), ("Nats-Msg-Id", b"a")], [("Nats-Msg-Id", b"b")]]

    @pytest.mark.parametrize("batched", [False, True], ids=["plain", "allow_batched"])
    def test_msg_id_column_deduplicates_a_retry_in_another_order(
        self, server: NatsServer, name: str, batched: bool
    ) -> None:
        create_stream(server.url, name, allow_batched=batched)
        given = {"servers": server.url, "topic": name, "subject": f"{name}.x"}
        sink = sink_options("jetstream", {**given, "deliveryGuarantee": "effectively-once"}, streaming=True)
        # Enough rows for fast ingest, which mode "auto" of bulk.write would choose.
        first = [f"id-{i}" for i in range(1_500)]
        retry = ["new", *reversed(first)]
        written = [write_task(sink, [identified(ids)], "query:0:0") for ids in (first, retry)]
        assert [(done.rows, done.duplicates) for done in written] == [(1_500, 0), (1_501, 1_500)]
        found = bulk.read(server.url, name).read_all().to_pylist()
        assert [row["headers"] for row in found] == [
            [("Nats-Msg-Id", row["value"].removeprefix(b"v-"))] for row in found
        ]
        assert sorted(row["value"].decode() for row in found) == sorted(f"v-{one}" for one in retry)

    @pytest.mark.parametrize("missing", [None, ""])
    def test_row_without_msg_id_is_refused(self, url: str, name: str, missing: str | None) -> None:
        given = {"servers": url, "topic": name, "subject": f"{name}.x"}
        sink = sink_options("jetstream", given, streaming=False)
        expected = "2 rows are stored, and no more: row 3 of the task has no msgId; set one in every row"
        with pytest.raises(WriteFailedError, match=expected):
            write_task(sink, [identified(["a", "b"]), identified(["c", missing])], None)

    def test_a_header_without_a_name(self, url: str, name: str) -> None:
        """Arrow would end the process for a map with such a key."""
        given = {"servers": url, "topic": name, "subject": f"{name}.x"}
        entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
        lists = pa.array([[{"key": None, "value": b"1"}]], pa.list_(entry))
        batch = pa.record_batch({"value": ["1"], "headers": lists})
        with pytest.raises(UsageError, match="a row has a header without a name"):
            write_task(sink_options("jetstream", given, streaming=False), [batch], None)

    @pytest.mark.parametrize("once", ["at-least-once", "effectively-once"])
    def test_into_a_stream_that_there_is_not(self, url: str, once: str) -> None:
        given = {"servers": url, "topic": "NONE", "subject": "x", "deliveryGuarantee": once}
        with pytest.raises(StreamNotFoundError, match="there is no stream 'NONE'"):
            write_task(
                sink_options("jetstream", given, streaming=True), [pa.record_batch({"value": ["1"]})], "q:0:0"
            )

    def test_headers_can_be_left_out(self, url: str, name: str) -> None:
        given = {"servers": url, "topic": name, "subject": f"{name}.x", "includeHeaders": False}
        headers = pa.array([[("A", b"1")]], pa.map_(pa.string(), pa.binary()))
        batch = pa.record_batch({"value": ["1"], "headers": headers})
        write_task(sink_options("jetstream", given, streaming=False), [batch], None)
        assert bulk.read(url, name).read_all()["headers"].to_pylist() == [[]]

    def test_streams_by_column(self, address: str, name: str, liftbridge_server: LiftbridgeCluster) -> None:
        other = f"{name}-2"
        liftbridge_server.create_stream(other)
        sink = sink_options("liftbridge", {"servers": address}, streaming=False)
        batch = pa.record_batch({"value": ["1", "2", "3"], "topic": [other, name, other]})
        assert write_task(sink, [batch], None).rows == 3
        assert bulk.read(address, other, columns=["value"]).read_all()["value"].to_pylist() == [b"1", b"3"]
        nowhere = pa.record_batch({"value": ["1"], "topic": pa.array([None], pa.string())})
        with pytest.raises(UsageError, match="a row has no topic"):
            write_task(sink, [nowhere], None)
