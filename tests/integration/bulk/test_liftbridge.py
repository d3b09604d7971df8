"""Bulk reads of Liftbridge streams, on a real server and on the gateway."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import nats
import pyarrow as pa
import pytest

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import Access, Gap, RetentionError
from liftenvelope.bulk._engine.crew import Crew, Outlet
from liftenvelope.bulk._engine.plan import BatchPlan
from liftenvelope.bulk._liftbridge import brokers
from liftenvelope.bulk._liftbridge.brokers import Brokers
from liftenvelope.bulk._liftbridge.source import LiftbridgeSource, _LiftbridgeRead
from liftenvelope.bulk.ranges import Range
from liftenvelope.client import Timestamp
from liftenvelope.client.blocking import BlockingClient
from liftenvelope.client.metadata import Metadata, decode_metadata
from liftenvelope.envelope import new_message
from liftenvelope.errors import (
    NoSuchPartitionError,
    NoSuchStreamError,
    OffsetOutOfRangeError,
    ServerError,
    StreamDeletedError,
    TransportError,
    UsageError,
)
from liftenvelope.rpc.blocking import BlockingChannel, ResponseStream
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import (
    FaultProxy,
    LiftbridgeCluster,
    NatsServer,
    run_gateway,
    run_liftbridge,
    run_nats_server,
)
from tests.cleaner_clock import CLEANER_INTERVAL, CleanerClock
from tests.integration.bulk_streams import BulkThreads, offsets, wait_for

COUNT = 1_000
MIB = 1024 * 1024


@pytest.fixture(scope="module", params=["liftbridge_server", "gateway_server"])
def broker(request: pytest.FixtureRequest) -> LiftbridgeCluster:
    """The real server, and then the gateway, which looks like one."""
    found: LiftbridgeCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def client(broker: LiftbridgeCluster) -> Iterator[BlockingClient]:
    with liftenvelope.connect_blocking(broker.addresses, ack_wait=60) as found:
        yield found


@pytest.fixture(scope="module")
def numbers(client: BlockingClient) -> str:
    """A stream of two partitions with COUNT messages in each, and a third that is empty."""
    name = f"bulk-numbers-{time.time_ns()}"
    client.create_stream(name, name, partitions=3)
    for partition in (0, 1):
        client.publish_many(name, [b"%d" % i for i in range(COUNT)], partition=partition)
    return name


@pytest.fixture
def address(broker: LiftbridgeCluster) -> str:
    return broker.addresses[0]


def fill(client: BlockingClient, name: str, count: int, **config: Any) -> None:
    client.create_stream(name, name, **config)
    client.publish_many(name, [b"%d" % i for i in range(count)], partition=0)


def test_rows_are_those_of_an_ordinary_client(client: BlockingClient, address: str, name: str) -> None:
    client.create_stream(name, name)
    sent = [
        liftenvelope.client.OutgoingMessage(
            value=bytes([i % 256]) * (i % 300),
            key=None if i % 3 else b"k%d" % i,
            headers={"a": b"%d" % i, "b": b""} if i % 2 else None,
        )
        for i in range(400)
    ]
    client.publish_many(name, sent, partition=0)
    with client.subscribe(name, start="earliest", stop="latest") as messages:
        expected = [(m.offset, m.key, m.value, m.headers, m.timestamp_ns, m.subject) for m in messages]
    table = bulk.read(address, name).read_all()
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    rows = table.drop(["timestamp"]).to_pylist()
    found = [
        (row["offset"], row["key"] or b"", row["value"], dict(row["headers"]), at, row["subject"])
        for row, at in zip(rows, times, strict=True)
    ]
    assert found == expected
    assert len(found) == 400


def test_schema(address: str, numbers: str) -> None:
    reader = bulk.read(address, numbers, envelope="columns")
    assert reader.schema.field("offset").type == pa.int64()
    table = reader.read_all()
    table.validate(full=True)
    assert table["ack_policy"].null_count == 0
    assert sorted(table["partition"].unique().to_pylist()) == [0, 1]


def test_all_partitions(address: str, numbers: str, client: BlockingClient) -> None:
    for source in (address, f"liftbridge://{address}", [address], client):
        table = bulk.read(source, numbers, columns=["partition", "offset"], batch_rows=100).read_all()
        for partition in (0, 1):
            rows = table.filter(pa.compute.equal(table["partition"], partition))
            assert offsets(rows) == list(range(COUNT))
    assert bulk.count(address, numbers) == 2 * COUNT


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        ("earliest", None, range(COUNT)),
        (0, COUNT, range(COUNT)),
        (0, 0, range(0)),
        (0, 1, range(1)),
        (17, 18, range(17, 18)),
        (250, 750, range(250, 750)),
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
def test_ranges_are_exact(address: str, numbers: str, start: Any, stop: Any, expected: range) -> None:
    table = bulk.read(address, numbers, partitions=0, start=start, stop=stop).read_all()
    assert offsets(table) == list(expected)
    assert bulk.count(address, numbers, partitions=0, start=start, stop=stop) == len(expected)


def test_moments(address: str, numbers: str) -> None:
    times = bulk.read(address, numbers, partitions=0, columns=["timestamp"]).read_all()["timestamp"]
    moments = times.cast(pa.int64()).to_pylist()
    start, stop = Timestamp(moments[300]), Timestamp(moments[600])
    first, last = moments.index(moments[300]), moments.index(moments[600])
    table = bulk.read(address, numbers, partitions=0, start=start, stop=stop).read_all()
    assert offsets(table) == list(range(first, last))


def test_read_decodes_the_metadata_of_all_partitions_once(
    client: BlockingClient, address: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each partition made the time of a read quadratic. The creation time is still asked for each."""
    client.create_stream(name, name, partitions=20)
    for partition in range(20):
        client.publish(name, b"", partition=partition)
    decoded, asked = [0], [0]

    def count_decoded(*args: Any) -> Metadata:
        decoded[0] += 1
        return decode_metadata(*args)

    def count_asked(source: LiftbridgeSource) -> int:
        asked[0] += 1
        return created(source)

    created = LiftbridgeSource.created
    monkeypatch.setattr(brokers, "decode_metadata", count_decoded)
    monkeypatch.setattr(brokers, "_MAX_AGE", 3600.0)
    monkeypatch.setattr(LiftbridgeSource, "created", count_asked)
    assert bulk.read(address, name).read_all().num_rows == 20
    assert (decoded, asked) == ([1], [20])


def test_an_empty_partition(address: str, numbers: str) -> None:
    assert bulk.read(address, numbers, partitions=2).read_all().num_rows == 0
    assert bulk.count(address, numbers, partitions=[2]) == 0


def test_one_message(client: BlockingClient, address: str, name: str) -> None:
    fill(client, name, 1)
    assert bulk.read(address, name).read_all()["value"].to_pylist() == [b"0"]


@pytest.mark.parametrize("parallel", [1, 4])
def test_ranges_in_several_threads(address: str, numbers: str, parallel: int) -> None:
    reader = bulk.read(address, numbers, partitions=1, parallel=parallel, batch_rows=60)
    batches = [batch["offset"].to_pylist() for batch in reader]
    assert sorted(offset for batch in batches for offset in batch) == list(range(COUNT))
    assert all(batch == sorted(batch) for batch in batches)


def test_large_messages(client: BlockingClient, address: str, name: str) -> None:
    client.create_stream(name, name)
    sizes = [1_000_000, 0, 1, 500_000, 1_000_000]
    client.publish_many(name, [bytes([i]) * size for i, size in enumerate(sizes)], partition=0)
    values = bulk.read(address, name).read_all()["value"].to_pylist()
    assert values == [bytes([i]) * size for i, size in enumerate(sizes)]
    with pytest.raises(ServerError, match="max_message_bytes"):
        bulk.read(address, name, access=Access(max_message_bytes=10_000)).read_all()


@pytest.mark.parametrize(
    ("run", "config"), [(run_liftbridge, {"clustering.replication.max.bytes": 10 * MIB}), (run_gateway, {})]
)
def test_messages_of_8_mib(run: Any, config: dict[str, Any], name: str) -> None:
    """gRPC takes no publish that large; NATS does."""
    sizes = [8 * MIB, 1, 0, 3 * MIB, 8 * MIB]

    async def publish(url: str) -> None:
        async with await nats.connect(url) as nc:
            for i, size in enumerate(sizes):
                await nc.publish(name, new_message(bytes([i]) * size))

    with (
        run_nats_server(jetstream=True, max_payload=10 * MIB) as server,
        run(nats_server=server, config=config) as cluster,
    ):
        with liftenvelope.connect_blocking(cluster.addresses, ack_wait=60) as client:
            client.create_stream(name, name)
        asyncio.run(publish(server.url))
        wait_for("all messages", lambda: bulk.count(cluster.addresses[0], name) == len(sizes))
        values = bulk.read(cluster.addresses[0], name).read_all()["value"].to_pylist()
    assert values == [bytes([i]) * size for i, size in enumerate(sizes)]


def test_stream_that_was_made_anew_behind_a_removed_segment_is_not_read_on(
    client: BlockingClient, address: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the call because retention removed the segment, and the connection is not lost."""

    def pump(read: _LiftbridgeRead, call: ResponseStream) -> None:
        if read._next:
            return  # a second call
        while not read._next:
            if read._receive(call):
                read._take()
        monkeypatch.setattr(Brokers, "created", lambda *_, **__: 2)
        raise RpcError(StatusCode.UNKNOWN, "segment has been closed")

    fill(client, name, 5)
    monkeypatch.setattr(Brokers, "created", lambda *_, **__: 1)
    monkeypatch.setattr(_LiftbridgeRead, "_pump", pump)
    with pytest.raises(OffsetOutOfRangeError, match="made anew while it was read"):
        list(bulk.tail(address, name, start="earliest"))


def test_stream_made_anew_after_a_read_was_planned_is_refused_before_its_first_row(
    client: BlockingClient, address: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for one of many partitions, whose turn comes long after the read began."""
    fill(client, name, 5)
    whole = LiftbridgeSource.read

    def late(source: LiftbridgeSource, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        client.delete_stream(name)
        fill(client, name, 9)
        whole(source, span, plan, outlet)

    monkeypatch.setattr(LiftbridgeSource, "read", late)
    with pytest.raises(OffsetOutOfRangeError, match="made anew while it was read, before offset 0"):
        bulk.read(address, name).read_all()


def test_dropped_reader_asks_a_stalled_server_nothing_more(
    client: BlockingClient, address: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread waited for the requests of the others, one after the other."""
    client.create_stream(name, name, partitions=4)
    asking, asked, threads = threading.Semaphore(0), list[bool](), BulkThreads()
    call, unary, stop = Brokers._call, BlockingChannel.unary, Crew.stop
    was_asked, was_dropped = threading.Event(), threading.Event()

    def note_call(*args: Any, **options: Any) -> bytes:
        asking.release()
        return call(*args, **options)

    def note_unary(*args: Any, **options: Any) -> bytes:
        asked.append(was_dropped.is_set())
        was_asked.set()
        return unary(*args, **options)

    def note_stop(crew: Crew) -> None:
        crew._stopping.set()
        was_dropped.set()
        stop(crew)

    monkeypatch.setattr(Crew, "stop", note_stop)
    with FaultProxy(address) as proxy:
        access = Access(address_map={address: str(proxy.address)})
        reader = bulk.tail(str(proxy.address), name, start="earliest", batch_seconds=0.01, access=access)
        for partition in range(4):  # all threads have subscribed before the server stalls
            client.publish(name, b"", partition=partition)
            reader.read_next_batch()
        proxy.stall()
        monkeypatch.setattr(Brokers, "_call", note_call)
        monkeypatch.setattr(BlockingChannel, "unary", note_unary)
        for _ in range(4):
            assert asking.acquire(timeout=60)
        assert was_asked.wait(60)  # and the others wait for the end of this request
        del reader
        threads.wait_until_gone()
    assert was_dropped.is_set()
    assert not any(asked)


def test_a_compacted_stream(client: BlockingClient, address: str, name: str) -> None:
    cleaner = CleanerClock()
    client.create_stream(
        name,
        name,
        compact_enabled=True,
        segment_max_bytes=2_000,
        cleaner_interval=CLEANER_INTERVAL,
        segment_max_age=0.5,
    )
    cleaner.created()
    items = [(b"k%d" % (i % 5), b"%d" % i) for i in range(200)]
    cleaner.wait()
    client.publish_many(name, items, partition=0)
    wait_for("compaction", lambda: bulk.count(address, name) < 100)
    gaps: list[Gap] = []
    # Compaction may go on between the plan of the read and the read, and remove the oldest messages.
    table = bulk.read(address, name, on_gap=gaps.append, on_retention="skip").read_all()
    found = offsets(table)
    assert found == sorted(set(found))
    assert found[-1] == 199
    latest = {b"k%d" % i: b"%d" % (195 + i) for i in range(5)}
    kept = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert kept == latest
    missing = {offset for gap in gaps for offset in range(gap.start, gap.stop)}
    first = found[0] if not gaps else min(found[0], gaps[0].start)
    assert missing | set(found) == set(range(first, 200))
    assert not missing & set(found)


def test_retention_has_passed_the_start(client: BlockingClient, address: str, name: str) -> None:
    cleaner = CleanerClock()
    client.create_stream(
        name, name, retention_max_messages=20, segment_max_bytes=1_000, cleaner_interval=CLEANER_INTERVAL
    )
    cleaner.created()
    for _ in range(60):
        cleaner.wait()
        client.publish(name, bytes(200))
    wait_for("retention", lambda: bulk.count(address, name) < 50)
    with pytest.raises(RetentionError, match="message 0 is gone") as caught:
        bulk.read(address, name, start=0)
    oldest = caught.value.oldest
    assert oldest > 0
    table = bulk.read(address, name, start=0, on_retention="skip").read_all()
    assert offsets(table) == list(range(offsets(table)[0], 60))
    assert offsets(table)[0] >= oldest


def test_retention_passes_running_reads(
    client: BlockingClient, address: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream is longer than what servers, sockets and windows hold for readers that take nothing."""
    cleaner = CleanerClock()
    client.create_stream(
        name,
        name,
        retention_max_bytes=45 * MIB,
        segment_max_bytes=4 * MIB,
        cleaner_interval=CLEANER_INTERVAL,
    )
    cleaner.created()
    value, count = bytes(100_000), 400

    def fill() -> None:
        for _ in range(count // 20):
            cleaner.wait()
            client.publish_many(name, [value] * 20, partition=0)

    fill()
    gaps: list[Gap] = []
    options: dict[str, Any] = {"batch_rows": 5, "columns": ["offset"]}
    failing = bulk.read(address, name, **options)
    going_on = bulk.read(address, name, on_retention="skip", on_gap=gaps.append, **options)
    failing.read_next_batch()
    found = offsets(going_on.read_next_batch())
    fill()
    # A read of its own says at which offset the stream begins.
    wait_for("retention", lambda: first_offset(address, name) > count - 100)
    with pytest.raises(RetentionError, match="is gone"):
        failing.read_all()
    found += offsets(going_on.read_all())
    missing = [offset for gap in gaps for offset in range(gap.start, gap.stop)]
    assert missing
    assert found == sorted(set(found))
    assert sorted(found + missing) == list(range(count))
    # The other reads that skip log lines of their own, with other offsets.
    start = f" messages from offset {gaps[0].start} on before they were read"
    assert any(one.message.endswith(start) for one in caplog.records if one.name == "liftenvelope.bulk")


def first_offset(address: str, name: str) -> int:
    """Offset of the oldest message that there is, though retention may take more of them meanwhile."""
    reader = bulk.read(address, name, batch_rows=1, columns=["offset"], on_retention="skip")
    return offsets(reader.read_next_batch())[0]


def test_all_was_removed(client: BlockingClient, address: str, name: str) -> None:
    fill(client, name, 3, segment_max_age=0.3, cleaner_interval=0.2, retention_max_age=0.6)
    wait_for("retention", lambda: bulk.count(address, name) == 0)
    for start in ("earliest", timedelta(hours=1)):
        assert bulk.read(address, name, start=start).read_all().num_rows == 0
    with pytest.raises(RetentionError, match="the oldest is 3"):
        bulk.read(address, name, start=1)


class TestTail:
    def test_what_comes_after_now(self, client: BlockingClient, address: str, name: str) -> None:
        fill(client, name, 5)
        reader = bulk.tail(address, name, batch_seconds=0.1)
        client.publish_many(name, [b"x"] * 3, partition=0)
        found: list[int] = []
        while len(found) < 3:
            found += reader.read_next_batch()["offset"].to_pylist()
        assert found == [5, 6, 7]

    def test_the_stream_is_deleted(self, client: BlockingClient, address: str, name: str) -> None:
        fill(client, name, 2)
        reader = bulk.tail(address, name, start="earliest", batch_rows=2)
        assert reader.read_next_batch().num_rows == 2
        client.delete_stream(name)
        with pytest.raises(StreamDeletedError):
            reader.read_next_batch()


def test_an_abandoned_reader_leaves_nothing(address: str, numbers: str) -> None:
    threads = BulkThreads()
    reader = bulk.read(address, numbers, batch_rows=10, parallel=3)
    reader.read_next_batch()
    following = bulk.tail(address, numbers)
    assert len(threads) > 1
    del reader, following
    threads.wait_until_gone()


def test_an_abandoned_reader_leaves_no_connection(address: str, numbers: str) -> None:
    with FaultProxy(address) as proxy:
        access = Access(address_map={address: proxy.address})
        reader = bulk.read(proxy.address, numbers, batch_rows=10, parallel=3, access=access)
        reader.read_next_batch()
        assert proxy.open_connections > 1
        del reader
        wait_for("the end of the connections", lambda: proxy.open_connections == 0)


def test_four_readers_at_once(address: str, numbers: str) -> None:
    found: list[int] = []

    def read() -> None:
        found.append(bulk.read(address, numbers, batch_rows=50).read_all().num_rows)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2 * COUNT] * 4


class TestErrors:
    def test_port_of_grpc_instead_of_nats_is_named_as_such(self, address: str) -> None:
        with pytest.raises(TransportError, match="a gRPC server greets, which has another port"):
            bulk.read(f"nats://{address}", "S")

    def test_no_such_stream(self, address: str) -> None:
        with pytest.raises(NoSuchStreamError):
            bulk.read(address, "nothing")

    def test_no_such_partition(self, address: str, numbers: str) -> None:
        with pytest.raises(NoSuchPartitionError):
            bulk.read(address, numbers, partitions=7)

    def test_nobody_there(self) -> None:
        with pytest.raises(TransportError):
            bulk.read("127.0.0.1:1", "numbers", access=Access(timeout=30))

    def test_a_nats_server_is_no_liftbridge(self, nats_server: NatsServer) -> None:
        with pytest.raises(TransportError):
            bulk.read(nats_server.address, "numbers", access=Access(timeout=30))

    def test_a_liftbridge_is_no_nats_server(self, address: str) -> None:
        with pytest.raises((TransportError, TimeoutError)):
            bulk.read(f"nats://{address}", "numbers", access=Access(timeout=3, connect_timeout=2))

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            ("http://x:1", "http://x:1"),
            ("nats://a:1,liftbridge://b:1", "one kind"),
            ("liftbridge://me@host:1", "must not have a user"),
            ("nats://u:p@host:99999999", "'nats://host:***'"),
            ("no-port", "no-port"),
            ([], "at least one"),
            (7, "int"),
            ([7], "must be str, got int"),
        ],
    )
    def test_sources(self, source: Any, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            bulk.read(source, "numbers")
        assert text in str(caught.value)

    def test_a_client_brings_its_own_access(self, client: BlockingClient) -> None:
        with pytest.raises(UsageError, match="its own options"):
            bulk.read(client, "numbers", access=Access())

    def test_an_asynchronous_client_will_do(self, address: str, numbers: str) -> None:
        async def read() -> int:
            async with liftenvelope.connect(address) as client:
                return await asyncio.to_thread(bulk.count, client, numbers)

        assert asyncio.run(read()) == 2 * COUNT
