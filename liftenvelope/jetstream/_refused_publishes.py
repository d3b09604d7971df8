"""Finds the publishes that nats-server has refused by the permissions of the user.

The server reports each refused publish with its subject alone. A publish that was allowed before the
permissions changed may be in flight on the same subject, and its ack is still on the way. So the messages
in flight on a subject at its first refusal fail together, once as many refusals have come as messages without
an ack are left. Until then, an ack or another refusal is due for at least one of them.

Refusals of other publishers of the connection count as well. So on a subject with an answer, such as an ack,
the messages that were sent before its first refusal wait for their acks. Later ones fail as above.
Left is a message on a subject without any answer so far, and another publisher on the same subject of the
connection: if the permission is taken away while the message is in flight, it may fail although it is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from liftenvelope.errors import PermissionDeniedError

if TYPE_CHECKING:
    from liftenvelope._native import jet
    from liftenvelope.nats.subjects import CommandHeads

__all__ = ["RefusalTimer", "RefusedPublishes"]

#: Seconds from a refusal until it is compared with the messages in flight, and more for each of these.
#: A comparison looks at all of them, and a client of a gateway may cause any number of refusals.
_COMPARE_AFTER: Final = 0.01
_COMPARE_EACH: Final = 1e-6
#: Most subjects to remember. Beyond them, a subject counts as one that may have had an answer.
_SUBJECTS: Final = 16_384


class _Published(Protocol):
    subject: str


_P = TypeVar("_P", bound=_Published)


class RefusedPublishes:
    """Refusals that are not assigned to messages yet, by subject. Sans-io.

    Example:
        >>> refusals = RefusedPublishes()
        >>> from types import SimpleNamespace
        >>> order, bill = SimpleNamespace(subject="orders"), SimpleNamespace(subject="bills")
        >>> refusals.note({"orders": 1}, last=3)
        >>> refusals.settle([(order, "1"), (bill, "2"), (order, "3")])  # 1 may still get its ack
        []
        >>> [token for _, token in refusals.settle([(bill, "2"), (order, "3")])]
        ['3']
    """

    def __init__(self) -> None:
        # Number of refusals, and of the last message that was sent before the first of them.
        self._open: dict[str, tuple[int, int]] = {}

    def __bool__(self) -> bool:
        """True while refusals are not assigned."""
        return bool(self._open)

    def note(self, refused: Mapping[str, int], last: int) -> None:
        """Add refusals.

        Args:
            refused: Number of refusals by subject.
            last: Number of the last message that was sent.
        """
        for subject, count in refused.items():
            before, its_last = self._open.get(subject, (0, last))
            self._open[subject] = before + count, its_last

    def forget(self, subject: str) -> None:
        """Forget the refusals on a subject: publishes are allowed, or were a moment ago."""
        self._open.pop(subject, None)

    def settle(self, waiting: Iterable[tuple[_P, str]]) -> list[tuple[_P, str]]:
        """Return the messages that were refused, and forget their refusals.

        Args:
            waiting: Messages without an ack in the order of sending, with their numbers as text.
        """
        found: dict[str, list[tuple[_P, str]]] = {subject: [] for subject in self._open}
        for message in waiting:
            if message[0].subject in found:
                found[message[0].subject].append(message)
        settled: list[tuple[_P, str]] = []
        for subject, messages in found.items():
            count, last = self._open.pop(subject)
            old = [message for message in messages if int(message[1]) <= last]
            if len(old) > count:
                self._open[subject] = count, last
                continue
            settled += old
            # The rest is about later messages, or about those of another user of the connection.
            if len(messages) > len(old) and count > len(old):
                self._open[subject] = count - len(old), int(messages[-1][1])
        return settled


class RefusalTimer:
    """Fails the messages of a table that were refused.

    Args:
        table: The messages in flight.
        heads: Subjects of messages that need not be passed to :meth:`follow`.
        fail: Called with the future of a message that is no longer in the table, and its error.
    """

    def __init__(
        self, table: jet.PublishTable, heads: CommandHeads, fail: Callable[[Any, Exception], None]
    ) -> None:
        self._table = table
        self._heads = heads
        self._fail = fail
        # Subjects with an answer since the last refusal; numbers of the last messages that were sent before
        # the first refusal since the last answer; True once any other subject may have had an answer.
        self._answered: set[str] = set()
        self._refused_from: dict[str, int] = {}
        self._is_full = False
        self._refusals = RefusedPublishes()
        self._comparing: asyncio.TimerHandle | None = None

    def note(self, refused: Mapping[str, int]) -> None:
        """Compare refusals, by subject, with the messages in flight, soon and until all are assigned."""
        last = int(self._table.token)
        answered = [subject for subject in refused if self._may_be_answered(subject)]
        for subject in answered:
            self._answered.discard(subject)
            self._heads.known.pop(subject, None)
            if len(self._refused_from) >= _SUBJECTS:
                self._refused_from.clear()
                self._is_full = True
            self._refused_from[subject] = last
        others = {subject: refused[subject] for subject in refused.keys() - answered}
        if self._table and others:
            self._refusals.note(others, last)
            if self._comparing is None:
                self._compare_later()

    def follow(self, future: Any) -> None:
        """Notice the answer to a message that is about to be sent, unless its subject has had one."""
        if not self._may_be_answered(future.subject):
            self._heads.known.pop(future.subject, None)  # so that the next message is followed as well
            future.add_done_callback(self._note_answer)

    def _may_be_answered(self, subject: str) -> bool:
        return subject in self._answered or (self._is_full and subject not in self._refused_from)

    def _note_answer(self, future: Any) -> None:
        """Note the end of a message that was not refused. Its outcome may be unknown, so it may be stored."""
        self._refusals.forget(future.subject)
        self._refused_from.pop(future.subject, None)
        if len(self._answered) < _SUBJECTS:
            self._answered.add(future.subject)
        else:
            self._is_full = True
        self._heads.of(future.subject)

    def stop(self) -> None:
        """Compare no more: the messages have ended."""
        if self._comparing is not None:
            self._comparing.cancel()

    def _compare_later(self) -> None:
        seconds = _COMPARE_AFTER + _COMPARE_EACH * len(self._table)
        self._comparing = asyncio.get_running_loop().call_later(seconds, self._compare)

    def _compare(self) -> None:
        self._comparing = None
        since = self._refused_from
        waiting = [one for one in self._table.waiting() if int(one[1]) > since.get(one[0].subject, 0)]
        for future, token in self._refusals.settle(waiting):
            self._table.withdraw(token)
            future.remove_done_callback(self._note_answer)
            text = f"nats-server does not let this user publish on {future.subject!r}"
            self._fail(future, PermissionDeniedError(0, f"{text}: the message is not stored"))
        if self._refusals:
            self._compare_later()
