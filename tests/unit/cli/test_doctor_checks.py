"""Checks of the command doctor, on values that no real server here can have."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from liftenvelope.cli._checks.connection import (
    ClockReading,
    clock_finding,
    encryption_finding,
    nats_py_finding,
)
from liftenvelope.cli._checks.findings import Finding, FindingStatus, RuleBook
from liftenvelope.cli._checks.jetstream import account_findings, consumer_rules, stream_rules
from liftenvelope.cli._checks.liftbridge import (
    broker_findings,
    liftbridge_clock_finding,
    partition_findings,
)
from liftenvelope.cli._checks.server import (
    ServerAnswer,
    payload_finding,
    server_clock_findings,
    variable_findings,
    version_finding,
)
from liftenvelope.client import BrokerInfo, EventTimes, PartitionInfo, StreamInfo
from liftenvelope.client.metadata import make_metadata
from liftenvelope.jetstream import AccountInfo, ConsumerInfo
from liftenvelope.jetstream import StreamInfo as JetStreamInfo

ROOT = Path(__file__).resolve().parents[3]
SECOND = 1_000_000_000


def bad(findings: Iterable[Finding]) -> dict[str, str]:
    return {one.check: one.got for one in findings if one.status in ("warning", "problem")}


def of_stream(config: dict[str, Any], **fields: Any) -> dict[str, str]:
    book = RuleBook("stream", stream_rules())
    info = JetStreamInfo.from_json({"config": {"name": "S", **config}, **fields})
    book.look("S", info)
    return bad(book.findings())


def of_consumer(config: dict[str, Any], **fields: Any) -> dict[str, str]:
    book = RuleBook("consumer", consumer_rules())
    info = {"stream_name": "S", "name": "C", "config": {"ack_policy": "explicit", **config}, **fields}
    book.look("S/C", ConsumerInfo.from_json(info))
    return bad(book.findings())


def test_many_streams_are_counted_and_the_first_ones_named() -> None:
    book = RuleBook("stream", stream_rules())
    for number in range(10_000):
        book.look(f"S{number}", JetStreamInfo.from_json({"config": {"name": "S", "no_ack": True}}))
    (found,) = [one for one in book.findings() if one.status is FindingStatus.PROBLEM]
    assert found.got.startswith("10,000 of 10,000 streams: S0 (no_ack), S1 (no_ack), ")
    assert found.got.endswith(" and 9,995 more")
    assert (found.count, len(found.names)) == (10_000, 5)


@pytest.mark.parametrize(
    ("config", "fields", "check"),
    [
        ({"num_replicas": 1}, {"cluster": {"name": "c", "leader": "a"}}, "one replica in a cluster"),
        ({"num_replicas": 3}, {"cluster": {"name": "c"}}, "without a leader"),
        ({"persist_mode": "async"}, {}, "ack before they write"),
        ({}, {"state": {"lost": {"msgs": [1, 2], "bytes": 10}}}, "lost messages"),
        (
            {"num_replicas": 3},
            {"cluster": {"name": "c", "leader": "a", "replicas": [{"name": "b", "offline": True}]}},
            "replicas of streams",
        ),
    ],
)
def test_stream_in_danger(config: dict[str, Any], fields: dict[str, Any], check: str) -> None:
    (found,) = of_stream(config, **fields)
    assert check in found


def test_sound_streams_and_consumers_have_no_warnings() -> None:
    cluster = {"name": "c", "leader": "a", "replicas": [{"name": "b", "current": True}]}
    assert of_stream({"num_replicas": 3, "duplicate_window": 120 * SECOND}, cluster=cluster) == {}
    assert of_stream({"mirror": {"name": "x"}, "duplicate_window": 0}) == {}
    assert of_consumer({"durable_name": "C", "ack_wait": 30 * SECOND, "max_deliver": -1}) == {}
    # An ordered reader.
    assert of_consumer({"ack_policy": "none", "max_deliver": 1, "mem_storage": True}) == {}


def test_backoff_and_acks_of_consumers() -> None:
    assert list(of_consumer({"ack_wait": 30 * SECOND, "backoff": [SECOND // 10, SECOND]}).values()) == [
        "1 of 1 consumer: S/C (0.1 s)"
    ]
    assert list(of_consumer({"max_ack_pending": 10}, num_ack_pending=10)) == ["consumers that wait for acks"]


def test_account_without_and_with_limits() -> None:
    free = {"limits": {"max_storage": -1, "max_memory": 0, "max_streams": -1, "max_consumers": -1}}
    assert bad(account_findings(AccountInfo.from_json({**free, "storage": 10**12}))) == {}
    tight = {"max_storage": 100, "max_memory": -1, "max_streams": 10, "max_consumers": -1}
    tier = {"storage": 50, "reserved_storage": 100, "streams": 9, "limits": tight}
    findings = list(account_findings(AccountInfo.from_json({"tiers": {"R3": tier}, **free})))
    assert bad(findings) == {
        "account limit of bytes on disk in tier R3": "100 of 100 in use or reserved",
        "account limit of streams in tier R3": "9 of 10 in use or reserved",
    }
    assert [one.status for one in findings] == ["problem", "ok", "warning", "ok"]


@pytest.mark.parametrize(
    ("ahead", "round_trip", "status"),
    [(0.9, 0.0, "ok"), (1.1, 0.0, "warning"), (-1.1, 0.0, "warning"), (2.0, 2.5, "ok"), (61, 0.0, "problem")],
)
def test_clock_is_compared_within_the_error_of_the_round_trip(
    ahead: float, round_trip: float, status: str
) -> None:
    sent = 1_700_000_000 * SECOND
    half = round(round_trip * SECOND / 2)
    server = sent + half + round(ahead * SECOND)
    reading = ClockReading(server="a", sent_ns=sent, server_ns=server, received_ns=sent + 2 * half)
    assert clock_finding(reading).status == status


def test_plain_text_is_a_warning_except_on_this_machine() -> None:
    found = encryption_finding(["db.example.org"], encrypted=False, login=True)
    assert (found.status, found.got) == (
        "warning",
        "the login and all messages are sent in plain text to db.example.org",
    )
    assert encryption_finding(["db.example.org"], encrypted=True, login=True).status == "ok"
    assert encryption_finding(["127.0.0.1", "::1"], encrypted=False, login=True).status == "ok"


def test_range_of_nats_py_is_that_of_the_package() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"nats-py{nats_py_finding('2.16.0').expected}" in found


def test_liftbridge_cluster_in_danger() -> None:
    brokers = [BrokerInfo(name, "h", port) for port, name in enumerate("abc", 1)]
    parts = {
        0: PartitionInfo(0, leader="a", replicas=("a",), isr=("a",)),
        1: PartitionInfo(1, replicas=("a", "b"), isr=("a", "b")),
        2: PartitionInfo(2, leader="a", replicas=("a", "b", "c"), isr=("a",)),
        3: PartitionInfo(3, leader="a", replicas=("a", "b"), isr=("a", "b"), paused=True),
    }
    metadata = make_metadata(brokers, [StreamInfo("orders", "orders", parts)], [])
    assert bad(partition_findings(metadata)) == {
        "partitions without a leader": "1 of 4 partitions: orders/1",
        "partitions with one replica in a cluster": "1 of 4 partitions: orders/0",
        "replicas out of sync": "1 of 4 partitions: orders/2 (1 of 3 in sync)",
        "partitions that refuse messages": "1 of 4 partitions: orders/3 (paused)",
    }
    health = {"h:1": "serving", "h:2": "unreachable"}
    assert set(bad(broker_findings(metadata, health))) == {
        "health of brokers",
        "cursors stream",
        "activity stream",
    }


def test_time_of_liftbridge_in_the_future_is_found() -> None:
    part = PartitionInfo(0, leader="a", messages_received=EventTimes(1, 100 * SECOND))
    metadata = make_metadata([], [StreamInfo("orders", "orders", {0: part})], [])
    assert liftbridge_clock_finding(metadata, 100 * SECOND).status == "skipped"
    assert liftbridge_clock_finding(metadata, 90 * SECOND).status == "warning"


def answer(name: str, ver: str = "2.15.1", **data: Any) -> ServerAnswer:
    body = {
        "server": {"name": name, "ver": ver, "time": "1970-01-01T00:00:05Z"},
        "data": {"max_payload": 1 << 20, "max_pending": 64 << 20, "slow_consumers": 0, **data},
    }
    return ServerAnswer(body=body, sent_ns=0, received_ns=SECOND)


def test_servers_that_differ_are_named() -> None:
    mixed = version_finding([answer("a"), answer("b"), answer("c", "2.10.1")])
    assert (mixed.status, mixed.got) == (FindingStatus.WARNING, "2.10.1 on c, 2.15.1 on a and 1 more")
    assert bad(variable_findings([answer("a"), answer("b", max_payload=1_000)])) == {
        "servers with a smaller largest message": "1 of 2 servers: b (1,000 of 1,048,576 bytes)"
    }


def test_limits_of_servers() -> None:
    storage = {"config": {"max_storage": 100}, "stats": {"storage": 20, "reserved_storage": 95}}
    found = bad(
        variable_findings(
            [answer("a", max_pending=9), answer("b", slow_consumers=1_234), answer("c", jetstream=storage)]
        )
    )
    assert list(found.values()) == [
        "1 of 3 servers: a (9 bytes of max_pending)",
        "1 of 3 servers: b (1,234)",
        "1 of 3 servers: c (95 of 100 bytes of disk)",
    ]
    assert payload_finding(64 << 20).status is FindingStatus.WARNING
    assert payload_finding(1 << 20).status is FindingStatus.OK


def test_clocks_of_servers_are_bounded() -> None:
    found = list(server_clock_findings([answer(f"s{number}") for number in range(12)]))
    assert [one.status for one in found] == [FindingStatus.WARNING] * 10 + [FindingStatus.SKIPPED]
    assert found[0].check == "clock of s0"


def test_window_that_cannot_be_longer_is_no_finding() -> None:
    name = "streams with a short duplicate window"
    assert name not in of_stream({"duplicate_window": SECOND, "max_age": SECOND})
    assert name in of_stream({"duplicate_window": SECOND, "max_age": 60 * SECOND})
