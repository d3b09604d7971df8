"""Finds the publishes that nats-server has refused by the permissions of the user.

The server reports each refused publish with its subject alone. A publish that was allowed before the
permissions changed may be in flight on the same subject, and its ack is still on the way. So all messages in
flight on a subject fail together, once as many refusals have come as messages without an ack are left. Until
then, an ack or another refusal is due for at least one of them. Only some of the messages can't be chosen: a
refusal that comes after their own may be about a later message.

That counts refusals of other publishers of the connection too. So a message of before the change is taken for
refused if its ack takes longer than a comparison waits, and another publisher is refused on its subject.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from liftenvelope.errors import PermissionDeniedError

if TYPE_CHECKING:
    from liftenvelope._native import jet

__all__ = ["RefusalTimer", "RefusedPublishes"]

#: Seconds from a refusal until it is compared with the messages in flight, and more for each of these.
#: A comparison looks at all of them, and a client of a gateway may cause any number of refusals. Meanwhile,
#: acks arrive: a refusal may be of another publisher of the connection that shares the subject.
_COMPARE_AFTER: Final = 0.1
_COMPARE_EACH: Final = 1e-6


class _Published(Protocol):
    subject: str


_P = TypeVar("_P", bound=_Published)


class RefusedPublishes:
    """Refusals that are not assigned to messages yet, by subject. Sans-io.

    Example:
        >>> refusals = RefusedPublishes()
        >>> from types import SimpleNamespace
        >>> order, bill = SimpleNamespace(subject="orders"), SimpleNamespace(subject="bills")
        >>> refusals.note({"orders": 1})
        >>> refusals.settle([(order, "1"), (bill, "2"), (order, "3")])  # 1 may still get its ack
        []
        >>> [token for _, token in refusals.settle([(bill, "2"), (order, "3")])]
        ['3']
    """

    def __init__(self) -> None:
        # Number of refusals by subject.
        self._open: dict[str, int] = {}

    def __bool__(self) -> bool:
        """True while refusals are not assigned."""
        return bool(self._open)

    def note(self, refused: Mapping[str, int]) -> None:
        """Add refusals: their number by subject."""
        for subject, count in refused.items():
            self._open[subject] = self._open.get(subject, 0) + count

    def expired(self, subject: str) -> None:
        """Take back a refusal, which may be about a message whose time has passed."""
        if self._open.get(subject, 0) > 1:
            self._open[subject] -= 1
        else:
            self._open.pop(subject, None)

    def settle(self, waiting: Iterable[tuple[_P, str]]) -> list[tuple[_P, str]]:
        """Return the messages that were refused, and forget their refusals.

        Args:
            waiting: Messages without an ack, with their tokens.
        """
        found: dict[str, list[tuple[_P, str]]] = {subject: [] for subject in self._open}
        for message in waiting:
            if message[0].subject in found:
                found[message[0].subject].append(message)
        settled: list[tuple[_P, str]] = []
        for subject, messages in found.items():
            if len(messages) <= self._open[subject]:  # more are about another user of the connection
                del self._open[subject]
                settled += messages
        return settled


class RefusalTimer:
    """Fails the messages of a table that were refused.

    Args:
        table: The messages in flight.
        fail: Called with the future of a message that is no longer in the table, and its error.
    """

    def __init__(self, table: jet.PublishTable, fail: Callable[[Any, Exception], None]) -> None:
        self._table = table
        self._fail = fail
        self._refusals = RefusedPublishes()
        self._comparing: asyncio.TimerHandle | None = None

    def note(self, refused: Mapping[str, int]) -> None:
        """Compare refusals, by subject, with the messages in flight, soon and until all are assigned."""
        if self._table:
            self._refusals.note(refused)
            if self._comparing is None:
                self._compare_later()

    def expired(self, subject: str) -> None:
        """Take back a refusal, which may be about a message whose time has passed."""
        self._refusals.expired(subject)

    def stop(self) -> None:
        """Compare no more: the messages have ended."""
        if self._comparing is not None:
            self._comparing.cancel()

    def _compare_later(self) -> None:
        seconds = _COMPARE_AFTER + _COMPARE_EACH * len(self._table)
        self._comparing = asyncio.get_running_loop().call_later(seconds, self._compare)

    def _compare(self) -> None:
        self._comparing = None
        for future, token in self._refusals.settle(self._table.waiting()):
            self._table.withdraw(token)
            text = f"nats-server does not let this user publish on {future.subject!r}"
            self._fail(future, PermissionDeniedError(0, f"{text}: the message is not stored"))
        if self._refusals:
            self._compare_later()
