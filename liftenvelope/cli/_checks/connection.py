"""Checks of ``liftenvelope doctor`` on programs, connections and clocks. Sans-io."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from liftenvelope.cli._checks.findings import Finding, FindingStatus
from liftenvelope.rpc.address import is_loopback

__all__ = [
    "ClockReading",
    "clock_finding",
    "encryption_finding",
    "nats_py_finding",
    "nats_server_finding",
    "skipped",
]

#: First version of nats-py that works, and the first one that does not.
_NATS_PY: Final = ("2.15", "3")
#: Versions of nats-server, with the features that need them.
_FEATURES: Final = (
    ("2.11", "pausing consumers, priority groups, TTL per message and reads in batches"),
    ("2.12", "atomic batches and prioritized consumers"),
    ("2.14", "fast ingest and resetting consumers"),
)
#: Seconds between two clocks from which on there is a warning, and a problem.
_CLOCK_WARNING: Final = 1.0
_CLOCK_PROBLEM: Final = 60.0
_LEADING: Final = re.compile(r"\d{1,9}")


def skipped(check: str, reason: str, remedy: str = "") -> Finding:
    """Return the finding of a check that could not be made."""
    return Finding(status=FindingStatus.SKIPPED, check=check, got=reason, remedy=remedy)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version up to the first part without one: 2.12.1-RC2 is (2, 12, 1)."""
    found = [_LEADING.match(part) for part in version.removeprefix("v").split(".")[:3]]
    return tuple(int(one[0]) for one in found if one is not None)


def nats_py_finding(version: str) -> Finding:
    """Check the version of nats-py.

    Example:
        >>> nats_py_finding("2.14.0").status.value, nats_py_finding("2.16.1").status.value
        ('problem', 'ok')
    """
    oldest, newest = _NATS_PY
    is_good = _numbers(oldest) <= _numbers(version) < _numbers(newest)
    return Finding(
        status=FindingStatus.OK if is_good else FindingStatus.PROBLEM,
        check="nats-py",
        got=version,
        expected=f">={oldest},<{newest}",
        remedy="" if is_good else f"pip install 'nats-py>={oldest},<{newest}'",
    )


def nats_server_finding(version: str) -> Finding:
    """Check the version of nats-server, and name the features that need a newer one.

    Example:
        >>> print(nats_server_finding("2.12.3").got)
        2.12.3, without fast ingest and resetting consumers (2.14)
        >>> nats_server_finding("2.10.1").status.value
        'warning'
    """
    have = _numbers(version)
    missing = [f"{what} ({since})" for since, what in _FEATURES if have < _numbers(since)]
    is_old = have < _numbers(_FEATURES[0][0])
    return Finding(
        status=FindingStatus.WARNING if is_old else FindingStatus.OK,
        check="nats-server",
        got=f"{version}, without {'; '.join(missing)}" if missing else version,
        expected=f"{_FEATURES[0][0]} or newer; {_FEATURES[-1][0]} for all features",
        remedy="update nats-server" if is_old else "",
    )


def encryption_finding(hosts: Sequence[str], *, encrypted: bool, login: bool) -> Finding:
    """Check that neither a login nor messages cross a network in plain text.

    Args:
        hosts: Hosts of the servers.
        encrypted: True if the connection uses TLS.
        login: True if a password or a token is sent.
    """
    remote = [host for host in hosts if not is_loopback(host)]
    what = "the login and all messages are" if login else "messages are"
    is_bad = bool(remote) and not encrypted
    got = "TLS" if encrypted else "none, on this machine alone"
    return Finding(
        status=FindingStatus.WARNING if is_bad else FindingStatus.OK,
        check="encryption",
        got=f"{what} sent in plain text to {', '.join(remote[:3])}" if is_bad else got,
        expected="TLS, except on this machine",
        remedy="use a tls:// URL, or a context with ca or cert" if is_bad else "",
    )


@dataclass(frozen=True, kw_only=True)
class ClockReading:
    """Time of a server, and the times of this machine before and after the request, in ns since 1970.

    Attributes:
        server: Name of the server.
        sent_ns: Time at which the request was sent.
        server_ns: Time in the answer.
        received_ns: Time at which the answer came.
    """

    server: str
    sent_ns: int
    server_ns: int
    received_ns: int

    @property
    def ahead(self) -> float:
        """Seconds that the server is ahead of this machine; negative if it is behind."""
        return (self.server_ns - (self.sent_ns + self.received_ns) / 2) / 1e9

    @property
    def error(self) -> float:
        """Largest error of ``ahead`` in seconds: half of the round trip."""
        return max(self.received_ns - self.sent_ns, 0) / 2e9


def clock_finding(reading: ClockReading) -> Finding:
    """Compare the clock of a server with that of this machine.

    Example:
        >>> reading = ClockReading(server="a", sent_ns=0, server_ns=3_100_000_000, received_ns=200_000_000)
        >>> print(clock_finding(reading).status.value, clock_finding(reading).got)
        warning 3.000 s ahead of this machine, +- 0.100 s
    """
    off = max(abs(reading.ahead) - reading.error, 0.0)
    status = FindingStatus.PROBLEM if off >= _CLOCK_PROBLEM else FindingStatus.WARNING
    is_good = off < _CLOCK_WARNING
    where = "ahead of" if reading.ahead >= 0 else "behind"
    return Finding(
        status=FindingStatus.OK if is_good else status,
        check=f"clock of {reading.server}",
        got=f"{abs(reading.ahead):.3f} s {where} this machine, +- {reading.error:.3f} s",
        expected=f"less than {_CLOCK_WARNING:g} s apart",
        remedy="" if is_good else "synchronize both clocks by NTP: start times and latencies use them",
    )
