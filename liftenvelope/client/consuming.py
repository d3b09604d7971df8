"""Reading in a group: the part of the client that makes consumers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from liftenvelope.client.consumer import Consumer
from liftenvelope.client.consumer_options import ConsumerOptions, check_streams
from liftenvelope.client.subscribing import SubscribeMixin

if TYPE_CHECKING:
    from liftenvelope.client.consumer_options import PartitionsCallback

__all__ = ["ConsumeMixin"]


class ConsumeMixin(SubscribeMixin):
    """The part of the client that reads as a member of a group."""

    def consumer(
        self,
        group: str,
        streams: str | Iterable[str],
        *,
        consumer_id: str | None = None,
        auto_commit_interval: float | None = 5.0,
        auto_offset: Literal["new", "earliest", "latest", "error"] = "new",
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        resume: bool = False,
    ) -> Consumer:
        """Return a member of a consumer group: the group's members share the partitions of streams.

        Args:
            group: Name of the group, which is made by its first member. Any text without a comma.
            streams: Names of the streams to read, or the one name. Members need not all read the same.
            consumer_id: Id of the member; None for a new one. Of two members with one id the later one
                throws the other out.
            auto_commit_interval: What was processed is stored so many seconds later at most. None: only by
                :meth:`Consumer.commit`, when a partition is revoked, and when the consumer is closed.
            auto_offset: Where to begin with a partition that the group has no cursor for: ``"new"``: with
                what is published from then on; ``"earliest"``; ``"latest"``: with the newest message there
                is; ``"error"``: :class:`NoCursorError` is raised.
            on_assigned: Called with a list of (stream, partition) that the member has got, before it reads
                them: the place for :meth:`Consumer.seek`. A function or a coroutine function.
            on_revoked: Called with those that it has lost, when it reads them no more, and before what was
                processed is stored for the last time.
            resume: Whether to wake a partition that is paused. Otherwise it is read once it goes on.

        Returns:
            The consumer, to be used with ``async with``: entering it joins the group.

        Raises:
            UsageError: An argument makes no sense; it is named.
        """
        options = ConsumerOptions(
            group=group,
            streams=check_streams(streams),
            consumer_id=consumer_id,
            auto_commit_interval=auto_commit_interval,
            auto_offset=auto_offset,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            resume=resume,
        )
        return Consumer(self, options)
