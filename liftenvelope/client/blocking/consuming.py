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
    """Client methods for consumer groups."""

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
        """Return a member of a consumer group. The members of a group share the partitions of streams.

        Args:
            group: Name of the group, created by its first member. Any text without a comma.
            streams: Names of the streams to read, or one name. Members may read different streams.
            consumer_id: Id of the member; None for a new unique id. If two members have the same id, the
                later one removes the earlier one from the group.
            auto_commit_interval: Maximum seconds from processing a message to storing its offset. None:
                offsets are stored only by :meth:`BlockingConsumer.commit`, on revocation, and on close.
            auto_offset: Start of a partition for which the group has no cursor: ``"new"`` for messages
                published from then on, ``"earliest"`` for the oldest message, ``"latest"`` for the newest
                existing message, ``"error"`` to raise :class:`NoCursorError`.
            on_assigned: Called with the list of newly assigned (stream, partition) before the consumer reads
                them: the place for :meth:`BlockingConsumer.seek`. It runs in the client's own thread, and
                can use what does not wait: seek, pause, resume, position.
            on_revoked: Called with the list of revoked (stream, partition) after their readers have stopped,
                and before their processed offsets are stored for the last time.
            resume: True to resume paused partitions. False: the consumer reads a paused partition once a
                publish or another client resumes it.

        Returns:
            The consumer, for use with ``with``: entering it joins the group.

        Raises:
            UsageError: An argument is invalid; the message names it.
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
