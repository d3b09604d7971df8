"""Which streams a Spark source reads, from whom, and how it shows how far it is; on real servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope import bulk, connect_blocking
from liftenvelope.bulk._brokers import Brokers
from liftenvelope.bulk.access import Access, find_target
from liftenvelope.spark._source_cores import BatchSource, StreamingSource
from liftenvelope.spark.errors import DataLossError, OptionError
from liftenvelope.spark.options import source_options
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer, run_liftbridge
from liftenvelope.types import AckPolicy
from tests.integration.bulk_streams import make_stream, with_jetstream


class Servers:
    """One kind of servers, where streams are made and filled."""

    def __init__(self, format_: str, url: str, make: Callable[[str], None]) -> None:
        self.format, self.url, self._make = format_, url, make

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
        return Servers("jetstream", nats.url, lambda name: make_stream(nats.url, name))
    cluster: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(f"{request.param}_server")
    return Servers("liftbridge", cluster.addresses[0], cluster.create_stream)


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
        url = jetstream_server.url
        servers = Servers("jetstream", url, lambda one: make_stream(url, one))
        servers.make(f"{name}-1", 1)
        source = StreamingSource(servers.options(subscribePattern=f"{name}-.*", startingOffsets="earliest"))
        at, found = numbers(source, source.initial())
        assert found == [1]
        with_jetstream(url, lambda js: js.delete_stream(f"{name}-1"))
        with pytest.raises(DataLossError, match=r"\[0\] does not exist any more; the query was at offset 1"):
            numbers(source, at)


class TestCursors:
    @pytest.mark.parametrize("kind", ["liftbridge_server", "gateway_server"])
    def test_cursors_show_the_position_of_the_query(
        self, kind: str, name: str, request: pytest.FixtureRequest
    ) -> None:
        cluster: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(kind)
        servers = Servers("liftbridge", cluster.addresses[0], cluster.create_stream)
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
            servers = Servers("liftbridge", cluster.addresses[0], cluster.create_stream)
            servers.make(name, 1)
            source = StreamingSource(servers.options(subscribe=name, commitCursor="c", timeout="5s"))
            with pytest.raises(OptionError, match=r"commitCursor='c'.*the cluster keeps no cursors"):
                source.latest(source.initial(), limited=True)
            source.close()

    def test_later_failures_are_warnings(self, name: str) -> None:
        with run_liftbridge() as cluster:
            servers = Servers("liftbridge", cluster.addresses[0], cluster.create_stream)
            servers.make(name, 1, 2)
            source = StreamingSource(servers.options(subscribe=name, commitCursor="c", timeout="5s"))
            at = source.initial()
            source.done(at)
        ahead = {**at, "offsets": {name: {"0": 9}}}
        with pytest.warns(RuntimeWarning, match="commitCursor='c'"):
            source.done(ahead)
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
