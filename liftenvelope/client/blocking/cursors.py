"""Made of client/cursors.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import Blocking

if TYPE_CHECKING:
    from liftenvelope.client.client import Client

__all__ = ["BlockingCursors"]


class BlockingCursors(Blocking):
    """Part of a client: sets, fetches and deletes cursors."""

    _async: Client

    def set_cursor(
        self, cursor_id: str, stream: str, partition: int, offset: int, *, timeout: float | None = None
    ) -> None:
        """Store a reader's offset in a partition.

        By convention this is the offset of the last processed message, so a reader continues at the next
        offset. A server writes the cursors of all readers one at a time, and each is a replicated write.
        Store cursors periodically, as :meth:`checkpointer` does, rather than after each message.

        Another reader can store a smaller offset under the same id. Cursors outlive their stream. Servers
        delete cursors that were not set for a week, unless configured otherwise.

        Args:
            cursor_id: Id of the cursor: any text without a comma.
            stream: Name of the stream.
            partition: Number of the partition.
            offset: Offset to store, 0 or more. Servers do not check that such a message exists.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            UsageError: An argument is invalid, or the id or the stream's name contains a comma.
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time. The cursor may have been stored.
            TransportError: No broker could be reached.

        Example:
            >>> client.set_cursor("billing", "orders", 0, message.offset)  # doctest: +SKIP
        """
        self._portal.call(self._async.set_cursor(cursor_id, stream, partition, offset, timeout=timeout))

    def reset_cursor(
        self, cursor_id: str, stream: str, partition: int, *, timeout: float | None = None
    ) -> None:
        """Delete a cursor: :meth:`fetch_cursor` returns None from then on. The cursor need not exist.

        Args:
            cursor_id: Id of the cursor.
            stream: Name of the stream.
            partition: Number of the partition.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            UsageError: An argument is invalid, or the id or the stream's name contains a comma.
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        self._portal.call(self._async.reset_cursor(cursor_id, stream, partition, timeout=timeout))

    def fetch_cursor(
        self, cursor_id: str, stream: str, partition: int, *, timeout: float | None = None
    ) -> int | None:
        """Return the offset last stored by :meth:`set_cursor`.

        Args:
            cursor_id: Id of the cursor.
            stream: Name of the stream.
            partition: Number of the partition.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Returns:
            The stored offset; None if there is no cursor.

        Raises:
            UsageError: An argument is invalid, or the id or the stream's name contains a comma.
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        return self._portal.call(self._async.fetch_cursor(cursor_id, stream, partition, timeout=timeout))
