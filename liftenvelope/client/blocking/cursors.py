"""Made of client/cursors.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking.checkpointer import BlockingCheckpointer
from liftenvelope.client.blocking.streams import BlockingStreams

if TYPE_CHECKING:
    from liftenvelope.client.cursors import CursorsMixin

__all__ = ["BlockingCursors"]


class BlockingCursors(BlockingStreams):
    """The part of the client that has to do with cursors."""

    _async: CursorsMixin

    def set_cursor(
        self, cursor_id: str, stream: str, partition: int, offset: int, *, timeout: float | None = None
    ) -> None:
        """Store how far a reader has come in a partition.

        By convention that is the offset of the last message that was processed, so that a reader goes on at
        the one after it. A server stores one cursor after the other, all readers' together, and each is a
        replicated write: set one now and then, as :meth:`checkpointer` does, rather than after each message.

        Nothing stops another reader from storing a smaller offset under the same id. Cursors outlive their
        stream; and servers delete those that were not set for a week, unless they are configured otherwise.

        Args:
            cursor_id: Whose cursor: any text without a comma.
            stream: Name of the stream.
            partition: Number of the partition.
            offset: An offset, 0 or more. Servers don't check that there is such a message.
            timeout: Seconds for all of it; default: the client's.

        Raises:
            UsageError: An argument makes no sense, or the id or the stream's name has a comma.
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time. It may have been stored.
            TransportError: No broker could be reached.

        Example:
            >>> client.set_cursor("billing", "orders", 0, message.offset)  # doctest: +SKIP
        """
        self._portal.call(self._async.set_cursor(cursor_id, stream, partition, offset, timeout=timeout))

    def reset_cursor(
        self, cursor_id: str, stream: str, partition: int, *, timeout: float | None = None
    ) -> None:
        """Take a cursor away: :meth:`fetch_cursor` finds none from then on. There need not be one.

        Args:
            cursor_id: Whose cursor.
            stream: Name of the stream.
            partition: Number of the partition.
            timeout: Seconds for all of it; default: the client's.

        Raises:
            UsageError: An argument makes no sense, or the id or the stream's name has a comma.
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        self._portal.call(self._async.reset_cursor(cursor_id, stream, partition, timeout=timeout))

    def fetch_cursor(
        self, cursor_id: str, stream: str, partition: int, *, timeout: float | None = None
    ) -> int | None:
        """Return what :meth:`set_cursor` stored last.

        Args:
            cursor_id: Whose cursor.
            stream: Name of the stream.
            partition: Number of the partition.
            timeout: Seconds for all of it; default: the client's.

        Returns:
            The offset; None where there is none.

        Raises:
            UsageError: An argument makes no sense, or the id or the stream's name has a comma.
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        return self._portal.call(self._async.fetch_cursor(cursor_id, stream, partition, timeout=timeout))

    def checkpointer(
        self, cursor_id: str, stream: str, *, every_messages: int = 1000, every_seconds: float = 5.0
    ) -> BlockingCheckpointer:
        """Return what keeps a cursor for a reader of a stream, with few calls to the server.

        Args:
            cursor_id: Whose cursor: any text without a comma.
            stream: Name of the stream.
            every_messages: It is stored when so many messages of a partition were processed since,
            every_seconds: or when the first of them was processed so many seconds ago.

        Returns:
            The checkpointer, to be used with ``with``: leaving it stores what was processed.

        Raises:
            UsageError: An argument makes no sense, or the id or the stream's name has a comma.
        """
        return BlockingCheckpointer(
            self._portal,
            self._portal.run(
                lambda: self._async.checkpointer(
                    cursor_id, stream, every_messages=every_messages, every_seconds=every_seconds
                )
            ),
        )
