"""Options of a consumer, validated on construction, before any I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from liftenvelope._checks import as_choice, as_full_text, as_seconds
from liftenvelope.client.core import check_stream
from liftenvelope.client.cursor_names import check_cursor_id, cursor_key
from liftenvelope.errors import UsageError, UsageTypeError

__all__ = ["ConsumerOptions", "PartitionsCallback", "check_streams"]

#: Called with a list of (stream, partition). A function or a coroutine function.
PartitionsCallback: TypeAlias = Callable[[list[tuple[str, int]]], Awaitable[object] | object]

_AUTO_OFFSETS: Final = ("new", "earliest", "latest", "error")


def check_streams(streams: str | Iterable[str]) -> tuple[str, ...]:
    """Validate the streams of a consumer; return their names without duplicates.

    Raises:
        UsageError: There is no name, or a stream cannot have cursors because of its name.
        UsageTypeError: A name is not a str.
    """
    names = (streams,) if isinstance(streams, str) else tuple(dict.fromkeys(map(check_stream, streams)))
    if not names:
        raise UsageError("streams must have at least one name, got none")
    for name in names:
        cursor_key("any", name, 0)
    return names


def _check_consumer_id(consumer_id: object) -> None:
    if consumer_id is not None:
        as_full_text("consumer_id", consumer_id)


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """Options of a consumer, documented in :meth:`Client.consumer`."""

    group: str
    streams: tuple[str, ...]
    consumer_id: str | None
    auto_commit_interval: float | None
    auto_offset: str
    on_assigned: PartitionsCallback | None
    on_revoked: PartitionsCallback | None
    resume: bool

    def __post_init__(self) -> None:
        check_cursor_id(self.group, "group")
        _check_consumer_id(self.consumer_id)
        if self.auto_commit_interval is not None:
            as_seconds("auto_commit_interval", self.auto_commit_interval)
        as_choice("auto_offset", self.auto_offset, _AUTO_OFFSETS)
        for name in ("on_assigned", "on_revoked"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise UsageTypeError(f"{name} must be a function, got {getattr(self, name)!r}")

    @property
    def cursor_id(self) -> str:
        """Id of the group's cursors, the same as in other Liftbridge clients."""
        return f"__group:{self.group}"
