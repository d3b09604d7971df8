"""Made of client/activity.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import Blocking
from liftenvelope.client.blocking.subscribing import BlockingSubscribe

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from liftenvelope.client.activity import ActivityEvent, ActivityMixin, ActivityStream
    from liftenvelope.client.positions import Start, Stop

__all__ = ["BlockingActivity", "BlockingActivityStream"]


class BlockingActivityStream(Blocking):
    """The events of a cluster, in order. Made by :meth:`BlockingClient.activity`; open it with ``with``.

    Iterate over it. A lost connection is made again as that of a :class:`BlockingSubscription`, and the same
    errors are raised. For one thread at a time.
    """

    _async: ActivityStream

    @property
    def position(self) -> int | None:
        """Offset of the event that will be handed out next, or a later one; None before that is known."""
        return self._portal.look(lambda: self._async.position)

    @property
    def finished(self) -> bool:
        """Whether everything was handed out, the read having come to its end or been closed."""
        return self._async.finished

    def open(self) -> Self:
        """Begin to read; ``with`` does it.

        Raises:
            NoSuchStreamError: The cluster keeps no activity stream: ``activity.stream.enabled`` is not set
                in the configuration of its servers.
            NotLeaderError: The activity stream had no leader in all that time.
            CallTimeoutError: The server did not answer in time.
            TransportError: No broker could be reached.
        """
        self._portal.call(self._async.open())
        return self

    def close(self) -> None:
        """End the read. Closing twice is fine."""
        self._portal.end(self._async.close())

    def next(self, timeout: float | None = None) -> ActivityEvent | None:
        """Return the next event.

        Args:
            timeout: Seconds to wait for it, None for as long as it takes.

        Returns:
            The event. None if none came in time, or there will be no more: see :attr:`finished`.

        Raises:
            LiftEnvelopeError: What iterating would raise.
        """
        return self._portal.call(self._async.next(timeout))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ActivityEvent:
        return self._portal.next(self._async)

    def __enter__(self) -> Self:
        self._portal.call(self._async.__aenter__())
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal.end(self._async.__aexit__(exc_type, exc, traceback))


class BlockingActivity(BlockingSubscribe):
    """The part of the client that tells what happens in the cluster."""

    _async: ActivityMixin

    def activity(self, *, start: Start = "new", stop: Stop = None) -> BlockingActivityStream:
        """Read what happens to streams and consumer groups. ``with`` opens it.

        The servers record it if ``activity.stream.enabled`` is set in their configuration. An operation is
        recorded soon after it is done, and kept as long as the configuration says.

        Args:
            start: Where to begin, as :meth:`subscribe` has it: ``"new"`` after the newest event,
                ``"earliest"``, ``"latest"``, an offset such as ``event.offset + 1``, a time, or a cursor.
            stop: Where to end: None for never, ``"latest"`` after what is the newest event when it begins,
                an offset, or a time that has passed.

        Returns:
            The activity stream, not open yet.

        Raises:
            UsageError: An argument makes no sense; it is named.

        Example:
            >>> import liftenvelope
            >>> from liftenvelope.client.activity import StreamCreated
            >>> from liftenvelope.testing import run_liftbridge
            >>> def main(addresses):
            ...     with liftenvelope.connect_blocking(addresses) as client:
            ...         with client.activity(start="earliest") as events:
            ...             client.create_stream("orders", "orders", partitions=2)
            ...             for event in events:
            ...                 if isinstance(event, StreamCreated) and event.stream == "orders":
            ...                     return event.partitions
            >>> with run_liftbridge() as cluster:
            ...     main(cluster.addresses)
            (0, 1)
        """
        return BlockingActivityStream(
            self._portal, self._portal.run(lambda: self._async.activity(start=start, stop=stop))
        )
