"""Logger of ack inboxes and of refused reply subjects."""

from __future__ import annotations

from typing import Final

from liftenvelope._logs import event_logger

__all__ = ["log"]

log: Final = event_logger("nats")
