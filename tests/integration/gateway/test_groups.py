"""Consumer groups on several gateways: who coordinates, who is fenced, what is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from google.protobuf.message import Message

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client.activity import ActivityEvent, GroupJoined, GroupLeft
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._readers.groups import GroupFace
from liftenvelope.gateway._readers.reads import Read
from liftenvelope.nats import accelerate
from liftenvelope.rpc.aio import Call, Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import NatsServer, run_gateway
from tests.conformance.actions import eventually
from tests.integration.conftest import connect
from tests.integration.gateway.policed_gateway import Caller


class Face:
    """One gateway, asked by bare calls."""

    def __init__(self, gateway: Gateway, channel: Channel) -> None:
        self.gateway = gateway
        self.channel = channel

    async def call(self, method: str, request: Message) -> bytes:
        return await Caller(self.channel).call(method, request)

    async def create(self, name: str, partitions: int = 1) -> None:
        request = api_pb2.CreateStreamRequest(name=name, subject=name, partitions=partitions)
        await self.call("CreateStream", request)

    async def join(self, group: str, consumer: str, *streams: str) -> api_pb2.JoinConsumerGroupResponse:
        request = api_pb2.JoinConsumerGroupRequest(groupId=group, consumerId=consumer, streams=streams)
        return api_pb2.JoinConsumerGroupResponse.FromString(await self.call("JoinConsumerGroup", request))

    async def leave(self, group: str, consumer: str) -> None:
        request = api_pb2.LeaveConsumerGroupRequest(groupId=group, consumerId=consumer)
        await self.call("LeaveConsumerGroup", request)

    async def beat(self, group: str, consumer: str, epoch: int) -> list[tuple[str, int]]:
        request = api_pb2.FetchConsumerGroupAssignmentsRequest(
            groupId=group, consumerId=consumer, epoch=epoch
        )
        raw = await self.call("FetchConsumerGroupAssignments", request)
        answer = api_pb2.FetchConsumerGroupAssignmentsResponse.FromString(raw)
        assert answer.epoch == epoch
        return sorted((one.stream, number) for one in answer.assignments for number in one.partitions)

    async def group(self, name: str) -> api_pb2.ConsumerGroupMetadata:
        request = api_pb2.FetchMetadataRequest(streams=["none"], groups=[name])
        raw = await self.call("FetchMetadata", request)
        (found,) = api_pb2.FetchMetadataResponse.FromString(raw).groupMetadata
        return found


#: Nobody is taken for dead, however busy the machine is.
LONG = 60.0
#: Whoever is silent for so long is: longer than those that live ever hang.
SHORT = 8.0


@pytest.fixture
async def faces(own_nats: NatsServer, request: pytest.FixtureRequest) -> AsyncIterator[list[Face]]:
    """Two gateways as one cluster."""
    silence = getattr(request, "param", LONG)
    made: list[Face] = []
    connections = [await connect(own_nats.url) for _ in range(2)]
    for number, nc in enumerate(connections):
        accelerate(nc)
        timeouts: dict[str, Any] = dict.fromkeys(("consumer_timeout", "coordinator_timeout"), silence)
        gateway = Gateway(nc, id=f"gw.{number}", broker_ttl=SHORT, **timeouts)
        await gateway.start()
        made.append(Face(gateway, await Channel.connect(gateway.address)))
    yield made
    for face in made:
        await face.channel.close()
        await face.gateway.close()
    for nc in connections:
        await nc.close()


async def refused(call: Awaitable[Any], code: StatusCode, text: str) -> None:
    with pytest.raises(RpcError, match=text) as info:
        await call
    assert info.value.code == code


def coordinator_of(faces: list[Face], answer: Any) -> tuple[Face, Face]:
    """The gateway that coordinates, and the other one."""
    (one,) = [face for face in faces if face.gateway.id == answer.coordinator]
    (other,) = [face for face in faces if face is not one]
    return one, other


async def test_the_life_of_a_group(faces: list[Face], name: str) -> None:
    await faces[0].create(name, 3)
    first = await faces[0].join(name, "one", name)
    assert (first.consumerTimeout, first.coordinatorTimeout) == (LONG * 1e9, LONG * 1e9)
    coordinator, other = coordinator_of(faces, first)
    assert await coordinator.beat(name, "one", first.epoch) == [(name, 0), (name, 1), (name, 2)]
    second = await other.join(name, "two", name)
    assert (second.coordinator, second.epoch > first.epoch) == (first.coordinator, True)
    shares = [await coordinator.beat(name, member, second.epoch) for member in ("one", "two")]
    assert sorted([*shares[0], *shares[1]]) == [(name, 0), (name, 1), (name, 2)]
    assert {len(share) for share in shares} == {1, 2}
    for face in faces:
        found = await face.group(name)
        assert (found.coordinator, found.epoch) == (first.coordinator, second.epoch)
    await other.leave(name, "one")
    after = await coordinator.group(name)
    assert after.epoch > second.epoch
    assert len(await coordinator.beat(name, "two", after.epoch)) == 3
    await coordinator.leave(name, "two")
    gone = await other.group(name)
    assert gone.error == api_pb2.ConsumerGroupMetadata.UNKNOWN_GROUP
    again = await other.join(name, "one", name)
    assert again.epoch > after.epoch
    await other.leave(name, "one")


async def test_what_is_refused(faces: list[Face], name: str) -> None:
    face = faces[0]
    await face.create(name)
    precondition = StatusCode.FAILED_PRECONDITION
    await refused(face.join(name, "one", "none"), precondition, "stream does not exist")
    await refused(face.leave(name, "one"), StatusCode.NOT_FOUND, "consumer group does not exist")
    await refused(face.beat(name, "one", 0), StatusCode.NOT_FOUND, "consumer group does not exist")
    joined = await face.join(name, "one", name)
    coordinator, other = coordinator_of(faces, joined)
    for one in faces:
        await refused(one.join(name, "one", name), precondition, "already a member")
        await refused(one.leave(name, "two"), precondition, "not a member")
    await refused(coordinator.beat(name, "two", joined.epoch), precondition, "not a member")
    await refused(coordinator.beat(name, "one", joined.epoch + 1), precondition, "epoch differs")
    await refused(other.beat(name, "one", joined.epoch), precondition, "not the consumer group coordinator")
    bad = StatusCode.INVALID_ARGUMENT
    await refused(face.join("", "one", name), bad, "No groupId provided")
    await refused(face.join(name, "", name), bad, "No consumerId provided")
    await refused(face.join(name, "one"), bad, "No streams provided")
    await refused(face.leave("", ""), bad, "No groupId provided")
    await refused(face.beat(name, "", 0), bad, "No consumerId provided")
    request = api_pb2.ReportConsumerGroupCoordinatorRequest(groupId=name, consumerId="one")
    await refused(face.call("ReportConsumerGroupCoordinator", request), bad, "No coordinator provided")
    request.coordinator = joined.coordinator
    await face.call("ReportConsumerGroupCoordinator", request)
    request.groupId = "none"
    await refused(
        face.call("ReportConsumerGroupCoordinator", request), precondition, "No such consumer group none"
    )
    await face.leave(name, "one")


@pytest.mark.parametrize("faces", [SHORT], indirect=True, ids=["short"])
async def test_a_silent_member_is_dropped_and_it_is_told(faces: list[Face], name: str) -> None:
    await faces[0].create(name, 2)
    addresses = [face.gateway.address for face in faces]
    async with liftenvelope.connect(addresses) as client, client.activity() as events:
        joined = await faces[0].join(name, "silent", name)
        coordinator, _ = coordinator_of(faces, joined)
        await faces[1].join(name, "lively", name)

        async def has_all() -> bool:
            epoch = (await coordinator.group(name)).epoch
            try:
                return len(await coordinator.beat(name, "lively", epoch)) == 2
            except RpcError as exc:
                if "epoch differs" not in str(exc):
                    raise
                return False  # the other one was dropped at that moment

        await eventually(has_all)
        found: list[ActivityEvent] = []
        async with asyncio.timeout(60):
            async for event in events:
                if getattr(event, "group", None) == name:
                    found.append(event)
                if len(found) == 3:
                    break
    assert [type(event) for event in found] == [GroupJoined, GroupJoined, GroupLeft]
    left = found[2]
    assert isinstance(left, GroupLeft)
    assert (left.consumer, left.expired) == ("silent", True)
    await faces[0].leave(name, "lively")


async def test_a_stream_is_deleted(faces: list[Face], name: str) -> None:
    others = [f"{name}-a", f"{name}-b"]
    for stream in others:
        await faces[0].create(stream)
    joined = await faces[0].join(name, "one", *others)
    coordinator, _ = coordinator_of(faces, joined)
    await faces[1].call("DeleteStream", api_pb2.DeleteStreamRequest(name=others[0]))

    async def has_one() -> bool:
        epoch = (await coordinator.group(name)).epoch
        return await coordinator.beat(name, "one", epoch) == [(others[1], 0)]

    await eventually(has_one)
    await coordinator.leave(name, "one")


async def test_readers_of_older_epochs_are_fenced(faces: list[Face], name: str) -> None:
    await faces[0].create(name)
    raw = await faces[0].call("FetchMetadata", api_pb2.FetchMetadataRequest(streams=[name]))
    leader = api_pb2.FetchMetadataResponse.FromString(raw).streamMetadata[0].partitions[0].leader
    (face,) = [face for face in faces if face.gateway.id == leader]

    def subscribe(epoch: int) -> Any:
        request = api_pb2.SubscribeRequest(stream=name, startPosition=api_pb2.EARLIEST)
        request.consumer.groupId, request.consumer.consumerId = name, f"c{epoch}"
        request.consumer.groupEpoch = epoch
        return face.channel.server_stream("/proto.API/Subscribe", request.SerializeToString())

    async with subscribe(5) as older:
        assert await older.receive() == [b""]
        async with subscribe(6) as newer:
            assert await newer.receive() == [b""]
            async with asyncio.timeout(60):
                assert await older.receive() is None  # a clean end, as from Liftbridge
            with pytest.raises(RpcError, match="not currently assigned this partition"):
                async with subscribe(5) as late:
                    await late.receive()


async def take_all(call: Call, messages: list[bytes]) -> None:
    while found := await call.receive():
        messages += found


@pytest.mark.parametrize(
    ("change", "end"),
    [("readonly", "End of readonly partition"), ("pause", "segment has been closed")],
)
async def test_stream_that_changes_while_the_member_is_checked(
    faces: list[Face], name: str, monkeypatch: pytest.MonkeyPatch, change: str, end: str
) -> None:
    """Faked: the change comes just when the check has ended."""
    await faces[0].create(name)
    addresses = [face.gateway.address for face in faces]
    check = GroupFace.check_member
    async with liftenvelope.connect(addresses) as client:

        async def check_and_change(groups: GroupFace, read: Read, member: str) -> None:
            await check(groups, read, member)
            if change == "readonly":
                await client.set_stream_readonly(name)
            else:
                await client.pause_stream(name)

        await client.publish(name, b"value")
        leader = (await client.fetch_metadata()).streams[name].partitions[0].leader
        monkeypatch.setattr(GroupFace, "check_member", check_and_change)
        (face,) = [face for face in faces if face.gateway.id == leader]
        request = api_pb2.SubscribeRequest(stream=name, startPosition=api_pb2.EARLIEST)
        request.consumer.groupId, request.consumer.consumerId = name, "one"
        raw = request.SerializeToString()
        async with face.channel.server_stream("/proto.API/Subscribe", raw, timeout=60) as call:
            messages: list[bytes] = []
            with pytest.raises(RpcError, match=end):
                await take_all(call, messages)
            assert len(messages) == (2 if change == "readonly" else 0)  # with the empty first one


async def test_the_coordinator_is_closed(faces: list[Face], own_nats: NatsServer, name: str) -> None:
    await faces[0].create(name)
    joined = await faces[0].join(name, "one", name)
    coordinator, other = coordinator_of(faces, joined)
    await coordinator.channel.close()
    await coordinator.gateway.close()

    async def beats() -> bool:
        try:
            found = await other.group(name)
            return await other.beat(name, "one", found.epoch) == [(name, 0)]
        except RpcError:
            return False  # not yet

    await eventually(beats)
    assert (await other.group(name)).coordinator == other.gateway.id
    await other.leave(name, "one")


async def test_the_coordinator_is_killed(name: str) -> None:
    """Three gateways as processes: the group goes on at another one, and every message is read."""
    # Who lives is not dropped, not even where the machine hangs: it would have to join anew.
    with run_gateway(3, config={"consumer_timeout": SHORT, "coordinator_timeout": SHORT}) as cluster:
        async with liftenvelope.connect(cluster.addresses) as client:
            await client.create_stream(name, name, partitions=3)
            async with client.consumer(name, [name], auto_offset="earliest") as consumer:
                seen: set[bytes] = set()
                for partition in range(3):
                    await client.publish(name, b"before %d" % partition, partition=partition)
                await read(consumer, seen, 3)
                coordinator = (await client.fetch_metadata(groups=[name])).groups[name].coordinator
                (node,) = [node for node in cluster.nodes if node.id == coordinator]
                node.kill()
                for partition in range(3):
                    await published(client, name, partition)
                await read(consumer, seen, 6)
                assert seen >= {b"after %d" % partition for partition in range(3)}

                async def has_another() -> bool:
                    group = (await client.fetch_metadata(groups=[name])).groups.get(name)
                    return group is not None and group.coordinator not in ("", coordinator)

                await eventually(has_another)

                async def has_all() -> bool:
                    return len(consumer.assignment) == 3

                await eventually(has_all)


async def published(client: Any, name: str, partition: int) -> None:
    """Publish a message, if need be again: nobody may lead the partition just now."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.publish(name, b"after %d" % partition, partition=partition)
            except liftenvelope.errors.LiftEnvelopeError:
                await asyncio.sleep(0.1)
            else:
                return


async def read(consumer: Any, seen: set[bytes], count: int) -> None:
    """Read until so many different messages have come."""
    async with asyncio.timeout(60):
        async for message in consumer:
            seen.add(message.value)
            if len(seen) == count:
                return
