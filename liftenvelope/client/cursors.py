"""Cursors: offsets that the cluster keeps for a reader, by name."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from liftenvelope._pb import api_pb2
from liftenvelope.client.checkpointer import Checkpointer
from liftenvelope.client.core import check_partition, check_stream, check_text
from liftenvelope.client.streams import StreamsMixin
from liftenvelope.errors import (
    CallTimeoutError,
    CursorsUnavailableError,
    InternalError,
    NoSuchPartitionError,
    NoSuchStreamError,
    UsageError,
    UsageTypeError,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

    from liftenvelope.client.cluster import Deadline

__all__ = ["CURSORS_STREAM", "CursorsMixin", "check_cursor_id", "cursor_key", "cursor_partition"]

_M = TypeVar("_M", bound="ProtobufMessage")
#: Id of the cursor, stream, partition.
CursorName: TypeAlias = tuple[str, str, int]

#: The stream that a cluster keeps cursors in. It is there only if the servers are configured to keep any.
CURSORS_STREAM: Final = "__cursors"
# What a server answers where there is no cursor, and what one is set to in order to be as good as gone.
_MISSING: Final = -1


def check_cursor_id(cursor_id: str, name: str = "cursor_id") -> str:
    """Return the id of a cursor.

    Raises:
        UsageError: It is empty, or has half a character, or a comma: servers put the id, the stream and the
            partition into one key with commas between them, without escaping any.
        UsageTypeError: It is not a str.
    """
    check_text(name, cursor_id)
    if not cursor_id or "," in cursor_id:
        raise UsageError(f"{name}={cursor_id!r}: expected at least one character, and no comma")
    return cursor_id


def cursor_key(cursor_id: str, stream: str, partition: int) -> str:
    """Return the name that servers keep a cursor under.

    Raises:
        UsageError: An argument makes no sense, or a name has a comma in it.
    """
    check_cursor_id(cursor_id)
    if "," in check_stream(stream):
        raise UsageError(f"stream={stream!r}: a stream with a comma in its name can have no cursors")
    return f"{cursor_id},{stream},{check_partition(partition)}"


def cursor_partition(key: str, partitions: int) -> int:
    """Return which partition of the cursors stream holds a cursor: CRC-32 (IEEE) of its key, unsigned.

    Example:
        >>> cursor_partition("__group:g1,foo,0", 10)
        4
    """
    return zlib.crc32(key.encode()) % partitions


def _check_offset(offset: int) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise UsageTypeError(f"offset must be an int, not {offset!r}")
    if not 0 <= offset < 2**63:
        raise UsageError(f"offset={offset!r}: expected 0 or more, below 2**63; reset_cursor() takes it away")
    return offset


class CursorsMixin(StreamsMixin):
    """The part of the client that has to do with cursors."""

    async def set_cursor(
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
            >>> await client.set_cursor("billing", "orders", 0, message.offset)  # doctest: +SKIP
        """
        key = (cursor_id, stream, partition)
        await self._write_cursor(key, _check_offset(offset), self._deadline(timeout))

    async def reset_cursor(
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
        await self._write_cursor((cursor_id, stream, partition), _MISSING, self._deadline(timeout))

    async def fetch_cursor(
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
        return await self._read_cursor((cursor_id, stream, partition), self._deadline(timeout))

    def checkpointer(
        self, cursor_id: str, stream: str, *, every_messages: int = 1000, every_seconds: float = 5.0
    ) -> Checkpointer:
        """Return what keeps a cursor for a reader of a stream, with few calls to the server.

        Args:
            cursor_id: Whose cursor: any text without a comma.
            stream: Name of the stream.
            every_messages: It is stored when so many messages of a partition were processed since,
            every_seconds: or when the first of them was processed so many seconds ago.

        Returns:
            The checkpointer, to be used with ``async with``: leaving it stores what was processed.

        Raises:
            UsageError: An argument makes no sense, or the id or the stream's name has a comma.
        """
        return Checkpointer(
            self, cursor_id, stream, every_messages=every_messages, every_seconds=every_seconds
        )

    # What follows takes a deadline of the caller's: it is used to the last while the client closes.

    async def _read_cursor(self, name: CursorName, deadline: Deadline) -> int | None:
        key, (cursor_id, stream, partition) = cursor_key(*name), name
        request = api_pb2.FetchCursorRequest(stream=stream, partition=partition, cursorId=cursor_id)
        answer = await self._cursor_call("FetchCursor", request, api_pb2.FetchCursorResponse, key, deadline)
        if answer is None:
            raise InternalError("a call that changes nothing was taken for done")
        return None if answer.offset <= _MISSING else answer.offset

    async def _write_cursor(self, name: CursorName, offset: int, deadline: Deadline) -> None:
        key, (cursor_id, stream, partition) = cursor_key(*name), name
        request = api_pb2.SetCursorRequest(
            stream=stream, partition=partition, cursorId=cursor_id, offset=offset
        )
        await self._cursor_call("SetCursor", request, api_pb2.SetCursorResponse, key, deadline)

    async def _raise_cursor(self, name: CursorName, offset: int, deadline: Deadline) -> int:
        """Set a cursor unless it is further already; return where it is."""
        stored = await self._read_cursor(name, deadline)
        if stored is not None and stored >= offset:
            return stored
        await self._write_cursor(name, offset, deadline)
        return offset

    async def _cursor_call(
        self, method: str, request: ProtobufMessage, answer: type[_M], key: str, deadline: Deadline
    ) -> _M | None:
        """Ask the server that holds a cursor; wait for cursors where the servers have only just started."""
        attempt, missing = 0, None
        while True:
            try:
                cursors = await self._cluster.stream(CURSORS_STREAM, deadline, refresh=attempt > 0)
                number = cursor_partition(key, max(len(cursors.partitions), 1))
                route = self._cluster.leader_of(CURSORS_STREAM, number)
                return await self._call(method, request, answer, deadline, f"cursor {key!r}", route)
            except (CursorsUnavailableError, NoSuchStreamError, NoSuchPartitionError) as exc:
                missing = exc
                if deadline.is_over:
                    raise _unavailable(key, exc.code) from exc
            except CallTimeoutError as exc:
                if missing is None:
                    raise
                raise _unavailable(key, missing.code) from exc
            attempt += 1
            await deadline.pause(attempt)


def _unavailable(key: str, code: int) -> CursorsUnavailableError:
    text = (
        f"cursor {key!r}: the cluster keeps no cursors (cursors.stream.partitions of its configuration is "
        "0), or it has only just started"
    )
    return CursorsUnavailableError(code, text)
