"""Made of client/consuming.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking.consumer import BlockingConsumer
from liftenvelope.client.blocking.subscribing import BlockingSubscribe

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from liftenvelope.client.consumer_options import PartitionsCallback
    from liftenvelope.client.consuming import ConsumeMixin

__all__ = ["BlockingConsume"]


class BlockingConsume(BlockingSubscribe):
    """The part of the client that reads as a member of a group."""

    _async: ConsumeMixin

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
    ) -> BlockingConsumer:
        """Return a member of a consumer group: the group's members share the partitions of streams.

        Args:
            group: Name of the group, which is made by its first member. Any text without a comma.
            streams: Names of the streams to read, or the one name. Members need not all read the same.
            consumer_id: Id of the member; None for a new one. Of two members with one id the later one
                throws the other out.
            auto_commit_interval: What was processed is stored so many seconds later at most. None: only by
                :meth:`BlockingConsumer.commit`, when a partition is revoked, and when the consumer is closed.
            auto_offset: Where to begin with a partition that the group has no cursor for: ``"new"``: with
                what is published from then on; ``"earliest"``; ``"latest"``: with the newest message there
                is; ``"error"``: :class:`NoCursorError` is raised.
            on_assigned: Called with a list of (stream, partition) that the member has got, before it reads
                them: the place for :meth:`BlockingConsumer.seek`. It runs in the client's own thread, and
                can use what does not wait: seek, pause, resume, position.
            on_revoked: Called with those that it has lost, when it reads them no more, and before what was
                processed is stored for the last time.
            resume: Whether to wake a partition that is paused. Otherwise it is read once it goes on.

        Returns:
            The consumer, to be used with ``with``: entering it joins the group.

        Raises:
            UsageError: An argument makes no sense; it is named.
        """
        return BlockingConsumer(
            self._portal,
            self._portal.run(
                lambda: self._async.consumer(
                    group,
                    streams,
                    consumer_id=consumer_id,
                    auto_commit_interval=auto_commit_interval,
                    auto_offset=auto_offset,
                    on_assigned=on_assigned,
                    on_revoked=on_revoked,
                    resume=resume,
                )
            ),
        )
