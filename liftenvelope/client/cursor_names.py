"""Names of cursors, and the keys under which servers store them."""

from __future__ import annotations

from typing import TypeAlias

from liftenvelope._checks import as_full_text
from liftenvelope._wire import GROUP_CURSOR
from liftenvelope.client.core import check_partition, check_stream
from liftenvelope.errors import UsageError

__all__ = ["CursorName", "check_cursor_id", "cursor_key", "group_cursor"]

#: Cursor id, stream, partition.
CursorName: TypeAlias = tuple[str, str, int]


def check_cursor_id(cursor_id: str, name: str = "cursor_id") -> str:
    """Return the id of a cursor if it is valid.

    Raises:
        UsageError: The id is empty, or contains a lone surrogate or a comma: servers join the id, the stream
            and the partition into one key with commas, without escaping.
        UsageTypeError: The id is not a str.
    """
    if "," in as_full_text(name, cursor_id):
        raise UsageError(f"{name} must not have a comma, got {cursor_id!r}")
    return cursor_id


def cursor_key(cursor_id: str, stream: str, partition: int) -> str:
    """Return the key under which servers store a cursor.

    Raises:
        UsageError: An argument is invalid, or a name contains a comma.
    """
    check_cursor_id(cursor_id)
    if "," in check_stream(stream):
        raise UsageError(f"stream must not have a comma in its name to have cursors, got {stream!r}")
    return f"{cursor_id},{stream},{check_partition(partition)}"


def group_cursor(group: str) -> str:
    """Return the id of the cursors of a group, as in Liftbridge's Go client."""
    return GROUP_CURSOR + group
