"""Forwards the log of a nats-server to Python's logging."""

from __future__ import annotations

import logging
import re
from typing import Final

from liftenvelope._secrets import without_secrets

__all__ = ["NATS_LOG", "log_line", "read_level"]

NATS_LOG: Final = logging.getLogger("liftenvelope.gateway.nats")
#: A log line of nats-server: ``[pid] date time [INF] text``.
_LINE: Final = re.compile(r"\[\d+\] \S+ \S+ \[([A-Z]{3})\] ?(.*)")
_LEVELS: Final = {
    "TRC": logging.DEBUG,
    "DBG": logging.DEBUG,
    "INF": logging.INFO,
    "WRN": logging.WARNING,
    "ERR": logging.ERROR,
    "FTL": logging.CRITICAL,
}


def read_level(line: str) -> tuple[int, str]:
    """Return the level and the text of a log line. A line without a level is an error that ended the server.

    Example:
        >>> read_level("[7] 2026/01/02 03:04:05.678901 [WRN] Slow")
        (30, 'Slow')
        >>> read_level("nats-server: no such file")
        (40, 'nats-server: no such file')
    """
    found = _LINE.fullmatch(line.rstrip())
    return (logging.ERROR, line.rstrip()) if found is None else (_LEVELS.get(found[1], 20), found[2])


def log_line(line: str) -> None:
    """Log a line of nats-server to the logger ``liftenvelope.gateway.nats`` at its own level.

    Secrets in the line are removed.
    """
    level, text = read_level(line)
    NATS_LOG.log(level, "%s", without_secrets(text))
