"""Made of client/message_reader.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import BlockingReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from liftenvelope.client.message_reader import MessageReader
    from liftenvelope.envelope import Message

__all__ = ["BlockingMessageReader"]


class BlockingMessageReader(BlockingReader):
    """Hands out messages that come in lists. Threads may share an iteration, and no more."""

    _async: MessageReader

    @property
    def finished(self) -> bool:
        """True if the read has ended or was closed, and every message was handed out."""
        return self._async.finished

    def open(self) -> Self:
        """Open the reader; ``with`` does it."""
        self._portal.call(self._async.open())
        return self

    def close(self) -> None:
        """End the read and drop messages that were not handed out. Closing twice is fine."""
        self._portal.end(self._async.close())

    def next(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait for the message; None, the default, for no limit.

        Returns:
            The message. None if no message came in time, or the read has ended: see :attr:`finished`.

        Raises:
            LiftEnvelopeError: Any error that iteration raises.
        """
        return self._portal.call(self._async.next(timeout))

    def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> Iterator[list[Message]]:
        """Iterate over lists of messages.

        Args:
            max_messages: Maximum messages per list. Default 1,000.
            max_wait: Seconds to wait for more messages after the first one of a list. Default 0.1.

        Yields:
            Lists of at least one message. The last list may be shorter.

        Raises:
            UsageError: An argument is out of range.
            LiftEnvelopeError: Any error that iteration raises, after all messages that came before the error.
        """
        return self._portal.iterate(self._async.batches(max_messages, max_wait))

    def arrow_batches(self, max_rows: int = 65536, *, max_wait: float = 1.0) -> Iterator[pa.RecordBatch]:
        """Iterate over Arrow record batches of messages. Needs the ``[arrow]`` extra.

        Args:
            max_rows: Maximum rows per batch. Default 65,536.
            max_wait: Seconds to wait for more messages after the first one of a batch. Default 1.

        Yields:
            Batches of at least one row, with the columns of :func:`liftenvelope.arrow.stored_batch`.

        Raises:
            UsageError: An argument is out of range.
            MissingExtraError: pyarrow is not installed.
            LiftEnvelopeError: Any error that iteration raises, after all messages that came before the error.
        """
        return self._portal.iterate(self._async.arrow_batches(max_rows, max_wait=max_wait))

    def __enter__(self) -> Self:
        self._portal.call(self._async.__aenter__())
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal.end(self._async.__aexit__(exc_type, exc, traceback))
