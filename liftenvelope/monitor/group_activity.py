"""Names, members and streams of Liftbridge's groups, from the activity stream.

Liftbridge's API lists neither groups nor members. Joins and leaves are in the activity stream, if the servers
keep one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

from liftenvelope.client import Client, GroupJoined, GroupLeft

__all__ = ["ActiveGroup", "GroupActivity"]

#: Most groups, members of a group, and streams of a group or a member to remember. Anyone who may publish on
#: NATS can name any number in the activity stream. Beyond a limit, the oldest are forgotten.
_MAX_GROUPS: Final = 10_000
_MAX_MEMBERS: Final = 10_000
_MAX_STREAMS: Final = 1_024


@dataclass
class ActiveGroup:
    """State of a group, as the activity stream tells it.

    Attributes:
        members: Streams of each member, the first 1,024 of its join.
        streams: The last 1,024 streams that any member has read, in the order of their first mention.
    """

    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    streams: dict[str, None] = field(default_factory=dict)


class GroupActivity:
    """Groups by name, kept up to date by the activity stream.

    Args:
        client: A client of the cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._next: int | None = None
        #: Groups that the activity stream mentions: those with members, and empty ones.
        self.groups: dict[str, ActiveGroup] = {}

    async def update(self) -> Self:
        """Read the events since the last call, or from the first event on.

        Raises:
            NoSuchStreamError: The cluster keeps no activity stream.
        """
        start = "earliest" if self._next is None else self._next
        async with self._client.activity(start=start, stop="latest") as events:
            async for event in events:
                self._next = event.offset + 1
                if isinstance(event, GroupJoined):
                    self._joined(event)
                elif isinstance(event, GroupLeft):
                    self._group(event.group).members.pop(event.consumer, None)
        return self

    def _joined(self, event: GroupJoined) -> None:
        group = self._group(event.group)
        if len(group.members) >= _MAX_MEMBERS:
            group.members.pop(next(iter(group.members)))
        streams = event.streams[:_MAX_STREAMS]
        group.members[event.consumer] = streams
        group.streams |= dict.fromkeys(streams)
        while len(group.streams) > _MAX_STREAMS:
            group.streams.pop(next(iter(group.streams)))

    def _group(self, name: str) -> ActiveGroup:
        if name not in self.groups and len(self.groups) >= _MAX_GROUPS:
            self.groups.pop(next(iter(self.groups)))
        return self.groups.setdefault(name, ActiveGroup())
