"""Made of client/consumer.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import Blocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from liftenvelope.client.consumer import Consumer
    from liftenvelope.envelope import Message

__all__ = ["BlockingConsumer"]


class BlockingConsumer(Blocking):
    """A member of a consumer group. Made by :meth:`BlockingClient.consumer`; used with ``with``.

    Iterating gives the messages of every partition that the group has given to this member: those of one
    partition in order. A message counts as processed when the next one is asked for, or when it is passed
    to :meth:`commit`; what is processed is stored now and then, so that whoever gets the partition next goes
    on there. Each message is delivered at least once: those since the last checkpoint come again after a
    crash, and a few when partitions move. For one thread at a time.

    Example:
        >>> with client.consumer("billing", ["orders"]) as consumer:  # doctest: +SKIP
        ...     for message in consumer:
        ...         ...
    """

    _async: Consumer

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._async.group

    @property
    def consumer_id(self) -> str:
        """Id of this member."""
        return self._async.consumer_id

    @property
    def epoch(self) -> int:
        """The group's generation, as far as this member knows. It changes when members come and go."""
        return self._portal.look(lambda: self._async.epoch)

    @property
    def assignment(self) -> frozenset[tuple[str, int]]:
        """The streams and partitions that this member reads now."""
        return self._portal.look(lambda: self._async.assignment)

    def position(self, stream: str, partition: int) -> int | None:
        """Return the offset that is handed out next, or a later one; None where it is not known yet.

        Raises:
            FencedError: The partition is not this member's.
        """
        return self._portal.run(lambda: self._async.position(stream, partition))

    def lag(self, *, timeout: float | None = None) -> dict[tuple[str, int], int]:
        """Return how far each partition of this member is ahead of it.

        Args:
            timeout: Seconds for each call; default: the client's.

        Returns:
            By stream and partition, the newest offset less that of the last processed message.

        Raises:
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        return self._portal.call(self._async.lag(timeout=timeout))

    def __enter__(self) -> Self:
        self._portal.call(self._async.__aenter__())
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal.end(self._async.__aexit__(exc_type, exc, traceback))

    def open(self) -> Self:
        """Join the group, and begin to read what it assigns; ``with`` does it.

        Raises:
            NoSuchStreamError: A stream does not exist.
            CallTimeoutError: The group could not be joined in the client's ``timeout``.
            TransportError: No broker could be reached.
        """
        self._portal.call(self._async.open())
        return self

    def close(self) -> None:
        """Stop reading, call ``on_revoked``, store what was processed, and leave the group.

        The message that was handed out last counts as processed only if it was committed. Closing twice is
        fine. It takes no longer than the client's ``timeout``, besides the time of ``on_revoked``.

        Raises:
            LiftEnvelopeError: What was processed could not be stored. It is closed all the same.
        """
        self._portal.end(self._async.close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return self._portal.next(self._async)

    def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> Iterator[list[Message]]:
        """Iterate over lists of messages. A list counts as processed when the next one is asked for.

        Args:
            max_messages: How many a list has at most.
            max_wait: Seconds after the first message of a list that it waits for more.

        Yields:
            Lists of at least one message, of any of the partitions; those of one in order.

        Raises:
            UsageError: An argument makes no sense.
            LiftEnvelopeError: What iterating would raise.
        """
        return self._portal.iterate(self._async.batches(max_messages, max_wait))

    def commit(self, message: Message | None = None, *, timeout: float | None = None) -> None:
        """Store now what was processed.

        Args:
            message: It and all before it in its partition are processed, and that partition is stored. None:
                everything that was handed out is processed, and all partitions are stored.
            timeout: Seconds for all of it; default: the client's.

        Raises:
            FencedError: The message's partition is another member's by now, who gets the message again.
            NotMemberError: The consumer was silent for too long, and is joining again.
            LiftEnvelopeError: It could not be stored, as :meth:`BlockingClient.set_cursor` says.
        """
        self._portal.call(self._async.commit(message, timeout=timeout))

    def pause(self, stream: str, partition: int) -> None:
        """Hand out no messages of a partition for the time being. It stays this member's.

        Raises:
            FencedError: The partition is not this member's.
        """
        self._portal.run(lambda: self._async.pause(stream, partition))

    def resume(self, stream: str, partition: int) -> None:
        """Hand out messages of a partition again.

        Raises:
            FencedError: The partition is not this member's.
        """
        self._portal.run(lambda: self._async.resume(stream, partition))

    def seek(self, stream: str, partition: int, offset: int) -> None:
        """Go on with a partition at another offset, also at a lower one.

        The group's cursor follows with the next checkpoint after a message from there.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            offset: Of the message that is handed out next; if there is none yet, of the next one after it.

        Raises:
            FencedError: The partition is not this member's.
            UsageError: The offset is negative.
        """
        self._portal.run(lambda: self._async.seek(stream, partition, offset))
