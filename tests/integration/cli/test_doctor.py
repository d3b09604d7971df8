"""``liftenvelope doctor``, on servers with real faults in their configuration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from liftenvelope.jetstream import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    JetStream,
    StorageType,
    StreamConfig,
)
from liftenvelope.testing import (
    GatewayCluster,
    LiftbridgeCluster,
    NatsServer,
    run_liftbridge,
    run_nats_server,
)
from tests.integration.cli.commands import run
from tests.integration.conftest import connect

ACCOUNTS = """
accounts {
  FULL {
    jetstream: {max_store: 100MB, max_streams: 6}
    users: [
      {user: admin, password: secret}
      {user: deaf, password: secret, permissions: {subscribe: {deny: ["_INBOX.>"]}}}
      {user: mute, password: secret, permissions: {publish: {deny: ["$JS.API.>"]}}}
    ]
  }
  NONE {
    users: [
      {user: none, password: secret}
      {user: cut, password: secret, permissions: {publish: {deny: ["$SYS.>"]}}}
    ]
  }
  $SYS { users: [{user: system, password: secret}] }
}
"""


async def misconfigure(url: str) -> None:
    nc = await connect(url)
    async with JetStream(nc, timeout=60) as js:
        for config in (
            StreamConfig(name="SILENT", no_ack=True),
            StreamConfig(name="FORGETFUL", storage=StorageType.MEMORY, duplicate_window=1.0),
            StreamConfig(name="FULL", max_msgs=2, discard=DiscardPolicy.OLD),
            StreamConfig(name="UNWANTED", retention="interest"),  # type: ignore[arg-type]
            StreamConfig(name="READ"),
            StreamConfig(name="SOUND", num_replicas=1),
        ):
            await js.create_stream(config)
        for _ in range(3):
            await js.publish("FULL", b"x")
        for consumer in (
            ConsumerConfig(durable_name="careless", ack_policy=AckPolicy.NONE),
            ConsumerConfig(durable_name="hasty", ack_wait=0.1),
            ConsumerConfig(durable_name="once", max_deliver=1),
        ):
            await js.create_consumer("READ", consumer)
    await nc.close()


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with run_nats_server(jetstream=True, config_text=ACCOUNTS) as server:
        asyncio.run(misconfigure(f"nats://admin:secret@{server.address}"))
        yield server


def examined(url: str, code: int, *arguments: str) -> dict[str, dict[str, Any]]:
    """Run the command, and return its findings by their checks."""
    done = run("doctor", "--json", "--url", url, *arguments)
    assert done.exit_code == code, done.output
    assert "secret" not in done.output
    found = json.loads(done.stdout)
    assert found["problem"] == sum(one["status"] == "problem" for one in found["findings"])
    assert (found["problem"] > 0) == (code == 1)
    return {one["check"]: one for one in found["findings"]}


def test_misconfigured_streams_and_consumers_are_named(server: NatsServer) -> None:
    found = examined(f"nats://admin:secret@{server.address}", 1)
    bad = {
        name: (one["status"], one["got"])
        for name, one in found.items()
        if one["status"] in ("warning", "problem")
    }
    assert bad.pop("account limit of streams") == ("warning", "6 of 6 in use or reserved")
    assert bad == {
        "streams without publish acks": ("problem", "1 of 6 streams: SILENT (no_ack)"),
        "streams in memory": ("warning", "1 of 6 streams: FORGETFUL"),
        "streams near a limit": (
            "warning",
            "1 of 6 streams: FULL (2 of 2 messages, old ones are discarded)",
        ),
        "streams with a short duplicate window": ("warning", "1 of 6 streams: FORGETFUL (1 s)"),
        "streams that discard what nobody waits for": ("warning", "1 of 6 streams: UNWANTED"),
        "durable consumers without acks": ("warning", "1 of 3 consumers: READ/careless"),
        "consumers with a short ack_wait": ("warning", "1 of 3 consumers: READ/hasty (0.1 s)"),
        "consumers that deliver once": ("warning", "1 of 3 consumers: READ/once (max_deliver 1)"),
    }
    assert found["nats-server"]["got"].startswith(server.version)
    assert found["versions of the servers"]["got"].startswith(server.version)
    assert [one["status"] for check, one in found.items() if check.startswith("clock of")] == ["ok"]
    assert found["largest message"]["got"] == "1,048,576 bytes"
    assert found["limits of the servers"]["status"] == "skipped"
    assert found["limits of the servers"]["remedy"] == "run doctor with a user of the system account"


def test_text_for_people_has_remedies_and_a_summary(server: NatsServer) -> None:
    done = run("doctor", "--url", f"nats://admin:secret@{server.address}")
    assert "problem  streams without publish acks: 1 of 6 streams: SILENT (no_ack)\n" in done.stdout
    assert "remedy: set no_ack to false" in done.stdout
    assert ", 8 warnings, 1 problem, 2 skipped" in done.stdout
    assert done.stderr == "Error: 1 problem found\n"


def test_missing_permissions_are_told_at_once(server: NatsServer) -> None:
    deaf = examined(f"nats://deaf:secret@{server.address}", 1)
    assert "permissions violation" in deaf["permission to subscribe to an inbox"]["got"]
    assert deaf["JetStream"]["status"] == "skipped"
    mute = examined(f"nats://mute:secret@{server.address}", 0)
    for what in ("account", "streams"):
        refused = mute[f"permission to read JetStream's {what}"]
        assert (refused["status"], "permissions violation for publish" in refused["got"]) == ("warning", True)


def test_system_account_sees_the_limits_of_the_servers(server: NatsServer) -> None:
    found = examined(f"nats://system:secret@{server.address}", 0)
    for check in (
        "servers with a smaller largest message",
        "servers that buffer less than a message for a client",
        "servers that have closed slow connections",
        "servers with full storage",
    ):
        assert (found[check]["status"], found[check]["got"]) == ("ok", "1 server checked")
    assert found["streams and consumers"]["status"] == "skipped"


def test_user_who_may_not_ask_the_servers_is_told_so(server: NatsServer) -> None:
    found = examined(f"nats://cut:secret@{server.address}", 1)
    for check in ("versions and clocks of the servers", "limits of the servers"):
        assert (found[check]["status"], "violation for publish" in found[check]["got"]) == ("skipped", True)


def test_account_without_jetstream(server: NatsServer) -> None:
    found = examined(f"nats://none:secret@{server.address}", 1)["JetStream's account"]
    assert (found["status"], "not enabled" in found["got"]) == ("problem", True)


def test_server_that_does_not_answer_or_refuses_the_login(server: NatsServer) -> None:
    assert "connection" in examined("nats://127.0.0.1:1", 1, "--timeout", "2")
    refused = examined(f"nats://admin:wrong@{server.address}", 1)
    assert "refused the login" in refused["connection"]["got"]


def test_sound_gateway(gateway_server: GatewayCluster) -> None:
    found = examined(f"liftbridge://{gateway_server.addresses[0]}", 0)
    assert found["server"]["got"].startswith("gateway")
    assert found["activity stream"]["status"] == found["cursors stream"]["status"] == "ok"


def test_liftbridge_without_its_own_streams_and_with_paused_partitions() -> None:
    config = {"cursors.stream.partitions": 0, "activity.stream.enabled": False}
    with run_liftbridge(config=config) as cluster:
        cluster.create_stream("orders", partitions=2)
        cluster.create_stream("returns")
        cluster.pause_stream("returns")
        found = examined(f"liftbridge://{cluster.addresses[0]}", 0)
    assert found["server"]["got"].startswith("Liftbridge")
    assert found["activity stream"]["status"] == found["cursors stream"]["status"] == "warning"
    assert found["partitions that refuse messages"]["got"] == "1 of 3 partitions: returns/0 (paused)"


def test_sound_liftbridge(liftbridge_server: LiftbridgeCluster) -> None:
    found = examined(f"liftbridge://{liftbridge_server.addresses[0]}", 0)
    assert found["activity stream"]["status"] == found["cursors stream"]["status"] == "ok"
