"""Decides whether a gateway is ready. The health service, /readyz and the metrics all ask here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._leader.leading import Leading

__all__ = ["CONDITIONS", "NOT_STARTED", "RUNNING", "STARTING", "STOPPING", "Readiness", "ReadinessProbe"]

#: Conditions of readiness, in the order in which they are reported.
CONDITIONS: Final = ("running", "draining", "nats", "records", "lease", "partitions")
#: Stages of a gateway: the reason why it is not ready, ``""`` if the stage is none.
NOT_STARTED: Final = "the gateway is not started"
STARTING: Final = "the gateway is starting"
RUNNING: Final = ""
STOPPING: Final = "the gateway is stopping"


@dataclass(frozen=True, slots=True)
class Readiness:
    """Answer to the question whether a gateway can serve its clients.

    Attributes:
        reasons: Why the gateway is not ready, as sentences by unmet condition: ``running``, ``draining``,
            ``nats``, ``records``, ``lease`` or ``partitions``. Empty if it is ready.

    Example:
        >>> Readiness({"nats": "the connection to NATS is lost"}).is_ready
        False
    """

    reasons: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_ready(self) -> bool:
        """True if there is no reason against it."""
        return not self.reasons


class ReadinessProbe:
    """Answers whether a gateway is ready, from the state of its parts. Asking is cheap and sends nothing.

    Args:
        nc: Connection to NATS.
        read_nc: Connection for subscriptions, which may be the same.

    Attributes:
        stage: Stage of the gateway.
    """

    def __init__(self, nc: Client, read_nc: Client) -> None:
        self._nc = nc
        self._read_nc = read_nc
        self._parts: tuple[Core, Leading] | None = None
        self.stage: str = NOT_STARTED

    def watch(self, core: Core, leading: Leading) -> None:
        """Take the state from these parts from now on."""
        self._parts = core, leading

    def is_ready(self) -> bool:
        """Return True if the gateway is ready."""
        return self.look().is_ready

    def look(self) -> Readiness:
        """Return whether the gateway is ready, with the reasons if it is not."""
        reasons: dict[str, str] = {}
        if self.stage:
            reasons["running"] = self.stage
        lost = [
            which
            for nc, which in ((self._nc, "the connection"), (self._read_nc, "the second connection"))
            if not nc.is_connected
        ]
        if self._nc is self._read_nc:
            lost = lost[:1]
        if lost:
            verb = "are" if len(lost) > 1 else "is"
            reasons["nats"] = f"{' and '.join(lost)} to NATS {verb} not established"
        if self._parts is not None and self.stage in (RUNNING, STOPPING):
            self._look_at(*self._parts, reasons)
        return Readiness({name: reasons[name] for name in CONDITIONS if name in reasons})

    def _look_at(self, core: Core, leading: Leading, reasons: dict[str, str]) -> None:
        if core.draining.is_set():
            reasons["draining"] = "the gateway is draining: it finishes its open calls and stops"
        unread = [part.bucket for part in (core.registry, core.brokers) if not part.is_readable]
        if unread:
            reasons["records"] = f"the gateways' records can't be read: {', '.join(unread)}"
        if not core.brokers.has_lease:
            reasons["lease"] = "the gateway has no lease: JetStream has not stored its heartbeats in time"
        if fault := leading.fault():
            reasons["partitions"] = fault
