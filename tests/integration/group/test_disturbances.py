"""What one client, one record or one handler does wrong does not spread to the others of a group."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope._pb import groups_pb2 as pb
from liftenvelope.errors import CallTimeoutError, LiftEnvelopeError, ResourcesExceededError
from liftenvelope.group import (
    CoordinatorDefectError,
    GroupClient,
    GroupConsumer,
    GroupEvent,
    GroupLimitError,
    GroupUnavailableError,
    JetStreamTopic,
    LeaseLost,
    PartitionRefused,
    PartitionUnreadable,
    TopicPartition,
)
from liftenvelope.group._member.reader import Outage
from liftenvelope.group._serving import _fitting
from liftenvelope.group.assignors import sticky
from liftenvelope.group.membership import Registration
from liftenvelope.group.state import TopicSpec
from liftenvelope.jetstream import ConsumerConfig, JetStream, StreamConfig
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect

from .play import LONG, PATIENCE, Play, coordinator, eventually, quiet, take


@pytest.mark.parametrize("limit", ["max_payload", "max_msg_size"])
async def test_registration_that_is_too_large_ends_no_other_member(name: str, limit: str) -> None:
    with run_nats_server(
        jetstream=True, config={"max_payload": 4096} if limit == "max_payload" else {}
    ) as server:
        nc, other = await connect(server.url), await connect(server.url)
        if limit == "max_msg_size":  # the bucket of somebody who has set a limit
            await JetStream(nc).create_stream(
                StreamConfig(
                    name=f"KV_{name}",
                    subjects=(f"$KV.{name}.>",),
                    max_msgs_per_subject=1,
                    max_msg_size=4096,
                    allow_rollup_hdrs=True,
                    allow_direct=True,
                    allow_msg_ttl=True,
                )
            )
        async with coordinator(nc, lease=LONG, bucket=name):
            play = await Play(nc, name, session=LONG).create()
            async with play.consumer("healthy") as consumer:
                large = [JetStreamTopic.of_streams(f"{n}-{'x' * 190}", ["none"]) for n in range(19)]
                for number in range(3):
                    newcomer = GroupConsumer(other, name, large, timeout=PATIENCE, on_event=quiet)
                    with pytest.raises(GroupLimitError, match="too large"):
                        await newcomer.open()
                    await play.publish(4)
                    assert len(await take(consumer, 4)) == 4, number
        await nc.close()
        await other.close()


async def test_answer_that_is_too_large_for_a_message_is_told(name: str) -> None:
    with run_nats_server(jetstream=True, config={"max_payload": 16_384}) as server:
        nc = await connect(server.url)
        async with coordinator(nc, lease=LONG):
            # The group names its topic once, and the answer names it with each partition.
            topic = JetStreamTopic.of_stream(name, [f"{name}.{n}" for n in range(90)], name="x" * 200)
            consumer = GroupConsumer(nc, name, topic, timeout=PATIENCE, on_event=quiet)
            with pytest.raises(
                GroupLimitError, match=r"answer to RegisterConsumer has .* at most 16384: raise"
            ):
                await consumer.open()
        await nc.close()


async def test_commit_with_no_room_in_one_message_is_sent_in_several(name: str) -> None:
    with run_nats_server(jetstream=True, config={"max_payload": 16_384}) as server:
        nc = await connect(server.url)
        async with coordinator(nc, lease=LONG) as running:
            play = await Play(nc, name, partitions=74, session=LONG).create()
            # Answers have room for the partitions before their first commit, and no room after it.
            play.topic = JetStreamTopic.of_stream(name, play.subjects, name="x" * 200)
            await play.publish(296)
            async with play.consumer("m", auto_commit_interval=None) as consumer:
                await take(consumer, 296)
                await consumer.commit()
                host = await running.directory.host(name)
                committed = await host.run(lambda group, _: group.committed())
                assert list(committed.values()) == [296 - 73 + number for number in range(74)]
        await nc.close()


async def test_all_groups_are_listed_although_they_have_no_room_in_one_answer(name: str) -> None:
    with run_nats_server(jetstream=True, config={"max_payload": 16_384}) as server:
        nc = await connect(server.url)
        async with coordinator(nc, lease=LONG):
            client = GroupClient(nc, timeout=PATIENCE)
            topic = JetStreamTopic.of_stream(name, [f"{name}.{n}" for n in range(100)])
            for number in range(12):
                await client.create_group(f"g{number:02}", topics=[topic])
            found = await client.list_groups()
            assert [group.name for group in found.groups] == [f"g{number:02}" for number in range(12)]
            assert {group.topics for group in found.groups} == {(topic.spec,)}
            assert found.unknown == ()
        await nc.close()


async def _list(client: GroupClient, name: str) -> None:
    """List a group, with more time if a coordinator on a busy machine has not answered at all."""
    for timeout in (1.0, PATIENCE):
        with suppress(CallTimeoutError):
            await client.list_groups(name, timeout=timeout)


async def test_groups_without_a_coordinator_that_can_serve_them_are_listed_too(name: str) -> None:
    """A group that is asked for singly has its stored state, as those with room in the list."""
    with run_nats_server(jetstream=True, config={"max_payload": 16_384}) as server:
        nc = await connect(server.url)
        client = GroupClient(nc, timeout=PATIENCE)
        topic = JetStreamTopic.of_stream(name, [f"{name}.{n}" for n in range(100)])
        names = [f"g{number:02}" for number in range(12)]
        async with coordinator(nc, lease=LONG, assignors={"mine": sticky}):
            for each in names:
                await client.create_group(each, topics=[topic], assignor="mine")
        async with coordinator(nc, lease=LONG):
            with pytest.raises(GroupUnavailableError, match="no assignor 'mine'"):
                await _list(client, names[-1])
            found = await client.list_groups()
            assert [(group.name, group.assignor) for group in found.groups] == [(n, "mine") for n in names]
        await nc.close()


def test_list_with_room_for_all_groups_is_answered_as_it_is() -> None:
    groups = [pb.Group(name=f"g{number}") for number in range(9)]
    size = pb.ListGroupsResponse(groups=groups).ByteSize()
    assert _fitting(groups, size + 100) is groups
    few = [pb.Group(name="g", assignor="x" * 1_000) for _ in range(9)]
    fitting = _fitting(few, 5_000)
    assert pb.ListGroupsResponse(groups=fitting).ByteSize() <= 5_000
    assert {one.error.code for one in fitting} == {pb.OK, pb.LIMIT_EXCEEDED}


async def test_member_waits_for_the_consumers_of_another_one_at_the_limit_of_the_stream(play: Play) -> None:
    """The consumers of a killed member stay for five minutes: here, one stays until it is deleted."""
    stream = await play.js.update_stream(
        StreamConfig(name=play.name, subjects=(f"{play.name}.*",), max_consumers=4)
    )
    await stream.create_consumer(ConsumerConfig(name="left"))
    await play.publish(8)
    events: list[GroupEvent] = []
    async with play.consumer("a", on_event=events.append) as consumer:
        refused = await take(consumer, 6)
        # The other partitions may have been read before the consumer of this one is refused.
        await eventually(lambda: any(isinstance(event, PartitionRefused) for event in events))
        [event] = [event for event in events if isinstance(event, PartitionRefused)]
        assert isinstance(event.error, ResourcesExceededError)
        assert (event.group, event.consumer_id, event.topic) == (play.name, "a", play.name)
        await stream.delete_consumer("left")
        assert {*refused, *await take(consumer, 2)} == play.published


async def test_member_whose_connection_is_closed_ends(play: Play, jetstream_server: NatsServer) -> None:
    """Its readers may fail before it notices that no heartbeat can be sent."""
    nc = await connect(jetstream_server.url)
    consumer = await play.consumer("a", nc=nc, session_timeout=LONG).open()
    await eventually(lambda: all(reader._has_begun for reader in consumer._readers.values()))
    await nc.close()
    with pytest.raises(LiftEnvelopeError, match="closed"):
        async with asyncio.timeout(PATIENCE):
            await anext(consumer)
    await consumer.close()


async def test_partition_that_may_not_be_read_is_told_and_hides_no_other(name: str) -> None:
    users = (
        "{ user: admin, password: s3cret }",
        "{ user: member, password: s3cret, permissions: "
        f'{{ publish: {{ deny: ["$JS.API.CONSUMER.CREATE.{name}-1.>"] }}, subscribe: ">" }} }}',
    )
    text = f"authorization {{ users = [ {', '.join(users)} ] }}"
    with run_nats_server(jetstream=True, config_text=text) as server:
        admin = await connect(f"nats://admin:s3cret@{server.address}")
        member = await connect(f"nats://member:s3cret@{server.address}")
        streams = [f"{name}-{number}" for number in range(2)]
        async with JetStream(admin) as js, coordinator(admin, lease=LONG):
            for stream in streams:
                await js.create_stream(StreamConfig(name=stream, subjects=(stream,)))
                await js.publish(stream, stream.encode())
            events: list[GroupEvent] = []
            topic = JetStreamTopic.of_streams("t", streams)
            async with GroupConsumer(
                member, name, topic, auto_offset="earliest", timeout=PATIENCE, on_event=events.append
            ) as consumer:
                consumer._readers[TopicPartition("t", 1)]._outage = Outage(0.1)
                assert await take(consumer, 1) == [streams[0].encode()]
                await eventually(lambda: bool(events))
            assert isinstance(events[0], PartitionUnreadable)
            assert (events[0].topic, events[0].partition) == ("t", 1)
            assert "permissions violation" in str(events[0].error)
        await admin.close()
        await member.close()


async def test_second_seek_during_a_commit_still_rewinds(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    await play.publish(40)
    async with play.consumer("a", auto_commit_interval=None) as consumer:
        key = TopicPartition(play.name, 0)
        for number in (1, 2, 3):
            consumer.pause(play.name, number)
        await take(consumer, 10)
        await consumer.commit()
        assert (await play.offsets())[key] == 37
        consumer.seek(play.name, 0, 20)
        await take(consumer, 1)
        member, stored, go_on = consumer._member, asyncio.Event(), asyncio.Event()
        assert member is not None
        commit = member.commit

        async def slow(*args: Any) -> Any:
            outcome = await commit(*args)
            stored.set()
            await go_on.wait()
            return outcome

        monkeypatch.setattr(member, "commit", slow)
        committing = asyncio.create_task(consumer.commit())
        await stored.wait()
        consumer.seek(play.name, 0, 0)
        go_on.set()
        await committing
        assert await take(consumer, 1) == [b"0"]
        await consumer.commit()
        assert (await play.offsets())[key] == 1


async def test_commit_does_not_wait_longer_than_asked_for_another_one(play: Play) -> None:
    await play.publish(4)
    async with play.consumer("a") as consumer:
        await take(consumer, 1)
        async with consumer._committing:
            with pytest.raises(CallTimeoutError, match=r"not committed in 0\.1 s: an earlier commit"):
                await consumer.commit(timeout=0.1)
        await consumer.commit()


async def test_failure_is_raised_although_messages_are_there(play: Play) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    await play.publish(8)
    async with play.consumer("a") as consumer:
        await eventually(lambda: sum(one.buffer.waiting for one in consumer._readers.values()) == 8)
        assert len(await take(consumer, 1)) == 1
        consumer._hand.until = inf  # however late the next one is asked for
        consumer._spawn(fail())
        await eventually(lambda: consumer._failure is not None)
        with pytest.raises(ZeroDivisionError):
            await anext(consumer)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
async def test_close_that_is_cancelled_gives_everything_up(nc: Client, name: str, turns: int) -> None:
    one = coordinator(nc, bucket=name, prefix=name, coordinator_id="one")
    await one.start()
    client = GroupClient(nc, prefix=name, timeout=PATIENCE)
    await client.create_group("g")
    await client.describe_group("g")
    closing = asyncio.create_task(one.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    await one.close()
    stream = await Play(nc, name).js.stream(f"KV_{name}")
    message = await stream.get_message(last_by_subject=f"$KV.{name}.coordinator.one")
    assert message.headers["KV-Operation"] == "DEL"
    assert not one.directory.hosts


async def test_record_that_cannot_be_read_hides_no_other_group(
    nc: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = GroupClient(nc, prefix=name, timeout=PATIENCE)
    async with coordinator(nc, bucket=name, prefix=name):
        await client.create_group("g")
        await nc.request(f"$KV.{name}.group.damaged", b"\xff\xff", timeout=PATIENCE)
        assert [group.name for group in (await client.list_groups()).groups] == ["g"]
    async with coordinator(nc, bucket=name, prefix=name) as two:
        await eventually(lambda: "left out group.damaged" in caplog.text)
        assert [group.name for group in (await client.list_groups()).groups] == ["g"]
        assert two.has_lease


async def test_group_with_a_damaged_offset_key_is_not_taken_over_again_and_again(
    nc: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = GroupClient(nc, prefix=name, timeout=PATIENCE)
    one = coordinator(nc, bucket=name, prefix=name)
    async with one:
        await client.create_group("g", topics=[JetStreamTopic.of_streams("t", ["none"])])
        await client.create_group("sound")
        registration = Registration(consumer_id="a", client_id="1", topics=(TopicSpec("t", 1),))
        for group in ("g", "sound"):
            host = await one.directory.host(group)
            await host.run(lambda state, now: state.register(registration, now))
    await nc.request(f"$KV.{name}.offsets.g.0", b"\xff\xff", timeout=PATIENCE)
    async with coordinator(nc, bucket=name, prefix=name) as two:
        await eventually(lambda: "left out group.g: can't decode a group's offsets" in caplog.text)
        await eventually(lambda: two.groups == ("sound",))
        await two.directory.adopt_orphans()  # raises nothing, so nothing is tried again
        with pytest.raises(CoordinatorDefectError, match="can't decode a group's offsets"):
            await two.directory.host("g")


async def test_coordinator_tells_why_its_lease_has_expired(
    nc: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        JetStream(nc) as js,
        coordinator(nc, coordinator_id="one", bucket=name, prefix=name, lease=1.0),
    ):
        await js.delete_stream(f"KV_{name}")
        begin = "coordinator one: the lease has expired, retrying: can't write key 'coordinator.one': "
        await eventually(lambda: any(line.startswith(begin) for line in caplog.messages))


async def test_handler_that_fails_does_not_end_the_lease(nc: Client, name: str) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def fail(event: GroupEvent) -> None:
        if isinstance(event, LeaseLost):
            raise LookupError("of the handler")

    async with coordinator(nc, bucket=name, prefix=name, on_event=fail) as one:
        stream = await Play(nc, name).js.stream(f"KV_{name}")
        await stream.purge(subject=f"$KV.{name}.coordinator.{one.id}")
        await eventually(lambda: bool(failures))
        await eventually(lambda: one.has_lease)
    assert [str(failure["exception"]) for failure in failures] == ["of the handler"]
    assert failures[0]["message"].startswith("on_event ")
