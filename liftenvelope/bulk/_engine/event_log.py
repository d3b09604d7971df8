"""Logger of bulk reads and writes."""

from __future__ import annotations

from typing import Final

from liftenvelope._logs import event_logger

__all__ = ["log"]

log: Final = event_logger("bulk")
