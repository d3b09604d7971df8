"""Checks of ``liftenvelope doctor`` on a Liftbridge cluster or gateways. Sans-io."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from liftenvelope.cli._checks.connection import ClockReading, clock_finding, skipped
from liftenvelope.cli._checks.findings import Finding, FindingStatus, Rule, RuleBook

if TYPE_CHECKING:
    from liftenvelope.client import Metadata, PartitionInfo, StreamInfo

__all__ = ["broker_findings", "is_gateway", "liftbridge_clock_finding", "partition_findings"]

#: Streams that servers keep for themselves, with what needs them and how to get them.
_RESERVED: Final = (
    ("__cursors", "cursors stream", "cursors and consumer groups", "cursors.stream.partitions: 1"),
    (
        "__activity",
        "activity stream",
        "stream watch and group ls",
        "activity.stream.enabled: true",
    ),
)
#: Subjects of a gateway's own streams begin with this. Liftbridge has others.
_GATEWAY: Final = "_lift."


def is_gateway(metadata: Metadata) -> bool:
    """Return True if metadata come from a gateway."""
    return any(
        stream.subject.startswith(_GATEWAY)
        for name, stream in metadata.streams.items()
        if name.startswith("__")
    )


def broker_findings(metadata: Metadata, health: Mapping[str, str]) -> Iterator[Finding]:
    """Check the brokers and the streams that they keep for themselves.

    Args:
        metadata: Metadata of all streams.
        health: Health by address, such as ``serving``.
    """
    kind = "gateway" if is_gateway(metadata) else "Liftbridge"
    yield Finding(status=FindingStatus.OK, check="server", got=f"{kind}, brokers: {len(metadata.brokers):,}")
    yield skipped(f"version of {kind}", "the API does not tell it")
    brokers = RuleBook[str](
        "broker",
        [
            Rule(
                check="health of brokers",
                test=lambda status: None if status == "serving" else status.replace("_", " "),
                expected="serving",
                remedy="start the broker, and check that clients reach the address that it advertises",
                status=FindingStatus.PROBLEM,
            )
        ],
    )
    for address, status in sorted(health.items()):
        brokers.look(address, status)
    yield from brokers.findings()
    for name, check, users, setting in _RESERVED:
        is_there = name in metadata.streams
        yield Finding(
            status=FindingStatus.OK if is_there else FindingStatus.WARNING,
            check=check,
            got="on" if is_there else f"off: {users} do not work",
            expected="on",
            remedy="" if is_there else f"set {setting} in the configuration of the servers",
        )


def partition_findings(metadata: Metadata) -> Iterator[Finding]:
    """Check the partitions of all streams that are not the servers' own."""
    is_cluster = len(metadata.brokers) > 1 and not is_gateway(metadata)
    book = RuleBook("partition", _partition_rules(is_cluster))
    for name in sorted(metadata.streams):
        if not name.startswith("__"):
            for number, part in metadata.streams[name].partitions.items():
                book.look(f"{name}/{number}", part)
    yield from book.findings()
    if is_gateway(metadata):
        yield skipped(
            "replicas and storage", "the gateway stores in JetStream", "run doctor on its nats:// URL"
        )
    else:
        yield skipped("retention and min_isr", "the API does not tell them", "see the servers' configuration")


def _partition_rules(is_cluster: bool) -> list[Rule[PartitionInfo]]:
    return [
        Rule(
            check="partitions without a leader",
            test=lambda part: None if part.leader or part.paused else "",
            expected="a leader for each partition that is not paused",
            remedy="start the brokers that hold its replicas",
            status=FindingStatus.PROBLEM,
        ),
        Rule(
            check="partitions with one replica in a cluster",
            test=lambda part: "" if is_cluster and len(part.replicas) == 1 else None,
            expected="3 replicas in a cluster",
            remedy="create the stream anew with --replicas 3",
        ),
        Rule(
            check="replicas out of sync",
            test=_out_of_sync,
            expected="all replicas in sync",
            remedy="start the missing brokers, and check their network and disks",
        ),
        Rule(
            check="partitions that refuse messages",
            test=_refusing,
            expected="no paused and no read-only partitions",
            remedy="if that is not intended: stream resume STREAM, stream readonly STREAM --off",
        ),
    ]


def _out_of_sync(part: PartitionInfo) -> str | None:
    if part.paused or len(part.isr) >= len(part.replicas):
        return None
    return f"{len(part.isr)} of {len(part.replicas)} in sync"


def _refusing(part: PartitionInfo) -> str | None:
    # Liftbridge leaves the flag set when a partition is woken. One that has stored a message since is awake.
    is_paused = part.paused and part.messages_received.latest_ns <= part.pause_times.latest_ns
    return "paused" if is_paused else "read-only" if part.readonly else None


def liftbridge_clock_finding(metadata: Metadata, now_ns: int) -> Finding:
    """Compare the newest time in metadata with the time at which they came, the only hint at the clocks.

    Args:
        metadata: Metadata of all streams.
        now_ns: Time of this machine after the answer, in ns since 1970.
    """
    newest = max((time for stream in metadata.streams.values() for time in _times(stream)), default=0)
    if newest <= now_ns:
        return skipped("clock of the servers", "the API does not tell the time; no time is in the future")
    reading = ClockReading(server="the servers", sent_ns=now_ns, server_ns=newest, received_ns=now_ns)
    return clock_finding(reading)


def _times(stream: StreamInfo) -> Iterator[int]:
    yield stream.created_ns
    for part in stream.partitions.values():
        yield from (part.messages_received.latest_ns, part.pause_times.latest_ns)
        yield part.readonly_times.latest_ns
