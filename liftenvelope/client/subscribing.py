"""Reading: the part of the client that makes subscriptions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, overload

from liftenvelope.client.core import check_partition, check_stream
from liftenvelope.client.cursors import CursorsMixin
from liftenvelope.client.merged import MergedSubscription
from liftenvelope.client.partition_read import GroupIdentity, PartitionRead
from liftenvelope.client.positions import At, Start, Stop, parse_start, parse_stop
from liftenvelope.client.reverse_read import ReverseRead, check_reverse
from liftenvelope.client.streams import check_partitions
from liftenvelope.client.subscription import Subscription
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftenvelope.client.positions import Cursor

__all__ = ["SubscribeMixin"]


def _wanted(
    partition: int | Literal["all"], partitions: Literal["all"] | Iterable[int] | None
) -> int | list[int] | None:
    """Return which partitions are to be read: one, several, or None for all.

    Raises:
        UsageError: They can't be, or both were given.
        UsageTypeError: One is not a number.
    """
    if partitions is None:
        return None if partition == "all" else check_partition(partition)
    if partition != 0:
        raise UsageError(f"partition={partition!r} and partitions={partitions!r} exclude each other")
    if isinstance(partitions, str):
        if partitions != "all":
            raise UsageError(f"partitions={partitions!r}: expected 'all' or numbers of partitions")
        return None
    return check_partitions(partitions)


class SubscribeMixin(CursorsMixin):
    """The part of the client that reads."""

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        partition: int = 0,
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> Subscription: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        partition: Literal["all"],
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> MergedSubscription: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        partitions: Literal["all"] | Iterable[int],
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> MergedSubscription: ...

    def subscribe(
        self,
        stream: str,
        *,
        partition: int | Literal["all"] = 0,
        partitions: Literal["all"] | Iterable[int] | None = None,
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> Subscription | MergedSubscription:
        """Make a subscription: a read of one partition, of several, or of all. ``async with`` opens it.

        Args:
            stream: Name of the stream.
            partition: Number of the partition, or ``"all"``.
            partitions: ``"all"``, or the numbers of several, to have their messages come in one; instead of
                ``partition``.
            start: Where to begin: ``"new"`` (the default) after the newest message, ``"earliest"``,
                ``"latest"`` at the newest message; an offset, whose message need not be there yet; a
                :class:`~datetime.datetime` or :class:`Timestamp`, at the first message not older; a
                :class:`~datetime.timedelta`, that long ago; or a :class:`Cursor`, after its message. With
                ``reverse``: ``"latest"`` (the default) or an offset.
            stop: Where to end: None for never, ``"latest"`` after what is the newest message when it begins
                (at once where there is none); an offset; or a time that has passed. The message there is
                still read. With ``reverse``: the lowest offset, or the earliest time, that is read.
            read_isr_replica: Whether any replica in sync may serve it, not the leader alone. It may lag.
            resume: Whether to wake the partition if it is paused.
            reverse: Whether to read from newer to older messages. Needs a Liftbridge server from 2026 on.

        Returns:
            The subscription, not open yet: a :class:`Subscription` of one partition by ``partition``, else a
            :class:`MergedSubscription`.

        Raises:
            UsageError: An argument makes no sense; it is named.

        Example:
            >>> import asyncio, liftenvelope
            >>> from liftenvelope.testing import run_liftbridge
            >>> async def main(addresses):
            ...     async with liftenvelope.connect(addresses) as client:
            ...         await client.create_stream("numbers", "numbers")
            ...         for number in range(3):
            ...             await client.publish("numbers", str(number).encode())
            ...         async with client.subscribe("numbers", start=1, stop="latest") as messages:
            ...             return [message.value async for message in messages]
            >>> with run_liftbridge() as cluster:
            ...     asyncio.run(main(cluster.addresses))
            [b'1', b'2']
        """
        check_stream(stream)
        now = time.time_ns()
        start_at = parse_start(("latest" if reverse else "new") if start is None else start, now)
        stop_at = parse_stop(stop, now)
        if reverse:
            check_reverse(start_at, stop_at)
        elif stop_at is not None and start_at.at is stop_at.at and start_at.number > stop_at.number:
            raise UsageError(f"stop={stop!r} is before start={start!r}")
        kind = ReverseRead if reverse else PartitionRead

        def make(number: int) -> Subscription:
            read = kind(stream, number, start_at, stop_at, read_isr_replica=read_isr_replica)
            return Subscription(self, read, resume=resume, find_cursor=self._find_cursor)

        numbers = _wanted(partition, partitions)
        if isinstance(numbers, int):
            return make(numbers)

        async def find() -> Sequence[Subscription]:
            if numbers is not None:
                return [make(number) for number in numbers]
            found = await self._cluster.stream(stream, self._deadline(None), refresh=True)
            return [make(number) for number in found.partitions]

        return MergedSubscription(self, stream, find)

    def _subscribe_for_group(
        self, stream: str, partition: int, start: Start, group: GroupIdentity, *, resume: bool = False
    ) -> Subscription:
        """Make the subscription of a consumer group's member, which another member's can end."""
        start_at = parse_start(start, time.time_ns())
        assert start_at.at is not At.CURSOR
        return Subscription(
            self, PartitionRead(stream, partition, start_at, None, group=group), resume=resume
        )

    async def _find_cursor(self, cursor: Cursor, read: PartitionRead) -> int | None:
        return await self.fetch_cursor(cursor.id, read.stream, read.partition)
