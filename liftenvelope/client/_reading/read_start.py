"""Start and end of a read as offsets: asks for its cursor, the state of its partition, and times."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftenvelope.client._events import StoppedAtHighWatermark
from liftenvelope.client._reading.ahead import start_after
from liftenvelope.client._reading.async_start_lookup import AsyncStartLookup
from liftenvelope.client.positions import At

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftenvelope._deadlines import Deadline
    from liftenvelope.client._cursors import Cursors
    from liftenvelope.client._reading.ahead import SecondLook
    from liftenvelope.client._streams import Streams
    from liftenvelope.client.core import ClientContext
    from liftenvelope.client.metadata import PartitionInfo, StreamInfo
    from liftenvelope.client.partition_read import PartitionRead
    from liftenvelope.client.positions import StartAt

__all__ = ["ReadStart"]

# Polls to wait for the newest message to commit, and the seconds before each. Counted in answers, not in
# seconds, because a stalled server neither commits nor answers.
_COMMIT_ANSWERS: Final = 30
_COMMIT_POLL: Final = 0.05


class ReadStart:
    """Resolves the start and the stop of a read before its first call.

    Args:
        context: State that the parts of the client share.
        streams: Asks the leader for the state of the partition.
        cursors: Looks up a start after a cursor.
        read: The read.
        second_look: Looks again at a cursor that is ahead of its stream.
    """

    def __init__(
        self,
        context: ClientContext,
        streams: Streams,
        cursors: Cursors,
        read: PartitionRead,
        second_look: SecondLook,
    ) -> None:
        self._cluster = context.cluster
        self._notify = context.options.notify
        self._streams = streams
        self._cursors = cursors
        self._read = read
        self._second_look = second_look

    async def begin(self, deadline: Deadline, probe: Callable[[Deadline], Awaitable[None]]) -> None:
        """Begin the read.

        Args:
            deadline: Deadline over all calls.
            probe: Subscribes once to the partition, to find out if it is paused.
        """
        read, start = self._read, self._read.start
        found: int | None = None
        if start.cursor is not None:
            found = await self._cursors.fetch_cursor(start.cursor.id, read.stream, read.partition)
        # Not from the cache: the creation time of an earlier stream of that name would fail the read later.
        stream = await self._cluster.stream(read.stream, deadline, refresh=True)
        read.created_ns = stream.created_ns
        info = await self._info(stream, deadline, probe) if read.needs_info else None
        if info is not None:
            start, info = await self._after_cursor(start, found, info, deadline)
            if read.ends_at_newest:
                info = await self._committed(info, deadline)
        first = None
        if start.at is At.TIME and info is not None:
            lookup = AsyncStartLookup(self._cluster, read.stream, read.partition, deadline)
            first = await lookup.at_time(start.number, info.newest_offset)
        read.begin(start, info, first)

    async def _info(
        self, stream: StreamInfo, deadline: Deadline, probe: Callable[[Deadline], Awaitable[None]]
    ) -> PartitionInfo:
        known = stream.partitions.get(self._read.partition)
        if known is not None and known.paused:
            # A paused partition has no leader to ask, and servers may never clear the flag.
            await probe(deadline)
        return await self._fetch_info(deadline)

    async def _fetch_info(self, deadline: Deadline) -> PartitionInfo:
        fetch = self._streams.fetch_partition_metadata
        return await fetch(self._read.stream, self._read.partition, timeout=deadline.left)

    async def _after_cursor(
        self, start: StartAt, found: int | None, info: PartitionInfo, deadline: Deadline
    ) -> tuple[StartAt, PartitionInfo]:
        """Return the start after a cursor, and newer state of the partition if the cursor is ahead of it."""
        if start.cursor is None:
            return start, info
        info = await self._second_look.newest(
            info, found, lambda: self._fetch_info(deadline), lambda: deadline.left
        )
        start, ahead = start_after(self._read.stream, start.cursor, found, info)
        if ahead is not None:
            self._notify(ahead)
        return start, info

    async def _committed(self, info: PartitionInfo, deadline: Deadline) -> PartitionInfo:
        """Wait until the message that is the newest now is committed; emit an event if that fails."""
        newest = info.newest_offset
        for _ in range(_COMMIT_ANSWERS):
            if info.high_watermark >= newest or deadline.is_over:
                break
            await asyncio.sleep(min(_COMMIT_POLL, deadline.left))
            info = await self._fetch_info(deadline)
        if info.high_watermark < newest:
            read = self._read
            self._notify(StoppedAtHighWatermark(read.stream, read.partition, info.high_watermark, newest))
        return info
