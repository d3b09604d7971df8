"""Checks of the tables in the file of ``liftenvelope archive --config``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from liftenvelope._checks import nearest
from liftenvelope.errors import UsageError

__all__ = ["check_keys", "check_table"]


def check_table(where: str, table: Any, known: set[str]) -> None:
    """Raise UsageError unless a value is a table with known keys."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} must be a table, got {type(table).__name__}")
    check_keys(where, table, known)


def check_keys(where: str, table: Mapping[str, Any], known: set[str]) -> None:
    """Raise UsageError for a key that is not known. The text suggests the nearest one."""
    for key in table:
        if key not in known:
            raise UsageError(f"{where} {key} is unknown: {nearest(key, known)}")
