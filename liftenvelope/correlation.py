"""Table of publishes that wait for acks, without socket, clock or ``await``.

Acks are matched to messages by correlation id alone. :class:`PendingAcks` holds every publish that waits for
an ack. For each ack it returns the completed entry, or classifies the ack as a stray. The code around it (an
ack inbox, a publisher, a Spark task) owns the clock and the futures.

The layout handles a million entries and about 200,000 acks per second:

* An entry has no object of its own. Its context is stored in its *bucket*, a plain dict of all entries whose
  deadlines fall into the same time slice. An index maps the entry's id to that bucket.
* A heap holds the ends of the slices. Expiry removes whole buckets, so no entry needs a timer. A completed
  entry leaves both dicts at once, not at its deadline.
* A generated id is a prefix and a counter. The id itself shows that this table generated it, so no record of
  answered ids is needed.
"""

from __future__ import annotations

import math
import sys
from enum import Enum
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from liftenvelope._checks import as_count
from liftenvelope._deadlines import DeadlineBuckets, repack
from liftenvelope._wire import IdSource, RecentIds
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from liftenvelope.envelope import Ack

__all__ = ["Ended", "PendingAcks", "PendingStats", "Resolved", "Stray"]

#: A completed entry: its context, and the ack (``expected=1``) or the tuple of all acks of the entry in order
#: of arrival (any other ``expected``). A bare tuple, because this is the hot path.
Resolved: TypeAlias = "tuple[Any, Ack | tuple[Ack, ...]]"

_Bucket: TypeAlias = dict[str, Any]


class Stray(Enum):
    """Kind of an ack that completes no entry."""

    #: The entry had expired, was cancelled or was failed.
    LATE = "late"
    #: The entry had already received all expected acks.
    DUPLICATE = "duplicate"
    #: The id was never registered in this table, or too long ago to be remembered.
    UNKNOWN = "unknown"


class Ended(NamedTuple):
    """An entry that ended by its deadline or by :meth:`PendingAcks.fail_all`, not by its last ack.

    Attributes:
        correlation_id: Id of the entry.
        context: Context given at registration.
        acks: Acks received, in order. Always empty for ``expected=1``.
        expected: Number of acks expected; None for an entry that collects until its deadline.
        error: Error given to :meth:`PendingAcks.fail_all`; None at a deadline.
    """

    correlation_id: str
    context: Any
    acks: tuple[Ack, ...]
    expected: int | None
    error: BaseException | None = None

    @property
    def complete(self) -> bool:
        """True if the entry succeeded: it collected acks until its deadline (``expected=None``).

        False if acks may be missing: the outcome of the message is unknown.
        """
        return self.expected is None and self.error is None


class PendingStats(NamedTuple):
    """Counts since the creation of the table.

    Invariant: ``registered`` is the sum of ``outstanding``, ``completed``, ``expired``, ``cancelled`` and
    ``failed``.

    Attributes:
        registered: Entries registered, under generated or user-supplied ids.
        outstanding: Entries that still wait.
        completed: Entries that got all their acks, or collected until their deadline.
        expired: Entries with missing acks at their deadline.
        cancelled: Entries that were cancelled.
        failed: Entries ended by ``fail_all``.
        late: Acks of kind :attr:`Stray.LATE`.
        duplicate: Acks of kind :attr:`Stray.DUPLICATE`.
        unknown: Acks of kind :attr:`Stray.UNKNOWN`.
    """

    registered: int
    outstanding: int
    completed: int
    expired: int
    cancelled: int
    failed: int
    late: int
    duplicate: int
    unknown: int


class PendingAcks:
    """Publishes that wait for acks, by correlation id. Not thread-safe.

    Every operation takes constant time; expiry does so amortised. An entry takes about 60 bytes plus its
    context and its id (another 60 bytes if generated), and 70 to 110 bytes more if ``expected`` is not 1. The
    memory of ended entries is freed at once, or amortised over later entries.

    Args:
        on_stray: Called with each ack that completes no entry, and its kind. The ack is counted before the
            call, and the callback may use the table. An :class:`Exception` from the callback goes to
            ``sys.excepthook``: raised from :meth:`resolve`, it would cost the caller the acks that follow. To
            handle errors elsewhere, catch them in the callback.
        resolution: Width of a deadline slice, in seconds. No entry expires before its deadline, or later
            than one resolution after its deadline if :meth:`expire` is called in time. Default 0.05.
        remember: Number of recent ids kept to classify stray acks: at least this many and at most twice as
            many of ended entries (expired, cancelled or failed), and the same number of entries completed
            under user-supplied ids. A late ack for an older entry counts as duplicate if its id was
            generated, otherwise as unknown. Default 65,536: up to 12 MB for each of the two sets.

    Raises:
        UsageError: ``resolution`` is not positive and finite, or ``remember`` is less than 1.

    Example:
        >>> from types import SimpleNamespace
        >>> pending = PendingAcks()
        >>> first = pending.register(deadline=5.0, context="order 1")
        >>> second = pending.register("order-2", deadline=5.0, context="order 2")
        >>> context, ack = pending.resolve(SimpleNamespace(correlation_id=first, offset=41))
        >>> context, ack.offset
        ('order 1', 41)
        >>> 5.0 < pending.next_expiry() < 5.06
        True
        >>> [(entry.context, entry.complete) for entry in pending.expire(5.06)]
        [('order 2', False)]
    """

    def __init__(
        self,
        *,
        on_stray: Callable[[Ack, Stray], None] | None = None,
        resolution: float = 0.05,
        remember: int = 65_536,
    ) -> None:
        remember = as_count("remember", remember)
        self._on_stray = on_stray
        self._deadlines = DeadlineBuckets(resolution)
        self._bucket = self._deadlines.bucket
        self._ids = IdSource()
        self._next_id = self._ids.stream.__next__
        # Generated ids with one expected ack have their own index, so that the hot path has no branches.
        self._singles: dict[str, _Bucket] = {}
        self._others: dict[str, _Bucket] = {}
        self._late = RecentIds(remember)
        self._done = RecentIds(remember)
        self._named = self._expired = self._cancelled = self._failed = 0
        self._late_acks = self._duplicate_acks = self._unknown_acks = 0

    def register(
        self,
        correlation_id: str | None = None,
        *,
        deadline: float,
        expected: int | None = 1,
        context: object = None,
    ) -> str:
        """Add an entry.

        Args:
            correlation_id: The id that the acks will carry. Default: a generated id of at least 8 characters
                (10 at the millionth). Generated ids are unique within the table. The chance that two tables
                share a prefix is one in 2 ** 36.
            deadline: Time to give up, in seconds of the clock used for :meth:`expire`.
            expected: Number of acks that complete the entry: the number of streams that record the subject.
                None collects acks until the deadline. Default 1.
            context: Any object, returned with the outcome. Default None.

        Returns:
            The id.

        Raises:
            UsageError: The id is already outstanding, is empty, or is reserved for a later generated id;
                ``expected`` is less than 1; the deadline is not finite. Nothing was registered.
            UsageTypeError: An argument has the wrong type.
        """
        bucket = self._bucket(deadline)
        if correlation_id is None and expected == 1:
            new_id = self._next_id()
            self._singles[new_id] = bucket
            bucket[new_id] = context
            return new_id
        return self._register_other(correlation_id, bucket, expected, context)

    def register_many(
        self, contexts: int | Iterable[object], *, deadline: float, expected: int | None = 1
    ) -> list[str]:
        """Add a batch of entries under generated ids, without running Python code per entry.

        Args:
            contexts: The context of each entry, or the number of entries, whose contexts are then None. Use
                ``itertools.repeat(batch, n)`` to give all entries the same context.
            deadline: Deadline of all entries, as in :meth:`register`.
            expected: Number of acks for each entry, as in :meth:`register`. Default 1.

        Returns:
            The ids, in the order of the contexts.

        Raises:
            UsageError: As in :meth:`register`; or the number is negative. Nothing was registered.
            UsageTypeError: As in :meth:`register`.
        """
        values = _contexts(contexts)
        _check_expected(expected)
        bucket = self._bucket(deadline)
        ids = list(islice(self._ids.stream, len(values)))
        index = self._singles if expected == 1 else self._others
        index.update(zip(ids, repeat(bucket), strict=False))
        bucket.update(zip(ids, _values(values, expected), strict=True))
        return ids

    def register_ids(
        self,
        correlation_ids: Iterable[str],
        contexts: Iterable[object] | None = None,
        *,
        deadline: float,
        expected: int | None = 1,
    ) -> list[str]:
        """Add a batch of entries under user-supplied ids: all entries or none.

        Args:
            correlation_ids: The ids.
            contexts: The context of each entry, in the order of the ids. Default: None for each.
            deadline: Deadline of all entries, as in :meth:`register`.
            expected: Number of acks for each entry, as in :meth:`register`. Default 1.

        Returns:
            The ids.

        Raises:
            UsageError: As in :meth:`register`; or an id repeats; or the numbers of contexts and ids differ.
                Nothing was registered.
            UsageTypeError: As in :meth:`register`.
        """
        ids = list(correlation_ids)
        values = _contexts(len(ids) if contexts is None else contexts)
        if len(values) != len(ids):
            raise UsageError(
                f"contexts must be as many as the correlation ids, {len(ids)}, got {len(values)}"
            )
        _check_expected(expected)
        self._check_ids(ids)
        bucket = self._bucket(deadline)
        self._named += len(ids)
        self._others.update(zip(ids, repeat(bucket), strict=False))
        bucket.update(zip(ids, _values(values, expected), strict=True))
        return ids

    def resolve(self, ack: Ack) -> Resolved | None:
        """Match an ack to its entry.

        An ack with an error completes its entry like any other: the caller must check the ack.

        Args:
            ack: The ack. Only its ``correlation_id`` is used.

        Returns:
            The context and the ack or acks of the completed entry (:data:`Resolved`). None if the entry
            needs more acks, or the ack is a stray.
        """
        correlation_id = ack.correlation_id
        singles = self._singles
        bucket = singles.pop(correlation_id, None)
        if bucket is None:
            return self._resolve_other(ack, correlation_id)
        context = bucket.pop(correlation_id)
        if not bucket:
            # A dict emptied by pop() keeps its hash table, which may be as large as the largest burst.
            bucket.clear()
            if not singles:
                singles.clear()
        return context, ack

    def expire(self, now: float) -> list[Ended]:
        """Remove the entries whose deadlines have passed.

        Args:
            now: Current time in seconds, on the clock of the deadlines.

        Returns:
            The removed entries, by deadline slice and then in order of registration. Entries with
            :attr:`Ended.complete` have succeeded; the others have timed out.
        """
        expired: list[Ended] = []
        for bucket in self._deadlines.pop_due(now):
            self._forget(bucket)
            expired += [Ended(*fields) for fields in _entries(bucket)]
        self._expired += sum(not entry.complete for entry in expired)
        return expired

    def next_expiry(self) -> float | None:
        """Return the time when :meth:`expire` next has work.

        Returns:
            The time in seconds, on the clock of the deadlines; None if nothing is outstanding. A later
            registration can make it earlier.
        """
        return self._deadlines.next_end()

    def waiting(self) -> Iterator[tuple[str, Any]]:
        """Yield id and context of each entry without an ack. Do not change the table during the iteration."""
        entries = chain.from_iterable(map(_entries, self._deadlines))
        return ((correlation_id, context) for correlation_id, context, acks, _ in entries if not acks)

    def cancel(self, correlation_id: str) -> bool:
        """Cancel an entry. Later acks for it count as late.

        Args:
            correlation_id: Id of the entry.

        Returns:
            True if the entry was outstanding.
        """
        bucket = self._singles.get(correlation_id) or self._others.get(correlation_id)
        if bucket is None:
            return False
        self._remove(correlation_id, bucket)
        self._late.add(correlation_id)
        self._cancelled += 1
        return True

    def fail_all(self, error: BaseException) -> list[Ended]:
        """End every entry with an error, for example because the connection is closed.

        The table stays usable. Later acks for these entries count as late.

        Args:
            error: The reason. It is returned with each entry.

        Returns:
            All entries that were outstanding, in the order of :meth:`expire`.
        """
        failed: list[Ended] = []
        for bucket in self._deadlines.pop_due(math.inf):
            self._forget(bucket)
            failed += [Ended(*fields, error) for fields in _entries(bucket)]
        self._failed += len(failed)
        return failed

    @property
    def stats(self) -> PendingStats:
        """Current counts."""
        registered = self._ids.issued + self._named
        given_up = self._expired + self._cancelled + self._failed
        completed = registered - len(self) - given_up
        ended = (completed, self._expired, self._cancelled, self._failed)
        strays = (self._late_acks, self._duplicate_acks, self._unknown_acks)
        return PendingStats(registered, len(self), *ended, *strays)

    def __len__(self) -> int:
        return len(self._singles) + len(self._others)

    def __contains__(self, correlation_id: object) -> bool:
        return correlation_id in self._singles or correlation_id in self._others

    def _register_other(
        self, correlation_id: str | None, bucket: _Bucket, expected: int | None, context: object
    ) -> str:
        _check_expected(expected)
        if correlation_id is None:
            correlation_id = self._next_id()
        else:
            self._check_ids([correlation_id])
            self._named += 1
        self._others[correlation_id] = bucket
        bucket[correlation_id] = context if expected == 1 else _Gathering(context, expected)
        return correlation_id

    def _check_ids(self, ids: Sequence[str]) -> None:
        seen: set[str] = set()
        for correlation_id in ids:
            if not isinstance(correlation_id, str):
                raise UsageTypeError(f"correlation_id must be str, got {type(correlation_id).__name__}")
            if not correlation_id:
                raise UsageError("correlation_id must not be empty, got ''")
            if correlation_id in self:
                raise UsageError(
                    f"correlation id {correlation_id!r} is outstanding already: give each publish its own"
                )
            if correlation_id in seen:
                raise UsageError(
                    f"correlation id {correlation_id!r} is in the batch twice: give each row its own"
                )
            if self._ids.is_reserved(correlation_id):
                raise UsageError(
                    f"correlation id {correlation_id!r} is reserved for a generated one: choose another"
                )
            seen.add(correlation_id)

    def _resolve_other(self, ack: Ack, correlation_id: str) -> Resolved | None:
        bucket = self._others.get(correlation_id)
        if bucket is None:
            self._stray(ack, correlation_id)
            return None
        value = context = bucket[correlation_id]
        result: Ack | tuple[Ack, ...] = ack
        if isinstance(value, _Gathering):
            value.append(ack)
            if len(value) != value.expected:
                return None
            result, context = tuple(value), value.context
        self._remove(correlation_id, bucket)
        self._done.add(correlation_id)
        self._late.discard(correlation_id)
        return context, result

    def _remove(self, correlation_id: str, bucket: _Bucket) -> None:
        index = self._singles if correlation_id in self._singles else self._others
        del index[correlation_id], bucket[correlation_id]
        for table in (index, bucket):
            if not table:
                table.clear()

    def _forget(self, bucket: _Bucket) -> None:
        for correlation_id in bucket:
            if self._singles.pop(correlation_id, None) is None:
                del self._others[correlation_id]
            self._late.add(correlation_id)
        repack(self._singles)
        repack(self._others)

    def _stray(self, ack: Ack, correlation_id: str) -> None:
        if correlation_id in self._late:
            stray = Stray.LATE
            self._late_acks += 1
        elif correlation_id in self._done or self._ids.is_issued(correlation_id):
            stray = Stray.DUPLICATE
            self._duplicate_acks += 1
        else:
            stray = Stray.UNKNOWN
            self._unknown_acks += 1
        if self._on_stray is None:
            return
        try:
            self._on_stray(ack, stray)
        except Exception as exc:  # noqa: BLE001 - the user's code, and no caller who could answer for it
            sys.excepthook(type(exc), exc, exc.__traceback__)


class _Gathering(list["Ack"]):
    """Entry with ``expected`` other than 1: the list of its acks, with its context.

    A subclass of list takes 40 bytes less than an object that holds a list.
    """

    __slots__ = ("context", "expected")

    def __init__(self, context: object, expected: int | None) -> None:
        self.context = context
        self.expected = expected


def _entries(bucket: _Bucket) -> Iterator[tuple[str, Any, tuple[Ack, ...], int | None]]:
    """Yield the fields of :class:`Ended` for each entry of a bucket."""
    for correlation_id, value in bucket.items():
        if isinstance(value, _Gathering):
            yield correlation_id, value.context, tuple(value), value.expected
        else:
            yield correlation_id, value, (), 1


def _contexts(contexts: int | Iterable[object]) -> Sequence[object]:
    if not isinstance(contexts, int):
        return list(contexts)
    if contexts < 0:
        raise UsageError(f"contexts must be at least 0, got {contexts}")
    return [None] * contexts


def _values(contexts: Sequence[object], expected: int | None) -> Iterable[object]:
    """Return the bucket values of entries with these contexts."""
    return contexts if expected == 1 else map(_Gathering, contexts, repeat(expected))


def _check_expected(expected: int | None) -> None:
    if expected is None:
        return
    if not isinstance(expected, int):
        raise UsageTypeError(f"expected must be an integer or None, got {expected!r}")
    if expected < 1:
        raise UsageError(f"expected must be at least 1, got {expected}")
