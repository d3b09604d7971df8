"""``liftenvelope group``: groups over NATS, and groups of Liftbridge and the gateway."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import nats
import pytest

import liftenvelope
from liftenvelope.cli._connecting.servers import CommandServers, find_servers
from liftenvelope.cli._groups.groups import GroupAdmin, Reset, incomplete_reset
from liftenvelope.cli._groups.liftbridge import LiftbridgeGroups
from liftenvelope.cli._groups.nats import NatsGroups
from liftenvelope.client import Client
from liftenvelope.errors import GroupError
from liftenvelope.group import Coordinator, GroupClient, GroupConsumer, JetStreamTopic
from liftenvelope.testing import (
    FaultProxy,
    GatewayCluster,
    LiftbridgeCluster,
    NatsServer,
    run_liftbridge,
    run_nats_server,
)
from tests.integration.cli.commands import error_of, json_of, run, started, text_of

OFFSETS = ("--to-earliest", "--to-latest", "--to-offset", "--to-datetime")


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A NATS server with a coordinator of groups, which runs in a thread."""
    with run_nats_server(jetstream=True) as running, _coordinator(running.url):
        yield running


@contextmanager
def _coordinator(url: str, **options: Any) -> Iterator[None]:
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        async with await nats.connect(url) as nc, Coordinator(nc, **options):
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(240)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


@pytest.fixture
def at(server: NatsServer) -> tuple[str, str]:
    return "--url", server.url


@asynccontextmanager
async def member(url: str, stream: str, group: str) -> AsyncIterator[GroupConsumer]:
    topic = JetStreamTopic.of_stream(stream, [f"{stream}.0", f"{stream}.1"])
    async with (
        await nats.connect(url) as nc,
        GroupConsumer(nc, group, topic, consumer_id="worker", auto_offset="earliest") as consumer,
    ):
        yield consumer


def read_four(url: str, stream: str, group: str) -> None:
    """Read four messages and commit them."""

    async def work() -> None:
        async with member(url, stream, group) as consumer:
            count = 0
            async for message in consumer:
                await consumer.commit(message)
                count += 1
                if count == 4:
                    return

    asyncio.run(work())


@pytest.fixture
def group(at: tuple[str, str], name: str) -> str:
    """An empty group that has read 4 of the 6 messages of the stream of the same name."""
    text_of("stream", "create", name, "--subject", f"{name}.*", *at)
    for number in range(4):
        text_of("publish", f"{name}.{number % 2}", "x", *at)
    read_four(at[1], name, name)
    text_of("publish", f"{name}.0", "x", "--count", "2", *at)
    return name


def test_group_over_nats_is_listed_and_described(at: tuple[str, str], group: str) -> None:
    listed = {one["name"]: one for one in json_of("group", "ls", *at)}
    assert listed[group] == {"name": group, "state": "empty", "members": 0, "topics": [group]}
    assert group in text_of("group", "ls", *at)
    found = json_of("group", "describe", group, *at)
    rows = [(one["partition"], one["committed"], one["end"], one["lag"]) for one in found["partitions"]]
    assert rows == [(0, 3, 6, 2), (1, 4, 6, 0)]
    shown = text_of("group", "describe", group, *at)
    assert "lag" in shown
    assert "members      none" in shown
    assert "--topic must be one of" in error_of("group", "describe", group, "--topic", "x", *at, code=2)
    missing = error_of("group", "describe", f"{group}-missing", *at)
    assert f"there is no group '{group}-missing': the groups are " in missing
    assert group in missing.split("the groups are ")[1]


def test_members_of_a_group_over_nats(at: tuple[str, str], group: str) -> None:
    async def look() -> None:
        async with member(at[1], group, group):
            found = await asyncio.to_thread(json_of, "group", "describe", group, *at)
            while found["state"] != "stable":
                found = await asyncio.to_thread(json_of, "group", "describe", group, *at)
            assert found["members"] == {"worker": [group]}
            assert [one["member"] for one in found["partitions"]] == ["worker", "worker"]
            error = await asyncio.to_thread(error_of, "group", "rm", group, "--yes", *at)
            assert "has 1 member, which must leave first" in error

    asyncio.run(look())


@pytest.mark.parametrize(
    ("aim", "offsets"),
    [
        (("--to-earliest",), [0, 1]),
        (("--to-latest",), [6, 6]),
        (("--to-offset", "2"), [2, 2]),
        (("--to-offset", "0"), [0, 1]),
        (("--to-offset", "99"), [6, 6]),
        (("--to-datetime", "2026-01-01"), [0, 1]),
        (("--to-datetime", "2100-01-01"), [6, 6]),
    ],
)
def test_reset_of_a_group_over_nats(
    at: tuple[str, str], group: str, aim: tuple[str, ...], offsets: list[int]
) -> None:
    reset = ("group", "reset", group, *aim)
    plan = json_of(*reset, "--dry-run", *at)
    assert [one["new"] for one in plan["partitions"]] == offsets
    assert [one["committed"] for one in json_of("group", "describe", group, *at)["partitions"]] == [3, 4]
    assert {one["outcome"] for one in plan["partitions"]} == {"planned"}
    done = [{**one, "outcome": "reset"} for one in plan["partitions"]]
    assert json_of(*reset, *at)["partitions"] == done
    assert [one["committed"] for one in json_of("group", "describe", group, *at)["partitions"]] == offsets


def test_partial_reset_over_nats_names_what_was_reset(at: tuple[str, str], name: str) -> None:
    streams = [f"{name}-{number}" for number in range(2)]
    for stream in streams:
        text_of("stream", "create", stream, *at)
        text_of("publish", stream, "x", *at)

    async def work() -> None:
        async with NatsGroups.open(find_servers(at[1], None, 60)) as admin, await nats.connect(at[1]) as nc:
            topics = [JetStreamTopic.of_stream(stream, [stream]) for stream in streams]
            await GroupClient(nc, timeout=60).create_group(name, topics=topics)
            found = await admin.describe(name, ())
            plan = await admin.plan(found.partitions, "latest")
            await asyncio.to_thread(text_of, "stream", "rm", streams[1], "--yes", *at)
            text = str(incomplete_reset(name, await admin.reset(name, plan)))
        assert f"group {name!r} was not reset in all partitions. Reset: {streams[0]}[0] to 1. Failed:" in text
        assert f"Failed: {streams[1]}[0]: " in text

    asyncio.run(work())


def test_reset_of_one_partition_and_deletion(at: tuple[str, str], group: str) -> None:
    shown = text_of("group", "reset", group, "--to-offset", "1", "--partition", "1", *at)
    assert shown.splitlines()[0] == f"reset group {group}"
    assert [one["committed"] for one in json_of("group", "describe", group, *at)["partitions"]] == [3, 1]
    assert "no topic with partition 7" in error_of(
        "group", "reset", group, "--to-latest", "-p", "7", *at, code=2
    )
    assert text_of("group", "rm", group, "--yes", *at) == f"deleted group {group}\n"
    missing = error_of("group", "rm", group, "--yes", *at)
    assert missing.startswith(f"Error: there is no group {group!r}: ")
    assert ": create it first" not in missing


@pytest.mark.parametrize("aims", [(), ("--to-earliest", "--to-latest"), ("--to-latest", "--to-offset", "1")])
def test_reset_needs_one_aim(aims: tuple[str, ...]) -> None:
    error = error_of("group", "reset", "g", *aims, "--url", "nats://127.0.0.1:1", code=2)
    assert all(option in error for option in OFFSETS)


def test_groups_of_coordinators_with_a_prefix_of_their_own(at: tuple[str, str], server: NatsServer) -> None:
    async def create() -> None:
        async with await nats.connect(server.url) as nc:
            await GroupClient(nc, prefix="shop.groups", timeout=60).create_group("tills")

    prefix = ("--group-prefix", "shop.groups")
    with _coordinator(server.url, prefix="shop.groups", bucket="shop-groups"):
        asyncio.run(create())
        assert [one["name"] for one in json_of("group", "ls", *at, *prefix)] == ["tills"]
        assert "tills" not in [one["name"] for one in json_of("group", "ls", *at)]
        assert json_of("group", "describe", "tills", *at, *prefix)["name"] == "tills"
        with started("top", "--json", "--interval", "100ms", *at, *prefix, "--timeout", "60") as process:
            assert process.stdout is not None
            for line in process.stdout:
                if [one["name"] for one in json.loads(line)["readers"]] == ["tills"]:
                    break
            else:
                pytest.fail("top ended without the group")
        text_of("group", "rm", "tills", "--yes", *at, *prefix)
        assert json_of("group", "ls", *at, *prefix) == []


@pytest.mark.parametrize("command", [("group", "ls"), ("top", "--once"), ("monitor",)])
def test_group_prefix_is_checked(command: tuple[str, ...]) -> None:
    url = ("--url", "nats://127.0.0.1:1")
    error = error_of(*command, *url, "--group-prefix", "shop.", code=2)
    assert "--group-prefix must be tokens of letters, digits, '-' and '_', got 'shop.'" in error
    error = error_of(*command, "--url", "liftbridge://127.0.0.1:1", "--group-prefix", "shop", code=2)
    assert "--group-prefix needs JetStream: --url must begin with nats://" in error


def test_no_coordinator(jetstream_server: NatsServer) -> None:
    error = error_of("group", "ls", "--url", jetstream_server.url, "--timeout", "1")
    assert "coordinator" in error


@pytest.fixture(params=["liftbridge", "gateway"])
def lift(request: pytest.FixtureRequest) -> tuple[str, str]:
    cluster: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(f"{request.param}_server")
    return "--url", f"liftbridge://{cluster.addresses[0]}"


@contextmanager
def lift_member(at: tuple[str, str], stream: str, group: str) -> Iterator[None]:
    """A member of a Liftbridge group that has processed the two messages of partition 0."""
    address = at[1].removeprefix("liftbridge://")
    with (
        liftenvelope.connect_blocking(address) as client,
        client.consumer(group, stream, consumer_id="worker", auto_offset="earliest") as consumer,
    ):
        for message in consumer:
            if (message.partition, message.offset) == (0, 1):
                consumer.commit(message)
                break
        yield


def test_group_of_liftbridge(lift: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, "--partitions", "2", *lift)
    text_of("publish", name, "x", "--partition", "0", "--count", "2", *lift)
    with lift_member(lift, name, name):
        found = json_of("group", "describe", name, *lift)
        while not found["members"]:  # the activity stream is written a moment later
            found = json_of("group", "describe", name, *lift)
        assert (found["state"], found["members"]) == ("active", {"worker": [name]})
        assert found["coordinator"]
        refused = error_of("group", "reset", name, "--to-latest", *lift)
        assert "has members" in refused
        plan = json_of("group", "reset", name, "--to-latest", "--dry-run", *lift)
        assert [(one["partition"], one["new"]) for one in plan["partitions"]] == [(0, 2), (1, 0)]
        assert "has members" in error_of("group", "rm", name, "--yes", *lift)
    text_of("publish", name, "x", "--partition", "0", *lift)
    found = json_of("group", "describe", name, *lift)
    while found["state"] == "active":
        found = json_of("group", "describe", name, *lift)
    rows = [(one["partition"], one["committed"], one["end"], one["lag"]) for one in found["partitions"]]
    assert rows == [(0, 2, 3, 1), (1, None, 0, 0)]
    assert {one["name"]: one["state"] for one in json_of("group", "ls", *lift)}[name] == "empty"


def test_reset_and_deletion_of_a_group_of_liftbridge(lift: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *lift)
    text_of("publish", name, "x", "--count", "5", *lift)
    topic = ("--topic", name)

    def committed() -> int | None:
        (row,) = json_of("group", "describe", name, *topic, *lift)["partitions"]
        found: int | None = row["committed"]
        return found

    for aim, offset in (
        (("--to-latest",), 5),
        (("--to-offset", "2"), 2),
        (("--to-offset", "99"), 5),
        (("--to-datetime", "2100-01-01"), 5),
        (("--to-earliest",), None),
    ):
        reset = ("group", "reset", name, *topic, *aim)
        assert json_of(*reset, "--dry-run", *lift)["partitions"][0]["new"] == (offset or 0)
        text_of(*reset, *lift)
        assert committed() == offset
    text_of("group", "reset", name, *topic, "--to-latest", *lift)
    text_of("group", "rm", name, *topic, "--yes", *lift)
    assert committed() is None
    assert "name them by --topic" in error_of("group", "describe", f"{name}-missing", *lift)
    missing = error_of("group", "describe", name, "--topic", f"{name}-missing", *lift)
    assert "there is no stream" in missing


class Interrupted(list[Reset]):
    """Changes, and something that happens after some of them are made."""

    def __init__(self, changes: list[Reset], after: int, event: Callable[[], object]) -> None:
        super().__init__(changes)
        self._after = after
        self._event = event

    def __iter__(self) -> Iterator[Reset]:
        for number, change in enumerate(super().__iter__()):
            if number == self._after:
                self._event()
            yield change
        if len(self) == self._after:
            self._event()


def test_partial_reset_of_liftbridge_names_what_was_reset(name: str) -> None:
    async def work(cluster: LiftbridgeCluster) -> str:
        url = f"liftbridge://{cluster.addresses[0]}"
        await asyncio.to_thread(text_of, "stream", "create", name, "--partitions", "3", "--url", url)
        async with LiftbridgeGroups.open(find_servers(url, None, 10)) as admin:
            found = await admin.describe(name, [name])
            plan = await admin.plan(found.partitions, "latest")
            done = await admin.reset(name, Interrupted(plan, 1, cluster.kill))
        assert [one.outcome for one in done] == ["reset", "unknown", "not tried"]
        return str(incomplete_reset(name, done))

    with run_liftbridge() as cluster:
        text = asyncio.run(work(cluster))
    assert f"Reset: {name}[0] to 0. Unknown: {name}[1]: " in text
    assert f". Not tried: {name}[2]. See group describe" in text


def test_reset_of_liftbridge_whose_check_for_members_fails_is_unknown(name: str) -> None:
    async def work(cluster: LiftbridgeCluster) -> str:
        url = f"liftbridge://{cluster.addresses[0]}"
        await asyncio.to_thread(text_of, "stream", "create", name, "--partitions", "2", "--url", url)
        async with LiftbridgeGroups.open(find_servers(url, None, 10)) as admin:
            found = await admin.describe(name, [name])
            plan = await admin.plan(found.partitions, "latest")
            done = await admin.reset(name, Interrupted(plan, 2, cluster.kill))
        assert [(one.outcome, one.new) for one in done] == [("unknown", 0)] * 2
        return str(incomplete_reset(name, done))

    with run_liftbridge() as cluster:
        text = asyncio.run(work(cluster))
    assert f"Reset: none. Unknown: {name}[0], {name}[1]: the cursor was set, but no server told if" in text
    assert "See group describe for the offsets in force, and reset the group again" in text


class _Stalled:
    """Administration of a group whose coordinator is stalled behind a proxy once the plan is made."""

    def __init__(self, admin: GroupAdmin, proxy: FaultProxy) -> None:
        self._admin = admin
        self._proxy = proxy
        self.list_groups, self.describe = admin.list_groups, admin.describe
        self.plan, self.delete = admin.plan, admin.delete

    async def reset(self, name: str, plan: Sequence[Reset]) -> list[Reset]:
        self._proxy.stall()
        return await self._admin.reset(name, plan)


def test_reset_without_an_answer_is_unknown(
    at: tuple[str, str], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = importlib.import_module("liftenvelope.cli.group")
    opened = command._open

    @asynccontextmanager
    async def stalled(servers: CommandServers, prefix: str | None) -> AsyncIterator[GroupAdmin]:
        async with opened(servers, prefix) as admin:
            yield _Stalled(admin, proxy)

    monkeypatch.setattr(command, "_open", stalled)
    with FaultProxy(at[1]) as proxy:
        url = f"nats://{proxy.address}"
        done = run("group", "reset", group, "--to-latest", "--timeout", "10", "--json", "--url", url)
    assert done.exit_code == 1, done.output
    assert f"group {group!r} was not reset in all partitions. Reset: none. Unknown: " in done.stderr
    found = json.loads(done.stdout)["partitions"]
    assert [(one["outcome"], bool(one["error"])) for one in found] == [("unknown", True)] * 2


def test_member_that_joins_before_a_reset_of_liftbridge_refuses_it(lift: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *lift)
    text_of("publish", name, "x", "--count", "2", *lift)

    async def work() -> None:
        async with LiftbridgeGroups.open(find_servers(lift[1], None, 60)) as admin:
            found = await admin.describe(name, [name])
            plan = await admin.plan(found.partitions, "latest")
            joined = lift_member(lift, name, name)
            await asyncio.to_thread(joined.__enter__)
            try:
                with pytest.raises(GroupError, match="has members, which would go on"):
                    await admin.reset(name, plan)
            finally:
                await asyncio.to_thread(joined.__exit__, None, None, None)

    asyncio.run(work())


def test_reset_of_liftbridge_with_a_member_that_joins_meanwhile_is_unknown(
    lift: tuple[str, str], name: str
) -> None:
    text_of("stream", "create", name, *lift)
    text_of("publish", name, "x", "--count", "2", *lift)

    async def work() -> list[Reset]:
        async with LiftbridgeGroups.open(find_servers(lift[1], None, 60)) as admin:
            found = await admin.describe(name, [name])
            plan = await admin.plan(found.partitions, "earliest")
            joined = lift_member(lift, name, name)

            def join() -> None:
                thread = threading.Thread(target=joined.__enter__)
                thread.start()
                thread.join()

            try:
                return await admin.reset(name, Interrupted(plan, 1, join))
            finally:
                await asyncio.to_thread(joined.__exit__, None, None, None)

    (done,) = asyncio.run(work())
    assert (done.outcome, done.new) == ("unknown", 0)
    assert "a member joined meanwhile" in str(incomplete_reset(name, [done]))


def before_deletion(monkeypatch: pytest.MonkeyPatch, number: int, event: Callable[[], object]) -> None:
    """Have something happen before a cursor is deleted, counted from 0."""
    original, calls = Client.reset_cursor, iter(range(10))

    async def reset_cursor(self: Client, *arguments: Any) -> None:
        if next(calls) == number:
            await asyncio.to_thread(event)
        await original(self, *arguments)

    monkeypatch.setattr(Client, "reset_cursor", reset_cursor)


def test_partial_deletion_of_liftbridge_names_what_was_deleted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_liftbridge() as cluster:
        url = ("--url", f"liftbridge://{cluster.addresses[0]}")
        text_of("stream", "create", name, "--partitions", "3", *url)
        before_deletion(monkeypatch, 1, cluster.kill)
        text = error_of("group", "rm", name, "--topic", name, "--yes", "--timeout", "10", *url)
    assert (
        f"group {name!r} was not deleted in all partitions. Deleted: {name}[0]. Unknown: {name}[1]: " in text
    )
    assert f". Not tried: {name}[2]. See group describe" in text
    assert text.endswith("and delete the group again")


def test_deletion_of_liftbridge_with_a_member_that_joins_meanwhile_is_unknown(
    lift: tuple[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_of("stream", "create", name, *lift)
    text_of("publish", name, "x", "--count", "2", *lift)
    joined = lift_member(lift, name, name)
    before_deletion(monkeypatch, 0, joined.__enter__)
    try:
        text = error_of("group", "rm", name, "--topic", name, "--yes", *lift)
    finally:
        joined.__exit__(None, None, None)
    assert f"Deleted: none. Unknown: {name}[0]: the cursor was deleted, but a member joined meanwhile" in text


def test_offset_before_the_oldest_message_of_a_gateway_is_clamped(
    gateway_server: GatewayCluster, name: str
) -> None:
    at = ("--url", f"liftbridge://{gateway_server.addresses[0]}")
    text_of("stream", "create", name, "--max-msgs", "2", *at)
    text_of("publish", name, "x", "--count", "5", *at)
    reset = ("group", "reset", name, "--topic", name, "--to-offset", "1", *at)
    (row,) = json_of(*reset)["partitions"]
    assert row["new"] == 3
