"""Bulk reads of JetStream streams, on a real server."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import trustme
from nats.js import JetStreamContext

from liftenvelope import bulk
from liftenvelope.bulk import Access, Gap, Progress, RetentionError
from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
from liftenvelope.bulk._jetstream.source import JetStreamSource
from liftenvelope.bulk.access import find_target
from liftenvelope.bulk.ranges import Extent
from liftenvelope.client.positions import Timestamp
from liftenvelope.envelope import new_message
from liftenvelope.errors import (
    NoJetStreamError,
    NoSuchPartitionError,
    PermissionDeniedError,
    StreamMessageTooLargeError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port
from tests.integration.bulk_streams import (
    BulkThreads,
    by_bulk,
    by_nats_py,
    jetstream,
    make_stream,
    numbered,
    offsets,
    publish,
    wait_for,
    with_jetstream,
)
from tests.integration.certificates import trusting
from tests.integration.credentials_files import new_nkey, write_credentials

COUNT = 2_000


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream(max_payload=9 * 1024 * 1024) as running:
        make_stream(running.url, "numbers")
        publish(running.url, numbered("numbers", COUNT))
        make_stream(running.url, "empty")
        make_stream(running.url, "one")
        publish(running.url, [("one.x", b"only", None)])
        yield running


def test_rows_are_those_of_an_ordinary_client(url: str, name: str) -> None:
    make_stream(url, name)
    headers = [None, {"A": "1"}, {"B": "two", "C": "x" * 300}, {"Empty": ""}]
    items = [(f"{name}.{i % 7}", bytes([i % 256]) * (i % 50), headers[i % 4]) for i in range(500)]
    publish(url, items)
    table = bulk.read(url, name).read_all()
    assert by_bulk(table) == by_nats_py(url, name, 500)
    assert [value for _, value, _ in items] == table["value"].to_pylist()


def test_schema(url: str) -> None:
    reader = bulk.read(url, "numbers", envelope="columns")
    words, headers = pa.dictionary(pa.int32(), pa.string()), pa.map_(pa.string(), pa.binary())
    kinds = {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": headers,
        "offset": pa.uint64(),
        "timestamp": pa.timestamp("ns", "UTC"),
        "partition": pa.int32(),
        "subject": words,
        "ack_inbox": words,
        "correlation_id": pa.string(),
        "ack_policy": pa.int32(),
        "expected_offset": pa.int64(),
    }
    assert {field.name: field.type for field in reader.schema} == kinds
    table = reader.read_all()
    table.validate(full=True)
    assert table["partition"].unique().to_pylist() == [0]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        ("earliest", None, range(COUNT)),
        ("earliest", "latest", range(COUNT)),
        (0, COUNT, range(COUNT)),
        (0, 0, range(0)),
        (0, 1, range(1)),
        (17, 18, range(17, 18)),
        (500, 1500, range(500, 1500)),
        (COUNT - 1, None, range(COUNT - 1, COUNT)),
        ("latest", None, range(COUNT - 1, COUNT)),
        ("new", None, range(0)),
        (COUNT, None, range(0)),
        (COUNT + 10, None, range(0)),
        (10, COUNT * 5, range(10, COUNT)),
        (timedelta(days=1), None, range(COUNT)),
        (datetime(2000, 1, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC), range(0)),
        (0, datetime(2200, 1, 1, tzinfo=UTC), range(COUNT)),
    ],
)
def test_ranges_are_exact(url: str, start: Any, stop: Any, expected: range) -> None:
    assert offsets(bulk.read(url, "numbers", start=start, stop=stop).read_all()) == list(expected)
    assert bulk.count(url, "numbers", start=start, stop=stop) == len(expected)


def test_moments(url: str) -> None:
    times = (
        bulk.read(url, "numbers", columns=["timestamp"]).read_all()["timestamp"].cast(pa.int64()).to_pylist()
    )
    start, stop = Timestamp(times[700]), Timestamp(times[900])
    first, last = times.index(times[700]), times.index(times[900])
    assert offsets(bulk.read(url, "numbers", start=start, stop=stop).read_all()) == list(range(first, last))


def test_an_empty_stream(url: str) -> None:
    table = bulk.read(url, "empty").read_all()
    assert table.num_rows == 0
    assert table.schema.names[0] == "key"
    assert bulk.count(url, "empty") == 0


def test_one_message(url: str) -> None:
    assert bulk.read(url, "one").read_all()["value"].to_pylist() == [b"only"]


def test_batches_are_bounded(url: str) -> None:
    by_rows = [batch.num_rows for batch in bulk.read(url, "numbers", batch_rows=300)]
    assert by_rows == [300] * 6 + [200]
    by_bytes = list(bulk.read(url, "numbers", batch_bytes=1000))
    assert sum(batch.num_rows for batch in by_bytes) == COUNT
    assert max(sum(map(len, batch["value"].to_pylist())) for batch in by_bytes) < 1000 + 30


def test_only_the_columns_that_are_wanted(url: str) -> None:
    table = bulk.read(url, "numbers", columns=["offset", "value"], stop=3).read_all()
    assert table.column_names == ["offset", "value"]
    assert table["value"].to_pylist()[2].startswith(b"2.")
    assert (
        bulk.read(url, "numbers", columns=["partition"], stop=3).read_all().to_pylist()
        == [{"partition": 0}] * 3
    )


@pytest.mark.parametrize("parallel", [2, 4])
def test_ranges_in_several_threads(url: str, parallel: int) -> None:
    reader = bulk.read(url, "numbers", parallel=parallel, batch_rows=100)
    batches = [batch["offset"].to_pylist() for batch in reader]
    assert sorted(offset for batch in batches for offset in batch) == list(range(COUNT))
    assert all(batch == sorted(batch) for batch in batches)


def test_large_messages(url: str, name: str) -> None:
    make_stream(url, name)
    sizes = [8 * 1024 * 1024, 1, 0, 3 * 1024 * 1024, 70_000, 8 * 1024 * 1024]
    publish(url, [(f"{name}.x", bytes([i]) * size, {"N": str(i)}) for i, size in enumerate(sizes)])
    table = bulk.read(url, name).read_all()
    assert [len(value) for value in table["value"].to_pylist()] == sizes
    assert table["value"].to_pylist()[5] == b"\5" * sizes[5]


def test_messages_that_are_older_than_the_limit(tmp_path: Path) -> None:
    config = {"jetstream": {"store_dir": str(tmp_path)}}
    sizes = [3, 20_000_000, 100, 9_000_000, 5]
    with run_nats_server(config={**config, "max_payload": 32 * 1024 * 1024}) as server:
        make_stream(server.url, "s")
        publish(server.url, [("s.x", bytes(size), None) for size in sizes])
    with run_nats_server(config=config) as server:
        values = bulk.read(server.url, "s").read_all()["value"].to_pylist()
        assert [len(value) for value in values] == sizes


def test_pulls_stay_as_large_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pulls that were sent together end together, with all that they may bring: that is all."""
    asked: list[int] = []
    real = NatsSocket.publish

    def publish_and_note(
        link: NatsSocket, subject: str, payload: bytes, reply: str = "", deadline: float | None = None
    ) -> None:
        if "CONSUMER.MSG.NEXT" in subject:
            asked.append(json.loads(payload)["max_bytes"])
        real(link, subject, payload, reply, deadline)

    monkeypatch.setattr(NatsSocket, "publish", publish_and_note)
    with jetstream() as server:
        make_stream(server.url, name)
        publish(server.url, [(f"{name}.x", bytes(100_000), None)] * 600)
        rows = 0
        for batch in bulk.read(server.url, name, batch_bytes=4 * 1024 * 1024):
            rows += batch.num_rows
            time.sleep(0.1)  # so that all that was asked for has come before more is
    assert rows == 600
    assert len(asked) > 4
    assert len(set(asked)) == 1


class TestEnvelopes:
    def fill(self, url: str, name: str) -> None:
        make_stream(url, name)
        envelope = new_message(
            b"inside", key=b"k", headers={"A": b"envelope"}, ack_inbox="in.box", correlation_id="id", crc=True
        )
        broken = envelope[:-1]
        headers = {"A": "nats", "B": "nats"}
        publish(url, [(f"{name}.x", data, headers) for data in (envelope, broken, b"plain")])
        self.envelope, self.broken = envelope, broken

    def test_left_as_they_are(self, url: str, name: str) -> None:
        self.fill(url, name)
        table = bulk.read(url, name).read_all()
        assert table["value"].to_pylist() == [self.envelope, self.broken, b"plain"]
        assert table["key"].to_pylist() == [None, None, None]

    def test_taken_off(self, url: str, name: str) -> None:
        self.fill(url, name)
        table = bulk.read(url, name, envelope="strip").read_all()
        assert table["value"].to_pylist() == [b"inside", self.broken, b"plain"]
        assert table["key"].to_pylist() == [b"k", None, None]
        assert [dict(row) for row in table["headers"].to_pylist()] == [
            {"A": b"envelope", "B": b"nats"},
            {"A": b"nats", "B": b"nats"},
            {"A": b"nats", "B": b"nats"},
        ]

    def test_in_columns(self, url: str, name: str) -> None:
        self.fill(url, name)
        table = bulk.read(url, name, envelope="columns").read_all()
        assert table["ack_inbox"].to_pylist() == ["in.box", None, None]
        assert table["correlation_id"].to_pylist() == ["id", None, None]
        assert table["ack_policy"].to_pylist() == [0, None, None]
        assert table["expected_offset"].to_pylist() == [-1, None, None]


class TestGaps:
    def test_deleted_messages_are_gaps(self, url: str, name: str) -> None:
        make_stream(url, name)
        publish(url, numbered(name, 30))

        async def delete(js: JetStreamContext) -> None:
            for sequence in (6, 7, 8, 20, 30):
                await js.delete_msg(name, sequence)

        with_jetstream(url, delete)
        gaps: list[Gap] = []
        table = bulk.read(url, name, on_gap=gaps.append).read_all()
        gone = {5, 6, 7, 19, 29}
        assert offsets(table) == [i for i in range(30) if i not in gone]
        assert gaps == [Gap(0, 5, 8), Gap(0, 19, 20), Gap(0, 29, 30)]
        assert bulk.count(url, name) == 25
        assert bulk.count(url, name, start=5, stop=20) == 11
        assert offsets(bulk.read(url, name, start=5, stop=8).read_all()) == []

    def test_purged_subject_leaves_gaps(self, url: str, name: str) -> None:
        make_stream(url, name)
        publish(url, numbered(name, 300))

        async def purge(js: JetStreamContext) -> None:
            await js.purge_stream(name, subject=f"{name}.1")

        with_jetstream(url, purge)
        missing: list[Gap] = []
        table = bulk.read(url, name, on_gap=missing.append, batch_rows=7).read_all()
        assert offsets(table) == [i for i in range(300) if i % 3 != 1]
        assert missing == [Gap(0, i, i + 1) for i in range(1, 300, 3)]

    def test_stream_with_one_message_per_subject_has_no_gap_at_its_start(self, url: str, name: str) -> None:
        make_stream(url, name, max_msgs_per_subject=1)
        publish(url, [(f"{name}.{i % 10}", b"%d" % i, None) for i in range(105)])
        assert offsets(bulk.read(url, name).read_all()) == list(range(95, 105))
        # Its beginning is anywhere: nothing that was lost.
        assert offsets(bulk.read(url, name, start=3).read_all()) == list(range(95, 105))

    def test_hole_is_no_loss_after_retention_has_taken_the_rows_beside_it(self, url: str, name: str) -> None:
        """The rows were received long before their batch is full."""
        make_stream(url, name)
        publish(url, numbered(name, 3))
        with_jetstream(url, lambda js: js.delete_msg(name, 2))
        was_asked, extent = threading.Event(), JetStreamSource.extent

        def note(source: JetStreamSource, partition: int) -> Extent:
            found = extent(source, partition)
            if threading.current_thread().name == "liftenvelope-bulk":
                was_asked.set()
            return found

        with patch.object(JetStreamSource, "extent", note):
            reader = bulk.tail(url, name, start="earliest", batch_rows=5, batch_seconds=3_600)
            assert was_asked.wait(60)
        with_jetstream(url, lambda js: js.purge_stream(name))
        publish(url, numbered(name, 3))
        assert offsets(pa.Table.from_batches([reader.read_next_batch()])) == [0, 2, 3, 4, 5]

    def test_loss_ends_a_tail_before_its_batch_is_full(self, url: str, name: str) -> None:
        make_stream(url, name, max_msgs=40)
        publish(url, numbered(name, 1))
        with FaultProxy(url) as proxy, ThreadPoolExecutor() as threads:
            reader = bulk.tail(f"nats://{proxy.address}", name, start="earliest", batch_seconds=3_600)
            proxy.refuse()
            proxy.cut()
            publish(url, numbered(name, 100))
            proxy.accept()
            reading = threads.submit(reader.read_all)
            with pytest.raises(RetentionError, match="is gone, the oldest is 61"):
                reading.result(60)

    def test_retention_has_passed_the_start(self, url: str, name: str) -> None:
        make_stream(url, name, max_msgs=50)
        publish(url, numbered(name, 80))
        with pytest.raises(RetentionError, match=r"message 10 is gone, the oldest is 30") as caught:
            bulk.read(url, name, start=10)
        assert (caught.value.wanted, caught.value.oldest) == (10, 30)
        assert offsets(bulk.read(url, name, start=10, on_retention="skip").read_all()) == list(range(30, 80))
        assert offsets(bulk.read(url, name).read_all()) == list(range(30, 80))
        assert bulk.count(url, name, start=10) == 50

    def test_retention_passes_a_running_read(self, url: str, name: str) -> None:
        make_stream(url, name)
        publish(url, [(f"{name}.x", bytes(50_000), None) for _ in range(1000)])
        reader = bulk.read(url, name, batch_rows=10)
        reader.read_next_batch()

        async def purge(js: JetStreamContext) -> None:
            await js.purge_stream(name, seq=990)

        with_jetstream(url, purge)
        with pytest.raises(RetentionError):
            reader.read_all()

    def test_messages_that_retention_takes_from_a_running_read_are_logged(
        self, url: str, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        make_stream(url, name)
        publish(url, [(f"{name}.x", bytes(50_000), None) for _ in range(1000)])
        reader = bulk.read(url, name, batch_rows=10, on_retention="skip")
        found = offsets(reader.read_next_batch())
        with_jetstream(url, lambda js: js.purge_stream(name, seq=991))
        found += offsets(reader.read_all())
        missing = sorted({*range(1000)} - {*found})
        assert missing == list(range(missing[0], 990))  # the reader is ahead by what is under way
        lines = [one.message for one in caplog.records if one.name == "liftenvelope.bulk"]
        (line,) = [one for one in lines if "retention took" in one]  # a busy machine may lose a read, too
        text = f"retention took {len(missing)} messages from offset {missing[0]} on before they were read"
        assert line == f"{name}: {text}"

    def test_a_purged_stream_goes_on_where_it_was(self, url: str, name: str) -> None:
        make_stream(url, name)
        publish(url, numbered(name, 10))

        async def purge(js: JetStreamContext) -> None:
            await js.purge_stream(name)

        with_jetstream(url, purge)
        assert bulk.read(url, name).read_all().num_rows == 0
        publish(url, numbered(name, 3))
        assert offsets(bulk.read(url, name).read_all()) == [10, 11, 12]


def test_progress(url: str) -> None:
    seen: list[Progress] = []
    table = bulk.read(url, "numbers", start=100, batch_rows=800, progress=seen.append).read_all()
    assert [(one.rows, one.done, one.total) for one in seen] == [
        (800, 800, 1900),
        (1600, 1600, 1900),
        (1900, 1900, 1900),
    ]
    assert seen[-1].bytes == sum(map(len, table["value"].to_pylist()))


class TestTail:
    def test_what_comes_after_now(self, url: str, name: str) -> None:
        make_stream(url, name)
        publish(url, numbered(name, 5))
        reader = bulk.tail(url, name, batch_seconds=0.1)
        publish(url, numbered(name, 3))
        found: list[int] = []
        while len(found) < 3:
            found += reader.read_next_batch()["offset"].to_pylist()
        assert found == [5, 6, 7]

    def test_from_an_offset_in_batches_by_rows(self, url: str) -> None:
        reader = bulk.tail(url, "numbers", start=10, batch_rows=20, batch_seconds=3600)
        assert reader.read_next_batch()["offset"].to_pylist() == list(range(10, 30))

    def test_from_the_beginning_on(self, url: str, name: str) -> None:
        make_stream(url, name)
        reader = bulk.tail(url, name, start="earliest", batch_seconds=0.05)
        for i in range(3):
            publish(url, [(f"{name}.x", b"%d" % i, None)])
            assert reader.read_next_batch()["value"].to_pylist() == [b"%d" % i]


@pytest.mark.parametrize("seconds", [60, 2])
def test_stream_that_limits_inactive_consumers_is_read_and_counted(url: str, name: str, seconds: int) -> None:
    make_stream(url, name, consumer_limits={"inactive_threshold": seconds * 1_000_000_000})
    publish(url, [(f"{name}.{number % 2}", b"%d" % number, None) for number in range(10)])
    assert offsets(bulk.read(url, name).read_all()) == list(range(10))
    assert bulk.count(url, name, subjects=[f"{name}.1"]) == 5
    assert offsets(next(bulk.tail(url, name, start=8, batch_rows=2))) == [8, 9]


def test_stream_of_a_server_that_limits_the_messages_of_a_pull_is_read(name: str) -> None:
    with jetstream(config={"jetstream": {"limits": {"max_request_batch": 10}}}) as server:
        make_stream(server.url, name)
        publish(server.url, numbered(name, 95))
        assert offsets(bulk.read(server.url, name).read_all()) == list(range(95))
        assert offsets(next(bulk.tail(server.url, name, start=5, batch_rows=90))) == list(range(5, 95))


def test_an_abandoned_reader_leaves_nothing(url: str) -> None:
    threads = BulkThreads()
    reader = bulk.read(url, "numbers", batch_rows=10, parallel=3)
    reader.read_next_batch()
    following = bulk.tail(url, "numbers")
    assert len(threads) > 1
    del reader, following
    threads.wait_until_gone()
    wait_for("the end of the consumers", lambda: consumers_of_numbers(url) == 0)


def consumers_of_numbers(url: str) -> int:
    async def consumers(js: JetStreamContext) -> int:
        return len(await js.consumers_info("numbers"))

    return with_jetstream(url, consumers)


def test_readers_abandoned_while_they_start_leave_no_consumers(url: str) -> None:
    """The request that deletes a consumer must not overtake the one that creates it."""
    for number in range(300):
        following = bulk.tail(url, "numbers")
        time.sleep(number % 6 / 1_000)  # the stop meets each step of the start
        del following
    wait_for("the end of the consumers", lambda: consumers_of_numbers(url) == 0)


def test_an_abandoned_reader_leaves_no_connection(url: str) -> None:
    with FaultProxy(url) as proxy:
        reader = bulk.read(f"nats://{proxy.address}", "numbers", batch_rows=10, parallel=3)
        reader.read_next_batch()
        assert proxy.open_connections > 1
        del reader
        wait_for("the end of the connections", lambda: proxy.open_connections == 0)


def test_four_readers_at_once(url: str) -> None:
    found: list[list[int]] = []

    def read() -> None:
        found.append(offsets(bulk.read(url, "numbers", batch_rows=50).read_all()))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(COUNT))] * 4


class TestErrors:
    def test_no_such_stream(self, url: str) -> None:
        with pytest.raises(StreamNotFoundError):
            bulk.read(url, "nothing")

    def test_no_such_partition(self, url: str) -> None:
        with pytest.raises(NoSuchPartitionError, match="partition 0"):
            bulk.read(url, "numbers", partitions=[0, 1])

    def test_no_jetstream(self) -> None:
        with run_nats_server() as server, pytest.raises(NoJetStreamError, match="has the server JetStream"):
            bulk.read(server.url, "numbers")

    def test_nobody_there(self) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            with pytest.raises(TransportError, match="can't connect"):
                bulk.read(f"nats://127.0.0.1:{held.getsockname()[1]}", "numbers")

    def test_another_server_of_the_list(self, url: str) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            dead = f"nats://127.0.0.1:{held.getsockname()[1]}"
            assert bulk.count([dead, url], "numbers") == COUNT
            assert bulk.read(f"{dead},{url}", "numbers").read_all().num_rows == COUNT

    def test_a_function_that_fails_ends_the_read(self, url: str) -> None:
        def fail(_: Progress) -> None:
            raise ZeroDivisionError

        threads = BulkThreads()
        reader = bulk.read(url, "numbers", progress=fail, batch_rows=10)
        with pytest.raises(ZeroDivisionError):
            reader.read_next_batch()
        threads.wait_until_gone()

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"stop": -1}, "stop must be at least 0, got -1"),
            ({"start": 5, "stop": 4}, "stop must be at least start, 5, got 4"),
            ({"stop": "new"}, "stop must be an offset, a datetime, 'latest' or None, got 'new'"),
            ({"columns": ["offset", "nope"]}, "'nope'"),
            ({"columns": ["ack_inbox"]}, "envelope='columns'"),
            ({"columns": []}, "at least one"),
            ({"envelope": "off"}, "envelope must be one of 'none', 'strip', 'columns', got 'off'"),
            ({"batch_rows": 0}, "batch_rows must be at least 1, got 0"),
            ({"batch_bytes": 2**31}, "got 2147483648"),
            ({"parallel": 0}, "parallel must be at least 1, got 0"),
            ({"partitions": [-1]}, "partitions must be at least 0, got -1"),
            ({"partitions": []}, "at least one"),
            ({"on_retention": "ignore"}, "on_retention must be one of 'raise', 'skip', got 'ignore'"),
            ({"progress": 1}, "progress"),
            ({"access": 1}, "access"),
        ],
    )
    def test_arguments(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(UsageError, match=re.escape(text)):
            bulk.read("nats://127.0.0.1:1", "numbers", **options)


@contextmanager
def cluster_of_two(**config: Any) -> Iterator[tuple[NatsServer, NatsServer]]:
    ports = [free_port(), free_port()]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                run_nats_server(
                    config={
                        "cluster": {"name": "two", "listen": f"127.0.0.1:{port}", "routes": routes},
                        **config,
                    }
                )
            )
            for port in ports
        )
        yield first, second


def check_other_server_is_reached(
    urls: str, access: Access | None, first: NatsServer, second: NatsServer
) -> None:
    """Kill the server of a cluster that the URLs name, and connect to the one that only that server names."""
    source = JetStreamSource(find_target(urls, access), "x")

    def is_named() -> bool:
        with closing(source.connect()) as link:
            return second.address in link.other_addresses

    wait_for("the cluster to name its other server", is_named)
    first.kill()
    with closing(source.connect()) as link:
        assert str(link.address) == second.address


class TestLogin:
    def test_user_and_password(self) -> None:
        config = {"authorization": {"user": "ann", "password": "s3cret/@"}}
        with jetstream(config=config) as server:
            address = server.address
            with pytest.raises(PermissionDeniedError):
                bulk.read(f"nats://{address}", "x")
            with pytest.raises(PermissionDeniedError):
                bulk.read(f"nats://ann:wrong@{address}", "x")
            with pytest.raises(StreamNotFoundError):
                bulk.read(f"nats://ann:s3cret%2F%40@{address}", "x")
            with pytest.raises(StreamNotFoundError):
                bulk.read(server.url, "x", access=Access(user="ann", password="s3cret/@"))

    def test_each_url_has_its_own_login(self) -> None:
        ann = {"authorization": {"user": "ann", "password": "one"}}
        bob = {"authorization": {"user": "bob", "password": "two"}}
        with jetstream(config=ann) as first, jetstream(config=bob) as second:
            first.kill()
            for urls in (
                f"nats://ann:one@{first.address},nats://bob:two@{second.address}",
                f"nats://{first.address},nats://bob:two@{second.address}",
            ):
                with pytest.raises(StreamNotFoundError):
                    bulk.read(urls, "x")

    def test_server_that_the_cluster_names_gets_the_login_of_the_one_that_named_it(self) -> None:
        with cluster_of_two(authorization={"user": "bob", "password": "two"}) as (first, second):
            urls = f"nats://ann:one@127.0.0.1:{free_port()},nats://bob:two@{first.address}"
            check_other_server_is_reached(urls, None, first, second)

    def test_refused_permission_of_a_user_with_a_short_password_is_not_retried(self) -> None:
        denied = {"publish": {"deny": ["$JS.API.STREAM.INFO.>"]}}
        users = [{"user": "ann", "password": "a", "permissions": denied}]
        with (
            jetstream(config={"authorization": {"users": users}}) as server,
            pytest.raises(PermissionDeniedError, match=r"STREAM\.INFO\.x"),
        ):
            bulk.read(f"nats://ann:a@{server.address}", "x")

    def test_token(self) -> None:
        with jetstream(config={"authorization": {"token": "t0ken"}}) as server:
            with pytest.raises(StreamNotFoundError):
                bulk.read(f"nats://t0ken@{server.address}", "x")
            with pytest.raises(StreamNotFoundError):
                bulk.read(server.url, "x", access=Access(token="t0ken"))
            with pytest.raises(PermissionDeniedError):
                bulk.read(server.url, "x", access=Access(token="other"))

    def test_nkey(self, tmp_path: Path) -> None:
        seed, public = new_nkey(b"U")
        (tmp_path / "user.nk").write_text(seed + "\n")
        with jetstream(config={"authorization": {"users": [{"nkey": public}]}}) as server:
            with pytest.raises(StreamNotFoundError):
                bulk.read(server.url, "x", access=Access(nkeys_seed=tmp_path / "user.nk"))
            (tmp_path / "user.nk").write_text(new_nkey(b"U")[0])
            with pytest.raises(PermissionDeniedError):
                bulk.read(server.url, "x", access=Access(nkeys_seed=tmp_path / "user.nk"))
            for content in ("", "no seed"):
                (tmp_path / "user.nk").write_text(content)
                with pytest.raises(UsageError, match="must have a valid seed"):
                    bulk.read(server.url, "x", access=Access(nkeys_seed=tmp_path / "user.nk"))
            with pytest.raises(UsageError, match="must be a file that can be read"):
                bulk.read(server.url, "x", access=Access(nkeys_seed=tmp_path / "missing"))

    def test_credentials_file(self, tmp_path: Path) -> None:
        file = tmp_path / "user.creds"
        config = write_credentials(tmp_path)
        with run_nats_server(config=config) as server:
            with pytest.raises(NoJetStreamError):  # it has none, but it lets us ask
                bulk.read(server.url, "x", access=Access(user_credentials=file))
            with pytest.raises(PermissionDeniedError):
                bulk.read(server.url, "x")
        file.write_text("nothing")
        with run_nats_server() as server, pytest.raises(UsageError, match="must have blocks"):
            bulk.read(server.url, "x", access=Access(user_credentials=file))


@contextmanager
def tls_server(folder: Path) -> Iterator[tuple[NatsServer, ssl.SSLContext]]:
    """A server that requires TLS, and a context that trusts its certificate."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    config = {"tls": {"cert_file": str(folder / "cert.pem"), "key_file": str(folder / "key.pem")}}
    with jetstream(config=config) as server:
        yield server, trusting(authority)


class TestTls:
    def test_tls(self, tmp_path: Path) -> None:
        with tls_server(tmp_path) as (server, context):
            access = Access(tls=context)
            with pytest.raises(StreamNotFoundError):
                bulk.read(server.url, "x", access=access)
            for url in (server.url, f"tls://{server.address}"):
                with pytest.raises(TransportError, match="TLS failed"):
                    bulk.read(url, "x")  # nobody has told us of the authority

    def test_address_that_the_cluster_names_may_have_the_certificate_of_the_one_that_named_it(
        self, tmp_path: Path
    ) -> None:
        authority = trustme.CA()
        leaf = authority.issue_cert("localhost")
        leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
        leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
        tls = {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")}
        context = trusting(authority)
        with cluster_of_two(tls=tls) as (first, second):
            url = f"tls://localhost:{first.port}"
            check_other_server_is_reached(url, Access(tls=context), first, second)
            with pytest.raises(TransportError, match="TLS failed"):  # named by the user, not by a server
                bulk.read(f"tls://{second.address}", "x", access=Access(tls=context))

    def test_woken_connection_keeps_tls(self, tmp_path: Path) -> None:
        """The thread that is woken may read or send once more: never in plain text."""
        with tls_server(tmp_path) as (server, context):
            target = find_target(server.url, Access(tls=context))
            link = NatsSocket(target.addresses[0], target)
            secured = link._socket
            assert isinstance(secured, ssl.SSLSocket)
            link.wake()
            assert secured.version() is not None
            with pytest.raises(TransportError):
                link.flush(60.0)
            link.close()


@pytest.mark.parametrize("via", ["consumer", "direct"])
@pytest.mark.parametrize("excess", [0, 1])
def test_messages_up_to_the_limit_are_read(url: str, name: str, via: Any, excess: int) -> None:
    make_stream(url, name, allow_direct=True)
    publish(url, [(f"{name}.x", bytes(5_000), None)] * 3)
    access = Access(max_message_bytes=5_000 - excess, reconnect_wait=1)
    if not excess:
        assert bulk.read(url, name, via=via, access=access).read_all().num_rows == 3
    else:
        with pytest.raises(StreamMessageTooLargeError, match="5000 bytes; max_message_bytes is 4999"):
            bulk.read(url, name, via=via, access=access).read_all()
