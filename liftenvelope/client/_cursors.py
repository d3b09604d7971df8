"""Cursors: named reader offsets stored in the cluster."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Final, TypeVar

from liftenvelope._checks import MAX_INT64, as_count, as_integer
from liftenvelope._pb import api_pb2
from liftenvelope.client.cursor_names import cursor_key
from liftenvelope.errors import (
    CallTimeoutError,
    CursorsUnavailableError,
    InternalError,
    NoSuchPartitionError,
    NoSuchStreamError,
    UsageError,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

    from liftenvelope._deadlines import Deadline
    from liftenvelope.client.core import ClientContext
    from liftenvelope.client.cursor_names import CursorName

__all__ = ["CURSORS_STREAM", "Cursors", "cursor_partition"]

_M = TypeVar("_M", bound="ProtobufMessage")
#: Stream in which a cluster stores cursors. It exists only if ``cursors.stream.partitions`` is above 0.
CURSORS_STREAM: Final = "__cursors"
# Offset in a server's answer if there is no cursor. Setting a cursor to it is the way to delete the cursor.
_MISSING: Final = -1


def cursor_partition(key: str, partitions: int) -> int:
    """Return the partition of the cursors stream that holds a cursor: unsigned CRC-32 (IEEE) of its key.

    Example:
        >>> cursor_partition("__group:g1,foo,0", 10)
        4
    """
    return zlib.crc32(key.encode()) % partitions


def _check_offset(offset: int) -> int:
    if as_integer("offset", offset) < 0:
        raise UsageError(f"offset must be at least 0, got {offset!r}: use reset_cursor() to delete a cursor")
    return as_count("offset", offset, 0, MAX_INT64)


class Cursors:
    """Part of a client: sets, fetches and deletes cursors."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._cluster = context.cluster

    async def set_cursor(
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
            >>> await client.set_cursor("billing", "orders", 0, message.offset)  # doctest: +SKIP
        """
        key = (cursor_id, stream, partition)
        await self.write(key, _check_offset(offset), self._context.deadline(timeout))

    async def reset_cursor(
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
        await self.write((cursor_id, stream, partition), _MISSING, self._context.deadline(timeout))

    async def fetch_cursor(
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
        return await self.read((cursor_id, stream, partition), self._context.deadline(timeout))

    # The methods below take a deadline and do not check for a closed client: they also run while it closes.

    async def read(self, name: CursorName, deadline: Deadline) -> int | None:
        """Return the stored offset of a cursor; None if there is no cursor."""
        key, (cursor_id, stream, partition) = cursor_key(*name), name
        request = api_pb2.FetchCursorRequest(stream=stream, partition=partition, cursorId=cursor_id)
        answer = await self._call("FetchCursor", request, api_pb2.FetchCursorResponse, key, deadline)
        if answer is None:
            raise InternalError("a call without effect counted as done")
        return None if answer.offset <= _MISSING else answer.offset

    async def write(self, name: CursorName, offset: int, deadline: Deadline) -> None:
        """Set a cursor, also to a smaller offset."""
        key, (cursor_id, stream, partition) = cursor_key(*name), name
        request = api_pb2.SetCursorRequest(
            stream=stream, partition=partition, cursorId=cursor_id, offset=offset
        )
        await self._call("SetCursor", request, api_pb2.SetCursorResponse, key, deadline)

    async def advance(self, name: CursorName, offset: int, deadline: Deadline) -> int:
        """Set a cursor unless a larger offset is stored; return the stored offset.

        Read and write are two calls, since servers cannot compare and set.
        """
        stored = await self.read(name, deadline)
        if stored is not None and stored >= offset:
            return stored
        await self.write(name, offset, deadline)
        return offset

    async def _call(
        self, method: str, request: ProtobufMessage, answer: type[_M], key: str, deadline: Deadline
    ) -> _M | None:
        """Call the server that holds a cursor; retry while the cursors stream is missing after a start."""
        attempt, missing = 0, None
        while True:
            try:
                cursors = await self._cluster.stream(CURSORS_STREAM, deadline, refresh=attempt > 0)
                number = cursor_partition(key, max(len(cursors.partitions), 1))
                route = self._cluster.leader_of(CURSORS_STREAM, number)
                return await self._context.call(method, request, answer, deadline, f"cursor {key!r}", route)
            except (CursorsUnavailableError, NoSuchStreamError, NoSuchPartitionError) as exc:
                missing = exc
                if deadline.is_over:
                    raise _unavailable(key, exc.code) from exc
            except CallTimeoutError as exc:
                if missing is None:
                    raise
                raise _unavailable(key, missing.code) from exc
            attempt += 1
            await asyncio.sleep(deadline.pause_before(attempt))


def _unavailable(key: str, code: int) -> CursorsUnavailableError:
    text = (
        f"cursor {key!r}: the cluster keeps no cursors (cursors.stream.partitions of its configuration is "
        "0), or it has only just started"
    )
    return CursorsUnavailableError(code, text)
