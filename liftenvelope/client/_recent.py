"""Tables of names that a client has used: bounded, so that ever new names do not grow its memory."""

from __future__ import annotations

from itertools import islice
from typing import Final, TypeVar

__all__ = ["MOST_NAMES", "note"]

_K = TypeVar("_K")
_V = TypeVar("_V")
#: Maximum number of names in one table.
MOST_NAMES: Final = 10_000


def note(table: dict[_K, _V], key: _K, value: _V, most: int = MOST_NAMES) -> None:
    """Set a key as the newest one. If a table then has more than ``most`` keys, its older half is dropped.

    Dropping half at once keeps the cost per key constant: a dict finds its oldest key by a scan over the
    holes that earlier removals have left.

    Args:
        table: The table, oldest key first.
        key: The key.
        value: Its value.
        most: Maximum number of keys. Default 10,000.

    Example:
        >>> table: dict[str, int] = {}
        >>> for number, name in enumerate("abcabd"):
        ...     note(table, name, number, most=3)
        >>> table
        {'b': 4, 'd': 5}
    """
    table.pop(key, None)
    table[key] = value
    if len(table) > most:
        for old in list(islice(table, (len(table) + 1) // 2)):
            del table[old]
