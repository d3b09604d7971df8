"""Several gateways on one NATS server: one cluster, whose partitions move when one of them dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.gateway._cluster import agreement
from liftenvelope.rpc.aio import Call, Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import GatewayCluster, run_gateway
from tests.handled import handled
from tests.integration.conftest import connect

#: None of them is taken for dead, not even on a loaded machine: it would not be waited for.
PATIENT = 30.0
#: A gateway that is killed is taken for dead after this time: longer than one that lives ever hangs.
TTL = 8.0
#: For a test that kills one.
mortal = pytest.mark.parametrize("cluster", [TTL], indirect=True, ids=["mortal"])
#: For a test that kills NATS.
own = pytest.mark.parametrize("cluster", [PATIENT], indirect=True, ids=["own"])


@pytest.fixture(scope="module")
def shared() -> Iterator[GatewayCluster]:
    """Three gateways of all tests that kill nothing."""
    with run_gateway(3, config={"broker_ttl": PATIENT}) as cluster:
        yield cluster


@pytest.fixture
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[GatewayCluster]:
    """Three gateways: the shared ones, or those of a test's own with this lease."""
    if not hasattr(request, "param"):
        yield request.getfixturevalue("shared")
        return
    async with run_gateway(3, config={"broker_ttl": request.param}) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: GatewayCluster) -> AsyncIterator[Client]:
    """A client of all of them."""
    async with liftenvelope.connect(cluster.addresses) as client:
        yield client


async def leaders(client: Client, name: str) -> dict[int, str]:
    """Return the leader of each partition."""
    stream = (await client.fetch_metadata(streams=[name])).streams[name]
    return {number: partition.leader for number, partition in stream.partitions.items()}


async def test_gateways_share_the_partitions(cluster: GatewayCluster, client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=30)
    metadata = await client.fetch_metadata()
    assert set(metadata.brokers) == {"node1", "node2", "node3"}
    assert set((await leaders(client, name)).values()) == {"node1", "node2", "node3"}
    # All agree on who leads what, also on a stream that they have only just heard of.
    for address in cluster.addresses:
        async with liftenvelope.connect([address]) as other:
            assert await leaders(other, name) == await leaders(client, name)
    for partition in range(30):
        await client.publish(name, b"%d" % partition, partition=partition)
    async with client.subscribe(name, partition="all", start="earliest", stop="latest") as messages:
        assert sorted([int(m.value) async for m in messages]) == list(range(30))


async def test_the_wrong_one_refuses(cluster: GatewayCluster, client: Client, name: str) -> None:
    await client.create_stream(name, name)
    (leader,) = (await leaders(client, name)).values()
    address = next(node.address for node in cluster.nodes if node.id != leader)
    async with await Channel.connect(address) as channel:
        request = api_pb2.FetchPartitionMetadataRequest(stream=name).SerializeToString()
        with pytest.raises(RpcError, match="leader") as info:
            await channel.unary("/proto.API/FetchPartitionMetadata", request, timeout=60)
        assert info.value.code == StatusCode.FAILED_PRECONDITION


async def drain(call: Call, payloads: list[bytes]) -> None:
    """Take all that comes on a call."""
    async for payload in call:
        payloads.append(payload)  # noqa: PERF401 - it must be there when the call ends with an error


async def test_a_replica_may_be_read_anywhere(cluster: GatewayCluster, client: Client, name: str) -> None:
    await client.create_stream(name, name)
    await client.publish(name, b"value")
    for address in cluster.addresses:
        request = api_pb2.SubscribeRequest(
            stream=name, startPosition=api_pb2.EARLIEST, readISRReplica=True, stopPosition=api_pb2.STOP_LATEST
        )
        async with asyncio.timeout(60), await Channel.connect(address) as channel:
            call = channel.server_stream("/proto.API/Subscribe", request.SerializeToString())
            payloads: list[bytes] = []
            with pytest.raises(RpcError, match="Stop offset reached"):
                await drain(call, payloads)
        # The first one says that the subscription stands.
        assert [api_pb2.Message.FromString(payload).value for payload in payloads] == [b"", b"value"]


async def test_what_one_makes_the_others_know(cluster: GatewayCluster, name: str) -> None:
    first, second, third = [liftenvelope.connect([address]) for address in cluster.addresses]
    async with first, second, third:
        await first.create_stream(name, name)
        await second.publish(name, b"value")
        await third.set_stream_readonly(name)
        with pytest.raises(liftenvelope.errors.StreamExistsError):
            await second.create_stream(name, name)
        await second.delete_stream(name)
        with pytest.raises(liftenvelope.errors.NoSuchStreamError):
            await first.delete_stream(name)


async def is_readonly(channel: Channel, name: str) -> bool:
    """Return the gateway's own view of partition 0."""
    request = api_pb2.FetchMetadataRequest(streams=[name]).SerializeToString()
    raw = await channel.unary("/proto.API/FetchMetadata", request, timeout=60)
    (stream,) = api_pb2.FetchMetadataResponse.FromString(raw).streamMetadata
    return bool(stream.partitions[0].readonly)


async def test_a_change_is_known_everywhere_when_its_call_returns(cluster: GatewayCluster, name: str) -> None:
    async with AsyncExitStack() as stack:
        opened = [await Channel.connect(address) for address in cluster.addresses]
        channels = [await stack.enter_async_context(channel) for channel in opened]
        creation = api_pb2.CreateStreamRequest(name=name, subject=name).SerializeToString()
        await channels[0].unary("/proto.API/CreateStream", creation, timeout=60)
        loop, agreed = asyncio.get_running_loop(), 0
        for number in range(30):
            change = api_pb2.SetStreamReadonlyRequest(name=name, readonly=number % 2 == 0)
            changer = channels[number % 3]
            began = loop.time()
            await changer.unary("/proto.API/SetStreamReadonly", change.SerializeToString(), timeout=60)
            if loop.time() - began >= agreement._PATIENCE:
                continue  # a gateway that got no processor time has not agreed
            agreed += 1
            known = await asyncio.gather(*(is_readonly(channel, name) for channel in channels))
            assert known == [number % 2 == 0] * 3
        assert agreed


async def test_many_make_the_same_stream(cluster: GatewayCluster, name: str) -> None:
    clients = [liftenvelope.connect([address]) for address in cluster.addresses]
    for client in clients:
        await client
    outcomes = await asyncio.gather(
        *(client.create_stream(name, name, partitions=2) for client in clients for _ in range(3)),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType"] + ["StreamExistsError"] * 8
    for client in clients:
        await client.close()


@mortal
async def test_one_is_killed(cluster: GatewayCluster, client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=6)
    before = await leaders(client, name)
    partition, victim = next(iter(before.items()))
    others = {number: leader for number, leader in before.items() if leader != victim}
    acked: list[int] = []

    async with client.subscribe(name, partition=partition, start="earliest") as messages:
        for number in range(10):
            await client.publish(name, b"%d" % number, partition=partition)
            acked.append(number)
        next(node for node in cluster.nodes if node.id == victim).kill()
        async with asyncio.timeout(120):
            for number in range(10, 40):
                while True:
                    try:
                        await client.publish(name, b"%d" % number, partition=partition, timeout=5)
                    except liftenvelope.errors.LiftEnvelopeError:
                        continue
                    acked.append(number)
                    break
            seen: set[int] = set()
            while seen < set(acked):
                seen.add(int((await anext(messages)).value))

    async with asyncio.timeout(60):
        while victim in (after := await leaders(client, name)).values():
            await asyncio.sleep(0.05)
    # The others keep what they had.
    assert {number: after[number] for number in others} == others


@mortal
async def test_raw_envelopes_are_acked_by_the_next_leader(
    cluster: GatewayCluster, client: Client, name: str
) -> None:
    await client.create_stream(name, name)
    (leader,) = (await leaders(client, name)).values()
    nc = await connect(cluster.nats_url)
    inbox = await nc.subscribe(f"_INBOX.{name}")
    await handled(nc)
    next(node for node in cluster.nodes if node.id == leader).kill()
    for number in range(20):
        await nc.publish(name, new_message(b"x", ack_inbox=f"_INBOX.{name}", correlation_id=str(number)))
    acks: dict[str, int] = {}
    async with asyncio.timeout(60):
        while len(acks) < 20:
            ack = unmarshal_ack((await inbox.next_msg(timeout=60)).data)
            acks[ack.correlation_id] = ack.offset
    assert acks == {str(number): number for number in range(20)}
    await nc.close()


@own
async def test_the_nats_server_is_restarted(cluster: GatewayCluster, client: Client, name: str) -> None:
    await client.create_stream(name, name)
    await client.publish(name, b"0")
    async with client.subscribe(name, start="earliest") as messages:
        async with asyncio.timeout(60):
            assert (await anext(messages)).value == b"0"
            server = cluster.nats
            assert server is not None
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            for _ in range(200):
                try:
                    await client.publish(name, b"1", timeout=2)
                except liftenvelope.errors.LiftEnvelopeError:
                    await asyncio.sleep(0.1)
                else:
                    break
            assert (await anext(messages)).value == b"1"
