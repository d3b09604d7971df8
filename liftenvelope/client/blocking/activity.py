"""Made of client/activity.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import Blocking

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from liftenvelope.client.activity import ActivityEvent, ActivityStream

__all__ = ["BlockingActivityStream"]


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
