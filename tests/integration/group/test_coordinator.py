"""Answers of coordinators, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import nats.errors
import pytest
from google.protobuf.message import Message
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope._pb import groups_pb2 as pb
from liftenvelope._version import __version__
from liftenvelope.errors import CallTimeoutError, TransportError, UsageError
from liftenvelope.group import (
    ConsumerIdInUseError,
    Coordinator,
    CoordinatorIdInUseError,
    EphemeralGroupError,
    GroupClient,
    GroupEvent,
    GroupExistsError,
    GroupNotEmptyError,
    GroupRequestError,
    GroupUnavailableError,
    JetStreamTopic,
    LeaseLost,
    NotControllerError,
    PartitionFeed,
    Phase,
    StaleGenerationError,
    TopicPartition,
    TopicSpec,
    UnknownGroupError,
    UnknownMemberError,
    sticky,
)
from liftenvelope.group.calls import GroupCalls
from liftenvelope.group.names import METHODS
from liftenvelope.group.wire import error_message
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect

from .play import LONG, PATIENCE, Play, coordinator, eventually

_Answer = TypeVar("_Answer", pb.RegisterConsumerResponse, pb.HeartbeatResponse)


@pytest.fixture
async def running(nc: Client) -> AsyncIterator[Coordinator]:
    async with coordinator(nc, lease=LONG) as coordinating:
        yield coordinating


@pytest.fixture
def client(nc: Client) -> GroupClient:
    return GroupClient(nc, timeout=PATIENCE)


@pytest.fixture
async def play(nc: Client, name: str) -> Play:
    return await Play(nc, name).create()


class Raw:
    """A member by hand."""

    def __init__(self, nc: Client, group: str, name: str) -> None:
        self.calls = GroupCalls(nc, timeout=PATIENCE)
        self.group, self.name = group, name

    async def register(self, generation: int = 0, wait: float = 0.0) -> pb.RegisterConsumerResponse:
        request = pb.RegisterConsumerRequest(
            group=self.group,
            client_id=f"client of {self.name}",
            consumer_id=self.name,
            topics=[pb.Topic(name="t", partitions=2)],
            session_timeout_ms=30_000,
            generation=generation,
            wait_ms=round(wait * 1_000),
        )
        return await self.ask("RegisterConsumer", request, pb.RegisterConsumerResponse)

    async def heartbeat(self, generation: int) -> pb.HeartbeatResponse:
        request = pb.HeartbeatRequest(group=self.group, consumer_id=self.name, generation=generation)
        return await self.ask("Heartbeat", request, pb.HeartbeatResponse)

    async def ask(self, method: str, request: Message, kind: type[_Answer]) -> _Answer:
        """Ask again while nobody can answer; an answer that the group is rebalancing is returned."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return await self.calls.controller_once(
                        self.group, method, request, kind, PATIENCE, passing=True
                    )
                except (GroupUnavailableError, NotControllerError, CallTimeoutError):
                    await asyncio.sleep(0.02)

    async def commit(self, generation: int, partition: int, offset: int) -> pb.CommitResponse:
        request = pb.CommitRequest(
            group=self.group,
            consumer_id=self.name,
            generation=generation,
            offsets=[pb.PartitionOffset(topic="t", partition=partition, offset=offset)],
        )
        return await self.calls.controller(self.group, "Commit", request, pb.CommitResponse)

    async def leave(self) -> None:
        request = pb.LeaveRequest(group=self.group, consumer_id=self.name)
        await self.calls.controller(self.group, "Leave", request, pb.LeaveResponse)


@pytest.mark.usefixtures("running")
class TestGroups:
    async def test_create_list_delete(self, running: Coordinator, client: GroupClient, name: str) -> None:
        topic = JetStreamTopic.of_streams("t", ["ONE", "TWO"])
        made = await client.create_group(name, session_timeout=7.5, topics=[topic], assignor="range")
        assert (made.name, made.session_timeout, made.assignor) == (name, 7.5, "range")
        assert (made.controller_id, made.controller_subject) == (running.id, running.subject)
        assert made.topics == (topic.spec,)
        found = await client.list_groups(name, "nobody knows this")
        assert found.groups == (made,)
        assert found.unknown == ("nobody knows this",)
        assert name in {group.name for group in (await client.list_groups()).groups}
        await client.delete_group(name)
        with pytest.raises(UnknownGroupError, match="no group"):
            await client.describe_group(name)
        outcome = await client.delete_groups(name)
        assert isinstance(outcome[name], UnknownGroupError)

    async def test_many_groups_are_all_listed(self, client: GroupClient, name: str) -> None:
        names = {f"{name}.{number} é" for number in range(30)}
        await asyncio.gather(*(client.create_group(one) for one in names))
        assert names <= {group.name for group in (await client.list_groups()).groups}
        assert not {one for one, error in (await client.delete_groups(*names)).items() if error}

    async def test_creating_twice(self, client: GroupClient, name: str) -> None:
        made = await client.create_group(name, session_timeout=5)
        assert await client.create_group(name, session_timeout=5) == made
        with pytest.raises(GroupExistsError, match=r"session_timeout=5.0, not 6.0"):
            await client.create_group(name, session_timeout=6)
        topic = JetStreamTopic.of_streams("t", ["ONE"])
        with pytest.raises(GroupExistsError, match="'t'"):
            await client.create_group(name, session_timeout=5, topics=[topic])
        with pytest.raises(GroupRequestError, match="assignor must be one of"):
            await client.create_group(f"{name}-2", assignor="mine")

    async def test_only_empty_groups_that_stay_are_deleted(
        self, nc: Client, client: GroupClient, name: str
    ) -> None:
        await client.create_group(name)
        await client.create_group(f"{name}-e", ephemeral=True)
        member = Raw(nc, name, "a")
        await member.register()
        outcome = await client.delete_groups(name, f"{name}-e")
        assert isinstance(outcome[name], GroupNotEmptyError)
        assert isinstance(outcome[f"{name}-e"], EphemeralGroupError)
        await member.leave()
        assert (await client.delete_groups(name)) == {name: None}

    async def test_an_ephemeral_group_goes_with_its_last_member(
        self, nc: Client, client: GroupClient, name: str
    ) -> None:
        await client.create_group(name, ephemeral=True)
        member = Raw(nc, name, "a")
        generation = (await member.register()).generation
        await member.commit(generation, 0, 5)
        await member.leave()
        assert (await client.list_groups(name)).unknown == (name,)
        # One of the same name is new, but its generations go on where those of the first one ended.
        await client.create_group(name)
        again = await member.register()
        assert again.generation > generation
        assert [one.offset for one in again.partitions] == [-1, -1]


@pytest.mark.usefixtures("running")
class TestMembers:
    async def test_a_whole_rebalance(self, nc: Client, client: GroupClient, name: str) -> None:
        await client.create_group(name)
        a, b = Raw(nc, name, "a"), Raw(nc, name, "b")
        first = await a.register()
        assert [one.partition for one in first.partitions] == [0, 1]
        await a.commit(first.generation, 0, 5)
        assert (await b.register()).error.code == pb.REBALANCING
        assert (await a.heartbeat(first.generation)).error.code == pb.REBALANCING
        await a.commit(first.generation, 1, 7)
        waiting = asyncio.create_task(b.register(wait=PATIENCE))
        second = await a.register(first.generation, wait=PATIENCE)
        other = await waiting
        assert second.generation == other.generation == first.generation + 1
        shares = {one.partition: one.offset for one in [*second.partitions, *other.partitions]}
        assert shares == {0: 5, 1: 7}
        found = await client.describe_group(name)
        assert found.phase is Phase.STABLE
        assert [member.consumer_id for member in found.members] == ["a", "b"]
        assert {p for member in found.members for p in member.assignment} == {("t", 0), ("t", 1)}

    async def test_the_fenced_get_typed_errors(self, nc: Client, client: GroupClient, name: str) -> None:
        await client.create_group(name)
        a = Raw(nc, name, "a")
        with pytest.raises(UnknownMemberError):
            await a.heartbeat(1)
        generation = (await a.register()).generation
        with pytest.raises(StaleGenerationError):
            await a.heartbeat(generation - 1)
        with pytest.raises(StaleGenerationError):
            await a.commit(generation + 1, 0, 1)
        other = Raw(nc, name, "a")
        other.name = "a"
        request = pb.RegisterConsumerRequest(
            group=name, client_id="another", consumer_id="a", topics=[pb.Topic(name="t", partitions=2)]
        )
        with pytest.raises(ConsumerIdInUseError):
            await other.calls.controller_once(
                name, "RegisterConsumer", request, pb.RegisterConsumerResponse, PATIENCE
            )
        await a.leave()
        with pytest.raises(UnknownMemberError):
            await a.commit(generation, 0, 1)

    async def test_rewind_of_many_partitions_looks_them_up_once_and_together(
        self, nc: Client, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The coordinator needs longer than one attempt of other calls may take."""
        asked: list[int] = []
        all_asked = asyncio.Event()

        class Slow:
            spec = TopicSpec("slow", 20)

            async def bounds(self, partition: int) -> tuple[int, int]:
                asked.append(partition)
                if len(asked) == 20:
                    all_asked.set()
                await all_asked.wait()
                await asyncio.sleep(0.5)
                return 3, 7

            async def lag(self, partition: int, offset: int) -> int:
                raise NotImplementedError

            async def open(self, partition: int, offset: int) -> PartitionFeed:
                raise NotImplementedError

        patient = GroupClient(nc, timeout=PATIENCE, prefix=f"{name}.groups")
        async with coordinator(nc, lease=LONG, prefix=f"{name}.groups", bucket=name, sources=[Slow()]):
            await patient.create_group(name, topics=[Slow()])
            monkeypatch.setattr("liftenvelope.group.calls._ONE_TRY", 0.05)
            wanted = {("slow", number): number for number in range(21)}
            outcome = await patient.rewind(name, wanted)
        assert sorted(asked) == list(range(20))
        assert isinstance(outcome.pop(TopicPartition("slow", 20)), GroupRequestError)
        assert outcome == {TopicPartition("slow", n): min(max(n, 3), 7) for n in range(20)}

    async def test_commits_and_rewinds(self, nc: Client, client: GroupClient, play: Play) -> None:
        await play.publish(8)  # offsets 0 to 7; of partition 0 they are 0 and 4
        await client.create_group(play.name, topics=[play.topic])
        outcome = await client.rewind(
            play.name, {(play.name, 0): -5, (play.name, 1): 3, (play.name, 2): 2**70, ("x", 0): 1}
        )
        assert outcome[TopicPartition(play.name, 0)] == 0
        assert outcome[TopicPartition(play.name, 1)] == 3
        assert outcome[TopicPartition(play.name, 2)] == 8
        assert isinstance(outcome[TopicPartition("x", 0)], GroupRequestError)
        offsets = await client.committed(play.name)
        assert offsets == {
            TopicPartition(play.name, number): offset for number, offset in enumerate([0, 3, 8, -1])
        }
        stream = await play.js.stream(play.name)
        await stream.purge(sequence=6)
        outcome = await client.rewind(play.name, {(play.name, 0): 0})
        assert outcome == {TopicPartition(play.name, 0): 8}  # nothing of it is left
        outcome = await client.rewind(play.name, {(play.name, 1): 0})
        assert outcome == {TopicPartition(play.name, 1): 5}
        await play.js.delete_stream(play.name)
        outcome = await client.rewind(play.name, {(play.name, 0): 0})
        assert isinstance(outcome[TopicPartition(play.name, 0)], GroupRequestError)


class TestImmediate:
    """Liftbridge's own kind of groups, as the gateway uses them in the same process."""

    async def test_join_fetch_leave(self, nc: Client, running: Coordinator, name: str) -> None:
        request = pb.CreateGroupRequest(name=name, session_timeout_ms=30_000, ephemeral=True, immediate=True)
        a, b = Raw(nc, name, "a"), Raw(nc, name, "b")
        await a.calls.any("CreateGroup", request, pb.CreateGroupResponse)
        first = await a.register()
        second = await b.register()
        assert second.generation == first.generation + 1
        assert not second.HasField("error")
        host = await running.directory.host(name)
        with pytest.raises(StaleGenerationError):
            host.assignments("a", first.generation)
        shares = [set(host.assignments(one, second.generation)) for one in "ab"]
        assert sorted(p for share in shares for p in share) == [("t", 0), ("t", 1)]
        await running.set_topic("t", TopicSpec("t", 4))
        third = host.stored()
        assert third is not None
        assert third.generation == second.generation + 1
        assert len(host.assignments("a", third.generation)) == 2
        await running.set_topic("t", None)
        await a.leave()
        await b.leave()
        with pytest.raises(UnknownGroupError):
            await running.directory.host(name)


class TestService:
    async def test_coordinator_is_a_micro_service(self, nc: Client, running: Coordinator) -> None:
        answers = [json.loads((await nc.request("$SRV.INFO.liftenvelope-groups", timeout=PATIENCE)).data)]
        assert [answer["metadata"] for answer in answers] == [{"coordinator": running.id}]
        subjects = {endpoint["subject"] for endpoint in answers[0]["endpoints"]}
        assert {f"{running.subject}.{method}" for method in METHODS} <= subjects
        assert "liftenvelope.groups.any.ListGroups" in subjects

    async def test_coordinator_answers_the_nats_tools(
        self, nc: Client, running: Coordinator, name: str
    ) -> None:
        async def ask(what: str, *at: str) -> Any:
            subject = ".".join((f"$SRV.{what}", *at))
            return json.loads((await nc.request(subject, timeout=PATIENCE)).data)

        ping = await ask("PING", "liftenvelope-groups")
        assert ping["type"] == "io.nats.micro.v1.ping_response"
        assert (await ask("PING", "liftenvelope-groups", ping["id"])) == ping
        assert (await ask("INFO", "liftenvelope-groups", ping["id"]))["version"] == __version__
        client = GroupClient(nc, timeout=PATIENCE)
        await client.create_group(name)
        await client.list_groups(name)
        assert isinstance((await client.delete_groups(name))[name], type(None))
        stats = await ask("STATS", "liftenvelope-groups", ping["id"])
        assert stats["metadata"] == {"coordinator": running.id}
        counts = {endpoint["subject"]: endpoint["num_requests"] for endpoint in stats["endpoints"]}
        for subject in ("liftenvelope.groups.any.CreateGroup", f"{running.subject}.DeleteGroup"):
            assert counts[subject] >= 1
        assert not any(endpoint["num_errors"] for endpoint in stats["endpoints"])

    async def test_a_heartbeat_is_no_write(self, nc: Client, running: Coordinator, name: str) -> None:
        await GroupClient(nc, timeout=PATIENCE).create_group(name)
        member = Raw(nc, name, "a")
        generation = (await member.register()).generation
        stream = await Play(nc, name).js.stream("KV_liftenvelope-groups")
        subject = f"$KV.liftenvelope-groups.group.{name}"
        before = await stream.get_message(last_by_subject=subject)
        for _ in range(20):
            assert (await member.heartbeat(generation)).generation == generation
        await member.register(generation)  # what it has already is told, and not written either
        assert (await stream.get_message(last_by_subject=subject)).sequence == before.sequence

    async def test_garbage_gets_an_error(self, nc: Client, running: Coordinator) -> None:
        for method in METHODS:
            answer = await nc.request(f"{running.subject}.{method}", b"\xff\xff", timeout=PATIENCE)
            error = getattr(pb, f"{method}Response").FromString(answer.data).error
            assert error.code == pb.INVALID_ARGUMENT
            await nc.publish(f"{running.subject}.{method}", b"")  # nobody waits for an answer
            empty = await nc.request(f"{running.subject}.{method}", b"", timeout=PATIENCE)
            getattr(pb, f"{method}Response").FromString(empty.data)

    async def test_without_a_coordinator(self, nc: Client) -> None:
        client = GroupClient(nc, prefix="nobody.is.here", timeout=4.0)
        with pytest.raises(GroupUnavailableError, match=r"no coordinator answers on .*; start one"):
            await client.list_groups()

    async def test_coordinator_on_the_same_connection_without_echo_is_not_found(
        self, jetstream_server: NatsServer, name: str
    ) -> None:
        nc = await connect(jetstream_server.url, no_echo=True)
        async with Coordinator(nc, prefix=name, bucket=name):
            with pytest.raises(
                GroupUnavailableError, match=r"start one on another connection: .* no_echo=True"
            ):
                await GroupClient(nc, prefix=name, timeout=4.0).list_groups()
        await nc.close()

    async def test_what_was_told_outlives_a_try_that_had_no_time(self, nc: Client, name: str) -> None:
        """A coordinator refuses, and then says nothing more."""
        refusal = error_message(GroupUnavailableError("the bucket is away"))
        asked = 0

        async def refuse_once(msg: Msg) -> None:
            nonlocal asked
            asked += 1
            if asked == 1:
                await msg.respond(pb.ListGroupsResponse(error=refusal).SerializeToString())

        await nc.subscribe(f"{name}.any.ListGroups", cb=refuse_once)
        with pytest.raises(GroupUnavailableError, match="the bucket is away"):
            await GroupClient(nc, prefix=name, timeout=4.0).list_groups()
        assert asked > 1

    async def test_without_jetstream(self, nats_server: NatsServer) -> None:
        nc = await connect(nats_server.url)
        with pytest.raises(GroupUnavailableError):
            await Coordinator(nc, timeout=0.2).start()
        await nc.close()
        with pytest.raises((TransportError, CallTimeoutError)):
            await GroupClient(nc, timeout=0.2).list_groups()

    async def test_close_during_start_leaves_nothing_running(self, nc: Client, name: str) -> None:
        one = coordinator(nc, coordinator_id=name, prefix=name, bucket=name)
        starting = asyncio.create_task(one.start())
        await asyncio.sleep(0)
        await one.close()
        await starting
        assert not one.has_lease
        with pytest.raises(nats.errors.NoRespondersError):
            await nc.request(f"{one.subject}.ListGroups", b"", timeout=PATIENCE)

    async def test_request_with_a_reply_subject_that_is_no_inbox_is_dropped(
        self, nc: Client, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        create = pb.CreateGroupRequest(name=name).SerializeToString()
        async with coordinator(nc, prefix=name, bucket=name, coordinator_id=name) as running:
            for subject, payload in (
                (f"{name}.any.ListGroups", b""),
                (f"{running.subject}.Heartbeat", b""),
                (f"{name}.any.CreateGroup", create),
                ("$SRV.PING.liftenvelope-groups", b""),
            ):
                others = [f"$KV.{name}.a", f"{name}.any.b", f"orders.{name}"]
                spies = [await nc.subscribe(other) for other in others]
                for other in others:
                    await nc.publish(subject, payload, reply=other)
                # Answered after those, as requests of one connection are taken in their order.
                await nc.request(subject, b"", timeout=PATIENCE)
                assert [spy.pending_msgs for spy in spies] == [0, 0, 0]
            assert not (await GroupClient(nc, prefix=name).list_groups()).groups
        assert "its reply subject is no inbox: '$KV." in caplog.text

    @pytest.mark.parametrize("is_own", [True, False])
    async def test_inbox_prefixes_of_the_coordinator_and_of_the_option_get_answers(
        self, jetstream_server: NatsServer, nc: Client, name: str, is_own: bool
    ) -> None:
        member = await connect(jetstream_server.url, inbox_prefix="team.inboxes")
        options = {} if is_own else {"allowed_inboxes": ("team.",)}
        async with coordinator(member if is_own else nc, prefix=name, bucket=name, **options):
            assert not (await GroupClient(member, prefix=name, timeout=PATIENCE).list_groups()).groups
        await member.close()

    async def test_member_of_another_account_gets_answers(self, name: str) -> None:
        config = {
            "accounts": {
                "A": {
                    "jetstream": True,
                    "users": [{"user": "a", "password": "a"}],
                    "exports": [{"service": f"{name}.>"}],
                },
                "B": {
                    "users": [{"user": "b", "password": "b"}],
                    "imports": [{"service": {"account": "A", "subject": f"{name}.>"}}],
                },
            }
        }
        with run_nats_server(jetstream=True, config=config) as server:
            here = await connect(server.url, user="a", password="a")
            there = await connect(server.url, user="b", password="b")
            async with coordinator(here, prefix=name, bucket=name):
                seen = await here.subscribe(f"{name}.any.ListGroups")
                await handled(here)
                assert not (await GroupClient(there, prefix=name, timeout=PATIENCE).list_groups()).groups
                assert not (await seen.next_msg(PATIENCE)).reply.startswith("_INBOX.")
            await here.close()
            await there.close()

    async def test_options(self, nc: Client) -> None:
        for options in (
            {"coordinator_id": "a.b"},
            {"bucket": ""},
            {"prefix": "a..b"},
            {"replicas": 0},
            {"lease": 0},
            {"assignors": {"sticky": sticky}},
            {"assignors": {"mine": 1}},
            {"allowed_inboxes": ("",)},
        ):
            with pytest.raises(UsageError):
                Coordinator(nc, **options)
        with pytest.raises(UsageError, match="not running"):
            _ = Coordinator(nc).directory


class TestSeveral:
    """Their own buckets, so that no other test's groups are among theirs."""

    async def test_groups_are_spread_and_taken_over(self, nc: Client, name: str) -> None:
        client = GroupClient(nc, prefix=name, timeout=PATIENCE)
        options: dict[str, Any] = {"bucket": name, "prefix": name, "lease": 6.0}
        async with coordinator(nc, **options) as one:
            async with coordinator(nc, **options) as two:
                await eventually(lambda: knows(one, two) and knows(two, one))
                for number in range(20):
                    await client.create_group(f"g{number}")
                owners = {group.controller_id for group in (await client.list_groups()).groups}
                assert owners == {one.id, two.id}
                member = Raw(nc, "g0", "a")
                member.calls = GroupCalls(nc, prefix=name, timeout=PATIENCE)
                generation = (await member.register()).generation
            found = await client.list_groups(*(f"g{number}" for number in range(20)))
            assert {group.controller_id for group in found.groups} == {one.id}
            # The member finds its controller again, and is in the generation that it was in.
            member.calls.forget("g0")
            assert (await member.heartbeat(generation)).generation == generation

    async def test_who_has_lost_its_lease_begins_anew(self, nc: Client, name: str) -> None:
        events: list[GroupEvent] = []
        client = GroupClient(nc, prefix=name, timeout=PATIENCE)
        options = {"bucket": name, "prefix": name}
        async with coordinator(nc, on_event=events.append, **options) as one:
            await client.create_group("g")
            member = Raw(nc, "g", "a")
            member.calls = GroupCalls(nc, prefix=name, timeout=PATIENCE)
            generation = (await member.register()).generation
            stream = await Play(nc, name).js.stream(f"KV_{name}")
            await stream.purge(subject=f"$KV.{name}.coordinator.{one.id}")
            await eventually(lambda: LeaseLost(one.id) in events)
            await eventually(lambda: one.has_lease)
            # It has the group again, in another incarnation, and the member is none the wiser.
            await client.describe_group("g")
            assert (await member.heartbeat(generation)).generation == generation

    async def test_a_lease_is_given_back_though_a_renewal_is_cut_off(
        self, jetstream_server: NatsServer, nc: Client, name: str
    ) -> None:
        """Its answer has not come when the coordinator is closed: the key is another one than it knows."""
        with FaultProxy(jetstream_server.url) as proxy:
            far = await connect(f"nats://{proxy.address}")
            one = coordinator(far, bucket=name, prefix=name, lease=2.0, coordinator_id="one")
            await one.start()
            stream = await Play(nc, name).js.stream(f"KV_{name}")
            subject = f"$KV.{name}.coordinator.one"

            async def revision() -> int:
                return (await stream.get_message(last_by_subject=subject)).sequence

            proxy.stall("to_client")
            assert one._keeper is not None
            async with asyncio.timeout(PATIENCE):
                while await revision() == one._keeper._revision:
                    await asyncio.sleep(0.02)
            closing = asyncio.create_task(one.close())
            await asyncio.sleep(0)  # it has stopped what it was at
            proxy.resume()
            await closing
            await far.close()
        assert (await stream.get_message(last_by_subject=subject)).headers["KV-Operation"] == "DEL"

    async def test_an_id_is_for_one(self, nc: Client, name: str) -> None:
        options: dict[str, Any] = {"bucket": name, "prefix": name, "coordinator_id": "the-one", "lease": 3.0}
        async with coordinator(nc, **options):
            with pytest.raises(CoordinatorIdInUseError, match="'the-one'"):
                await coordinator(nc, **options).start()
        async with coordinator(nc, **options) as again:
            assert again.has_lease
        await again.close()
        with pytest.raises(UsageError, match="only once"):
            await again.start()


def knows(one: Coordinator, other: Coordinator) -> bool:
    assert one._keeper is not None
    return other.id in {peer.id for peer in one._keeper.peers.all}


async def test_controller_is_found_beside_a_coordinator_that_hangs(nc: Client, name: str) -> None:
    """NATS gives each request to any of the coordinators. A fake leaves two requests without an answer."""
    asked = 0

    async def locate(msg: Msg) -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            found = pb.Group(name="g", controller=pb.Controller(id="c", subject=f"{name}.c"))
            await msg.respond(pb.ListGroupsResponse(groups=[found]).SerializeToString())

    async def beat(msg: Msg) -> None:
        await msg.respond(pb.HeartbeatResponse().SerializeToString())

    await nc.subscribe(f"{name}.any.ListGroups", cb=locate)
    await nc.subscribe(f"{name}.c.Heartbeat", cb=beat)
    calls = GroupCalls(nc, prefix=name, timeout=PATIENCE)
    request = pb.HeartbeatRequest(group="g")
    await calls.controller_once("g", "Heartbeat", request, pb.HeartbeatResponse, PATIENCE)
    assert asked >= 3
