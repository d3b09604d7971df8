"""Options of a group consumer, checked before any I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from liftenvelope._checks import MAX_INT64, as_count, as_seconds
from liftenvelope.consumers.options import AssignmentCallback, ShellOptions, check_callback
from liftenvelope.errors import UsageError
from liftenvelope.group._event_log import logged
from liftenvelope.group._topics import Topic, spec_of
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.events import GroupEventHandler, warn
from liftenvelope.group.state import check_id, check_session_timeout, check_topics

__all__ = ["GroupConsumerOptions", "PartitionsCallback", "check_all_topics"]

#: Called with topics and partition numbers; a function or a coroutine function.
PartitionsCallback: TypeAlias = AssignmentCallback[TopicPartition]


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
class GroupConsumerOptions(ShellOptions[TopicPartition]):
    """Options of :class:`GroupConsumer`, which documents them."""

    topics: tuple[Topic, ...]
    session_timeout: float | None
    assignor: str
    ephemeral: bool
    create: bool
    prefetch: int
    prefetch_bytes: int
    timeout: float
    on_event: GroupEventHandler | None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_id("group", self.group)
        check_id("assignor", self.assignor)
        if self.consumer_id is not None:
            check_id("consumer_id", self.consumer_id)
        if self.session_timeout is not None:
            check_session_timeout(self.session_timeout)
        as_seconds("timeout", self.timeout)
        as_count("prefetch", self.prefetch, most=MAX_INT64)
        as_count("prefetch_bytes", self.prefetch_bytes, most=MAX_INT64)
        check_callback("on_event", self.on_event)

    @property
    def notify(self) -> GroupEventHandler:
        """Handler of background events: logs them, and calls ``on_event``, or else warns."""
        return logged(self.on_event or warn)
