"""The Liftbridge API on JetStream: a server for Liftbridge's clients that needs nothing but NATS."""

from __future__ import annotations

from liftenvelope.gateway.gateway import Gateway

__all__ = ["Gateway"]
