"""Options of a group consumer, checked before any I/O."""

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

#: Called with topics and partition numbers; a function or a coroutine function.
PartitionsCallback: TypeAlias = Callable[[list[TopicPartition]], Awaitable[object] | object]

AUTO_OFFSETS: Final = ("new", "earliest", "latest", "error")


def check_all_topics(topics: Topic | Iterable[Topic]) -> tuple[Topic, ...]:
    """Check and return the topics of a consumer.

    Raises:
        UsageError: There is no topic, or a name is repeated.
        UsageTypeError: An item is not a topic.
    """
    given = tuple(topics) if isinstance(topics, Iterable) else (topics,)
    if not given:
        raise UsageError("topics must name at least one topic, got none")
    check_topics(map(spec_of, given))
    return given


def check_batches(name: str, limit: int, max_wait: float) -> None:
    """Check the size of message batches and the wait for full ones.

    Raises:
        UsageError: A value is out of range.
        UsageTypeError: A value is not a number.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageTypeError(f"{name} must be an int, got {limit!r}")
    if limit < 1:
        raise UsageError(f"{name} must be at least 1, got {limit!r}")
    if isinstance(max_wait, bool) or not isinstance(max_wait, int | float):
        raise UsageTypeError(f"max_wait must be a number of seconds, got {max_wait!r}")
    if not (max_wait >= 0 and isfinite(max_wait)):
        raise UsageError(f"max_wait must be at least 0 seconds and finite, got {max_wait!r}")


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """Options of :class:`GroupConsumer`, which documents them."""

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
            raise UsageError(f"prefetch must be an int of at least 1, got {self.prefetch!r}")
        if self.auto_offset not in AUTO_OFFSETS:
            expected = ", ".join(map(repr, AUTO_OFFSETS))
            raise UsageError(f"auto_offset must be one of {expected}, got {self.auto_offset!r}")
        for name in ("on_assigned", "on_revoked", "on_event"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise UsageTypeError(f"{name} must be a function, got {getattr(self, name)!r}")

    @property
    def notify(self) -> GroupEventHandler:
        """Handler of background events."""
        return self.on_event or warn
