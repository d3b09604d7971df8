"""EnvelopePublisher: batches, partitions, the flush that is a barrier."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, cast

import pyarrow as pa
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.envelope import Ack, AckPolicy, new_message, unmarshal_message
from liftenvelope.errors import AckTimeoutError, EnvelopeTooLargeError, TransportError, UsageError
from liftenvelope.nats import AckInbox, BatchAcks, BatchSummary, EnvelopePublisher
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, NatsServer, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect, until


async def acked(publisher: EnvelopePublisher[Ack, BatchAcks], values: Any, **columns: Any) -> BatchSummary:
    return await (await publisher.publish_batch(values, **columns))


class Collector:
    """Everything that is published on a subject, seen by another connection."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.messages: list[Msg] = []

    async def start(self, subject: str) -> None:
        await self.client.subscribe(subject, cb=self._take, pending_msgs_limit=0, pending_bytes_limit=0)
        await handled(self.client)

    async def _take(self, msg: Msg) -> None:
        self.messages.append(msg)

    async def wait_for(self, count: int) -> list[Msg]:
        async with asyncio.timeout(60):
            while len(self.messages) < count:
                await asyncio.sleep(0.01)
        return self.messages


@pytest.fixture
async def collector(nats_server: NatsServer) -> Any:
    client = await connect(nats_server.url)
    yield Collector(client)
    await client.close()


async def test_batches_of_every_size_are_acked_in_order(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    liftbridge_server.create_stream(name)
    async with AckInbox(lb_nc, max_outstanding=1000, timeout=60) as inbox:
        publisher = EnvelopePublisher(lb_nc, name, inbox=inbox, timeout=60)
        expected = 0
        for size in (0, 1, 2, 2047, 2048, 2049, 10_000):
            summary = await acked(publisher, [b"%d" % i for i in range(size)])
            assert summary.ok
            assert list(summary.offsets) == list(range(expected, expected + size))
            assert all(0 <= latency < 60 for latency in summary.latencies)
            assert (len(summary), inbox.outstanding) == (size, 0)
            expected += size
    values = [bytes(message.value) for message in liftbridge_server.read(name, count=expected)]
    assert values[-10_000:] == [b"%d" % i for i in range(10_000)]


@pytest.mark.parametrize("form", ["lists", "generators", "arrays", "record batch", "table"])
async def test_every_form_of_a_batch_is_the_same_on_the_wire(
    nc: Client, collector: Collector, name: str, form: str
) -> None:
    columns: dict[str, list[Any]] = {
        "value": [b"a", b"", b"c" * 300],
        "key": [b"k1", None, b"k3"],
        "headers": [{"h": b"1"}, None, {"x": b"", "y": b"2"}],
        "expected_offset": [0, -1, 5],
        "correlation_id": ["c1", "c2", "c3"],
    }
    maps = [None if row is None else list(row.items()) for row in columns["headers"]]
    arrays = {key: pa.array(rows) for key, rows in columns.items() if key != "headers"}
    arrays["headers"] = pa.array(maps, pa.map_(pa.string(), pa.binary()))
    batch = pa.record_batch(arrays)
    values: Any
    options: dict[str, Any] = {"keys": "key", "headers": "headers", "correlation_ids": "correlation_id"}
    options["expected_offsets"] = "expected_offset"
    if form in ("record batch", "table"):
        values, options = (batch if form == "record batch" else pa.Table.from_batches([batch, batch])), {}
    elif form == "arrays":
        values, options = arrays["value"], {key: arrays[column] for key, column in options.items()}
    else:
        cast = list if form == "lists" else iter
        values, options = cast(columns["value"]), {key: cast(columns[c]) for key, c in options.items()}
    await collector.start(name)
    if form == "table":
        with pytest.raises(UsageError, match="got one twice"):
            await EnvelopePublisher(nc, name).publish_batch(values)
        values = pa.Table.from_batches([batch])
    await EnvelopePublisher(nc, name, crc=True).publish_batch(values, **options)
    seen = [msg.data for msg in await collector.wait_for(3)]
    assert seen == [
        new_message(
            columns["value"][i],
            key=columns["key"][i],
            headers=columns["headers"][i],
            expected_offset=columns["expected_offset"][i],
            correlation_id=columns["correlation_id"][i],
            crc=True,
        )
        for i in range(3)
    ]


async def test_partitions_are_the_servers(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    liftbridge_server.create_stream(name, partitions=3)
    keys = [b"key-%d" % i for i in range(60)]
    async with AckInbox(lb_nc, timeout=60) as inbox:
        publisher = EnvelopePublisher(lb_nc, name, inbox=inbox, partitions=3)
        assert (await acked(publisher, keys, keys=keys)).ok
        ack = await publisher.publish(b"one", key=keys[0])
        assert ack.msg_subject == [name, f"{name}.1", f"{name}.2"][zlib.crc32(keys[0]) % 3]
        chosen = await publisher.publish(b"two", key=keys[0], partition=2)
        assert chosen.msg_subject == f"{name}.2"
        for wrong in (-1, 3):
            with pytest.raises(UsageError, match="from 0 to 2"):
                await publisher.publish(b"x", partition=wrong)
            with pytest.raises(UsageError, match="row 1"):
                await publisher.publish_batch([b"x", b"y"], partitions=[0, wrong])
    for partition in range(3):
        mine = [key for key in keys if zlib.crc32(key) % 3 == partition]
        messages = liftbridge_server.read(name, partition=partition, count=len(mine))
        assert [bytes(message.key) for message in messages] == mine


async def test_other_ways_to_choose_partitions(nc: Client, collector: Collector, name: str) -> None:
    await collector.start(f"{name}.>")
    await collector.start(name)
    await EnvelopePublisher(nc, name, partitions=3, partition_by="round_robin").publish_batch([b"v"] * 4)
    await EnvelopePublisher(nc, name, partitions=3, partition_by=lambda k, v, n: 2).publish_batch([b"v"])
    given = EnvelopePublisher(nc, name, partitions=3)
    await given.publish_batch(pa.record_batch({"value": [b"v", b"v"], "partition": [1, 0]}))
    subjects = [msg.subject.removeprefix(name) for msg in await collector.wait_for(7)]
    assert sorted(subjects) == sorted(["", ".1", ".2", "", ".2", ".1", ""])
    with pytest.raises(UsageError, match="9"):
        await EnvelopePublisher(nc, name, partitions=3, partition_by=lambda k, v, n: 9).publish(b"v")


@pytest.mark.parametrize(
    ("values", "columns", "match"),
    [
        ([b"a", None], {}, "row 1: value must not be null"),
        ([b"a", "text"], {}, r"values\[1\]"),
        (b"one", {}, "iterable of rows"),
        ([b"a"], {"keys": [b"k", b"k"]}, "keys must have as many rows as values, 1, got 2"),
        ([b"a", b"b"], {"headers": [{}]}, "headers must have as many rows as values, 2, got 1"),
        ([b"a", b"b"], {"headers": [{}, {"h" * 32_768: b""}]}, "32768"),
        ([b"a", b"b"], {"correlation_ids": ["x", "x"]}, "got one twice"),
        ([b"a"], {"expected_offsets": [2**63]}, r"expected_offsets\[0\]"),
        ([b"a"], {"timeout": 0}, "timeout"),
        (pa.record_batch({"key": [b"k"]}), {}, "got no column value"),
        (pa.record_batch({"value": [b"k"], "colour": [1]}), {}, "'colour'"),
        (pa.record_batch({"value": [b"k"]}), {"keys": [b"k"]}, "no other column must be given"),
        (pa.array([1, 2]), {}, "int64"),
    ],
)
async def test_a_bad_batch_sends_nothing(
    nc: Client, name: str, values: Any, columns: dict[str, Any], match: str
) -> None:
    before = nc.stats["out_msgs"]
    publisher = EnvelopePublisher(nc, name)
    with pytest.raises(ValueError, match=match):
        await publisher.publish_batch(values, **columns)
    assert nc.stats["out_msgs"] == before


async def test_a_row_that_is_too_large_is_named_before_anything_is_sent(nc: Client, name: str) -> None:
    publisher = EnvelopePublisher(nc, name)
    largest = b"x" * (nc.max_payload - len(new_message(b"x" * nc.max_payload)) + nc.max_payload)
    before = nc.stats["out_msgs"]
    with pytest.raises(EnvelopeTooLargeError, match="row 2: "):
        await publisher.publish_batch([b"a", largest, largest + b"x", b"b"])
    with pytest.raises(EnvelopeTooLargeError):
        await publisher.publish(largest + b"x")
    assert nc.stats["out_msgs"] == before
    await publisher.publish_batch([b"a", largest, b"b"])
    await publisher.flush()
    assert nc.stats["out_msgs"] == before + 3
    assert nc.is_connected


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"subject": "a.>"}, "wildcard"),
        ({"partitions": 0}, "partitions"),
        ({"partition_by": "hash"}, "hash"),
        ({"ack_policy": 7}, "ack_policy must be one of .*, got 7"),
        ({"timeout": float("inf")}, "timeout"),
    ],
)
async def test_bad_options_of_the_publisher(nc: Client, options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        EnvelopePublisher(nc, **{"subject": "s", **options})


async def test_inbox_of_another_connection_is_refused(nc: Client) -> None:
    with pytest.raises(UsageError, match="on the publisher's connection"):
        EnvelopePublisher(nc, "s", inbox=AckInbox(Client()))


async def test_flush_is_a_barrier(nc: Client, collector: Collector, name: str) -> None:
    await collector.start(name)
    publisher = EnvelopePublisher(nc, name)
    for round_ in range(1, 6):
        await publisher.publish_batch([b"x" * 1000] * 5_000)
        await publisher.publish(b"last")
        await publisher.flush()
        # Whatever the server had handled before our PONG is on its way to the collector before its own.
        await collector.client.flush()
        await collector.wait_for(5_001 * round_)
        assert len(collector.messages) == 5_001 * round_


async def test_flush_without_a_connection_is_an_error(name: str) -> None:
    with run_nats_server() as server:
        client = await connect(server.url)
        publisher = EnvelopePublisher(client, name)
        await publisher.publish(b"1")
        await publisher.flush()
        server.kill()
        await until(lambda: not client.is_connected)
        with pytest.raises(TransportError, match="not restored within"):
            await publisher.flush(timeout=0.2)
        server.start()
        await until(lambda: client.is_connected)
        await publisher.publish(b"2")
        await publisher.flush()
        server.kill()
        server.start()
        await until(lambda: client.stats["reconnects"] == 2)
        await publisher.flush()  # nothing was published since the last one
        await client.close()
        with pytest.raises(TransportError, match="closed"):
            await publisher.flush()
        with pytest.raises(TransportError, match="closed"):
            await publisher.publish(b"3")
        with pytest.raises(TransportError, match="closed"):
            await publisher.publish_batch([b"3"])


async def test_what_may_be_lost_with_the_connection_is_said(name: str) -> None:
    with run_nats_server() as server, FaultProxy(server.url) as proxy:
        client = await connect(f"nats://{proxy.address}")
        publisher = EnvelopePublisher(client, name)
        proxy.stall("to_server")
        await publisher.publish_batch([b"lost"] * 10)
        await until(lambda: not client.pending_data_size)  # written to the socket, and stuck in the proxy
        proxy.cut()
        proxy.resume("to_server")
        await until(lambda: client.stats["reconnects"] == 1)
        with pytest.raises(TransportError, match="may not have arrived"):
            await publisher.flush()
        await publisher.publish(b"fine")
        await publisher.flush()
        await client.close()


async def test_a_full_buffer_while_the_connection_is_down(name: str) -> None:
    with run_nats_server() as server:
        client = await connect(server.url, pending_size=1000)
        publisher = EnvelopePublisher(client, name, timeout=0.2)
        server.kill()
        await until(lambda: not client.is_connected)
        await publisher.publish(b"x" * 500)
        with pytest.raises(TransportError, match="down, and its buffer is full") as caught:
            await publisher.publish(b"x" * 500)
        assert caught.value.published == 0
        with pytest.raises(TransportError) as batch:
            await publisher.publish_batch([b"x" * 500] * 3)
        assert batch.value.published == 0
        server.start()
        observer = Collector(await connect(server.url))
        await observer.start(name)
        await publisher.publish_batch([b"y" * 500] * 3, timeout=60)
        await publisher.flush()
        assert len(await observer.wait_for(3)) in (3, 4)  # the buffered one may precede the observer
        await observer.client.close()
        await client.close()


async def test_a_stalled_connection_fails_the_batch_and_says_how_far_it_got(name: str) -> None:
    with run_nats_server() as server, FaultProxy(server.url) as proxy:
        client = await connect(f"nats://{proxy.address}", pending_size=256 * 1024)
        publisher = EnvelopePublisher(client, name)
        proxy.stall()
        rows = 60_000
        with pytest.raises(TransportError, match="too slowly") as caught:
            await publisher.publish_batch([b"x" * 1000] * rows, timeout=3.0)
        assert 0 < caught.value.published < rows
        proxy.resume()
        await client.close()


async def test_with_an_inbox_a_batch_cut_short_is_told_row_by_row(name: str) -> None:
    with run_nats_server() as server, FaultProxy(server.url) as proxy:
        client = await connect(f"nats://{proxy.address}", pending_size=256 * 1024)
        async with AckInbox(client) as inbox:
            publisher = EnvelopePublisher(client, name, inbox=inbox, timeout=60)
            proxy.stall()
            summary = await acked(publisher, [b"x" * 1000] * 60_000, timeout=3.0)
            assert len(summary.failures) == 60_000
            unsent = [row for row, error in summary.failures.items() if "never sent" in str(error)]
            assert 0 < len(unsent) < 60_000
            assert unsent == list(range(60_000 - len(unsent), 60_000))
            assert inbox.outstanding == 0
            proxy.resume()
        await client.close()


async def test_rows_that_wait_for_the_buffer_do_not_wait_for_acks(name: str) -> None:
    """Their deadlines passed in that wait, so that rows were sent after they had timed out."""
    with run_nats_server() as server, FaultProxy(server.url) as proxy:
        observer = Collector(await connect(server.url))
        await observer.start(name)
        client = await connect(f"nats://{proxy.address}", pending_size=256 * 1024)
        async with AckInbox(client) as inbox:
            publisher = EnvelopePublisher(client, name, inbox=inbox, timeout=6)
            before = client.stats["out_msgs"]
            proxy.stall()
            batch = asyncio.create_task(
                acked(publisher, [b"%d" % row + bytes(1000) for row in range(60_000)])
            )
            await until(lambda: client.pending_data_size >= 256 * 1024)
            registered, written = inbox.stats.outstanding, client.stats["out_msgs"] - before
            failures = (await batch).failures
            proxy.resume()
            await publisher.flush(60)
            assert registered == written > 0
            sent = [row for row, error in sorted(failures.items()) if cast(AckTimeoutError, error).sent]
            assert 0 < len(sent) < 60_000
            arrived = [bytes(unmarshal_message(msg.data).value) for msg in await observer.wait_for(len(sent))]
            assert [int(value[:-1000]) for value in arrived] == sent
        await client.close()


async def test_two_batches_at_once(liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str) -> None:
    liftbridge_server.create_stream(name)
    async with AckInbox(lb_nc, max_outstanding=500, timeout=60) as inbox:
        publisher = EnvelopePublisher(lb_nc, name, inbox=inbox, timeout=60)
        one, two = await asyncio.gather(
            acked(publisher, [b"1-%d" % i for i in range(5000)]),
            acked(publisher, [b"2-%d" % i for i in range(5000)]),
        )
        ack = await publisher.publish(b"after")
    assert ack.offset == 10_000
    assert sorted([*one.offsets, *two.offsets]) == list(range(10_000))
    values = [bytes(message.value) for message in liftbridge_server.read(name, count=10_000)]
    assert [values[offset] for offset in one.offsets] == [b"1-%d" % i for i in range(5000)]


async def test_a_cancelled_batch_leaves_nothing_behind(nc: Client, name: str) -> None:
    async with AckInbox(nc, max_outstanding=100, timeout=60) as inbox:
        publisher = EnvelopePublisher(nc, name, inbox=inbox, timeout=3.0)
        task = asyncio.create_task(publisher.publish_batch([b"v"] * 5000))
        await until(lambda: inbox.outstanding == 100)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await inbox.drain()
        assert (inbox.outstanding, inbox.stats.outstanding) == (0, 0)


async def test_awaiting_the_acks_twice_and_giving_up(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    async with AckInbox(lb_nc, timeout=60) as inbox:
        acks = await EnvelopePublisher(lb_nc, name, inbox=inbox, timeout=60).publish_batch(
            [b"v"], timeout=3.0
        )
        assert (acks.left, acks.done()) == (1, False)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await acks
        assert await acks is await acks
        assert acks.done()


async def test_policy_and_headers_reach_the_wire(nc: Client, collector: Collector, name: str) -> None:
    await collector.start(name)
    publisher = EnvelopePublisher(nc, name, ack_policy=AckPolicy.ALL)
    await publisher.publish(b"v", key=b"k", headers={"h": b"1"}, expected_offset=3, correlation_id="c")
    message = unmarshal_message((await collector.wait_for(1))[0].data)
    assert (message.value, message.key, dict(message.headers)) == (b"v", b"k", {"h": b"1"})
    assert (message.offset, message.correlation_id, message.ack_policy) == (3, "c", AckPolicy.ALL)
