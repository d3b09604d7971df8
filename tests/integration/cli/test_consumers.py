"""``liftenvelope consumer`` and ``cursor``, on nats-server, Liftbridge and the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import nats
import pytest

from liftenvelope.jetstream import JetStream
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer
from tests.integration.cli.commands import error_of, json_of, run, text_of


@pytest.fixture
def at(jetstream_server: NatsServer) -> tuple[str, str]:
    return "--url", jetstream_server.url


@pytest.fixture
def stream(at: tuple[str, str], name: str) -> Iterator[str]:
    text_of("stream", "create", name, *at)
    text_of("publish", name, "x", "--count", "5", *at)
    yield name
    text_of("stream", "rm", name, "--yes", *at)


def test_life_of_a_consumer(at: tuple[str, str], stream: str) -> None:
    create = ("consumer", "create", stream, "worker", "--ack-wait", "10s", "--deliver", "3")
    assert "Consumer worker" in text_of(*create, "--max-deliver", "4", *at)
    info = json_of("consumer", "info", stream, "worker", *at)
    assert (info["num_pending"], info["config"]["ack_wait"], info["config"]["max_deliver"]) == (3, 10**10, 4)
    assert info["config"]["durable_name"] == "worker"
    (listed,) = json_of("consumer", "ls", stream, *at)
    assert listed["name"] == "worker"
    assert "worker" in text_of("consumer", "ls", stream, *at)
    assert "paused consumer worker until 20" in text_of("consumer", "pause", stream, "worker", "1h", *at)
    assert "paused, 3" in text_of("consumer", "info", stream, "worker", *at)
    assert text_of("consumer", "resume", stream, "worker", *at) == "resumed consumer worker\n"
    assert not json_of("consumer", "info", stream, "worker", *at)["paused"]
    text_of("consumer", "rm", stream, "worker", "--yes", *at)
    assert "consumer not found" in error_of("consumer", "info", stream, "worker", *at)
    assert json_of("consumer", "ls", stream, *at) == []


@pytest.mark.parametrize(
    ("start", "pending"), [("all", 5), ("new", 0), ("last", 1), ("1h", 5), ("2026-01-01", 5), ("5", 1)]
)
def test_starts_of_a_consumer(at: tuple[str, str], stream: str, start: str, pending: int) -> None:
    info = json_of("consumer", "create", stream, "c", "--deliver", start, "--ephemeral", *at)
    assert info["num_pending"] == pending
    assert "durable_name" not in info["config"]


def test_unpin_a_client(at: tuple[str, str], stream: str) -> None:
    text_of("consumer", "create", stream, "pinned", "--pinned-group", "g", *at)

    async def pin() -> None:
        async with await nats.connect(at[1]) as nc:
            await (await JetStream(nc).consumer(stream, "pinned")).fetch(1, group="g")

    asyncio.run(pin())
    assert "g: " in text_of("consumer", "info", stream, "pinned", *at)
    text_of("consumer", "unpin", stream, "pinned", "g", *at)
    groups = json_of("consumer", "info", stream, "pinned", *at)["priority_groups"]
    assert [one["pinned_client_id"] for one in groups] == [None]
    assert "GROUP must be one of" in error_of("consumer", "unpin", stream, "pinned", "other", *at, code=2)
    text_of("consumer", "create", stream, "plain", *at)
    plain = error_of("consumer", "unpin", stream, "plain", "g", *at, code=2)
    assert "GROUP must be a priority group, but 'plain' has none, got 'g'" in plain


def test_wrong_calls_of_consumer(at: tuple[str, str], stream: str) -> None:
    create = ("consumer", "create", stream, "c")
    assert "exclude each other" in error_of(
        *create, "--pinned-group", "a", "--overflow-group", "b", *at, code=2
    )
    assert "--deliver must be a sequence" in error_of(*create, "--deliver", "-3", *at, code=2)
    assert "stream not found" in error_of("consumer", "ls", f"{stream}-missing", *at)
    assert "needs --yes" in error_of("consumer", "rm", stream, "c", *at, code=2)
    done = run("consumer", "ls", "x", "--url", "liftbridge://127.0.0.1:1")
    assert (done.exit_code, "consumer ls needs JetStream" in done.stderr) == (2, True)


@pytest.mark.parametrize("kind", ["liftbridge", "gateway"])
def test_cursors(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    cluster: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(f"{kind}_server")
    at = ("--url", f"liftbridge://{cluster.addresses[0]}")
    text_of("stream", "create", name, "--partitions", "2", *at)
    assert "there is no cursor 'billing'" in error_of("cursor", "get", "billing", name, *at)
    text_of("cursor", "set", "billing", name, "7", "--partition", "1", *at)
    assert text_of("cursor", "get", "billing", name, "-p", "1", *at) == "7\n"
    found = json_of("cursor", "get", "billing", name, "-p", "1", *at)
    assert found == {"cursor": "billing", "stream": name, "partition": 1, "offset": 7}
    assert "there is no cursor" in error_of("cursor", "get", "billing", name, *at)
    assert "has no partition 5, but 2" in error_of("cursor", "set", "b", name, "7", "-p", "5", *at)
    assert "there is no stream" in error_of("cursor", "set", "b", f"{name}-missing", "7", *at)
    assert "must not have a comma" in error_of("cursor", "get", "a,b", name, *at, code=2)
    done = json_of("cursor", "rm", "billing", name, "-p", "1", *at)
    assert done == {"cursor": "billing", "stream": name, "partition": 1, "deleted": True}
    assert "there is no cursor" in error_of("cursor", "get", "billing", name, "-p", "1", *at)
