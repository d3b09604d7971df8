"""Streams and servers that a Spark source reads, and the cursors that show its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from nats.js import JetStreamContext
from nats.js.api import AckPolicy as ConsumerAckPolicy
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.errors import NotFoundError

from liftenvelope import bulk, connect_blocking
from liftenvelope.bulk._liftbridge.brokers import Brokers
from liftenvelope.bulk.access import Access, find_target
from liftenvelope.errors import StreamNotFoundError
from liftenvelope.spark import _broker
from liftenvelope.spark._options import source_options
from liftenvelope.spark._planning import Span
from liftenvelope.spark._source_cores import BatchSource, StreamingSource
from liftenvelope.spark.errors import DataLossError, OptionError
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer, run_liftbridge
from liftenvelope.types import AckPolicy
from tests.integration.bulk_streams import jetstream, make_stream, with_jetstream


@pytest.fixture(autouse=True)
def streams_are_gone_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a missing stream as deleted after a second: here, none is missing for another reason."""
    monkeypatch.setattr(_broker, "_GONE_AFTER", 1.0)


class Servers:
    """One kind of servers, where streams are made and filled."""

    def __init__(
        self, format_: str, url: str, make: Callable[[str], None], delete: Callable[[str], None]
    ) -> None:
        self.format, self.url, self._make, self.delete = format_, url, make, delete

    def make(self, name: str, *numbers: int) -> None:
        self._make(name)
        self.fill(name, *numbers)

    def fill(self, name: str, *numbers: int) -> None:
        subject = {"subject": f"{name}.x"} if self.format == "jetstream" else {}
        rows: Any = subject
        bulk.write(self.url, name, pa.table({"value": [b"%d" % i for i in numbers]}), **rows)

    def options(self, *, streaming: bool = True, **given: object) -> Any:
        return source_options(self.format, {"servers": self.url, **given}, streaming=streaming)


@pytest.fixture(params=["jetstream", "liftbridge", "gateway"])
def servers(request: pytest.FixtureRequest) -> Servers:
    if request.param == "jetstream":
        nats: NatsServer = request.getfixturevalue("jetstream_server")
        return jetstream_servers(nats)
    cluster: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(f"{request.param}_server")
    return liftbridge_servers(cluster)


def liftbridge_servers(cluster: LiftbridgeCluster | GatewayCluster) -> Servers:
    return Servers("liftbridge", cluster.addresses[0], cluster.create_stream, cluster.delete_stream)


def jetstream_servers(nats: NatsServer) -> Servers:
    def make(name: str) -> None:
        make_stream(nats.url, name)

    def delete(name: str) -> None:
        with_jetstream(nats.url, lambda js: js.delete_stream(name))

    return Servers("jetstream", nats.url, make, delete)


def numbers(source: StreamingSource, start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """The next batch, and what it has."""
    end = source.latest(start, limited=True)
    batches = [batch for span in source.spans(start, end) for batch in source.read(span)]
    return end, sorted(int(value) for batch in batches for value in batch["value"].to_pylist())


class TestPatterns:
    def test_new_streams_are_picked_up(self, servers: Servers, name: str) -> None:
        source = StreamingSource(
            servers.options(subscribePattern=f"{name}-[0-9]", startingOffsets="earliest")
        )
        begin = source.initial()
        assert numbers(source, begin) == (begin, [])
        servers.make(f"{name}-1", 1, 2)
        servers.make(f"{name}-10", 99)
        at, found = numbers(source, begin)
        assert found == [1, 2]
        servers.make(f"{name}-2", 3)
        servers.fill(f"{name}-1", 4)
        at, found = numbers(source, at)
        assert found == [3, 4]
        source.close()
        assert numbers(source, at) == (at, [])

    def test_a_batch(self, servers: Servers, name: str) -> None:
        servers.make(f"{name}-1", 1)
        servers.make(f"{name}-2", 2)
        source = BatchSource(servers.options(subscribePattern=f"{name}-.*", streaming=False))
        assert [span.stream for span in source.spans()] == [f"{name}-1", f"{name}-2"]
        nothing = servers.options(subscribePattern=f"no-{name}", streaming=False)
        assert BatchSource(nothing).spans() == []

    def test_a_stream_that_is_deleted(self, jetstream_server: NatsServer, name: str) -> None:
        servers = jetstream_servers(jetstream_server)
        servers.make(f"{name}-1", 1)
        source = StreamingSource(servers.options(subscribePattern=f"{name}-.*", startingOffsets="earliest"))
        at, found = numbers(source, source.initial())
        assert found == [1]
        servers.delete(f"{name}-1")
        with pytest.raises(DataLossError, match=r"\[0\] does not exist any more; the query was at offset 1"):
            numbers(source, at)


class TestDeletedStreams:
    """A stream that ``subscribe`` names is deleted after the query has read from it."""

    def begun(self, servers: Servers, name: str, **given: object) -> tuple[StreamingSource, dict[str, Any]]:
        """A query that has read two streams, the second of which is then deleted."""
        servers.make(f"{name}-1", 1)
        servers.make(f"{name}-2", 2)
        source = StreamingSource(self.options(servers, name, **given))
        at, found = numbers(source, source.initial())
        assert found == [1, 2]
        servers.delete(f"{name}-2")
        return source, at

    def options(self, servers: Servers, name: str, **given: Any) -> Any:
        return servers.options(subscribe=f"{name}-1,{name}-2", startingOffsets="earliest", **given)

    def test_deleted_stream_is_data_loss(self, servers: Servers, name: str) -> None:
        source, at = self.begun(servers, name)
        with pytest.raises(
            DataLossError, match=r"-2\[0\] does not exist any more; the query was at offset 1"
        ):
            source.latest(at, limited=True)
        with pytest.raises(
            DataLossError, match=r"-2\[0\] does not exist any more, but the batch reads up to 1"
        ):
            list(source.read(Span(f"{name}-2", 0, 0, 1)))
        source.close()

    def test_one_task_alone_waits_for_a_deleted_stream(
        self, servers: Servers, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, at = self.begun(servers, name, failOnDataLoss=False)
        gone = [
            Span(f"{name}-2", 0, number, number + 1, int(at["created"][f"{name}-2"])) for number in (0, 1)
        ]
        for span in gone:
            with pytest.warns(RuntimeWarning, match=r"-2\[0\] does not exist any more, but the batch"):
                assert list(source.read(span)) == []
            # Another wait would outlast the test.
            monkeypatch.setattr(_broker, "_GONE_AFTER", 3_600.0)
        source.close()

    def test_query_continues_without_a_deleted_stream(
        self, servers: Servers, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, at = self.begun(servers, name, failOnDataLoss=False)
        servers.fill(f"{name}-1", 3)
        with pytest.warns(RuntimeWarning, match=r"data loss: .*-2\[0\] does not exist any more"):
            at, found = numbers(source, at)
        assert found == [3]
        with monkeypatch.context() as patch:
            # Only the first batch waits for the stream: another wait outlasts the test.
            patch.setattr(_broker, "_GONE_AFTER", 3_600.0)
            assert numbers(source, at) == (at, [])
        with pytest.warns(RuntimeWarning, match=r"-2\[0\] does not exist any more, but the batch"):
            assert list(source.read(Span(f"{name}-2", 0, 0, 1))) == []
        servers.make(f"{name}-2", 4)
        assert numbers(source, at)[1] == [4]
        source.close()

    @pytest.mark.parametrize("available_now", [False, True])
    def test_restarted_query_continues_without_a_deleted_stream(
        self, jetstream_server: NatsServer, name: str, available_now: bool
    ) -> None:
        servers = jetstream_servers(jetstream_server)
        first, at = self.begun(servers, name, failOnDataLoss=False)
        first.close()
        servers.fill(f"{name}-1", 3)
        source = StreamingSource(self.options(servers, name, failOnDataLoss=False))
        if available_now:
            source.stop_here()
        with pytest.warns(RuntimeWarning, match=r"-2\[0\] does not exist any more"):
            assert numbers(source, at)[1] == [3]
        source.close()

    def test_restarted_query_tells_its_lag_without_a_deleted_stream(
        self, jetstream_server: NatsServer, name: str
    ) -> None:
        servers = jetstream_servers(jetstream_server)
        first, _ = self.begun(servers, name, failOnDataLoss=False)
        first.close()
        # Spark asks for it before it plans a batch, if the last batch has to run again.
        source = StreamingSource(self.options(servers, name, failOnDataLoss=False))
        assert source.newest()["offsets"] == {f"{name}-1": {"0": 1}}
        source.close()

    def test_partition_that_the_new_stream_lacks_is_data_loss(
        self, gateway_server: GatewayCluster, name: str
    ) -> None:
        servers, lost = liftbridge_servers(gateway_server), Span(name, 1, 0, 1)
        gateway_server.create_stream(name, partitions=1)
        text = r"\[1\] does not exist any more, but the batch reads up to 1"
        source = StreamingSource(servers.options(subscribe=name))
        with pytest.raises(DataLossError, match=text):
            list(source.read(lost))
        source.close()
        source = StreamingSource(servers.options(subscribe=name, failOnDataLoss=False))
        with pytest.warns(RuntimeWarning, match=text):
            assert list(source.read(lost)) == []
        source.close()

    @pytest.mark.parametrize("narrower", [{"subscribe": "{}-1"}, {"subscribePattern": ".*-1"}])
    def test_stream_that_the_options_leave_out_is_data_loss(
        self, jetstream_server: NatsServer, name: str, narrower: dict[str, str]
    ) -> None:
        servers = jetstream_servers(jetstream_server)
        servers.make(f"{name}-1", 1)
        servers.make(f"{name}-2", 2)
        source = StreamingSource(self.options(servers, name))
        at, _ = numbers(source, source.initial())
        source.close()
        options: dict[str, Any] = {option: value.format(name) for option, value in narrower.items()}
        source = StreamingSource(servers.options(**options))
        with pytest.raises(DataLossError, match=r"-2\[0\] is not named by the options any more"):
            source.latest(at, limited=True)
        source.close()

    def test_unknown_stream_is_an_error_at_the_first_start(
        self, jetstream_server: NatsServer, name: str
    ) -> None:
        servers = jetstream_servers(jetstream_server)
        servers.make(f"{name}-1", 1)
        source = StreamingSource(self.options(servers, name, failOnDataLoss=False))
        source.stop_here()
        with pytest.raises(StreamNotFoundError, match=f"{name}-2"):
            source.initial()
        source.close()


class TestRecreatedStreams:
    """A stream is deleted, and created again under its name with more messages than before."""

    def begun(self, servers: Servers, name: str, **given: Any) -> tuple[StreamingSource, dict[str, Any]]:
        """A query that has read the old stream."""
        servers.make(name, 1, 2)
        source = StreamingSource(servers.options(subscribe=name, startingOffsets="earliest", **given))
        at, found = numbers(source, source.initial())
        assert found == [1, 2]
        return source, at

    def recreate(self, servers: Servers, name: str) -> None:
        servers.delete(name)
        servers.make(name, 3, 4, 5)

    def test_longer_stream_is_data_loss(self, servers: Servers, name: str) -> None:
        source, at = self.begun(servers, name)
        self.recreate(servers, name)
        text = r"\[0\] was deleted and created again; the query was at offset 2"
        with pytest.raises(DataLossError, match=text):
            source.latest(at, limited=True)
        source.close()
        restarted = StreamingSource(servers.options(subscribe=name))
        with pytest.raises(DataLossError, match=text):
            restarted.latest(at, limited=True)
        restarted.close()

    def test_longer_stream_is_read_from_its_beginning(self, servers: Servers, name: str) -> None:
        source, at = self.begun(servers, name, failOnDataLoss=False)
        self.recreate(servers, name)
        with pytest.warns(RuntimeWarning, match=r"data loss: .* was deleted and created again"):
            at, found = numbers(source, at)
        assert found == [3, 4, 5]
        assert numbers(source, at) == (at, [])
        servers.fill(name, 6)
        assert numbers(source, at)[1] == [6]
        source.close()

    def test_checkpoint_of_an_older_version_is_read_on(self, servers: Servers, name: str) -> None:
        source, at = self.begun(servers, name)
        assert at.pop("created")
        servers.fill(name, 3)
        at, found = numbers(source, at)
        assert found == [3]
        assert at["created"]
        source.close()

    def test_task_of_the_old_stream_reads_nothing_of_the_new_one(self, servers: Servers, name: str) -> None:
        source, at = self.begun(servers, name)
        servers.fill(name, 3)
        (span,) = source.spans(at, source.latest(at, limited=True))
        self.recreate(servers, name)
        text = "was deleted and created again, but the batch reads the old one up to offset 3"
        with pytest.raises(DataLossError, match=text):
            list(source.read(span))
        source.close()
        source = StreamingSource(servers.options(subscribe=name, failOnDataLoss=False))
        with pytest.warns(RuntimeWarning, match=text):
            assert list(source.read(span)) == []
        source.close()

    def test_task_notices_a_new_stream_after_its_read(
        self, servers: Servers, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The stream is replaced between the look at it and the read."""
        source, at = self.begun(servers, name)
        servers.fill(name, 3)
        (span,) = source.spans(at, source.latest(at, limited=True))
        read = bulk.read

        def late(*args: Any, **options: Any) -> Any:
            self.recreate(servers, name)
            return read(*args, **options)

        monkeypatch.setattr(bulk, "read", late)
        with pytest.raises(DataLossError, match="was deleted and created again"):
            list(source.read(span))
        source.close()

    def test_batch_query_is_of_one_stream(self, servers: Servers, name: str) -> None:
        servers.make(name, 1)
        source = BatchSource(servers.options(subscribe=name, streaming=False))
        (span,) = source.spans()
        self.recreate(servers, name)
        with pytest.raises(DataLossError, match="was deleted and created again"):
            list(source.read(span))


class TestCursors:
    @pytest.mark.parametrize("kind", ["liftbridge_server", "gateway_server"])
    def test_cursors_show_the_position_of_the_query(
        self, kind: str, name: str, request: pytest.FixtureRequest
    ) -> None:
        cluster: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(kind)
        servers = liftbridge_servers(cluster)
        servers.make(name, *range(10))
        given = servers.options(
            subscribe=name, startingOffsets="earliest", commitCursor=name, maxOffsetsPerTrigger=4
        )
        source = StreamingSource(given)
        at = source.initial()
        with connect_blocking(cluster.addresses) as client:
            for cursor in (None, 3, 7):
                end, _ = numbers(source, at)
                assert client.fetch_cursor(name, name, 0) == cursor
                at = end
            source.done(at)
            assert client.fetch_cursor(name, name, 0) == 9
        source.close()

    def test_a_cluster_that_keeps_none(self, name: str) -> None:
        with run_liftbridge(config={"cursors.stream.partitions": 0}) as cluster:
            servers = liftbridge_servers(cluster)
            servers.make(name, 1)
            source = StreamingSource(servers.options(subscribe=name, commitCursor="c", timeout="5s"))
            with pytest.raises(OptionError, match=r"commitCursor='c'.*the cluster keeps no cursors"):
                source.latest(source.initial(), limited=True)
            source.close()

    def test_later_failures_are_warnings(self, name: str) -> None:
        with run_liftbridge() as cluster:
            servers = liftbridge_servers(cluster)
            servers.make(name, 1, 2)
            source = StreamingSource(servers.options(subscribe=name, commitCursor="c", timeout="5s"))
            at = source.initial()
            source.done(at)
        ahead = {**at, "offsets": {name: {"0": 9}}}
        with pytest.warns(RuntimeWarning, match="commitCursor='c'"):
            source.done(ahead)
        source.close()


def position(nats: NatsServer, stream: str, consumer: str) -> tuple[int, int] | None:
    """Sequence of the ack floor and number of pending messages, as the nats command shows them."""

    async def info(js: JetStreamContext) -> tuple[int, int] | None:
        try:
            found = await js.consumer_info(stream, consumer)
        except NotFoundError:
            return None
        assert found.ack_floor is not None
        assert found.num_pending is not None
        return found.ack_floor.stream_seq, found.num_pending

    return with_jetstream(nats.url, info)


class TestCommitConsumers:
    def test_ack_floor_and_lag_follow_the_query_over_a_restart(
        self, jetstream_server: NatsServer, name: str
    ) -> None:
        servers = jetstream_servers(jetstream_server)
        servers.make(name, *range(10))
        given = servers.options(
            subscribe=name, startingOffsets="earliest", commitConsumer="q", maxOffsetsPerTrigger=4
        )
        source = StreamingSource(given)
        before = at = source.initial()
        for shown in (None, (4, 6), (8, 2)):
            end, _ = numbers(source, at)
            assert position(jetstream_server, name, "q") == shown
            before, at = at, end
        source.close()
        again = StreamingSource(given)  # the last batch was not done, and is read once more
        assert numbers(again, before) == (at, [8, 9])
        assert position(jetstream_server, name, "q") == (8, 2)
        again.done(at)
        assert position(jetstream_server, name, "q") == (10, 0)
        servers.fill(name, 10, 11, 12)
        assert position(jetstream_server, name, "q") == (10, 3)
        again.close()

    def test_query_that_begins_anew_moves_the_ack_floor_back(
        self, jetstream_server: NatsServer, name: str
    ) -> None:
        servers = jetstream_servers(jetstream_server)
        servers.make(name, *range(10))
        source = StreamingSource(servers.options(subscribe=name, commitConsumer="q"))
        at = source.initial()
        source.done(at)
        assert position(jetstream_server, name, "q") == (10, 0)
        source.done({**at, "offsets": {name: {"0": 3}}})
        assert position(jetstream_server, name, "q") == (3, 7)
        source.close()

    def test_lag_counts_the_subjects_of_the_query(self, jetstream_server: NatsServer, name: str) -> None:
        servers = jetstream_servers(jetstream_server)
        servers.make(name)
        for subject, rows in (("a", 5), ("b", 7)):
            bulk.write(
                jetstream_server.url, name, pa.table({"value": ["1"] * rows}), subject=f"{name}.{subject}"
            )
        source = StreamingSource(
            servers.options(subscribe=name, commitConsumer="q", filterSubjects=f"{name}.b")
        )
        source.done({**source.initial(), "offsets": {name: {"0": 2}}})
        assert position(jetstream_server, name, "q") == (2, 7)
        source.close()

    def test_consumer_of_an_application_is_not_moved(self, jetstream_server: NatsServer, name: str) -> None:
        """Of two streams, the one with the consumer is the second."""
        servers = jetstream_servers(jetstream_server)
        for stream in (f"{name}-1", f"{name}-2"):
            servers.make(stream, 1, 2)
        config = ConsumerConfig(durable_name="q", ack_policy=ConsumerAckPolicy.EXPLICIT)
        with_jetstream(jetstream_server.url, lambda js: js.add_consumer(f"{name}-2", config))
        source = StreamingSource(servers.options(subscribe=f"{name}-1,{name}-2", commitConsumer="q"))
        with pytest.raises(OptionError, match="consumer of that name with another config; choose another"):
            source.done(source.initial())
        assert position(jetstream_server, f"{name}-2", "q") == (0, 2)
        source.close()

    def test_stream_whose_consumers_keep_messages_is_refused(
        self, jetstream_server: NatsServer, name: str
    ) -> None:
        config = StreamConfig(name=name, subjects=[f"{name}.>"], retention=RetentionPolicy.INTEREST)
        with_jetstream(jetstream_server.url, lambda js: js.add_stream(config))
        servers = jetstream_servers(jetstream_server)
        servers.fill(name, 1)
        source = StreamingSource(servers.options(subscribe=name, commitConsumer="q"))
        with pytest.raises(OptionError, match="must have the retention limits, got interest"):
            source.done(source.initial())
        source.close()

    def test_later_failures_are_warnings(self, name: str) -> None:
        with jetstream() as nats:
            servers = jetstream_servers(nats)
            servers.make(name, 1, 2)
            source = StreamingSource(servers.options(subscribe=name, commitConsumer="q", timeout="5s"))
            at = source.initial()
            source.done(at)
        with pytest.warns(RuntimeWarning, match="commitConsumer='q': position in"):
            source.done({**at, "offsets": {name: {"0": 1}}})
        source.close()


def test_replicas_serve_as_well(name: str) -> None:
    with run_liftbridge(3) as cluster:
        cluster.create_stream(name, replication_factor=3)
        address = cluster.addresses[0]
        bulk.write(
            address, name, pa.table({"value": [b"%d" % i for i in range(500)]}), ack_policy=AckPolicy.ALL
        )
        brokers = Brokers(find_target(address, Access(read_isr_replica=True)))
        limit = time.monotonic() + 60
        while len(brokers.metadata(name).streams[name].partitions[0].isr) < 3 and time.monotonic() < limit:
            time.sleep(0.1)
        assert len({brokers.reader(name, 0, 10.0) for _ in range(200)}) == 3
        brokers.close()
        given = {"servers": address, "subscribe": name, "readISRReplica": True, "minPartitions": 6}
        source = BatchSource(source_options("liftbridge", given, streaming=False))
        found = [int(v) for span in source.spans() for b in source.read(span) for v in b["value"].to_pylist()]
        assert found == list(range(500))
