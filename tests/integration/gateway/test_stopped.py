"""A gateway that is stopped for longer than its lease, as by SIGSTOP, and goes on later."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.rpc.aio import Call, Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import GatewayCluster, GatewayNode, run_gateway
from tests.handled import handled
from tests.integration.conftest import connect, freeze, until

#: Longer than a gateway that lives ever hangs on a loaded machine.
TTL = 6.0
LONG = 120.0
PARTITIONS = 8
FENCED = "not currently assigned this partition"


@pytest.fixture
async def cluster() -> AsyncIterator[GatewayCluster]:
    """Three gateways, whose group members never expire."""
    config = {"broker_ttl": TTL, "consumer_timeout": LONG, "coordinator_timeout": LONG}
    async with run_gateway(3, config=config) as cluster:
        yield cluster


def node_of(cluster: GatewayCluster, id_: str) -> GatewayNode:
    return next(node for node in cluster.nodes if node.id == id_)


async def unary(address: str, method: str, request: Any, answer: Any) -> Any:
    async with await Channel.connect(address) as channel:
        raw = await channel.unary(f"/proto.API/{method}", request.SerializeToString(), timeout=60)
    return answer.FromString(raw)


async def join(address: str, group: str, consumer: str, stream: str) -> Any:
    request = api_pb2.JoinConsumerGroupRequest(groupId=group, consumerId=consumer, streams=[stream])
    return await unary(address, "JoinConsumerGroup", request, api_pb2.JoinConsumerGroupResponse)


async def leader_at(address: str, name: str, partition: int) -> str:
    """Return the leader of a partition in the view of one gateway."""
    request = api_pb2.FetchMetadataRequest(streams=[name])
    answer = await unary(address, "FetchMetadata", request, api_pb2.FetchMetadataResponse)
    return str(answer.streamMetadata[0].partitions[partition].leader)


def pid_of(node: GatewayNode) -> int:
    assert node.pid is not None
    return node.pid


async def led_without(
    cluster: GatewayCluster, stopped: GatewayNode, name: str, partition: int
) -> GatewayNode:
    """The gateway that leads a partition, once both others agree that the stopped one does not."""
    others = [node for node in cluster.nodes if node is not stopped]
    async with asyncio.timeout(60):
        while True:
            found = {await leader_at(node.address, name, partition) for node in others}
            if len(found) == 1 and stopped.id not in found:
                return node_of(cluster, found.pop())
            await asyncio.sleep(0.05)


def subscription(name: str, partition: int, group: str, epoch: int, consumer: str, start: int = 0) -> bytes:
    request = api_pb2.SubscribeRequest(
        stream=name, partition=partition, startPosition=api_pb2.OFFSET, startOffset=start
    )
    request.consumer.groupId, request.consumer.groupEpoch, request.consumer.consumerId = (
        group,
        epoch,
        consumer,
    )
    return request.SerializeToString()


async def offsets(call: Call, found: list[int]) -> None:
    """Note the offsets of all messages that come."""
    async for payload in call:
        message = api_pb2.Message.FromString(payload)
        if message.value:  # the first one says only that the subscription stands
            found.append(message.offset)


async def read_on(address: str, request: bytes, found: list[int], count: int) -> None:
    """Read until so many messages came, or the gateway says that another one is to be asked."""
    async with await Channel.connect(address) as channel:
        reading = asyncio.create_task(offsets(channel.server_stream("/proto.API/Subscribe", request), found))
        await until(lambda: reading.done() or len(found) >= count)
        reading.cancel()
        (error,) = await asyncio.gather(reading, return_exceptions=True)
    if isinstance(error, RpcError) and error.code != StatusCode.UNAVAILABLE and FENCED in error.description:
        raise error


async def resumed(
    cluster: GatewayCluster, name: str, partition: int, member: tuple[str, int, str], count: int
) -> list[int]:
    """Read as a client does: on from the next offset, at whoever leads, until so many messages came."""
    found: list[int] = []
    async with asyncio.timeout(90):
        while len(found) < count:
            leader = node_of(cluster, await leader_at(cluster.nodes[0].address, name, partition))
            await read_on(leader.address, subscription(name, partition, *member, len(found)), found, count)
    return found


async def publish_all(client: Client, name: str, partition: int, count: int) -> None:
    for number in range(count):
        await client.publish(name, b"%d" % number, partition=partition, timeout=60)


async def test_stopped_leader_delivers_nothing_after_newer_member_reads(
    cluster: GatewayCluster, name: str
) -> None:
    async with liftenvelope.connect(cluster.addresses) as client:
        await client.create_stream(name, name, partitions=PARTITIONS)
        first = await join(cluster.addresses[0], name, "old", name)
        coordinator = node_of(cluster, first.coordinator)
        # The group must stay where it is: so a gateway is stopped that does not coordinate it.
        leaders = [await leader_at(coordinator.address, name, number) for number in range(PARTITIONS)]
        partition = next(number for number, id_ in enumerate(leaders) if id_ != coordinator.id)
        stopped = node_of(cluster, leaders[partition])
    async with await Channel.connect(stopped.address) as channel:
        request = subscription(name, partition, name, first.epoch, "old")
        call = channel.server_stream("/proto.API/Subscribe", request)
        assert await call.receive() == [b""]
        freeze(pid_of(stopped))
        await led_without(cluster, stopped, name, partition)
        leaving = api_pb2.LeaveConsumerGroupRequest(groupId=name, consumerId="old")
        await unary(coordinator.address, "LeaveConsumerGroup", leaving, api_pb2.LeaveConsumerGroupResponse)
        second = await join(coordinator.address, name, "new", name)
        assert second.epoch > first.epoch
        others = [node.address for node in cluster.nodes if node is not stopped]
        async with liftenvelope.connect(others) as client:
            # JetStream sends all of these to the stopped gateway as well.
            await publish_all(client, name, partition, 50)
            reading = asyncio.create_task(resumed(cluster, name, partition, (name, second.epoch, "new"), 100))
            old: list[int] = []
            os.kill(pid_of(stopped), signal.SIGCONT)
            with pytest.raises(RpcError) as info:
                await asyncio.wait_for(offsets(call, old), 60)
            assert (info.value.code, old) == (StatusCode.UNAVAILABLE, [])
            await publish_all(client, name, partition, 50)
        assert await reading == list(range(100))
    # Wherever the old member asks now, the group's record is against it.
    for node in cluster.nodes:
        async with await Channel.connect(node.address) as channel:
            request = subscription(name, partition, name, first.epoch, "old")
            with pytest.raises(RpcError, match=f"{FENCED}|leader"):
                await channel.server_stream("/proto.API/Subscribe", request).receive()


async def test_stopped_leader_acks_nothing_that_another_one_acked(cluster: GatewayCluster, name: str) -> None:
    async with liftenvelope.connect(cluster.addresses) as client:
        await client.create_stream(name, name)
        stopped = node_of(cluster, await leader_at(cluster.addresses[0], name, 0))
    nc = await connect(cluster.nats_url)
    inbox, acked = nc.new_inbox(), Counter[str]()

    async def note(msg: Any) -> None:
        acked[unmarshal_ack(msg.data).correlation_id] += 1

    async def publish(*ids: str) -> None:
        for id_ in ids:
            await nc.publish(name, new_message(b"x", ack_inbox=inbox, correlation_id=id_))
        await handled(nc)

    await nc.subscribe(inbox, cb=note)
    await publish("first")
    await until(lambda: acked["first"])
    freeze(pid_of(stopped))
    ids = [str(number) for number in range(50)]
    # Delivered to the stopped gateway, and acked by the one that takes over.
    await publish(*ids)
    await until(lambda: all(acked[id_] for id_ in ids))
    os.kill(pid_of(stopped), signal.SIGCONT)
    # It leads again: what comes from now on it acks.
    await leads_again(stopped, name)
    await publish("last")
    await until(lambda: acked["last"])
    # A reader that begins again repeats acks, but not those that another gateway has sent.
    assert {id_: acked[id_] for id_ in ("first", *ids)} == dict.fromkeys(("first", *ids), 1)
    await nc.close()


async def leads_again(node: GatewayNode, name: str) -> None:
    """Wait until a gateway answers as the leader of partition 0."""
    request = api_pb2.FetchPartitionMetadataRequest(stream=name)
    async with asyncio.timeout(60):
        while True:
            try:
                await unary(
                    node.address,
                    "FetchPartitionMetadata",
                    request,
                    api_pb2.FetchPartitionMetadataResponse,
                )
            except (RpcError, LiftEnvelopeError):
                await asyncio.sleep(0.05)
            else:
                return
