"""Made of client/subscription.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking.message_reader import BlockingMessageReader

if TYPE_CHECKING:
    from typing import Self

    from liftenvelope.client.subscription import Subscription

__all__ = ["BlockingSubscription"]


class BlockingSubscription(BlockingMessageReader):
    """Messages of one partition. Made by :meth:`BlockingClient.subscribe`; open it with ``with``.

    Iterate over single messages, or take lists with :meth:`batches`, or Arrow with :meth:`arrow_batches`.
    Each continues where the others stopped. Messages come in the order of their offsets, each once. If the
    connection is lost, the subscription tries to regain it for up to ``resubscribe_wait`` seconds. Threads
    may share an iteration, and no more.

    Iteration ends when the stop is reached, or after :meth:`close`. Iteration raises the errors below.

    Raises:
        StreamDeletedError: The stream was deleted.
        PartitionPausedError: The partition was paused.
        ReadonlyPartitionError: The partition is read-only, and all its messages were read before the stop was
            reached.
        SubscriptionLostError: The connection was lost and not regained in time.
        OffsetOutOfRangeError: The partition has lost messages that were read already.
        UnsupportedByServerError: The server can't read backwards.
    """

    _async: Subscription

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._async.stream

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self._async.partition

    @property
    def position(self) -> int | None:
        """Offset of the next message, or a later one; None while it is unknown.

        A subscription that starts at this offset continues where this one is.
        """
        return self._portal.look(lambda: self._async.position)

    @property
    def positions(self) -> dict[tuple[str, int], int | None]:
        """:attr:`position` by stream and partition."""
        return self._portal.look(lambda: self._async.positions)

    def open(self) -> Self:
        """Subscribe; ``with`` does it.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            PartitionPausedError: The partition is paused, and ``resume`` is false.
            ReadonlyPartitionError: The partition is read-only, and no message is left to read.
            FencedError: Another member of the consumer group has the partition.
            NotLeaderError: The partition had no leader in all that time.
            CallTimeoutError: The server did not answer in time.
            TransportError: No broker could be reached.
        """
        self._portal.call(self._async.open())
        return self

    def close(self) -> None:
        """End the subscription and drop messages that were not handed out. Closing twice is fine."""
        self._portal.end(self._async.close())
