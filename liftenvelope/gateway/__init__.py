"""The Liftbridge API on JetStream: a server for Liftbridge's clients that needs nothing but NATS."""

from __future__ import annotations

from liftenvelope.gateway.gateway import Gateway
from liftenvelope.gateway.limits import Limits

__all__ = ["Gateway", "Limits"]
