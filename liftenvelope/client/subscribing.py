"""Reading methods of the client: make subscriptions."""

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
    """Return the partitions to read: one number, a list, or None for all.

    Raises:
        UsageError: A number is invalid, or both arguments were given.
        UsageTypeError: A number is not an int.
    """
    if partitions is None:
        return None if partition == "all" else check_partition(partition)
    if partition != 0:
        raise UsageError(
            f"partition {partition!r} and partitions {partitions!r} exclude each other; leave one of them out"
        )
    if isinstance(partitions, str):
        if partitions != "all":
            raise UsageError(f"partitions must be 'all' or numbers of partitions, got {partitions!r}")
        return None
    return check_partitions(partitions)


class SubscribeMixin(CursorsMixin):
    """Reading methods of the client."""

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
        """Make a subscription: a read of one, several or all partitions. ``async with`` opens it.

        Args:
            stream: Name of the stream.
            partition: Number of the partition, or ``"all"``. Default 0.
            partitions: ``"all"``, or the numbers of several partitions to merge into one subscription;
                instead of ``partition``.
            start: Start of the read. ``"new"`` (the default): after the newest message. ``"earliest"``: at
                the oldest message. ``"latest"``: at the newest message. An offset: at that message, which may
                not exist yet. A :class:`~datetime.datetime` or :class:`Timestamp`: at the first message at or
                after that time. A :class:`~datetime.timedelta`: that long ago. A :class:`Cursor`: after the
                cursor's message. With ``reverse``: ``"latest"`` (the default) or an offset.
            stop: End of the read, inclusive. None (the default): no end. ``"latest"``: at the message that is
                the newest one when the read begins, or at once if there is none. An offset, or a time in the
                past. With ``reverse``: the lowest offset, or the earliest time, to read.
            read_isr_replica: Whether any in-sync replica may serve the read. Replicas may lag behind the
                leader. Default False: the leader only.
            resume: Whether to wake the partition if it is paused. Default False.
            reverse: Whether to read from newer to older messages. Needs a Liftbridge server from 2026 on.

        Returns:
            The subscription, not open yet: a :class:`Subscription` for one ``partition``, else a
            :class:`MergedSubscription`.

        Raises:
            UsageError: An argument is invalid. The error names the argument.

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
            raise UsageError(f"stop must not be before start, {start!r}, got {stop!r}")
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
        """Make a subscription for a consumer group member. A subscription of another member can end it."""
        start_at = parse_start(start, time.time_ns())
        assert start_at.at is not At.CURSOR
        return Subscription(
            self, PartitionRead(stream, partition, start_at, None, group=group), resume=resume
        )

    async def _find_cursor(self, cursor: Cursor, read: PartitionRead) -> int | None:
        return await self.fetch_cursor(cursor.id, read.stream, read.partition)
