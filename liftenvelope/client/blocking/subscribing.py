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
    """The part of the client that reads."""

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
        """Make a subscription: a read of one partition, of several, or of all. ``with`` opens it.

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
            The subscription, not open yet: a :class:`BlockingSubscription` of one partition by
            ``partition``, else a :class:`BlockingMergedSubscription`.

        Raises:
            UsageError: An argument makes no sense; it is named.

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
