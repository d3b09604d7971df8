"""Consumer groups on several nodes: the coordinator or the cursors' leader is killed, an answer is late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack

import pytest

import liftenvelope
from liftenvelope.client._cursors import CURSORS_STREAM
from liftenvelope.client._events import ClientEvent, GroupCoordinatorReported, GroupMemberExpired
from liftenvelope.client.metadata import BrokerInfo, Metadata
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    LiftEnvelopeError,
    NotLeaderError,
    TransportError,
)
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, run_gateway, run_liftbridge

PARTITIONS = 4


@pytest.fixture
def cluster() -> Iterator[LiftbridgeCluster]:
    # A node or member that the machine holds up for a moment is not taken for gone.
    config = {"groups.consumer.timeout": "9s", "groups.coordinator.timeout": "9s"}
    with run_liftbridge(nodes=3, config=config) as cluster:
        yield cluster


@pytest.fixture
def events() -> list[ClientEvent]:
    return []


@pytest.fixture
async def client(cluster: LiftbridgeCluster, events: list[ClientEvent]) -> AsyncIterator[liftenvelope.Client]:
    async with liftenvelope.connect(cluster.addresses, timeout=60, on_event=events.append) as client:
        yield client
    assert len(asyncio.all_tasks()) == 1


class Member:
    """A consumer in a task of its own, and the values that it got."""

    def __init__(self, client: liftenvelope.Client, stream: str) -> None:
        self.values: list[bytes] = []
        self.places: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self.consumer = client.consumer(stream, stream, auto_offset="earliest", auto_commit_interval=0.5)
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        async with self.consumer as consumer:
            async for message in consumer:
                self.values.append(message.value)
                self.places[message.partition].append(message.offset)

    async def end(self) -> None:
        await self.consumer.close()
        await self.task


async def publish(client: liftenvelope.Client, stream: str, begin: int, end: int) -> None:
    """Publish, again where the outcome is unknown: a message may be stored twice then, but not be missing."""
    for number in range(begin, end):
        while True:
            try:
                await client.publish(stream, b"%d" % number, partition=number % PARTITIONS, timeout=3.0)
            except (AckTimeoutError, CallTimeoutError, NotLeaderError, TransportError):
                continue
            break


async def got_all(members: list[Member], count: int, seconds: float = 60) -> None:
    wanted = {b"%d" % number for number in range(count)}
    async with asyncio.timeout(seconds):
        while not wanted <= {value for member in members for value in member.values}:
            for member in members:
                if member.task.done():
                    member.task.result()
            await asyncio.sleep(0.05)


def check_order(members: list[Member]) -> None:
    for member in members:
        for offsets in member.places.values():
            firsts = list(dict.fromkeys(offsets))
            assert firsts == sorted(firsts)


def node_of(cluster: LiftbridgeCluster, broker_id: str) -> int:
    return [node.id for node in cluster.nodes].index(broker_id)


async def group_of(client: liftenvelope.Client, stream: str) -> Metadata:
    return await client.fetch_metadata(streams=[stream], groups=[stream])


async def test_coordinator_killed(
    cluster: LiftbridgeCluster, client: liftenvelope.Client, events: list[ClientEvent], name: str
) -> None:
    await client.create_stream(name, name, partitions=PARTITIONS, replication_factor=3)
    members = [Member(client, name)]
    await publish(client, name, 0, 40)
    await got_all(members, 40)
    members.append(Member(client, name))
    async with asyncio.timeout(60):
        while not all(len(member.consumer.assignment) == 2 for member in members):
            await asyncio.sleep(0.05)
    coordinator = (await group_of(client, name)).groups[name].coordinator
    await asyncio.to_thread(cluster.nodes[node_of(cluster, coordinator)].kill)
    await publish(client, name, 40, 120)
    await got_all(members, 120)
    async with asyncio.timeout(60):
        while (await group_of(client, name)).groups[name].coordinator == coordinator:
            await asyncio.sleep(0.1)
    reported = [event for event in events if isinstance(event, GroupCoordinatorReported)]
    assert {event.coordinator for event in reported} == {coordinator}
    # The group works on: a member that goes is noticed by the new coordinator.
    await members[0].end()
    async with asyncio.timeout(60):
        while len(members[1].consumer.assignment) < PARTITIONS:
            await asyncio.sleep(0.05)
    await publish(client, name, 120, 160)
    await got_all(members, 160)
    await members[1].end()
    check_order(members)


async def test_cursor_leader_killed(
    cluster: LiftbridgeCluster, client: liftenvelope.Client, name: str
) -> None:
    await client.create_stream(name, name, partitions=PARTITIONS, replication_factor=3)
    member = Member(client, name)
    await publish(client, name, 0, 40)
    await got_all([member], 40)
    metadata = await client.fetch_metadata(streams=[CURSORS_STREAM])
    leader = metadata.streams[CURSORS_STREAM].partitions[0].leader
    await asyncio.to_thread(cluster.nodes[node_of(cluster, leader)].kill)
    await publish(client, name, 40, 120)
    await got_all([member], 120)
    last = [max(offsets) for offsets in member.places.values()]
    async with asyncio.timeout(90):
        while True:
            try:
                await member.consumer.commit()
            except LiftEnvelopeError:
                continue  # its own time is over: the cursors have no new leader yet
            break
    stored = [await client.fetch_cursor(f"__group:{name}", name, number) for number in range(PARTITIONS)]
    assert stored == last
    await member.end()
    check_order([member])


async def test_closed_member_does_not_join_again(events: list[ClientEvent]) -> None:
    """The answer to the leave is later than the next heartbeat, which the coordinator refuses by then."""
    coordinators: list[str] = []

    def other(brokers: Sequence[BrokerInfo]) -> BrokerInfo:
        return next((one for one in brokers if one.id not in coordinators), brokers[0])

    with run_gateway(nodes=2) as gateways, ExitStack() as stack:
        proxies = {address: stack.enter_context(FaultProxy(address)) for address in gateways.addresses}
        routes = {address: proxy.address for address, proxy in proxies.items()}
        async with liftenvelope.connect(
            gateways.addresses,
            address_map=routes,
            broker_selection=other,
            timeout=60,
            on_event=events.append,
        ) as client:
            await client.create_stream("orders", "orders")
            async with client.consumer("billing", "orders"):
                found = await client.fetch_metadata(groups=["billing"])
                coordinators.append(found.groups["billing"].coordinator)
                leaving = other(list(found.brokers.values()))
                # Members of these gateways send a heartbeat every 1.2 s.
                proxies[leaving.address].delay(2, "to_client")
            proxies[leaving.address].delay(0, "to_client")
            assert not any(isinstance(event, GroupMemberExpired) for event in events)
            assert "billing" not in (await client.fetch_metadata(groups=["billing"])).groups
