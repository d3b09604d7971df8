"""Options that every consumer has, checked before any I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from liftenvelope._checks import as_choice, as_seconds
from liftenvelope.errors import UsageTypeError

__all__ = ["AssignmentCallback", "KeyT", "ShellOptions", "check_callback"]

#: A partition: the name of its stream or topic, and its number.
KeyT = TypeVar("KeyT", bound=tuple[str, int])
#: Called with partitions. A function or a coroutine function.
AssignmentCallback: TypeAlias = Callable[[list[KeyT]], Awaitable[object] | object]

_AUTO_OFFSETS: Final = ("new", "earliest", "latest", "error")


def check_callback(name: str, callback: object) -> None:
    """Check that a callback is a function or None.

    Raises:
        UsageTypeError: It is neither.
    """
    if callback is not None and not callable(callback):
        raise UsageTypeError(f"{name} must be a function, got {callback!r}")


@dataclass(frozen=True, kw_only=True)
class ShellOptions(Generic[KeyT]):
    """Options that every consumer has. The public constructors document them."""

    group: str
    consumer_id: str | None
    auto_commit_interval: float | None
    auto_offset: str
    on_assigned: AssignmentCallback[KeyT] | None
    on_revoked: AssignmentCallback[KeyT] | None

    def __post_init__(self) -> None:
        if self.auto_commit_interval is not None:
            as_seconds("auto_commit_interval", self.auto_commit_interval)
        as_choice("auto_offset", self.auto_offset, _AUTO_OFFSETS)
        check_callback("on_assigned", self.on_assigned)
        check_callback("on_revoked", self.on_revoked)
