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
    """Keeps the cursor of a stream's reader. Used with ``with``.

    The cursor is the offset of the last processed message: call :meth:`processed` after each message. The
    checkpointer stores the cursor in the background, and when the block ends. After a crash, a reader
    rereads up to ``every_messages`` messages, or those of ``every_seconds`` seconds.

    Each write first reads the stored cursor, and the larger offset wins, so the cursor does not move back.
    Servers cannot compare and set in one step, so two readers of one cursor can still race. Readers that
    share a stream belong in a consumer group.

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
        """Return the offset after the cursor, to pass as ``start`` of :meth:`BlockingClient.subscribe`.

        Args:
            partition: Number of the partition.
            default: Value to return if there is no cursor. Default: ``"earliest"``.

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
        """Mark a message, and all earlier messages of its partition, as processed.

        This only records the offset; the background task sends it. An offset smaller than an earlier one has
        no effect. If messages of one partition are processed concurrently and may finish out of order,
        announce each message with :meth:`delivered` first.

        Args:
            message: The message, or the number of its partition.
            offset: Offset of the message, if ``message`` is a partition number.

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
        """Announce a message before processing: the cursor stays below it until :meth:`processed`.

        Call it in the order of offsets.

        Args:
            message: The message, or the number of its partition.
            offset: Offset of the message, if ``message`` is a partition number.

        Raises:
            UsageError: The message is of another stream, or the checkpointer is not open.
        """
        method: Callable[..., None] = self._async.delivered
        self._portal.run(lambda: method(message, offset))

    def flush(self, *, timeout: float | None = None) -> None:
        """Store the processed offsets now. Offsets that failed in the background are retried.

        Args:
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            LiftEnvelopeError: An offset could not be stored, as for :meth:`BlockingClient.set_cursor`.
        """
        self._portal.call(self._async.flush(timeout=timeout))

    def close(self) -> None:
        """Store the processed offsets and stop. Closing twice has no effect.

        Raises:
            LiftEnvelopeError: An offset could not be stored. The checkpointer is closed anyway.
        """
        self._portal.end(self._async.close())

    def lag(self, partition: int, *, timeout: float | None = None) -> int:
        """Return the reader's lag in offsets: the partition's newest offset minus the last processed one.

        If this checkpointer has no processed offset, the stored cursor is used. Without a stored cursor,
        every message counts.

        Args:
            partition: Number of the partition.
            timeout: Seconds for each call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: The stream has no such partition.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        return self._portal.call(self._async.lag(partition, timeout=timeout))

    def reset(self, partition: int, *, timeout: float | None = None) -> None:
        """Delete the cursor and forget the processed offsets of a partition.

        Args:
            partition: Number of the partition.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            LiftEnvelopeError: As for :meth:`BlockingClient.reset_cursor`.
        """
        self._portal.call(self._async.reset(partition, timeout=timeout))
