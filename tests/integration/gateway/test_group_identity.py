"""Members of consumer groups belong to the certificate that joined them; invented epochs fence nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.gateway import Gateway
from liftenvelope.group._controller.store import GroupStore
from liftenvelope.rpc.aio import Call, Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import NatsServer
from tests.conformance.actions import eventually
from tests.integration.conftest import connect, until
from tests.integration.gateway.policed_gateway import Caller, PolicedGateway

PATIENCE = 60.0
#: No member dies of silence in these tests, and no gateway is taken for dead.
TIMES: dict[str, Any] = {"consumer_timeout": PATIENCE, "coordinator_timeout": PATIENCE, "broker_ttl": 8.0}
LARGEST_EPOCH = 2**63 - 1


@pytest.fixture
async def policed(own_nats: NatsServer, tmp_path: Path, name: str) -> AsyncIterator[PolicedGateway]:
    """Two gateways with a policy that lets two clients read one stream."""
    lines = ["p, anna, *, FetchMetadata", f"p, anna, {name}, CreateStream"]
    lines += [f"p, {client}, {name}, Subscribe" for client in ("anna", "mallory")]
    running = PolicedGateway(tmp_path, own_nats.url, "\n".join(lines))
    async with running.stack:
        for number in range(2):
            await running.start(id=f"{name}-{number}", **TIMES)
        anna = await running.caller("anna")
        await anna.call("CreateStream", api_pb2.CreateStreamRequest(name=name, subject=name))
        yield running


async def join(caller: Caller, name: str, consumer: str = "one") -> api_pb2.JoinConsumerGroupResponse:
    request = api_pb2.JoinConsumerGroupRequest(groupId=name, consumerId=consumer, streams=[name])
    return api_pb2.JoinConsumerGroupResponse.FromString(await caller.call("JoinConsumerGroup", request))


async def leave(caller: Caller, name: str) -> None:
    request = api_pb2.LeaveConsumerGroupRequest(groupId=name, consumerId="one")
    await caller.call("LeaveConsumerGroup", request)


async def beat(caller: Caller, name: str, epoch: int) -> None:
    request = api_pb2.FetchConsumerGroupAssignmentsRequest(groupId=name, consumerId="one", epoch=epoch)
    await caller.call("FetchConsumerGroupAssignments", request)


async def report(caller: Caller, name: str, coordinator: str) -> None:
    request = api_pb2.ReportConsumerGroupCoordinatorRequest(
        groupId=name, consumerId="one", coordinator=coordinator
    )
    await caller.call("ReportConsumerGroupCoordinator", request)


def reading(channel: Channel, name: str, epoch: int, consumer: str = "one") -> Call:
    request = api_pb2.SubscribeRequest(stream=name, startPosition=api_pb2.EARLIEST)
    request.consumer.groupId, request.consumer.consumerId = name, consumer
    request.consumer.groupEpoch = epoch
    return channel.server_stream("/proto.API/Subscribe", request.SerializeToString(), timeout=PATIENCE)


async def read(caller: Caller, name: str, epoch: int) -> None:
    async with reading(caller.channel, name, epoch) as call:
        await call.receive()


async def group(caller: Caller, name: str) -> api_pb2.ConsumerGroupMetadata:
    raw = await caller.call("FetchMetadata", api_pb2.FetchMetadataRequest(streams=["none"], groups=[name]))
    (found,) = api_pb2.FetchMetadataResponse.FromString(raw).groupMetadata
    return found


async def leader_of(caller: Caller, name: str) -> str:
    raw = await caller.call("FetchMetadata", api_pb2.FetchMetadataRequest(streams=[name]))
    return api_pb2.FetchMetadataResponse.FromString(raw).streamMetadata[0].partitions[0].leader


def with_id(policed: PolicedGateway, ident: str) -> Gateway:
    (found,) = [gateway for gateway in policed.gateways if gateway.id == ident]
    return found


async def status_of(call: Awaitable[None]) -> RpcError:
    with pytest.raises(RpcError) as info:
        await call
    return info.value


async def denied_calls(policed: PolicedGateway, name: str, found: Any, leader: str) -> None:
    """Make every call in the name of the member with another certificate."""
    mallory = await policed.caller("mallory", with_id(policed, found.coordinator))
    reader = await policed.caller("mallory", with_id(policed, leader))
    calls = {
        "leave": leave(mallory, name),
        "beat": beat(mallory, name, found.epoch),
        "report": report(mallory, name, found.coordinator),
        "read": read(reader, name, found.epoch),
    }
    for call in calls.values():
        error = await status_of(call)
        assert error.code == StatusCode.PERMISSION_DENIED
        assert "was joined with another certificate" in error.description


async def test_member_is_for_the_certificate_that_joined(policed: PolicedGateway, name: str) -> None:
    joined = await join(await policed.caller("anna"), name)
    anna = await policed.caller("anna", with_id(policed, joined.coordinator))
    leader = await leader_of(anna, name)
    reader = await policed.caller("anna", with_id(policed, leader))
    async with reading(reader.channel, name, joined.epoch) as call:
        assert await call.receive() == [b""]
        await denied_calls(policed, name, joined, leader)
        # Through the gateway that does not coordinate, too.
        (other,) = [gateway for gateway in policed.gateways if gateway.id != joined.coordinator]
        error = await status_of(leave(await policed.caller("mallory", other), name))
        assert error.code == StatusCode.PERMISSION_DENIED
        await beat(anna, name, joined.epoch)
        await report(anna, name, joined.coordinator)
        # The member's own read has gone on: a read of the same epoch takes its place, and ends it.
        async with reading(reader.channel, name, joined.epoch) as again:
            assert await again.receive() == [b""]
            assert await call.receive() is None
    await leave(await policed.caller("anna", other), name)
    assert (await group(anna, name)).error == api_pb2.ConsumerGroupMetadata.UNKNOWN_GROUP


@pytest.mark.parametrize("through", ["coordinator", "other"])
async def test_leave_of_a_consumer_that_is_not_a_member_yet_does_not_remove_it(
    policed: PolicedGateway, name: str, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    """Faked: JetStream takes long to store that the member has joined."""
    joined = await join(await policed.caller("anna"), name, "two")
    coordinator = with_id(policed, joined.coordinator)
    (other,) = [gateway for gateway in policed.gateways if gateway.id != joined.coordinator]
    assert coordinator._running is not None
    host = coordinator._running.groups._coordinator.directory.hosts[name]
    put, is_storing, may_store = GroupStore.put, asyncio.Event(), asyncio.Event()

    async def put_later(store: GroupStore, key: str, *arguments: Any, **options: Any) -> int:
        if key == host._key:
            is_storing.set()
            await may_store.wait()
        return await put(store, key, *arguments, **options)

    anna = await policed.caller("anna", coordinator)
    mallory = await policed.caller("mallory", coordinator if through == "coordinator" else other)
    monkeypatch.setattr(GroupStore, "put", put_later)
    async with asyncio.TaskGroup() as tasks:
        joining = tasks.create_task(join(anna, name))
        await is_storing.wait()
        leaving = tasks.create_task(status_of(leave(mallory, name)))
        await until(lambda: leaving.done() or host._calls)
        may_store.set()
    assert leaving.result().code == StatusCode.FAILED_PRECONDITION
    assert "not a member" in leaving.result().description
    await beat(anna, name, joining.result().epoch)


async def test_member_keeps_its_certificate_when_the_coordinator_goes(
    policed: PolicedGateway, name: str
) -> None:
    joined = await join(await policed.caller("anna"), name)
    (survivor,) = [gateway for gateway in policed.gateways if gateway.id != joined.coordinator]
    await with_id(policed, joined.coordinator).close()
    anna = await policed.caller("anna", survivor)

    async def is_taken_over() -> bool:
        return (await group(anna, name)).coordinator == survivor.id

    async def is_led() -> bool:
        return await leader_of(anna, name) == survivor.id

    await eventually(is_taken_over)
    await eventually(is_led)
    found = await group(anna, name)
    await denied_calls(policed, name, found, survivor.id)
    await beat(anna, name, found.epoch)
    await leave(anna, name)


async def test_unknown_epoch_is_refused_before_and_after_the_group_exists(
    policed: PolicedGateway, name: str
) -> None:
    anna = await policed.caller("anna")
    leader = with_id(policed, await leader_of(anna, name))
    mallory, reader = await policed.caller("mallory", leader), await policed.caller("anna", leader)
    fenced = await status_of(read(mallory, name, LARGEST_EPOCH))
    assert fenced.code == StatusCode.FAILED_PRECONDITION
    joined = await join(anna, name)
    fenced = await status_of(read(reader, name, joined.epoch + 1))
    assert fenced.code == StatusCode.FAILED_PRECONDITION
    async with reading(reader.channel, name, joined.epoch) as call:
        assert await call.receive() == [b""]
    await leave(anna, name)


async def test_read_without_a_group_does_not_lock_a_group_out(own_nats: NatsServer, name: str) -> None:
    """Without certificates, any epoch is believed until there is a group."""
    nc = await connect(own_nats.url)
    async with Gateway(nc, **TIMES) as gateway, await Channel.connect(gateway.address) as channel:
        caller = Caller(channel)
        await caller.call("CreateStream", api_pb2.CreateStreamRequest(name=name, subject=name))
        async with reading(channel, name, LARGEST_EPOCH, "intruder") as intruder:
            assert await intruder.receive() == [b""]
            joined = await join(caller, name)
            async with reading(channel, name, joined.epoch) as member:
                assert await member.receive() == [b""]
                assert await intruder.receive() is None
        await leave(caller, name)


async def test_member_that_may_not_read_any_more_drops_out_of_its_group(
    own_nats: NatsServer, tmp_path: Path, name: str
) -> None:
    base = f"p, anna, *, FetchMetadata\np, anna, {name}, CreateStream\np, anna, {name}, Subscribe\n"
    policed = PolicedGateway(tmp_path, own_nats.url, base + f"p, ben, {name}, Subscribe\n")
    async with policed.stack:
        # Longer than a live member ever hangs.
        await policed.start(**{**TIMES, "consumer_timeout": 8.0})
        anna, ben = await policed.caller("anna"), await policed.caller("ben")
        await anna.call("CreateStream", api_pb2.CreateStreamRequest(name=name, subject=name))
        await join(anna, name, "anna")
        joined = await join(ben, name)
        await beat(ben, name, joined.epoch)
        policed.set_policy(base)

        async def is_denied() -> bool:
            await beat_of_anna()
            try:
                await beat(ben, name, joined.epoch)
            except RpcError as exc:
                return exc.code == StatusCode.PERMISSION_DENIED
            return False

        async def beat_of_anna() -> int:
            epoch = (await group(anna, name)).epoch
            request = api_pb2.FetchConsumerGroupAssignmentsRequest(
                groupId=name, consumerId="anna", epoch=epoch
            )
            try:
                await anna.call("FetchConsumerGroupAssignments", request)
            except RpcError as exc:
                assert "epoch differs" in exc.description  # noqa: PT017 - the other one was dropped just now
            return epoch

        async def is_gone() -> bool:
            epoch = await beat_of_anna()
            try:
                await beat(ben, name, epoch)
            except RpcError as exc:
                return "not a member" in exc.description
            return False

        await eventually(is_denied)
        await eventually(is_gone)
