"""Cursors that seem to be ahead of their stream.

A cursor outlives its stream: ahead of the newest message, it belongs to an earlier stream of the same name.
But a server that has just become a partition's leader may not know all of its messages yet, so one answer is
not enough.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from liftenvelope.client._events import CursorAheadOfStream
from liftenvelope.client.positions import At, StartAt, offset_after, parse_start

if TYPE_CHECKING:
    from liftenvelope.client.metadata import PartitionInfo
    from liftenvelope.client.positions import Cursor

__all__ = ["SecondLook", "start_after"]

#: Seconds for which a cursor must be ahead of its stream, and seconds between two requests meanwhile.
_CERTAIN: Final = 3.0
_PAUSE: Final = 0.25
#: Seconds that a caller keeps for what follows.
_SPARE: Final = 1.0


class SecondLook:
    """Looks again at cursors that are ahead of their stream, for 3 s from the first one.

    For one partition, or for all of a subscription, whose cursors are ahead together if the stream is new.
    """

    def __init__(self) -> None:
        self._until: float | None = None

    async def newest(
        self,
        info: PartitionInfo,
        offset: int | None,
        fetch: Callable[[], Awaitable[PartitionInfo]],
        left: Callable[[], float] = lambda: math.inf,
    ) -> PartitionInfo:
        """Return the metadata of a partition, perhaps fetched again.

        Args:
            info: The metadata as fetched just now.
            offset: The offset of the cursor; None for no cursor.
            fetch: Fetches the metadata again.
            left: Returns the seconds that the caller has left. It keeps the last second for what follows.
                Default: no limit.
        """
        clock = asyncio.get_running_loop().time
        while offset is not None and info.newest_offset < offset:
            now = clock()
            if self._until is None:
                self._until = now + _CERTAIN
            if now >= self._until or left() < _SPARE:
                break
            await asyncio.sleep(_PAUSE)
            info = await fetch()
        return info


def start_after(
    stream: str, cursor: Cursor, offset: int | None, info: PartitionInfo
) -> tuple[StartAt, CursorAheadOfStream | None]:
    """Return where to start, and an event if the cursor is ahead of the stream.

    Args:
        stream: Name of the stream.
        cursor: The cursor.
        offset: The stored offset; None if it was never set.
        info: Metadata of the partition.

    Raises:
        ServerProtocolError: The partition claims to have the largest offset, and the cursor is there.
    """
    if offset is None:
        return parse_start(cursor.default, 0), None
    if offset <= info.newest_offset:
        return StartAt(At.OFFSET, offset_after(offset, f"{stream}[{info.id}]")), None
    event = CursorAheadOfStream(stream, info.id, cursor.id, offset, info.newest_offset, cursor.default)
    return parse_start(cursor.default, 0), event
