"""Checks of ``liftenvelope doctor`` on what NATS servers tell of themselves. Sans-io.

Any user may ask the servers of its account for their names, versions and times. The variables of a server,
such as its limits, are for the system account alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from liftenvelope.cli._checks.connection import ClockReading, clock_finding, skipped
from liftenvelope.cli._checks.findings import NEAR, Finding, FindingStatus, Rule, RuleBook

__all__ = [
    "ServerAnswer",
    "as_ns",
    "buffers_finding",
    "payload_finding",
    "server_clock_findings",
    "server_name",
    "variable_findings",
    "version_finding",
]

#: Largest ``max_payload`` that nats-server recommends, in bytes. It warns above it.
_MOST_PAYLOAD: Final = 8 << 20
#: Servers whose clocks are shown.
_MOST_CLOCKS: Final = 10
_BUFFERS: Final = (
    "for fast publishers without acks, raise max_buffered_msgs and max_buffered_size: docs/gateway.md"
)


@dataclass(frozen=True, kw_only=True)
class ServerAnswer:
    """Answer of one server to a request that goes to all.

    Attributes:
        body: The answer, as parsed JSON.
        sent_ns: Time at which the request was sent, in ns since 1970.
        received_ns: Time at which the answer came.
    """

    body: Mapping[str, Any]
    sent_ns: int
    received_ns: int


def server_name(answer: ServerAnswer) -> str:
    """Return the name of the server that answered."""
    return str(answer.body["server"]["name"])


def as_ns(moment: datetime) -> int:
    """Return a time in ns since 1970."""
    return round(moment.timestamp() * 1e6) * 1_000


def server_clock_findings(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Compare the clocks of the first servers with that of this machine."""
    for one in answers[:_MOST_CLOCKS]:
        server_ns = as_ns(datetime.fromisoformat(one.body["server"]["time"]))
        yield clock_finding(
            ClockReading(
                server=server_name(one), sent_ns=one.sent_ns, server_ns=server_ns, received_ns=one.received_ns
            )
        )
    if len(answers) > _MOST_CLOCKS:
        yield skipped("further clocks", f"only those of {_MOST_CLOCKS} servers are shown")


def version_finding(answers: Sequence[ServerAnswer]) -> Finding:
    """Check that all servers have one version."""
    by_version: dict[str, list[str]] = {}
    for one in answers:
        by_version.setdefault(str(one.body["server"]["ver"]), []).append(server_name(one))
    is_mixed = len(by_version) > 1
    shown = (f"{version} on {_some(names)}" for version, names in sorted(by_version.items()))
    return Finding(
        status=FindingStatus.WARNING if is_mixed else FindingStatus.OK,
        check="versions of the servers",
        got=", ".join(shown),
        expected="one version",
        remedy="update the older servers: features need the newer version on all" if is_mixed else "",
    )


def _some(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1:,} more" if len(names) > 1 else names[0]


def payload_finding(most: int) -> Finding:
    """Check the largest message that the connected server accepts, which it tells every client."""
    is_large = most > _MOST_PAYLOAD
    return Finding(
        status=FindingStatus.WARNING if is_large else FindingStatus.OK,
        check="largest message",
        got=f"{most:,} bytes",
        expected=f"at most {_MOST_PAYLOAD:,} bytes",
        remedy="lower max_payload, and split large values: large messages delay all others"
        if is_large
        else "",
    )


def variable_findings(answers: Sequence[ServerAnswer]) -> list[Finding]:
    """Check the variables of the servers."""
    book = RuleBook("server", list(_variable_rules(answers)))
    for one in answers:
        book.look(server_name(one), one.body["data"])
    return book.findings()


def _variable_rules(answers: Sequence[ServerAnswer]) -> Iterator[Rule[Mapping[str, Any]]]:
    payloads = [int(one.body["data"]["max_payload"]) for one in answers]
    most = max(payloads, default=0)
    yield Rule(
        check="servers with a smaller largest message",
        test=lambda data: (
            f"{data['max_payload']:,} of {most:,} bytes" if data["max_payload"] < most else None
        ),
        expected="one max_payload: a message that one server takes must not be refused by another",
        remedy="set max_payload alike in the configuration of all servers",
    )
    yield Rule(
        check="servers that buffer less than a message for a client",
        test=lambda data: _below(data["max_pending"], most, "bytes of max_pending"),
        expected="max_pending of several times max_payload",
        remedy="raise max_pending: the server closes connections that have more to receive",
        status=FindingStatus.PROBLEM,
    )
    yield Rule(
        check="servers that have closed slow connections",
        test=lambda data: f"{data['slow_consumers']:,}" if data.get("slow_consumers") else None,
        expected="none since the start of the server",
        remedy="find clients that read too slowly in the server's log, or raise max_pending",
    )
    yield Rule(
        check="servers with full storage",
        test=_near_full,
        expected=f"less than {NEAR:.0%} of max_file_store and max_memory_store used or reserved",
        remedy="raise the limits of JetStream in the configuration, or delete streams",
    )


def _below(found: int, most: int, words: str) -> str | None:
    return f"{found:,} {words}" if found < most else None


def _near_full(data: Mapping[str, Any]) -> str | None:
    jetstream = data.get("jetstream") or {}
    config, stats = jetstream.get("config") or {}, jetstream.get("stats") or {}
    for noun, used, limit in (("disk", "storage", "max_storage"), ("memory", "memory", "max_memory")):
        most = int(config.get(limit, 0))
        now = max(int(stats.get(used, 0)), int(stats.get(f"reserved_{used}", 0)))
        if most > 0 and now >= NEAR * most:
            return f"{now:,} of {most:,} bytes of {noun}"
    return None


def buffers_finding() -> Finding:
    """Return the finding about the limits of JetStream's buffers, which no server tells (2.15.1)."""
    return skipped("limits of JetStream's buffers", "servers tell them to nobody", _BUFFERS)
