"""Made of client/subscribing.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from liftenvelope.client.blocking.cursors import BlockingCursors
from liftenvelope.client.blocking.merged import BlockingMergedSubscription
from liftenvelope.client.blocking.subscription import BlockingSubscription
from liftenvelope.client.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    from liftenvelope.client.merged import MergedSubscription
    from liftenvelope.client.positions import Start, Stop
    from liftenvelope.client.subscribing import SubscribeMixin

__all__ = ["BlockingSubscribe"]


class BlockingSubscribe(BlockingCursors):
    """Reading methods of the client."""

    _async: SubscribeMixin

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
    ) -> BlockingSubscription: ...

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
    ) -> BlockingMergedSubscription: ...

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
    ) -> BlockingMergedSubscription: ...

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
    ) -> BlockingSubscription | BlockingMergedSubscription:
        """Make a subscription: a read of one, several or all partitions. ``with`` opens it.

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
            The subscription, not open yet: a :class:`BlockingSubscription` for one ``partition``, else a
            :class:`BlockingMergedSubscription`.

        Raises:
            UsageError: An argument is invalid. The error names the argument.

        Example:
            >>> import liftenvelope
            >>> from liftenvelope.testing import run_liftbridge
            >>> def main(addresses):
            ...     with liftenvelope.connect_blocking(addresses) as client:
            ...         client.create_stream("numbers", "numbers")
            ...         for number in range(3):
            ...             client.publish("numbers", str(number).encode())
            ...         with client.subscribe("numbers", start=1, stop="latest") as messages:
            ...             return [message.value for message in messages]
            >>> with run_liftbridge() as cluster:
            ...     main(cluster.addresses)
            [b'1', b'2']
        """
        method: Callable[..., Subscription | MergedSubscription] = self._async.subscribe
        found = self._portal.run(
            lambda: method(
                stream,
                partition=partition,
                partitions=partitions,
                start=start,
                stop=stop,
                read_isr_replica=read_isr_replica,
                resume=resume,
                reverse=reverse,
            )
        )
        if isinstance(found, Subscription):
            return BlockingSubscription(self._portal, found)
        return BlockingMergedSubscription(self._portal, found)
