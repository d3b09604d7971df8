"""Loggers of the package: one for each part, such as ``liftenvelope.client``.

As a library, liftenvelope logs changes of its state and never configures handlers or levels. Errors that
reach the caller as exceptions are not logged as well. The fields of a line are also its ``extra``.

``WARNING``
    Something is lost, late or back, and the program goes on: a connection, a lease, a subscription.
``INFO``
    Expected changes: a group's generation, a leader, a member.

Lines that a peer could cause without end are limited: see
:class:`~liftenvelope._logs.throttle.RepeatFilter`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from liftenvelope._logs.throttle import RepeatFilter
from liftenvelope._secrets import without_secrets

__all__ = ["LIMITED", "event_logger", "log_event"]

#: The limit on repeated lines, one for all parts.
LIMITED: Final = RepeatFilter()


def event_logger(part: str) -> logging.Logger:
    """Return the logger of a part, such as ``client``, with a limit on repeated lines."""
    logger = logging.getLogger(f"liftenvelope.{part}")
    logger.addFilter(LIMITED)  # adding it twice changes nothing
    return logger


def log_event(
    logger: logging.Logger, lines: Mapping[type, tuple[int, str]], event: Any, **more: object
) -> None:
    """Log an event of a part, if there is a line for it.

    Args:
        logger: Logger of the part.
        lines: Level and text of each event. A text names the fields of the event: ``%(stream)s``.
        event: The event, a dataclass.
        more: Further fields, such as the consumer's name.
    """
    if (line := lines.get(type(event))) is None or not logger.isEnabledFor(line[0]):
        return
    shown: dict[str, object] = dict(more)
    for one in fields(event):
        value = getattr(event, one.name)
        shown[one.name] = without_secrets(value) if isinstance(value, BaseException) else value
    logger.log(*line, shown, extra={"event": type(event).__name__, **shown}, stacklevel=2)
