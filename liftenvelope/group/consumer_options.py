"""Options of a group consumer, checked before any I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from liftenvelope._checks import as_choice, as_count, as_seconds
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.events import GroupEventHandler, warn
from liftenvelope.group.state import check_id, check_session_timeout, check_topics
from liftenvelope.group.topics import Topic, spec_of

__all__ = ["AUTO_OFFSETS", "ConsumerOptions", "PartitionsCallback", "check_all_topics"]

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
            as_seconds("auto_commit_interval", self.auto_commit_interval)
        as_seconds("timeout", self.timeout)
        as_count("prefetch", self.prefetch)
        as_choice("auto_offset", self.auto_offset, AUTO_OFFSETS)
        for name in ("on_assigned", "on_revoked", "on_event"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise UsageTypeError(f"{name} must be a function, got {getattr(self, name)!r}")

    @property
    def notify(self) -> GroupEventHandler:
        """Handler of background events."""
        return self.on_event or warn
