"""``liftenvelope group``: groups over NATS, and groups of Liftbridge and the gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import nats
import pytest

import liftenvelope
from liftenvelope.group import Coordinator, GroupConsumer, JetStreamTopic
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer, run_nats_server
from tests.integration.cli.commands import error_of, json_of, text_of

OFFSETS = ("--to-earliest", "--to-latest", "--to-offset", "--to-datetime")


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A NATS server with a coordinator of groups, which runs in a thread."""
    with run_nats_server(jetstream=True) as running, _coordinator(running.url):
        yield running


@contextmanager
def _coordinator(url: str) -> Iterator[None]:
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        async with await nats.connect(url) as nc, Coordinator(nc):
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
    assert "there is no group" in error_of("group", "describe", f"{group}-missing", *at)


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
    assert json_of(*reset, *at)["partitions"] == plan["partitions"]
    assert [one["committed"] for one in json_of("group", "describe", group, *at)["partitions"]] == offsets


def test_reset_of_one_partition_and_deletion(at: tuple[str, str], group: str) -> None:
    shown = text_of("group", "reset", group, "--to-offset", "1", "--partition", "1", *at)
    assert shown.splitlines()[0] == f"reset group {group}"
    assert [one["committed"] for one in json_of("group", "describe", group, *at)["partitions"]] == [3, 1]
    assert "no topic with partition 7" in error_of(
        "group", "reset", group, "--to-latest", "-p", "7", *at, code=2
    )
    assert text_of("group", "rm", group, "--yes", *at) == f"deleted group {group}\n"
    assert "there is no group" in error_of("group", "rm", group, "--yes", *at)


@pytest.mark.parametrize("aims", [(), ("--to-earliest", "--to-latest"), ("--to-latest", "--to-offset", "1")])
def test_reset_needs_one_aim(aims: tuple[str, ...]) -> None:
    error = error_of("group", "reset", "g", *aims, "--url", "nats://127.0.0.1:1", code=2)
    assert all(option in error for option in OFFSETS)


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
