"""What the generated blocking classes are made of. Written by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from liftenvelope.client.portal import Portal
from liftenvelope.errors import TransportError

if TYPE_CHECKING:
    from types import TracebackType

    from liftenvelope.client.client import Client
    from liftenvelope.client.message_reader import MessageReader
    from liftenvelope.envelope import Message

__all__ = ["Blocking", "BlockingCore", "BlockingReader", "open_client"]

_B = TypeVar("_B", bound="BlockingCore")


class Blocking:
    """An async object, and the portal to the event loop that it lives in."""

    _async: Any

    def __init__(self, portal: Portal, target: object) -> None:
        self._portal = portal
        self._async = target


class BlockingCore(Blocking):
    """A blocking client without any method of its own."""

    def close(self) -> None:
        """End every subscription, publish and consumer of this client, its connections, and its thread.

        Closing twice is fine. Calls of other threads that are under way end with ``TransportError``.
        """
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class BlockingReader(Blocking):
    """Iterates over a reader of messages, of which the async one holds a list at a time.

    Most messages are taken from that list right here; the loop is visited once for each list.
    """

    _async: MessageReader

    def __init__(self, portal: Portal, target: MessageReader) -> None:
        super().__init__(portal, target)
        self._filling = threading.Lock()

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has ended."""
        return self._async.closed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        try:
            # The loop replaces or clears the list, and only in calls that are made here: pop() is one step.
            return self._async._buffer.pop()
        except IndexError:
            return self._next_of_more()

    def _next_of_more(self) -> Message:
        """Return a message of the next list, which one thread fetches for all."""
        try:
            with self._filling:
                return self._portal.next(self._async)
        except TransportError as exc:
            if self._portal.is_closed and exc is not self._async._failure:
                raise StopIteration from None  # the client was closed, and with it this
            raise


def open_client(kind: type[_B], make: Callable[[], Client]) -> _B:
    """Return an open client of the given kind around the async client that ``make`` returns."""
    portal = Portal()
    try:
        client = portal.run(make)
        portal.before_end(client.close)
        portal.call(client.open())
    except BaseException:
        portal.close()
        raise
    return kind(portal, client)
