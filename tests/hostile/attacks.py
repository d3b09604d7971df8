"""Attacks on a gateway, as data for the runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from tests.hostile.frames import GREETING

__all__ = ["MARK", "Attack", "Bounds", "Must", "closes", "refuses", "serves"]

#: Stands in everything that an attacker wants to have published in a forbidden place.
MARK: Final = "mallory-was-here"


@dataclass(frozen=True)
class Must:
    """Required reaction of the victim.

    Attributes:
        close: Whether it closes each connection; None for either.
        codes: Error codes that a GOAWAY may have; empty for any.
        statuses: gRPC statuses that calls may be answered with; empty for any. One call must be answered.
    """

    close: bool | None = None
    codes: frozenset[int] = frozenset()
    statuses: frozenset[int] = frozenset()


def closes(*codes: int) -> Must:
    """The victim closes every connection, with one of these codes if its GOAWAY arrives."""
    return Must(close=True, codes=frozenset(codes))


def refuses(*statuses: int, close: bool | None = False) -> Must:
    """The victim answers calls with one of these gRPC statuses."""
    return Must(close=close, statuses=frozenset(statuses))


def serves() -> Must:
    """The victim goes on, whether it closes the connection or not."""
    return Must()


@dataclass(frozen=True)
class Bounds:
    """Bounds on the cost of an attack.

    Attributes:
        rss_mib: Growth of the victim's resident memory, in MiB.
        descriptors: Descriptors that stay open after it.
        log_lines: Lines logged per minute that has begun.
    """

    rss_mib: float = 64
    descriptors: int = 5
    log_lines: int = 10


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attacker.

    Attributes:
        name: Its name.
        must: What the victim must do.
        wire: "http2" and "raw" go to the gateway, "nats" to its NATS server.
        tls: Name of the TLS client (see ``tls.py``): then the victim is the one with TLS and a policy.
        begin: Bytes that each connection begins with.
        repeat: Returns the bytes of a number from 0 on; None: nothing more is sent.
        rounds: How often at most on one connection. None: until the connection or the attack ends.
        pace: Seconds between two of them. 0: as fast as they are taken.
        connections: Connections open at once.
        reads: Whether it reads answers.
        bounds: What it may cost.
    """

    name: str
    must: Must
    wire: Literal["http2", "raw", "nats"] = "http2"
    tls: str = ""
    begin: bytes = GREETING
    repeat: Callable[[int], bytes] | None = None
    rounds: int | None = None
    pace: float = 0.0
    connections: int = 1
    reads: bool = True
    bounds: Bounds = field(default_factory=Bounds)
