"""Metrics of a gateway agree with what its clients did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.gateway import Gateway, Limits
from liftenvelope.gateway._program.http import GatewayMonitor, HttpServer
from liftenvelope.gateway._readers.cursors import cursor_key
from liftenvelope.group import GroupClient, JetStreamTopic, Place, TopicPartition
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.nats import AckInbox
from liftenvelope.rpc.aio import Call, Channel
from liftenvelope.rpc.status import RpcError
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.integration.conftest import connect, until

from .http_client import Samples, get, scrape

PUBLISHES, RAW = 1_000, 500


@pytest.fixture(autouse=True)
def scrapes_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftenvelope.gateway._monitoring.lag._AGE", 0.0)
    monkeypatch.setattr("liftenvelope.gateway._program.http._FRESH", 0.0)


@pytest.fixture
def jetstream_server() -> Iterator[NatsServer]:
    """A server for each test: metrics count the streams of all."""
    with run_nats_server(jetstream=True) as server:
        yield server


@asynccontextmanager
async def gateway_on(url: str, **options: Any) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway with an HTTP server, and the address of the latter."""
    nc = await connect(url)
    # The lease and the members of groups outlive a pause of the machine.
    async with Gateway(nc, **{"broker_ttl": 60.0, "consumer_timeout": 600.0, **options}) as gateway:
        server = HttpServer(GatewayMonitor(gateway))
        try:
            yield gateway, await server.start("127.0.0.1", 0)
        finally:
            await server.close()
    await nc.close()


async def scraped_until(http: str, **expected: float) -> Samples:
    """Scrape until metrics without labels have these values."""
    async with asyncio.timeout(120):
        while True:
            samples = await scrape(http)
            if {name: samples.get((name,)) for name in expected} == expected:
                return samples


def request(stream: str, number: int = 0, **fields: Any) -> bytes:
    """A PublishRequest."""
    fields = {"value": b"v" * 100, "correlationId": str(number), **fields}
    return api_pb2.PublishRequest(stream=stream, **fields).SerializeToString()


async def answers(call: Call, count: int) -> list[api_pb2.PublishResponse]:
    """Read that many responses of a PublishAsync call."""
    found: list[api_pb2.PublishResponse] = []
    async with asyncio.timeout(120):
        while len(found) < count:
            received = await call.receive()
            assert received is not None
            found += map(api_pb2.PublishResponse.FromString, received)
    return found


def check_sums(samples: Samples) -> None:
    """Each message has one end, and each ack a latency."""
    for method in ("Publish", "PublishAsync", "PublishToSubject"):
        failures = sum(v for k, v in samples.items() if k[:2] == ("publish_failures_total", method))
        acks = samples["publish_acks_total", method]
        assert samples["publishes_total", method] == acks + failures + samples["pending_acks", method]
        assert samples["ack_latency_seconds_count", method] == acks
        assert samples["ack_latency_seconds_bucket", "+Inf", method] == acks


async def test_counters_agree_with_a_known_workload(jetstream_server: NatsServer, name: str) -> None:
    async with (
        gateway_on(jetstream_server.url) as (gateway, http),
        await Channel.connect(gateway.address) as channel,
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name, partitions=2)
        requests = [request(name, number, partition=number % 2) for number in range(PUBLISHES)]
        call = channel.bidi("/proto.API/PublishAsync")
        for start in range(0, PUBLISHES, 50):
            await call.send(requests[start : start + 50])
        await call.send([request("nowhere", 1), request("nowhere", 2)])
        responses = await answers(call, PUBLISHES + 2)
        assert sum(response.HasField("asyncError") for response in responses) == 2
        open_ = await scrape(http)
        call.half_close()
        assert await call.receive() is None
        for number in range(7):
            await channel.unary("/proto.API/Publish", request(name, number), timeout=60)
        await channel.unary("/proto.API/Publish", request(name, ackPolicy=api_pb2.NONE), timeout=60)
        with pytest.raises(RpcError, match="NOT_FOUND"):
            await channel.unary("/proto.API/Publish", request("nowhere"), timeout=60)
        to_subject = api_pb2.PublishToSubjectRequest(subject=name, value=b"x").SerializeToString()
        await channel.unary("/proto.API/PublishToSubject", to_subject, timeout=60)
        nc = await connect(jetstream_server.url)
        async with AckInbox(nc, max_outstanding=RAW) as inbox:
            acks = [await inbox.publish(name, b"raw") for _ in range(RAW)]
            assert len(acks) == RAW
        await nc.close()
        samples = await scraped_until(http, raw_acks_total=RAW, raw_ack_lag_messages=0)
        await client.delete_stream(name)

    assert open_["open_calls", "PublishAsync"] == 1
    assert samples["open_calls", "PublishAsync"] == 0
    check_sums(samples)
    values = {
        ("publishes_total", "PublishAsync"): PUBLISHES + 2,
        ("publish_acks_total", "PublishAsync"): PUBLISHES,
        ("publish_failures_total", "PublishAsync", "not_found"): 2,
        ("publish_bytes_total", "PublishAsync"): sum(map(len, requests)) + 2 * len(request("nowhere", 1)),
        ("publishes_total", "Publish"): 9,
        ("publish_acks_total", "Publish"): 8,
        ("publish_failures_total", "Publish", "not_found"): 1,
        ("publishes_total", "PublishToSubject"): 1,
        ("publish_acks_total", "PublishToSubject"): 1,
        ("calls_total", "OK", "PublishAsync"): 1,
        ("calls_total", "OK", "Publish"): 8,
        ("calls_total", "NOT_FOUND", "Publish"): 1,
        ("raw_acks_total",): RAW,
        ("stream_raw_acks_total", name): RAW,
        ("stream_raw_ack_lag_messages", name): 0,
        ("streams",): 1,
        ("partitions",): 2,
        ("partitions_led",): 2,
        ("partitions_bound",): 2,
        ("connections",): 2,
        ("ready",): 1,
    }
    assert {key: samples.get(key) for key in values} == values
    assert samples["nats_sent_messages_total", "main"] > PUBLISHES
    assert 0 < samples["ack_latency_seconds_sum", "PublishAsync"] < PUBLISHES * 120


async def test_messages_without_an_ack_are_counted(name: str) -> None:
    with run_nats_server(jetstream=True) as server, FaultProxy(server.address) as proxy:
        async with (
            gateway_on(f"nats://{proxy.address}", ack_timeout=8.0) as (gateway, http),
            await Channel.connect(gateway.address) as channel,
        ):
            async with liftenvelope.connect([gateway.address]) as client:
                await client.create_stream(name, name)
            call = channel.bidi("/proto.API/PublishAsync")
            await call.send([request(name)])
            await answers(call, 1)  # then the others go the quick way
            # The gateway begins to lead after it has answered, and has no lag to measure before.
            await until(lambda: _sum(gateway, "partitions_bound") == 1)
            proxy.stall("to_client")
            await call.send([request(name, number) for number in range(20)])
            await until(lambda: _sum(gateway, "pending_acks") == 20)
            assert ("raw_ack_lag_messages",) not in await scrape(http)  # JetStream does not answer
            await answers(call, 20)
            proxy.resume()
            samples = await scrape(http)
            assert samples["publish_failures_total", "PublishAsync", "deadline_exceeded"] == 20
            assert samples["pending_acks", "PublishAsync"] == 0
            check_sums(samples)
            # A call that its client ends has messages without an outcome.
            proxy.stall("to_client")
            await call.send([request(name, number) for number in range(5)])
            await until(lambda: _sum(gateway, "pending_acks") == 5)
            call.cancel()
            await until(lambda: _sum(gateway, "pending_acks") == 0)
            proxy.resume()
            samples = await scrape(http)
            assert samples["publish_failures_total", "PublishAsync", "cancelled"] == 5
            assert samples["calls_total", "CANCELLED", "PublishAsync"] == 1
            check_sums(samples)


def _sum(gateway: Gateway, name: str) -> float:
    [metric] = [one for one in gateway.metrics() if one.name == f"liftenvelope_gateway_{name}"]
    return sum(sample.value for sample in metric.samples)


async def test_names_that_clients_choose_are_bounded(jetstream_server: NatsServer, name: str) -> None:
    limits = Limits(max_metric_labels=3)
    async with (
        gateway_on(jetstream_server.url, limits=limits) as (gateway, http),
        liftenvelope.connect([gateway.address]) as client,
    ):
        odd = f'{name}"\\}},a="'
        streams = [odd, *(f"{name}-{number}" for number in range(5))]
        for number, stream in enumerate(streams):
            await client.create_stream(f"{name}.{number}", stream)
        await until(lambda: _sum(gateway, "partitions_bound") == len(streams))
        samples = await scrape(http)
        for prefix in ("stream_raw_ack_lag_messages", "stream_raw_acks_total"):
            shown = [key[1] for key in samples if key[0] == prefix]
            assert len(shown) == 3
            assert odd in shown
        assert samples["partitions_led",] == len(streams)
        assert samples["limit", "max_metric_labels"] == 3
        for stream in streams:
            await client.delete_stream(stream)
        samples = await scraped_until(http, partitions_led=0, partitions_bound=0, streams=0, partitions=0)
        assert not [key for key in samples if key[0].startswith("stream_")]


async def test_lag_of_raw_acks(jetstream_server: NatsServer, name: str) -> None:
    async with (
        gateway_on(jetstream_server.url) as (gateway, http),
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name)
        await until(lambda: _sum(gateway, "partitions_bound") == 1)
        assert gateway._running is not None
        [(_, _, reader)] = gateway._running.leading.readers()
        may_ack, reader._may_ack = reader._may_ack, lambda: False  # as while its lease is over
        nc = await connect(jetstream_server.url)
        async with JetStream(nc) as js:
            for _ in range(30):
                await js.publish(name, b"x")
        samples = await scraped_until(http, raw_ack_lag_messages=30, partitions_bound=0)
        assert samples["stream_raw_ack_lag_messages", name] == 30
        reader._may_ack = may_ack
        await scraped_until(http, raw_ack_lag_messages=0, partitions_bound=1)
        await client.delete_stream(name)
        await nc.close()


async def test_reads_are_counted(jetstream_server: NatsServer, name: str) -> None:
    async with (
        gateway_on(jetstream_server.url) as (gateway, http),
        await Channel.connect(gateway.address) as channel,
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name)
        for _ in range(10):
            await client.publish(name, b"v" * 1_000)
        subscribe = api_pb2.SubscribeRequest(stream=name, startPosition=api_pb2.EARLIEST).SerializeToString()
        call = channel.server_stream("/proto.API/Subscribe", subscribe)
        received: list[bytes] = []
        while len(received) < 11:  # the first one confirms the subscription
            received += await call.receive() or []
        samples = await scrape(http)
        assert samples["open_reads",] == samples["open_calls", "Subscribe"] == 1
        assert samples["read_bytes_total",] == sum(len(message) + 5 for message in received[1:])
        assert samples["read_buffered_bytes",] == 0
        call.cancel()
        await scraped_until(http, open_reads=0)
        await client.delete_stream(name)


async def test_bytes_that_a_slow_subscriber_leaves_are_counted(
    jetstream_server: NatsServer, name: str
) -> None:
    async with (
        gateway_on(jetstream_server.url) as (gateway, http),
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name)
        for _ in range(100):
            await client.publish(name, b"v" * 50_000)
        subscribe = api_pb2.SubscribeRequest(stream=name, startPosition=api_pb2.EARLIEST).SerializeToString()
        # The default window has room for all messages: the gateway would hold some for a moment only.
        async with await Channel.connect(gateway.address, window=65_536) as channel:
            channel.server_stream("/proto.API/Subscribe", subscribe)  # nobody takes its messages
            await until(lambda: _sum(gateway, "read_buffered_bytes") > 0)
        await scraped_until(http, read_buffered_bytes=0, open_reads=0)
        await client.delete_stream(name)


async def test_compactions_are_counted(jetstream_server: NatsServer, name: str) -> None:
    async with (
        gateway_on(jetstream_server.url) as (gateway, http),
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name, compact_enabled=True, cleaner_interval=0.2)
        for _ in range(5):
            await client.publish(name, b"x", key=b"k")
        await until(lambda: _sum(gateway, "compaction_deleted_messages_total") == 4)
        await until(lambda: _sum(gateway, "compactions_total") >= 1)  # counted after its deletions
        samples = await scrape(http)
        assert samples["compaction_failures_total",] == 0
        await client.delete_stream(name)


async def test_groups_are_counted(jetstream_server: NatsServer, name: str) -> None:
    async with (
        gateway_on(jetstream_server.url) as (gateway, http),
        await Channel.connect(gateway.address) as channel,
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name)
        raw = b""
        for consumer in ("a", "b"):
            join = api_pb2.JoinConsumerGroupRequest(groupId=name, consumerId=consumer, streams=[name])
            raw = await channel.unary("/proto.API/JoinConsumerGroup", join.SerializeToString(), timeout=60)
        epoch = api_pb2.JoinConsumerGroupResponse.FromString(raw).epoch
        samples = await scrape(http)
        assert samples["groups",] == 1
        assert samples["members",] == 2
        assert samples["group_members", name] == 2
        assert samples["group_generation", name] == epoch
        for consumer in ("a", "b"):
            leave = api_pb2.LeaveConsumerGroupRequest(groupId=name, consumerId=consumer)
            await channel.unary("/proto.API/LeaveConsumerGroup", leave.SerializeToString(), timeout=60)
        await client.delete_stream(name)


async def join(channel: Channel, group: str, streams: list[str]) -> None:
    request = api_pb2.JoinConsumerGroupRequest(groupId=group, consumerId="a", streams=streams)
    await channel.unary("/proto.API/JoinConsumerGroup", request.SerializeToString(), timeout=60)


async def test_lag_of_a_group_follows_its_cursor(jetstream_server: NatsServer, name: str) -> None:
    async with (
        gateway_on(jetstream_server.url) as (gateway, http),
        await Channel.connect(gateway.address) as channel,
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name, partitions=3)
        for _ in range(5):
            await client.publish(name, b"x", partition=1)
        await join(channel, name, [name])

        def lag(samples: Samples, number: int) -> float:
            return samples["group_lag_messages", name, str(number), name]

        samples = await scrape(http)
        assert [lag(samples, number) for number in range(3)] == [0, 5, 0]
        await client.set_cursor(f"__group:{name}", name, 1, 2)
        assert lag(await scrape(http), 1) == 2
        await client.set_cursor(f"__group:{name}", name, 1, 99)  # a stream that was made again is shorter
        assert lag(await scrape(http), 1) == 0
        nc = await connect(jetstream_server.url)
        async with JetStream(nc) as js:
            await js.publish(f"$KV.lift_cursors.{cursor_key(f'__group:{name}', name, 1)}", b"damaged")
        assert lag(await scrape(http), 1) == 5
        await nc.close()
        await client.delete_stream(name)
        samples = await scrape(http)
        assert not [key for key in samples if key[0] == "group_lag_messages"]


async def test_lag_of_a_group_over_nats(jetstream_server: NatsServer, name: str) -> None:
    nc = await connect(jetstream_server.url)
    async with gateway_on(jetstream_server.url) as (_, http), JetStream(nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
        for _ in range(4):
            await js.publish(f"{name}.a", b"x")
        topics = [
            JetStreamTopic.of_streams("whole", [name]),
            JetStreamTopic("part", (Place(name, f"{name}.a"),)),
        ]
        groups = GroupClient(nc)
        await groups.create_group(name, topics=topics)
        await groups.committed(name)  # the coordinator loads the group
        samples = await scrape(http)
        assert samples["group_lag_messages", name, "0", "whole"] == 4
        await groups.rewind(name, {TopicPartition("whole", 0): 3})
        samples = await scrape(http)
        assert {key: value for key, value in samples.items() if key[0] == "group_lag_messages"} == {
            ("group_lag_messages", name, "0", "whole"): 1
        }
        await js.delete_stream(name)
    await nc.close()


async def test_lags_of_groups_are_bounded(jetstream_server: NatsServer, name: str) -> None:
    async with (
        gateway_on(jetstream_server.url, limits=Limits(max_metric_labels=3)) as (gateway, http),
        await Channel.connect(gateway.address) as channel,
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name, partitions=5)
        for group in ("a", "b"):
            await join(channel, f"{name}-{group}", [name])
        samples = await scrape(http)
        assert len([key for key in samples if key[0] == "group_lag_messages"]) == 3
        await client.delete_stream(name)


async def test_refused_clients_are_counted(jetstream_server: NatsServer) -> None:
    limits = Limits(max_calls=2, max_connections=1)
    async with gateway_on(jetstream_server.url, limits=limits) as (gateway, http):
        async with await Channel.connect(gateway.address) as channel:
            watches = [channel.server_stream("/grpc.health.v1.Health/Watch", b"") for _ in range(2)]
            for watch in watches:
                await watch.receive()
            with pytest.raises(RpcError, match="RESOURCE_EXHAUSTED"):
                await channel.unary("/grpc.health.v1.Health/Check", b"", timeout=60)
            host, _, port = gateway.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await reader.read() == b""
            writer.close()
            samples = await scrape(http)
        assert (samples["refused_calls_total",], samples["refused_connections_total",]) == (1, 1)
        assert (samples["connections",], samples["open_calls", "Watch"]) == (1, 2)


async def test_lines_of_the_server_log_are_counted(jetstream_server: NatsServer, name: str) -> None:
    async with (
        gateway_on(jetstream_server.url) as (gateway, http),
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name)
        dropping = "[WRN] Dropping messages due to excessive stream ingest rate on"
        gateway.read_server_log(f"{dropping} '$G' > 'lift_{name}_0': IPQ len limit reached")
        gateway.read_server_log(f"{dropping} '$G' > 'other': IPQ len limit reached")
        failed = "[ERR] JetStream failed to store a msg on stream"
        gateway.read_server_log(f"{failed} '$G > lift_{name}_0': write a.blk: no space left on device")
        samples = await scrape(http)
        assert (samples["drop_warnings_total",], samples["storage_faults_total",]) == (1, 1)
        await client.delete_stream(name)


async def test_reconnects_are_counted() -> None:
    with run_nats_server(jetstream=True) as server:
        async with gateway_on(server.url) as (_, http):
            server.kill()
            async with asyncio.timeout(120):
                while (await scrape(http))["nats_connected", "main"]:
                    await asyncio.sleep(0.1)
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(120):
                while (samples := await scrape(http))["ready",] == 0:
                    assert samples["unmet_condition", "running"] == 0
            assert samples["nats_reconnects_total", "main"] >= 1
            assert samples["nats_connected", "main"] == 1


async def test_scrapes_at_about_the_same_time_share_an_answer(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftenvelope.gateway._program.http._FRESH", 1_000.0)
    async with gateway_on(jetstream_server.url) as (_, http):
        found = await asyncio.gather(*(get(http, "/metrics") for _ in range(10)))
        assert len({answer.body for answer in (*found, await get(http, "/metrics"))}) == 1


async def test_gateway_counts_anew_after_a_restart(jetstream_server: NatsServer, name: str) -> None:
    nc = await connect(jetstream_server.url)
    gateway = Gateway(nc)
    async with gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        await client.publish(name, b"x")
        assert _sum(gateway, "publish_acks_total") == 1
    assert [metric.samples for metric in gateway.metrics() if metric.name.endswith("_streams")] == [[]]
    async with gateway, liftenvelope.connect([gateway.address]) as client:
        assert _sum(gateway, "publish_acks_total") == 0
        await client.delete_stream(name)
    await nc.close()
