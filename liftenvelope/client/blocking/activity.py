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
    """Iterates over the events of a cluster in order. Made by :meth:`BlockingClient.activity`.

    Open it with ``with``. It reconnects like a :class:`BlockingSubscription`, and raises the same errors.
    For one thread at a time.
    """

    _async: ActivityStream

    @property
    def position(self) -> int | None:
        """Lower bound of the next event's offset; None until the start is known."""
        return self._portal.look(lambda: self._async.position)

    @property
    def finished(self) -> bool:
        """True once all events were returned: the read reached its end or was closed."""
        return self._async.finished

    def open(self) -> Self:
        """Start the read; ``with`` does it.

        Raises:
            NoSuchStreamError: The cluster keeps no activity stream: ``activity.stream.enabled`` is not set
                in the configuration of its servers.
            NotLeaderError: The activity stream had no leader until the timeout.
            CallTimeoutError: The server did not answer in time.
            TransportError: No broker could be reached.
        """
        self._portal.call(self._async.open())
        return self

    def close(self) -> None:
        """End the read. Closing twice has no effect."""
        self._portal.end(self._async.close())

    def next(self, timeout: float | None = None) -> ActivityEvent | None:
        """Return the next event.

        Args:
            timeout: Seconds to wait for an event; None waits without limit.

        Returns:
            The event; None on timeout, or if there are no more events (:attr:`finished` is True then).

        Raises:
            LiftEnvelopeError: As iteration does.
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
    """Client methods for the activity stream."""

    _async: ActivityMixin

    def activity(self, *, start: Start = "new", stop: Stop = None) -> BlockingActivityStream:
        """Read the events of streams and consumer groups. ``with`` opens the read.

        Servers record events only if ``activity.stream.enabled`` is set in their configuration. A server
        records an operation soon after it is done. The server's configuration sets the retention.

        Args:
            start: First event to read, as in :meth:`subscribe`: ``"new"`` after the newest event,
                ``"earliest"``, ``"latest"``, an offset such as ``event.offset + 1``, a time, or a cursor.
            stop: Last event to read: None for no end, ``"latest"`` for the newest event at the start of the
                read, an offset, or a time in the past.

        Returns:
            The activity stream, not open yet.

        Raises:
            UsageError: An argument is invalid; the message names it.

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
