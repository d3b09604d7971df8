"""Groups under load while something dies: nothing is lost, nothing goes back, nothing is two members'."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack

import pytest
from nats.aio.client import Client

from liftenvelope.errors import WrongLastSequenceError
from liftenvelope.group import TopicPartition
from liftenvelope.group._controller.store import GroupStore
from liftenvelope.jetstream import JetStream
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port
from tests.integration.conftest import connect, freeze
from tests.patience import short_requests

from .play import (
    PATIENCE,
    SESSION,
    Delivery,
    Play,
    coordinator,
    deliveries,
    eventually,
    process,
    watching,
)


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    """A server of the test's own: it may be killed, and no other test's groups are there."""
    with run_nats_server(jetstream=True) as running:
        yield running


@pytest.fixture
async def nc(server: NatsServer) -> AsyncIterator[Client]:
    client = await connect(server.url)
    yield client
    await client.close()


@pytest.fixture
async def play(nc: Client, name: str) -> Play:
    return await Play(nc, name).create()


async def test_the_controller_is_killed(server: NatsServer, play: Play) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(process("coordinator", server.url, "one"))
        await play.client.create_group(play.name, session_timeout=SESSION)
        assert (await play.client.describe_group(play.name)).controller_id == "one"
        await stack.enter_async_context(process("coordinator", server.url, "two"))
        for name in "ab":
            await stack.enter_async_context(play.member(name))
        await stack.enter_async_context(watching(play))
        await play.publish(40)
        first.kill()
        await play.publish(40)
        await play.all_read()
        await stack.enter_async_context(play.member("c"))
        await play.publish(40)
        await play.all_read()
        assert (await play.client.describe_group(play.name)).controller_id == "two"
    play.log.check()


async def test_the_controller_hangs_and_comes_back(server: NatsServer, nc: Client, play: Play) -> None:
    """It was replaced meanwhile, and must not do anything in the belief that it is the controller."""
    async with process("coordinator", server.url, "one") as first, play.member("a"), watching(play):
        await play.publish(20)
        async with coordinator(nc, coordinator_id="two"):
            freeze(first.pid)
            async with play.member("b"):
                await play.publish(20)
                await play.all_read()
                first.send_signal(signal.SIGCONT)
                async with play.member("c"):
                    await play.publish(20)
                    await play.all_read()
            assert (await play.client.describe_group(play.name)).controller_id == "two"
    play.log.check()


async def test_members_are_killed(server: NatsServer, nc: Client, play: Play) -> None:
    async with coordinator(nc), play.member("here") as here, watching(play):
        await play.publish(40)
        given: list[Delivery] = []
        for round_ in range(2):
            arguments = (server.url, play.name, str(play.partitions), f"there-{round_}")
            async with process("member", *arguments) as member:
                before = len(given)
                reading = asyncio.create_task(collect(member, f"there-{round_}", given))
                await eventually(lambda: len(here.assignment) == 2)
                await play.publish(40)
                await eventually(lambda seen=before: len(given) >= seen + 5)  # type: ignore[misc]
                member.kill()
                await reading
            await eventually(lambda: len(here.assignment) == 4)
            await play.publish(10)
            # Nothing is lost with the dead one: what it had not committed comes again.
            theirs = {one.data for one in given}
            await eventually(lambda others=theirs: play.published - others <= play.log.payloads)  # type: ignore[misc]
            offsets = await play.offsets()
            for one in given:
                committed = offsets[TopicPartition(play.name, one.partition)]
                assert one.data in play.log.payloads or one.offset < committed
    play.log.check()


async def collect(member: asyncio.subprocess.Process, name: str, given: list[Delivery]) -> None:
    async for numbers, payload in deliveries(member):
        generation, partition, offset = map(int, numbers.split())
        given.append(Delivery(name, generation, partition, offset, payload))


async def test_the_server_is_killed(server: NatsServer, nc: Client, play: Play) -> None:
    async with coordinator(nc), play.member("a"), play.member("b"), watching(play):
        for _ in range(2):
            await play.publish(30)
            server.kill()
            await asyncio.sleep(0.2)
            server.start()
            await play.publish(30)
            await play.all_read()
    play.log.check()


async def test_the_network_stalls(server: NatsServer, play: Play) -> None:
    """First the members', then the coordinator's: both for longer than a session."""
    with FaultProxy(server.url) as members, FaultProxy(server.url) as coordinators:
        far, farther = (
            await connect(f"nats://{members.address}"),
            await connect(f"nats://{coordinators.address}"),
        )
        async with coordinator(farther), play.member("a", nc=far), play.member("b") as near, watching(play):
            await play.publish(40)
            await eventually(lambda: len(near.assignment) == 2)
            members.stall()
            await eventually(lambda: len(near.assignment) == 4)
            await play.publish(40)
            members.resume()
            coordinators.stall()
            await eventually(lambda: not near._running().session.is_inside)
            coordinators.resume()
            await play.publish(40)
            await play.all_read()
            await eventually(lambda: len(near.assignment) == 2)
            members.cut()
            coordinators.cut()
            await play.publish(40)
            await play.all_read()
        await far.close()
        await farther.close()
    play.log.check()


async def test_two_coordinators_that_both_believe_to_lead(server: NatsServer, nc: Client, play: Play) -> None:
    """One is cut off from everything for longer than its lease, with members that only it could hear."""
    with FaultProxy(server.url) as proxy:
        far = await connect(f"nats://{proxy.address}")
        async with coordinator(far, coordinator_id="far"), play.member("a"), watching(play):
            await play.publish(20)
            async with coordinator(nc, coordinator_id="near"):
                proxy.stall()
                async with play.member("b"):
                    await play.publish(20)
                    await play.all_read()
                    proxy.resume()
                    await play.publish(20)
                    await play.all_read()
                assert (await play.client.describe_group(play.name)).controller_id == "near"
        await far.close()
    play.log.check()


class TestThreeServers:
    @pytest.fixture
    async def cluster(self) -> AsyncIterator[list[NatsServer]]:
        ports = [free_port() for _ in range(3)]
        routes = [f"nats://127.0.0.1:{port}" for port in ports]
        with ExitStack() as stack:
            stack.enter_context(short_requests())
            yield [
                stack.enter_context(
                    run_nats_server(
                        jetstream=True,
                        config={
                            "server_name": f"n{number}",
                            "cluster": {"name": "three", "listen": f"127.0.0.1:{port}", "routes": routes},
                        },
                    )
                )
                for number, port in enumerate(ports, 1)
            ]

    async def test_the_bucket_survives_its_leader(self, cluster: list[NatsServer], name: str) -> None:
        nc = await connect([server.url for server in cluster])
        play = await Play(nc, name).create(replicas=3)
        async with (
            coordinator(nc, replicas=3) as one,
            coordinator(nc, replicas=3) as two,
            play.member("a"),
            play.member("b"),
            watching(play),
        ):
            await play.publish(20)
            stream = await play.js.stream("KV_liftenvelope-groups")
            while not (info := (await stream.info()).cluster) or not info.leader:
                await asyncio.sleep(0.05)
            leader = next(server for number, server in enumerate(cluster, 1) if info.leader == f"n{number}")
            leader.kill()
            await play.publish(20)
            await play.all_read()
            async with play.member("c"):
                await play.publish(20)
                await play.all_read()
            leader.start()
            await play.publish(10)
            await play.all_read()
            await eventually(lambda: one.has_lease and two.has_lease)
        await nc.close()
        play.log.check()

    async def test_offset_keys_are_fenced_by_the_record(self, cluster: list[NatsServer], name: str) -> None:
        """Neither a write under an old record is stored, nor one that races with a write of the record."""
        nc = await connect([server.url for server in cluster])
        await Play(nc, name).create(replicas=3)  # asks again until the servers have a leader
        async with JetStream(nc, timeout=PATIENCE) as js:
            store = GroupStore(js, f"{name}-groups", 3)
            await store.open(PATIENCE)
            record = 0
            for _ in range(20):
                record = await store.put("group.a", b"", record)
                for number in (0, 1, 0):
                    await store.put(f"offsets.a.{number}", b"", record, guard="group.a")
                with pytest.raises(WrongLastSequenceError):
                    await store.put("offsets.a.0", b"", record - 1, guard="group.a")
                newer, racing = await asyncio.gather(
                    store.put("group.a", b"", record),
                    store.put("offsets.a.0", b"", record, guard="group.a"),
                    return_exceptions=True,
                )
                if isinstance(newer, int):
                    assert isinstance(racing, WrongLastSequenceError) or racing < newer  # type: ignore[operator]
                record = (await store.get("group.a")).revision
        await nc.close()
