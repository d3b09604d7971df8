"""Samples of real servers: JetStream with consumers and groups, Liftbridge and the gateway."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import nats
import pytest

import liftenvelope
from liftenvelope import new_message
from liftenvelope._pb import api_pb2
from liftenvelope.errors import TransportError
from liftenvelope.group import Coordinator, GroupClient, GroupConsumer, JetStreamTopic
from liftenvelope.jetstream import AckPolicy, ConsumerConfig, JetStream, PriorityPolicy, StreamConfig
from liftenvelope.monitor import History, MonitorLimits, Snapshot, alerts
from liftenvelope.monitor.group_activity import GroupActivity
from liftenvelope.monitor.jetstream import JetStreamSampler
from liftenvelope.monitor.liftbridge import LiftbridgeSampler
from liftenvelope.testing import NatsServer, run_gateway, run_liftbridge, run_nats_server


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with run_nats_server(jetstream=True) as running:
        yield running


async def sampled(sample: Callable[[], Awaitable[Snapshot]], ready: Callable[[Snapshot], bool]) -> Snapshot:
    """Take samples until one is as expected."""
    async with asyncio.timeout(120):
        while not ready(snapshot := await sample()):
            await asyncio.sleep(0.05)
    return snapshot


async def test_jetstream_streams_consumers_and_pins(server: NatsServer) -> None:
    async with await nats.connect(server.url) as nc, JetStream(nc, timeout=60) as js:
        await js.create_stream(StreamConfig(name="ORDERS", subjects=("orders.*",)))
        await js.create_stream(StreamConfig(name="IDLE", subjects=("idle",)))
        for number in range(5):
            await js.publish("orders.new", b"%d" % number)
        stream = await js.stream("ORDERS")
        await stream.purge(sequence=2)
        worker = await stream.create_consumer(ConsumerConfig(name="worker"))
        await stream.create_consumer(
            ConsumerConfig(
                name="pinned",
                ack_policy=AckPolicy.EXPLICIT,
                priority_policy=PriorityPolicy.PINNED_CLIENT,
                priority_groups=("only",),
            )
        )
        await worker.fetch(3)
        sampler, history = JetStreamSampler(js), History()
        snapshot = await sampled(
            sampler.sample, lambda one: one.consumers["ORDERS", "worker"].ack_pending == 3
        )
        history.add(snapshot)
        assert (snapshot.kind, snapshot.faults, list(snapshot.streams)) == (
            "jetstream",
            [],
            ["IDLE", "ORDERS"],
        )
        orders = snapshot.streams["ORDERS"]
        assert (orders.messages, orders.partitions[0].first, orders.end, orders.consumers) == (4, 1, 5, 2)
        worker_now = snapshot.consumers["ORDERS", "worker"]
        assert (worker_now.unprocessed, worker_now.lag, worker_now.ack_floor) == (1, 4, 1)
        assert [one.group for one in snapshot.consumers["ORDERS", "pinned"].pins] == ["only"]
        assert snapshot.storage is not None
        assert snapshot.storage.disk > 0
        await js.publish("orders.new", b"more")
        history.add(await sampler.sample())
        rate = history.rate("stream", "ORDERS")
        assert rate is not None
        assert rate > 0


async def test_sample_that_is_cancelled_before_its_parts_begin_leaves_nothing(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_streams = JetStreamSampler._streams

    async def list_and_cancel(sampler: JetStreamSampler) -> Any:
        found = await list_streams(sampler)
        asyncio.get_running_loop().call_soon(sampling.cancel)
        return found

    monkeypatch.setattr(JetStreamSampler, "_streams", list_and_cancel)
    async with await nats.connect(server.url) as nc, JetStream(nc, timeout=60) as js:
        sampling = asyncio.create_task(JetStreamSampler(js).sample())
        with pytest.raises(asyncio.CancelledError):
            await sampling
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert caught == []


async def test_groups_over_nats(server: NatsServer) -> None:
    async with (
        await nats.connect(server.url) as nc,
        JetStream(nc, timeout=60) as js,
        Coordinator(nc, timeout=60),
    ):
        await js.create_stream(StreamConfig(name="ORDERS", subjects=("orders.*",)))
        for number in range(6):
            await js.publish(f"orders.{number % 2}", b"")
        topic = JetStreamTopic.of_stream("ORDERS", ["orders.0", "orders.1"])
        sampler = JetStreamSampler(js, MonitorLimits(counts=1))  # one lag is counted with each sample
        async with GroupConsumer(nc, "billing", topic, consumer_id="w", auto_offset="earliest") as consumer:
            async for message in consumer:
                await consumer.commit(message)
                if message.partition == 1:
                    break
            snapshot = await sampled(
                sampler.sample,
                lambda one: "billing" in one.groups and one.groups["billing"].lag is not None
                and all(row.lag is not None for row in one.groups["billing"].partitions),
            )  # fmt: skip
            group = snapshot.groups["billing"]
            assert list(group.members) == ["w"]
            assert [row.member for row in group.partitions] == ["w", "w"]
            lags = {row.partition: row.lag for row in group.partitions}
            assert lags[1] == 2


async def test_groups_of_coordinators_with_a_prefix_of_their_own(server: NatsServer) -> None:
    async with (
        await nats.connect(server.url) as nc,
        JetStream(nc, timeout=60) as js,
        Coordinator(nc, timeout=60),
        Coordinator(nc, timeout=60, prefix="shop.groups", bucket="shop-groups"),
    ):
        await GroupClient(nc, timeout=60).create_group("billing")
        await GroupClient(nc, timeout=60, prefix="shop.groups").create_group("tills")
        samplers = {
            "billing": JetStreamSampler(js),
            "tills": JetStreamSampler(js, group_prefix="shop.groups"),
        }
        for name, sampler in samplers.items():
            snapshot = await sampled(sampler.sample, lambda one: bool(one.groups))
            assert list(snapshot.groups) == [name]


async def test_groups_without_a_coordinator_stay_with_a_fault(server: NatsServer) -> None:
    async with await nats.connect(server.url) as nc, JetStream(nc, timeout=60) as js:
        sampler = JetStreamSampler(js)
        async with Coordinator(nc, timeout=60):
            await GroupClient(nc, timeout=60).create_group("billing")
            await sampled(sampler.sample, lambda one: "billing" in one.groups)
        for _ in range(3):
            snapshot = await sampler.sample()
            assert list(snapshot.groups) == ["billing"]
            assert [one.part for one in snapshot.faults] == ["groups"]


async def _sample_liftbridge(addresses: list[str]) -> None:
    async with liftenvelope.connect(addresses, timeout=60) as client:
        await client.create_stream("monitored", "monitored", partitions=2)
        for _ in range(4):
            await client.publish("monitored", b"")
        sampler = LiftbridgeSampler(client)
        async with client.consumer(
            "readers", "monitored", consumer_id="one", auto_offset="earliest"
        ) as member:
            async for message in member:
                await member.commit(message)
                if message.offset == 1:
                    break
            snapshot = await sampled(
                sampler.sample,
                lambda one: "readers" in one.groups and one.groups["readers"].partitions[0].committed == 2,
            )
        stream, group = snapshot.streams["monitored"], snapshot.groups["readers"]
        assert not any(name.startswith("__") for name in snapshot.streams)
        assert [part.end for part in stream.partitions] == [4, 0]
        assert set(snapshot.brokers.values()) == {"serving"}
        assert (group.state, group.members, group.lag) == ("active", {"one": ("monitored",)}, 2)
        limited = LiftbridgeSampler(client, MonitorLimits(max_rows=1))
        snapshot = await sampled(limited.sample, lambda one: "readers" in one.groups)
        assert len(snapshot.groups["readers"].partitions) == 1
        assert snapshot.left_out == {"streams": 0, "groups": 0, "partitions of groups": 1}


async def test_liftbridge() -> None:
    async with run_liftbridge() as cluster:
        await _sample_liftbridge(cluster.addresses)


async def test_groups_without_an_activity_stream_stay_with_a_fault() -> None:
    off = {"activity.stream.enabled": False}
    async with (
        run_gateway() as gateway,
        run_liftbridge(config=off) as other,
        liftenvelope.connect(gateway.addresses, timeout=60) as client,
        liftenvelope.connect(other.addresses, timeout=60) as without,
    ):
        await client.create_stream("monitored", "monitored")
        sampler = LiftbridgeSampler(client)
        async with client.consumer("readers", "monitored", consumer_id="one"):
            await sampled(sampler.sample, lambda one: "readers" in one.groups)
            sampler._activity = GroupActivity(without)
            for _ in range(3):
                snapshot = await sampler.sample()
                assert list(snapshot.groups) == ["readers"]
                assert [one.part for one in snapshot.faults] == ["groups"]


async def test_gateway() -> None:
    async with run_gateway() as gateway:
        await _sample_liftbridge(gateway.addresses)


async def test_streams_that_raw_activity_names_are_limited() -> None:
    async with (
        run_gateway() as gateway,
        liftenvelope.connect(gateway.addresses, timeout=60) as client,
        await nats.connect(gateway.nats_url) as nc,
    ):
        for turn in range(3):
            joined = api_pb2.JoinConsumerGroupOp(
                groupId="readers", consumerId="one", streams=[f"{turn}-{number}" for number in range(1_500)]
            )
            event = api_pb2.ActivityStreamEvent(id=turn, op="JOIN_CONSUMER_GROUP", joinConsumerGroupOp=joined)
            await nc.request("_lift.activity", new_message(event.SerializeToString()), timeout=60)
        group = (await GroupActivity(client).update()).groups["readers"]
        assert list(group.streams) == list(group.members["one"])
        assert list(group.streams) == [f"2-{number}" for number in range(1_024)]


async def test_stream_beyond_the_limit_is_counted_and_left_out(server: NatsServer) -> None:
    async with await nats.connect(server.url) as nc, JetStream(nc, timeout=60) as js:
        for number in range(3):
            await js.create_stream(StreamConfig(name=f"S{number}", subjects=(f"s{number}",)))
        snapshot = await JetStreamSampler(js, MonitorLimits(max_streams=2)).sample()
        assert (list(snapshot.streams), snapshot.left_out["streams"]) == (["S0", "S1"], 1)


async def test_consumers_of_all_streams_share_one_limit(server: NatsServer) -> None:
    async with await nats.connect(server.url) as nc, JetStream(nc, timeout=60) as js:
        for name in ("A", "B"):
            stream = await js.create_stream(StreamConfig(name=name, subjects=(name,)))
            for number in range(2):
                await stream.create_consumer(ConsumerConfig(name=f"worker-{number}"))
        sampler = JetStreamSampler(js, MonitorLimits(max_consumers=3))
        for _ in range(2):
            snapshot = await sampler.sample()
            assert (len(snapshot.consumers), snapshot.left_out["consumers"]) == (3, 1)
        await js.delete_stream("B")
        assert (await sampler.sample()).left_out["consumers"] == 0
        for number in range(2, 7):
            await (await js.stream("A")).create_consumer(ConsumerConfig(name=f"worker-{number}"))
        snapshot = await sampler.sample()
        assert (len(snapshot.consumers), snapshot.left_out["consumers"]) == (3, 4)


async def test_groups_and_partitions_beyond_the_limits_are_counted(server: NatsServer) -> None:
    async with (
        await nats.connect(server.url) as nc,
        JetStream(nc, timeout=60) as js,
        Coordinator(nc, timeout=60),
    ):
        await js.create_stream(StreamConfig(name="ORDERS", subjects=("orders.*",)))
        topic = JetStreamTopic.of_stream("ORDERS", [f"orders.{number}" for number in range(5)])
        for name in ("a", "b", "c"):
            await GroupClient(nc, timeout=60).create_group(name, topics=[topic])
        sampler = JetStreamSampler(js, MonitorLimits(max_groups=2, max_rows=3))
        snapshot = await sampled(sampler.sample, lambda one: bool(one.groups))
        assert [len(one.partitions) for one in snapshot.groups.values()] == [3, 3]
        assert snapshot.left_out == {"streams": 0, "consumers": 0, "groups": 1, "partitions of groups": 4}
        assert [one.text for one in alerts(snapshot)] == [
            "groups beyond the limit are not shown: 1",
            "partitions of groups beyond the limit are not shown: 4",
        ]


async def test_consumers_that_can_not_be_read_stay_with_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftenvelope.monitor.jetstream._PAGE", 5.0)
    denied = {"publish": {"deny": ["$JS.API.CONSUMER.LIST.BLIND"]}}
    users = [
        {"user": "all", "password": "all"},
        {"user": "some", "password": "some", "permissions": denied},
    ]
    async with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        urls = [server.url.replace("://", f"://{user}:{user}@") for user in ("all", "some")]
        async with (
            await nats.connect(urls[0]) as whole,
            await nats.connect(urls[1]) as part,
            JetStream(whole, timeout=60) as js,
            JetStream(part, timeout=60) as limited,
        ):
            for name in ("BLIND", "SEEN"):
                stream = await js.create_stream(StreamConfig(name=name, subjects=(name,)))
                await stream.create_consumer(ConsumerConfig(name="old"))
            sampler = JetStreamSampler(js)
            await sampler.sample()
            for name in ("BLIND", "SEEN"):
                await (await js.stream(name)).create_consumer(ConsumerConfig(name="new"))
            sampler._js = limited
            snapshot = await sampler.sample()
            assert list(snapshot.consumers) == [("BLIND", "old"), ("SEEN", "new"), ("SEEN", "old")]
            [fault] = snapshot.faults
            assert (fault.part, "BLIND" in fault.text) == ("consumers", True)
            await js.delete_stream("BLIND")
            snapshot = await sampler.sample()
            assert (snapshot.faults, {stream for stream, _ in snapshot.consumers}) == ([], {"SEEN"})


async def test_sample_of_a_stopped_server_fails(server: NatsServer) -> None:
    async with await nats.connect(server.url) as nc, JetStream(nc, timeout=2) as js:
        sampler = JetStreamSampler(js)
        await sampler.sample()
        await nc.close()
        with pytest.raises(TransportError):
            await sampler.sample()
