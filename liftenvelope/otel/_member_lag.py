"""Observable metric of what members of groups over NATS have left to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from opentelemetry.metrics import Observation

from liftenvelope.errors import UsageError
from liftenvelope.jetstream import Message, MessageMetadata
from liftenvelope.otel import _conventions as names
from liftenvelope.otel._watched import Watched

__all__ = ["MemberLag"]


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
        #: Names of the members' topics as the metric has them.
        self._labels: WeakKeyDictionary[Any, Mapping[str, str]] = WeakKeyDictionary()

    def watch_member(self, member: Any, label_of: Callable[[str], str]) -> None:
        """Include a member.

        Args:
            member: The member.
            label_of: Returns the name of a topic as the metric has it. It may be code of the user, so it is
                called now, and never by the exporter's thread. Its errors reach the caller.
        """
        labels = {topic: label_of(topic) for topic in member.topics}
        self._labels[member] = labels
        self.watch(member, "group")

    def _observations(self, owners: list[tuple[Any, str]]) -> Iterable[Observation]:
        for member, _ in owners:
            labels = self._labels[member]
            for (topic, partition), message in member.handed_out.items():
                if (left := _left_after(message)) is not None:
                    attributes = {
                        names.SYSTEM: names.NATS,
                        names.GROUP: member.group,
                        names.DESTINATION: labels[topic],
                        names.PARTITION: str(partition),
                    }
                    yield Observation(left, attributes)


def _left_after(message: Any) -> int | None:
    """Return the number of messages behind this one when it was received; None if it does not tell."""
    if not isinstance(message, Message):
        return None  # Liftbridge does not tell
    try:
        return MessageMetadata.from_reply(message.reply).num_pending
    except UsageError:
        return None  # read by a direct request, whose answer does not tell


#: The members of this process.
member_lag: Final = MemberLag()
