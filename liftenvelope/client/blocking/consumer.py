"""Made of client/consumer.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import Blocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from liftenvelope.client.consumer import Consumer
    from liftenvelope.client.membership import StreamPartition
    from liftenvelope.envelope import Message

__all__ = ["BlockingConsumer"]


class BlockingConsumer(Blocking):
    """A member of a consumer group. Made by :meth:`BlockingClient.consumer`; used with ``with``.

    Iteration returns the messages of all partitions assigned to this member, in order within each partition.
    A message counts as processed when the next one is requested, or when it is passed to :meth:`commit`.
    Processed offsets are committed periodically, and the partition's next owner continues there.

    Delivery is at least once: after a crash, messages since the last checkpoint are redelivered. A few are
    redelivered when partitions move. For one thread at a time.

    Example:
        >>> with client.consumer("billing", ["orders"]) as consumer:  # doctest: +SKIP
        ...     for message in consumer:
        ...         ...
    """

    _async: Consumer

    @property
    def epoch(self) -> int:
        """Group epoch last seen by this member. The epoch changes when members join or leave."""
        return self._portal.look(lambda: self._async.epoch)

    def position(self, stream: str, partition: int) -> int | None:
        """Return a lower bound of the next message's offset; None if the start is not known yet.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
        return self._portal.run(lambda: self._async.position(stream, partition))

    def lag(self, *, timeout: float | None = None) -> dict[tuple[str, int], int]:
        """Return the lag of each assigned partition in offsets.

        Args:
            timeout: Seconds for each call. Default: the client's ``timeout``.

        Returns:
            Newest offset minus the last processed offset, by stream and partition.

        Raises:
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        return self._portal.call(self._async.lag(timeout=timeout))

    def open(self) -> Self:
        """Join the group and start reading the assigned partitions; ``with`` does it.

        Raises:
            NoSuchStreamError: A stream does not exist.
            CallTimeoutError: The group could not be joined within the client's ``timeout``.
            TransportError: No broker could be reached.
        """
        self._portal.call(self._async.open())
        return self

    def __next__(self) -> Message:
        return self._portal.next(self._async)

    def commit(self, message: Message | None = None, *, timeout: float | None = None) -> None:
        """Store the processed offsets now.

        Args:
            message: Mark this message and all earlier ones of its partition as processed, and store that
                partition's offset. None: mark every returned message as processed, and store all partitions.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            FencedError: The message's partition belongs to another member now. That member gets the message
                again.
            NotMemberError: The consumer expired after missed heartbeats, and is rejoining the group.
            LiftEnvelopeError: An offset could not be stored, as for :meth:`BlockingClient.set_cursor`.
        """
        self._portal.call(self._async.commit(message, timeout=timeout))

    def pause(self, stream: str, partition: int) -> None:
        """Stop returning messages of a partition until :meth:`resume`. The partition stays assigned.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
        self._portal.run(lambda: self._async.pause(stream, partition))

    def resume(self, stream: str, partition: int) -> None:
        """Return messages of a paused partition again.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
        self._portal.run(lambda: self._async.resume(stream, partition))

    def seek(self, stream: str, partition: int, offset: int) -> None:
        """Continue a partition at another offset, forward or backward.

        The group's cursor moves with the first checkpoint after a message from the new position.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            offset: Offset of the next message to return. If there is no such message, the next later one is
                returned.

        Raises:
            FencedError: The partition is not assigned to this member.
            UsageError: The offset is negative, or 2**63 or larger.
        """
        self._portal.run(lambda: self._async.seek(stream, partition, offset))

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._async.group

    @property
    def consumer_id(self) -> str:
        """Id of this member."""
        return self._async.consumer_id

    @property
    def assignment(self) -> frozenset[StreamPartition]:
        """Partitions that this member reads now."""
        return self._portal.look(lambda: self._async.assignment)

    def __enter__(self) -> Self:
        self._portal.call(self._async.__aenter__())
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal.end(self._async.__aexit__(exc_type, exc, traceback))

    def close(self) -> None:
        """Stop reading, call ``on_revoked``, store the processed offsets, and leave the group.

        The last message handed out counts as processed only if it was committed. ``close`` takes at most the
        default timeout of a call, plus the time of ``on_revoked``. Closing twice has no effect.

        Raises:
            LiftEnvelopeError: The processed offsets could not be stored. The consumer is closed anyway.
        """
        self._portal.end(self._async.close())

    def __iter__(self) -> Self:
        return self

    def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> Iterator[list[Message]]:
        """Iterate over lists of messages. A list counts as processed when the next one is requested.

        Args:
            max_messages: Maximum number of messages in a list.
            max_wait: Seconds to wait for more messages after the first one of a list.

        Yields:
            Lists of at least one message from any assigned partition, in order within each partition.

        Raises:
            UsageError: An argument is invalid, or another task waits for messages.
            LiftEnvelopeError: Any error that iterating would raise.
        """
        return self._portal.iterate(self._async.batches(max_messages, max_wait))
