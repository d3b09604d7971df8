"""Judges what ``liftenvelope serve`` wrote to its standard error."""

from __future__ import annotations

import re

#: Information, or a warning of gateway or nats-server: a machine that pauses for two seconds causes some.
_HARMLESS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?:INFO|WARNING) |.*\[WRN\] ")
#: The one warning that no pause excuses: a drain waits for these acks.
_LOST = "not all publishes had their acks"


def unexpected(errors: str) -> list[str]:
    """Return the lines that are neither information nor warnings, such as those of errors and tracebacks."""
    return [line for line in errors.splitlines() if _LOST in line or not _HARMLESS.match(line)]
