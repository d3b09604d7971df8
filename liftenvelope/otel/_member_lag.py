"""Observable metric of what members of groups over NATS have left to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry.metrics import Observation

from liftenvelope.errors import UsageError
from liftenvelope.jetstream import Message, MessageMetadata
from liftenvelope.otel import _conventions as names
from liftenvelope.otel._watched import Watched

__all__ = ["MemberLag"]


class _Left(NamedTuple):
    """Number of messages of a partition that come after the last one handed out."""

    topic: str
    messages: int


class MemberLag(Watched):
    """Members of groups, and what is left of each partition that they read now.

    A partition that moves to another member has no figure here from then on.
    """

    metric = "liftenvelope.group.lag"
    unit = "{message}"
    description = "Messages of a partition that come after the last one handed out by its member."
    create = "create_observable_gauge"

    def __init__(self) -> None:
        super().__init__()
        self._left: WeakKeyDictionary[Any, dict[tuple[str, int], _Left]] = WeakKeyDictionary()

    def note(self, member: Any, topic: str, messages: Sequence[Any]) -> None:
        """Note what messages of a topic, which a member hands out, say about their partitions.

        Args:
            member: The :class:`liftenvelope.group.GroupConsumer`.
            topic: Name of the topic as the metric has it.
            messages: Messages of the topic, in the order of each partition.
        """
        left = self._left.setdefault(member, {})
        for message in {message.partition: message for message in messages}.values():
            if not isinstance(message.message, Message):
                continue  # Liftbridge does not tell
            try:
                pending = MessageMetadata.from_reply(message.message.reply).num_pending
            except UsageError:
                continue  # read by a direct request, whose answer does not tell
            left[message.topic, message.partition] = _Left(topic, pending)

    def _observations(self, owners: list[tuple[Any, str]]) -> Iterable[Observation]:
        for member, _ in owners:
            left = self._left.get(member, {})
            for key in member.assignment:
                if (found := left.get(key)) is not None:
                    attributes = {
                        names.SYSTEM: names.NATS,
                        names.GROUP: member.group,
                        names.DESTINATION: found.topic,
                        names.PARTITION: str(key.partition),
                    }
                    yield Observation(found.messages, attributes)


#: The members of this process.
member_lag: Final = MemberLag()
