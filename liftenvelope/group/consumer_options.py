"""How a group's consumer is set up. Checked when it is made, before any I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Final, TypeAlias

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.events import GroupEventHandler, warn
from liftenvelope.group.state import check_id, check_session_timeout, check_topics
from liftenvelope.group.topics import Topic, spec_of
from liftenvelope.nats._outcomes import positive

__all__ = ["AUTO_OFFSETS", "ConsumerOptions", "PartitionsCallback", "check_all_topics", "check_batches"]

#: Gets topics and numbers of partitions; a function or a coroutine function.
PartitionsCallback: TypeAlias = Callable[[list[TopicPartition]], Awaitable[object] | object]

AUTO_OFFSETS: Final = ("new", "earliest", "latest", "error")


def check_all_topics(topics: Topic | Iterable[Topic]) -> tuple[Topic, ...]:
    """The topics that a consumer reads.

    Raises:
        UsageError: There are none, or two of one name.
        UsageTypeError: One is none.
    """
    given = tuple(topics) if isinstance(topics, Iterable) else (topics,)
    if not given:
        raise UsageError("topics: expected at least one")
    check_topics(map(spec_of, given))
    return given


def check_batches(name: str, limit: int, max_wait: float) -> None:
    """The size of lists of messages, and how long to wait for them to be full.

    Raises:
        UsageError: One of them makes no sense.
        UsageTypeError: One of them is no number.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageTypeError(f"{name} must be an int, not {limit!r}")
    if limit < 1:
        raise UsageError(f"{name}={limit!r}: expected 1 or more")
    if isinstance(max_wait, bool) or not isinstance(max_wait, int | float):
        raise UsageTypeError(f"max_wait must be a number of seconds, not {max_wait!r}")
    if not (max_wait >= 0 and isfinite(max_wait)):
        raise UsageError(f"max_wait={max_wait!r}: expected a number of seconds, 0 or more")


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """The options of :class:`GroupConsumer`, where they are described."""

    group: str
    topics: tuple[Topic, ...]
    consumer_id: str | None
    session_timeout: float | None
    auto_commit_interval: float | None
    auto_offset: str
    assignor: str
    ephemeral: bool
    create: bool
    prefetch: int
    timeout: float
    on_assigned: PartitionsCallback | None
    on_revoked: PartitionsCallback | None
    on_event: GroupEventHandler | None

    def __post_init__(self) -> None:
        check_id("group", self.group)
        check_id("assignor", self.assignor)
        if self.consumer_id is not None:
            check_id("consumer_id", self.consumer_id)
        if self.session_timeout is not None:
            check_session_timeout(self.session_timeout)
        if self.auto_commit_interval is not None:
            positive("auto_commit_interval", self.auto_commit_interval)
        positive("timeout", self.timeout)
        if type(self.prefetch) is not int or self.prefetch < 1:
            raise UsageError(f"prefetch={self.prefetch!r}: expected an int of 1 or more")
        if self.auto_offset not in AUTO_OFFSETS:
            expected = ", ".join(map(repr, AUTO_OFFSETS))
            raise UsageError(f"auto_offset={self.auto_offset!r}: expected one of {expected}")
        for name in ("on_assigned", "on_revoked", "on_event"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise UsageTypeError(f"{name} must be a function, not {getattr(self, name)!r}")

    @property
    def notify(self) -> GroupEventHandler:
        """Where events go."""
        return self.on_event or warn
