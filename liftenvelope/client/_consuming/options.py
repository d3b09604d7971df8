"""Options of a consumer, validated on construction, before any I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from liftenvelope._checks import as_full_text
from liftenvelope.client._consuming.membership import StreamPartition
from liftenvelope.client.core import check_stream
from liftenvelope.client.cursor_names import check_cursor_id, cursor_key, group_cursor
from liftenvelope.consumers.options import AssignmentCallback, ShellOptions
from liftenvelope.errors import UsageError, UsageTypeError

__all__ = ["ConsumerOptions", "PartitionsCallback", "check_streams"]

#: Called with a list of (stream, partition). A function or a coroutine function.
PartitionsCallback: TypeAlias = AssignmentCallback[StreamPartition]


def check_streams(streams: str | Iterable[str]) -> tuple[str, ...]:
    """Validate the streams of a consumer; return their names without duplicates.

    Raises:
        UsageError: There is no name, or a stream cannot have cursors because of its name.
        UsageTypeError: A name is not a str, or there is no iterable of names.
    """
    if not isinstance(streams, Iterable):
        raise UsageTypeError(f"streams must be a str or an iterable of str, got {type(streams).__name__}")
    names = (streams,) if isinstance(streams, str) else tuple(dict.fromkeys(map(check_stream, streams)))
    if not names:
        raise UsageError("streams must have at least one name, got none")
    for name in names:
        cursor_key("any", name, 0)
    return names


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(ShellOptions[StreamPartition]):
    """Options of a consumer, documented in :meth:`Client.consumer`."""

    streams: tuple[str, ...]
    resume: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cursor_id(self.group, "group")
        if self.consumer_id is not None:
            as_full_text("consumer_id", self.consumer_id)

    @property
    def cursor_id(self) -> str:
        """Id of the group's cursors, the same as in other Liftbridge clients."""
        return group_cursor(self.group)
