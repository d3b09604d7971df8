"""A gateway on a cluster of three NATS servers, one of which is killed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg

import liftenvelope
from liftenvelope import bulk
from liftenvelope.client import Client
from liftenvelope.client._streams import MAX_REPLICATION
from liftenvelope.envelope import AckPolicy, new_message, unmarshal_ack
from liftenvelope.errors import LiftEnvelopeError, ResourcesExceededError, ServerError
from liftenvelope.gateway._leader.compaction import Compactor
from liftenvelope.gateway._partitions.probes import most_replicas
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import GatewayCluster, NatsServer, run_gateway
from tests.conformance.actions import fill, take
from tests.handled import handled
from tests.integration.conftest import connect
from tests.integration.jetstream_cluster import three_servers


@pytest.fixture
async def servers() -> AsyncIterator[list[NatsServer]]:
    with three_servers() as servers:
        yield list(servers.values())


@pytest.fixture
async def cluster(servers: list[NatsServer]) -> AsyncIterator[GatewayCluster]:
    """Two gateways that know all of them."""
    url = ",".join(server.url for server in servers)
    async with run_gateway(2, nats_url=url, config={"replicas": 3, "ack_timeout": 10.0}) as cluster:
        yield cluster


async def test_a_nats_server_is_killed(servers: list[NatsServer], cluster: GatewayCluster, name: str) -> None:
    acked: list[int] = []
    async with liftenvelope.connect(cluster.addresses) as client:
        await client.create_stream(name, name, partitions=2, replication_factor=3, min_isr=2)
        await client.create_stream(f"{name}-all", f"{name}-all", replication_factor=MAX_REPLICATION)
        with pytest.raises(ServerError):
            await client.create_stream(f"{name}-more", f"{name}-more", replication_factor=4)
        async with client.subscribe(name, partition=0, start="earliest") as messages:
            acked += await fill(client, name, 20, partition=0, ack_policy=AckPolicy.ALL)
            assert [message.offset for message in await take(messages, 20)] == acked
            await asyncio.to_thread(servers[0].kill)
            async with asyncio.timeout(120):
                while len(acked) < 40:
                    try:
                        acked += await fill(client, name, [b"later"], partition=0)
                    except (LiftEnvelopeError, TimeoutError):
                        await asyncio.sleep(0.1)
                seen = set(range(20))
                while not seen >= set(acked):
                    seen.add((await anext(messages)).offset)
        assert acked == sorted(set(acked))
        await raw_acks(servers[1], name)


async def test_too_few_replicas_in_sync_for_min_isr(
    servers: list[NatsServer], cluster: GatewayCluster, name: str
) -> None:
    async def is_acked(client: Client, stream: str, policy: AckPolicy, *, many: bool) -> bool:
        """Return True if a message gets its ack; without leaders JetStream stores nothing."""
        try:
            if many:
                (ack,) = await asyncio.gather(await client.publish_async(stream, b"x", ack_policy=policy))
            else:
                ack = await client.publish(stream, b"x", ack_policy=policy)
        except (LiftEnvelopeError, TimeoutError):
            return False
        return ack is not None

    async def eventually(expected: bool, stream: str, policy: AckPolicy) -> None:
        async with asyncio.timeout(120):
            for many in (False, True):
                while await is_acked(client, stream, policy, many=many) is not expected:
                    await asyncio.sleep(0.1)

    async with liftenvelope.connect(cluster.addresses) as client:
        await client.create_stream(name, name, replication_factor=3, min_isr=3)
        await client.create_stream(f"{name}-2", f"{name}-2", replication_factor=3, min_isr=2)
        await eventually(True, name, AckPolicy.ALL)
        await asyncio.to_thread(servers[2].kill)
        await until_in_sync(servers[0], f"lift_{name}_0", 2)
        await eventually(False, name, AckPolicy.ALL)
        await eventually(True, name, AckPolicy.LEADER)
        await eventually(True, f"{name}-2", AckPolicy.ALL)
        for many in (False, True):
            assert not await is_acked(client, name, AckPolicy.ALL, many=many)
        await asyncio.to_thread(servers[2].start)
        await eventually(True, name, AckPolicy.ALL)


async def test_reads_are_whole_while_the_replicas_are_filled(
    servers: list[NatsServer], cluster: GatewayCluster, name: str, tmp_path: Path
) -> None:
    """Before these reads asked the leader, some ended early, without an error.

    JetStream places each reader at random, also on a replica that lags, as after a restore. The replicas soon
    have all, so many read at the same time, and only the last messages.
    """
    url, stream, count = ",".join(server.url for server in servers), f"lift_{name}_0", 2_000
    last = [*range(count - 20, count)]

    async def forwards() -> None:
        async with client.subscribe(name, start=last[0], stop="latest") as messages:
            assert [message.offset async for message in messages] == last

    async def backwards() -> None:
        async with client.subscribe(name, start="latest", reverse=True) as messages:
            assert [message.offset for message in await take(messages, len(last))] == last[::-1]

    nc = await connect(servers[0].url)
    async with liftenvelope.connect(cluster.addresses, timeout=60) as client, JetStream(nc, timeout=60) as js:
        await client.create_stream(name, name, replication_factor=3)
        for _ in range(4):
            values = [os.urandom(10_000) for _ in range(count // 4)]
            await asyncio.gather(*[await js.publish_async(name, value) for value in values])
        await asyncio.to_thread(bulk.backup, url, stream, tmp_path)
        for _ in range(4):
            await js.delete_stream(stream)
            await asyncio.to_thread(bulk.restore_backup, tmp_path, url)
            await asyncio.gather(*(read() for read in (forwards, backwards) for _ in range(4)))
    await nc.close()


async def test_compaction_reads_every_message_while_the_replicas_are_filled(
    servers: list[NatsServer], name: str, tmp_path: Path
) -> None:
    """JetStream places each reader at random, also on a replica that lags, as after a restore."""
    url, count = ",".join(server.url for server in servers), 2_000
    nc = await connect(servers[0].url)
    async with JetStream(nc, timeout=60) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,), num_replicas=3))
        value = os.urandom(10_000)
        envelopes = [new_message(value, key=b"%d" % number) for number in range(count)]
        await asyncio.gather(*[await js.publish_async(name, envelope) for envelope in envelopes])
        await asyncio.to_thread(bulk.backup, url, name, tmp_path)
        for _ in range(4):
            await js.delete_stream(name)
            await asyncio.to_thread(bulk.restore_backup, tmp_path, url)
            compactions = await asyncio.gather(*(Compactor(js, name).compact() for _ in range(3)))
            assert [compaction.read for compaction in compactions] == [count] * 3
    await nc.close()


async def until_in_sync(server: NatsServer, stream: str, count: int) -> None:
    """Wait until JetStream knows that a stream has so many replicas in sync, and a leader."""
    nc = await connect(server.url)
    async with asyncio.timeout(120), JetStream(nc) as js:
        while True:
            try:
                cluster = (await js.stream(stream)).cached_info.cluster
            except LiftEnvelopeError:
                cluster = None
            replicas = () if cluster is None else cluster.replicas
            current = 1 + sum(one.current and not one.offline for one in replicas)
            if cluster is not None and cluster.leader and current == count:
                break
            await asyncio.sleep(0.1)
    await nc.close()


async def raw_acks(server: NatsServer, name: str) -> None:
    """Envelopes on raw NATS are acked as ever."""
    nc = await connect(server.url)
    inbox = await nc.subscribe(f"_INBOX.{name}")
    envelope = new_message(b"x", ack_inbox=f"_INBOX.{name}", correlation_id="id")
    async with asyncio.timeout(60):
        while True:
            await nc.publish(f"{name}.1", envelope)
            try:
                ack = unmarshal_ack((await inbox.next_msg(timeout=5)).data)
            except TimeoutError:
                continue
            assert (ack.stream, ack.correlation_id) == (name, "id")
            break
    await nc.close()


async def test_cancelled_probe_leaves_no_stream(servers: list[NatsServer]) -> None:
    """The first count that three servers accept is 3. The probe is cancelled while its stream is created."""
    nc, other = await connect(servers[0].url), await connect(servers[0].url)
    asked = asyncio.Event()

    async def note(msg: Msg) -> None:
        config = json.loads(msg.data)
        if config["name"].startswith("lift_probe_") and config["num_replicas"] == 3:
            asked.set()

    await other.subscribe("$JS.API.STREAM.CREATE.*", cb=note)
    await handled(other)
    # A request that times out may leave a probe stream for a minute, so none may time out here.
    async with JetStream(nc, timeout=60) as js:
        assert await most_replicas(js) == 3
        asked.clear()
        probing = asyncio.create_task(most_replicas(js))
        async with asyncio.timeout(60):
            await asked.wait()
        probing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probing
        assert [name async for name in js.stream_names() if name.startswith("lift_probe_")] == []
    await nc.close()
    await other.close()


async def test_probe_does_not_take_a_reached_limit_for_too_few_servers() -> None:
    """The account allows one stream, which exists: JetStream refuses any number of replicas."""
    account = {"jetstream": {"max_streams": 1}, "users": [{"user": "a", "password": "a"}]}
    with three_servers({"accounts": {"A": account}, "no_auth_user": "a"}) as servers:
        nc = await connect(servers["n1"].url)
        async with JetStream(nc, timeout=60) as js:
            await js.create_stream(StreamConfig(name="first", subjects=("first",)))
            with pytest.raises(ResourcesExceededError):
                await most_replicas(js)
        await nc.close()
