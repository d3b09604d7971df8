"""Subscriptions of a client: for its callers, and for members of consumer groups."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from liftenvelope._checks import as_flag
from liftenvelope.client._reading.ahead import SecondLook
from liftenvelope.client._reading.merged import MergedSubscription
from liftenvelope.client._reading.reverse_read import ReverseRead, check_reverse
from liftenvelope.client._reading.subscription import Subscription
from liftenvelope.client._streams import check_partitions
from liftenvelope.client.core import check_partition, check_stream
from liftenvelope.client.partition_read import GroupIdentity, PartitionRead
from liftenvelope.client.positions import At, Start, Stop, parse_start, parse_stop
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftenvelope.client._cursors import Cursors
    from liftenvelope.client._streams import Streams
    from liftenvelope.client.core import ClientContext

__all__ = ["Subscriptions"]


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


class Subscriptions:
    """Part of a client: makes subscriptions.

    Args:
        context: State shared by the parts.
        streams: Asks leaders for the state of their partitions.
        cursors: Looks up the start of a subscription that starts after a cursor.
    """

    def __init__(self, context: ClientContext, streams: Streams, cursors: Cursors) -> None:
        self._context = context
        self._streams = streams
        self._cursors = cursors

    def subscribe(
        self,
        stream: str,
        *,
        partition: int | Literal["all"],
        partitions: Literal["all"] | Iterable[int] | None,
        start: Start | None,
        stop: Stop,
        read_isr_replica: bool,
        resume: bool,
        reverse: bool,
    ) -> Subscription | MergedSubscription:
        """Check the arguments of :meth:`Client.subscribe` and make the subscription."""
        check_stream(stream)
        for name, flag in (
            ("read_isr_replica", read_isr_replica),
            ("resume", resume),
            ("reverse", reverse),
        ):
            as_flag(name, flag)
        now = time.time_ns()
        start_at = parse_start(("latest" if reverse else "new") if start is None else start, now)
        stop_at = parse_stop(stop, now)
        if reverse:
            check_reverse(start_at, stop_at)
        elif stop_at is not None and start_at.at is stop_at.at and start_at.number > stop_at.number:
            raise UsageError(f"stop must not be before start, {start!r}, got {stop!r}")
        kind, second_look = ReverseRead if reverse else PartitionRead, SecondLook()

        def make(number: int) -> Subscription:
            read = kind(stream, number, start_at, stop_at, read_isr_replica=read_isr_replica)
            return self._make(read, second_look, resume=resume)

        numbers = _wanted(partition, partitions)
        if isinstance(numbers, int):
            return make(numbers)

        async def find() -> Sequence[Subscription]:
            if numbers is not None:
                return [make(number) for number in numbers]
            found = await self._context.cluster.stream(stream, self._context.deadline(None), refresh=True)
            return [make(number) for number in found.partitions]

        return MergedSubscription(self._context, stream, find)

    def subscribe_for_group(
        self, stream: str, partition: int, start: Start, group: GroupIdentity, *, resume: bool = False
    ) -> Subscription:
        """Make a subscription for a consumer group member. A subscription of another member can end it."""
        start_at = parse_start(start, time.time_ns())
        assert start_at.at is not At.CURSOR
        read = PartitionRead(stream, partition, start_at, None, group=group)
        return self._make(read, SecondLook(), resume=resume)

    def _make(self, read: PartitionRead, second_look: SecondLook, *, resume: bool) -> Subscription:
        return Subscription(self._context, self._streams, self._cursors, read, second_look, resume=resume)
