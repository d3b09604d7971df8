"""Made of client/checkpointer.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from liftenvelope.client.blocking._base import Blocking

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from liftenvelope.client.checkpointer import _T, Checkpointer
    from liftenvelope.envelope import Message

__all__ = ["BlockingCheckpointer"]


class BlockingCheckpointer(Blocking):
    """Keeps a cursor for a reader of a stream. Used with ``with``.

    The cursor is the offset of the last processed message: call :meth:`processed` after each. It is stored in
    the background, and when the block ends. A reader that dies in between reads up to ``every_messages``
    messages, or those of ``every_seconds`` seconds, for a second time. The cursor never goes back: what is
    stored is looked at first, so of two readers with one cursor the one that is further counts. (Servers have
    no way to do both in one step. Readers that must share a stream belong in a consumer group.)

    Example:
        >>> with client.checkpointer("billing", "orders") as checkpoints:  # doctest: +SKIP
        ...     start = checkpoints.start(0)
        ...     with client.subscribe("orders", start=start) as messages:
        ...         for message in messages:
        ...             ...
        ...             checkpoints.processed(message)
    """

    _async: Checkpointer

    def __enter__(self) -> Self:
        self._portal.call(self._async.__aenter__())
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal.end(self._async.__aexit__(exc_type, exc, traceback))

    def start(self, partition: int, default: _T | str = "earliest") -> int | _T | str:
        """Return where to start reading: behind the cursor, as ``start`` of :meth:`BlockingClient.subscribe`.

        Args:
            partition: Number of the partition.
            default: What to return where there is no cursor.

        Raises:
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        return self._portal.call(self._async.start(partition, default))

    @overload
    def processed(self, message: Message, /) -> None: ...

    @overload
    def processed(self, partition: int, offset: int, /) -> None: ...

    def processed(self, message: Message | int, offset: int | None = None, /) -> None:
        """Note that a message was processed, and with it all before it in its partition.

        It only remembers that; nothing is sent here. A smaller offset than before changes nothing. Where
        messages of one partition are processed at the same time, and may be done in another order, announce
        each with :meth:`delivered` first.

        Args:
            message: The message; or the number of its partition,
            offset: and its offset.

        Raises:
            UsageError: The message is of another stream, or the checkpointer is not open.
        """
        method: Callable[..., None] = self._async.processed
        self._portal.run(lambda: method(message, offset))

    @overload
    def delivered(self, message: Message, /) -> None: ...

    @overload
    def delivered(self, partition: int, offset: int, /) -> None: ...

    def delivered(self, message: Message | int, offset: int | None = None, /) -> None:
        """Announce a message that is going to be processed: until it is, the cursor stays in front of it.

        Args:
            message: The message; or the number of its partition,
            offset: and its offset. To be called in the order of offsets.

        Raises:
            UsageError: The message is of another stream, or the checkpointer is not open.
        """
        method: Callable[..., None] = self._async.delivered
        self._portal.run(lambda: method(message, offset))

    def flush(self, *, timeout: float | None = None) -> None:
        """Store what was processed so far. What failed in the background is tried again here.

        Args:
            timeout: Seconds for all of it; default: the client's.

        Raises:
            LiftEnvelopeError: It could not be stored, as :meth:`BlockingClient.set_cursor` says.
        """
        self._portal.call(self._async.flush(timeout=timeout))

    def close(self) -> None:
        """Store what was processed, and end. Closing twice is fine.

        Raises:
            LiftEnvelopeError: It could not be stored. The checkpointer is closed all the same.
        """
        self._portal.end(self._async.close())

    def lag(self, partition: int, *, timeout: float | None = None) -> int:
        """Return how many offsets the partition is ahead: its newest one, less the last processed one.

        Where this checkpointer was told of none, the stored cursor counts; where there is none, all of them.

        Args:
            partition: Number of the partition.
            timeout: Seconds for each call; default: the client's.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: It has no such partition.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        return self._portal.call(self._async.lag(partition, timeout=timeout))

    def reset(self, partition: int, *, timeout: float | None = None) -> None:
        """Take the cursor away, and forget what was processed.

        Args:
            partition: Number of the partition.
            timeout: Seconds for all of it; default: the client's.

        Raises:
            LiftEnvelopeError: As :meth:`BlockingClient.reset_cursor` says.
        """
        self._portal.call(self._async.reset(partition, timeout=timeout))
