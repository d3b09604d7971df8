"""Finds the publishes that nats-server has refused by the permissions of the user.

The server reports each refused publish with its subject alone. A publish that was allowed before the
permissions changed may be in flight on the same subject, and its ack is still on the way. So all messages in
flight on a subject fail together, once as many refusals have come as messages without an ack are left. Until
then, an ack or another refusal is due for at least one of them. Only some of the messages can't be chosen: a
refusal that comes after their own may be about a later message.

A message may end before its refusal comes: it is cancelled, times out, or its inbox is closed. Such a message
counts for a while as one that is left, so that its refusal is not taken for that of another message.

Refusals are counted for all ack inboxes and JetStream contexts of a connection together. They include those
of other publishers, such as ``nc.publish``. So a message of before the change is taken for refused if its ack
takes longer than a comparison waits, and another publisher is refused on its subject.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary, ref

from liftenvelope.errors import PermissionDeniedError
from liftenvelope.nats.reports import read_refusals

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["RefusalWatch", "RefusedPublishes"]

#: Seconds from a refusal until it is compared with the messages in flight, and more for each message of the
#: last comparison. A comparison looks at all of them, at 1 us each, and a client of a gateway may cause any
#: number of refusals. Meanwhile, acks arrive: a refusal may be of another publisher of the connection.
_COMPARE_AFTER: Final = 0.1
_COMPARE_EACH: Final = 5e-6
#: Seconds in which the refusal of a message that has ended still counts as possible.
_MAY_COME: Final = 10.0
#: Most subjects of such messages. With more of them, no refusal is assigned for that time.
_MOST_ENDED: Final = 10_000

_K = TypeVar("_K")


class RefusedPublishes:
    """Refusals that are not assigned to messages yet, by subject. Sans-io.

    Example:
        >>> refusals = RefusedPublishes()
        >>> refusals.note({"orders": 1})
        >>> refusals.settle([("orders", 1), ("bills", 2), ("orders", 3)], 0.0)  # 1 may still get its ack
        []
        >>> refusals.settle([("bills", 2), ("orders", 3)], 0.1)
        [('orders', 3)]
    """

    def __init__(self) -> None:
        # Number of refusals by subject.
        self._open: dict[str, int] = {}
        # Messages whose refusals may still come, by subject: their number, and the end of the last one.
        self._ended: dict[str, tuple[int, float]] = {}
        self._blind_until = -math.inf

    def __bool__(self) -> bool:
        """True while refusals are not assigned."""
        return bool(self._open)

    def note(self, refused: Mapping[str, int]) -> None:
        """Add refusals: their number by subject."""
        for subject, count in refused.items():
            self._open[subject] = self._open.get(subject, 0) + count

    def ended(self, subject: str, now: float) -> None:
        """Note that a message was sent and has ended without an ack: a refusal may be about this one."""
        if count := self._open.pop(subject, 0):
            if count > 1:
                self._open[subject] = count - 1
            return
        if subject not in self._ended and len(self._ended) >= _MOST_ENDED:
            self._ended.clear()
            self._blind_until = now + _MAY_COME
        self._ended[subject] = (self._ended.get(subject, (0, now))[0] + 1, now)

    def settle(self, waiting: Iterable[tuple[str, _K]], now: float) -> list[tuple[str, _K]]:
        """Return the messages that were refused, and forget their refusals.

        Args:
            waiting: Subject and key of each message that was sent and has no ack.
            now: Current time in seconds, on the clock of :meth:`ended`.
        """
        found: dict[str, list[tuple[str, _K]]] = {subject: [] for subject in self._open}
        for message in waiting:
            if message[0] in found:
                found[message[0]].append(message)
        settled: list[tuple[str, _K]] = []
        for subject, messages in found.items():
            left = len(messages) + self._recently_ended(subject, now) - self._open[subject]
            if messages and left > 0:
                continue
            del self._open[subject]  # surplus refusals are about other publishers of the connection
            _, last = self._ended.pop(subject, (0, now))
            if left > 0:
                self._ended[subject] = (left, last)
            settled += messages
        return settled if now >= self._blind_until else []

    def _recently_ended(self, subject: str, now: float) -> int:
        count, last = self._ended.get(subject, (0, now))
        return count if now - last < _MAY_COME else 0


class RefusalWatch:
    """Fails the messages of a table that are refused, from :meth:`start` to :meth:`stop`.

    Args:
        nc: Connection on which the messages are sent.
        waiting: Returns the subject and a key of each message that was sent and has no ack.
        refuse: Removes a message from the table and fails it, given its key and the error.
    """

    def __init__(
        self,
        nc: Client,
        waiting: Callable[[], Iterable[tuple[str, Any]]],
        refuse: Callable[[Any, Exception], None],
    ) -> None:
        self._nc = nc
        self.waiting = waiting
        self.refuse = refuse
        self._connection: _Connection | None = None

    def start(self) -> None:
        """Begin to read the refusals of the connection."""
        known = _connections.get(self._nc)
        connection = None if known is None else known()
        if connection is None:
            connection = _Connection()
            _connections[self._nc] = ref(connection)
        connection.join(self, self._nc)
        self._connection = connection

    def ended(self, subject: str | None) -> None:
        """Note that a message was sent and has ended without an ack. None: it was not sent, so do nothing."""
        if self._connection is not None and subject is not None:
            self._connection.ended(subject)

    def stop(self) -> None:
        """End the watch. Call this before the messages in flight end. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave(self)


class _Connection:
    """Compares the refusals of a connection with the messages of all its watches."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watches: list[RefusalWatch] = []
        self._refused = RefusedPublishes()
        self._compared = 0  # messages of the last comparison
        self._comparing: asyncio.TimerHandle | None = None
        self._stop_reading: Callable[[], None] = lambda: None

    def join(self, watch: RefusalWatch, nc: Client) -> None:
        if not self._watches:
            self._stop_reading = read_refusals(nc, self._note)
        self._watches.append(watch)

    def leave(self, watch: RefusalWatch) -> None:
        self._watches.remove(watch)
        if self._watches:
            for subject, _ in watch.waiting():
                self.ended(subject)
            return
        self._stop_reading()
        self._refused = RefusedPublishes()
        if self._comparing is not None:
            self._comparing.cancel()
            self._comparing = None

    def ended(self, subject: str) -> None:
        self._refused.ended(subject, self._loop.time())

    def _note(self, refused: Mapping[str, int]) -> None:
        """Compare refusals, by subject, with the messages in flight, soon and until all are assigned."""
        self._refused.note(refused)
        if self._comparing is None:
            self._compare_later()

    def _compare_later(self) -> None:
        seconds = _COMPARE_AFTER + _COMPARE_EACH * self._compared
        self._comparing = self._loop.call_later(seconds, self._compare)

    def _compare(self) -> None:
        self._comparing = None
        waiting = [(on, (watch, key)) for watch in self._watches for on, key in watch.waiting()]
        self._compared = len(waiting)
        for subject, (watch, key) in self._refused.settle(waiting, self._loop.time()):
            text = f"nats-server does not let this user publish on {subject!r}"
            watch.refuse(key, PermissionDeniedError(0, f"{text}: the message is not stored"))
        if self._refused:
            self._compare_later()


#: The connections that are watched. Their watches keep them alive: a value that refers to its key would stay.
_connections: WeakKeyDictionary[Client, ref[_Connection]] = WeakKeyDictionary()
