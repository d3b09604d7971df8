"""Made of client/subscription.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking.message_reader import BlockingMessageReader

if TYPE_CHECKING:
    from typing import Self

    from liftenvelope.client.subscription import Subscription

__all__ = ["BlockingSubscription"]


class BlockingSubscription(BlockingMessageReader):
    """The messages of one partition. Made by :meth:`BlockingClient.subscribe`; open it with ``with``.

    Iterate over it, or take lists with :meth:`batches`, or Arrow with :meth:`arrow_batches`; all go on where
    the others left off. Messages come in the order of their offsets, each once, also when the connection is
    lost: it is made again for up to ``resubscribe_wait`` seconds. Threads may share an iteration, and no
    more.

    Iteration ends when what was asked for has been read, or after :meth:`close`. It raises:

    Raises:
        StreamDeletedError: The stream is gone.
        PartitionPausedError: The partition was paused.
        ReadonlyPartitionError: The partition is read-only, all of it was read, and the stop was not reached.
        SubscriptionLostError: The connection was lost and did not come back in time.
        OffsetOutOfRangeError: The partition has lost messages that had been read already.
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
        """Offset of the message that will be handed out next, or a later one; None before that is known.

        A subscription that starts there goes on where this one is.
        """
        return self._portal.look(lambda: self._async.position)

    @property
    def positions(self) -> dict[tuple[str, int], int | None]:
        """:attr:`position` by stream and partition."""
        return self._portal.look(lambda: self._async.positions)

    def open(self) -> Self:
        """Subscribe; ``with`` does it.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: It has no such partition.
            PartitionPausedError: The partition is paused, and ``resume`` was not asked for.
            ReadonlyPartitionError: The partition is read-only, and there is nothing left to be read.
            FencedError: Another member of the consumer group has the partition.
            NotLeaderError: The partition had no leader in all that time.
            CallTimeoutError: The server did not answer in time.
            TransportError: No broker could be reached.
        """
        self._portal.call(self._async.open())
        return self

    def close(self) -> None:
        """End the subscription. What was not handed out is dropped. Closing twice is fine."""
        self._portal.end(self._async.close())
