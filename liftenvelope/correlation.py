"""Acks and the publishes that wait for them: a table without socket, clock or ``await``.

An ack says which message it answers by its correlation id alone. :class:`PendingAcks` keeps every publish
that waits for one, and says of each ack what it completes or which kind of stray it is. The shell around it
(an ack inbox, a publisher, a Spark task) owns the clock and the futures.

The layout serves a million entries and some 200,000 acks a second:

* An entry has no object of its own. Its context lies in its *bucket*, a plain dict of all entries whose
  deadlines fall into the same slice of time, and an index maps its id to that bucket.
* A heap holds the ends of the slices. Expiry takes whole buckets from it, so no entry needs a timer, and an
  entry that completes leaves both dicts at once instead of lingering until its deadline.
* A generated id is a prefix and a counter. That it was ours shows in the id itself, so nothing has to be
  kept of those that were answered.
"""

from __future__ import annotations

import math
import sys
from enum import Enum
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from liftenvelope._correlation_ids import IdSource, RecentIds
from liftenvelope._deadlines import DeadlineBuckets, repack
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from liftenvelope.envelope import Ack

__all__ = ["Ended", "PendingAcks", "PendingStats", "Resolved", "Stray"]

#: What an ack completed: the context of its entry, and the ack itself (``expected=1``) or all acks of the
#: entry in the order in which they came (any other ``expected``). A bare tuple, because it is the hot path.
Resolved: TypeAlias = "tuple[Any, Ack | tuple[Ack, ...]]"

_Bucket: TypeAlias = dict[str, Any]


class Stray(Enum):
    """Why an ack completes nothing."""

    #: Its entry had expired, was cancelled or was failed.
    LATE = "late"
    #: Its entry had all the acks that it expected.
    DUPLICATE = "duplicate"
    #: Its id was never registered here, or so long ago that it is forgotten.
    UNKNOWN = "unknown"


class Ended(NamedTuple):
    """An entry that has ended otherwise than by the last ack that it expected.

    Attributes:
        correlation_id: Its id.
        context: What it was registered with.
        acks: The acks that had come, in order. Always empty for ``expected=1``.
        expected: How many it waited for; None for an entry that collects until its deadline.
        error: What :meth:`PendingAcks.fail_all` was called with; None at a deadline.
    """

    correlation_id: str
    context: Any
    acks: tuple[Ack, ...]
    expected: int | None
    error: BaseException | None = None

    @property
    def complete(self) -> bool:
        """Whether this is a success: it was to collect until its deadline (``expected=None``), and has.

        False when acks may be missing: what happened to the message is unknown.
        """
        return self.expected is None and self.error is None


class PendingStats(NamedTuple):
    """Counts since the table was made. Every entry registered is in exactly one of the five after it.

    Attributes:
        registered: Entries, by generated and by user-supplied ids.
        outstanding: Entries that still wait.
        completed: Entries that got their acks, or collected until their deadline.
        expired: Entries that missed an ack at their deadline.
        cancelled: Entries that were cancelled.
        failed: Entries that ``fail_all`` gave up.
        late: Acks of the kind :attr:`Stray.LATE`.
        duplicate: Acks of the kind :attr:`Stray.DUPLICATE`.
        unknown: Acks of the kind :attr:`Stray.UNKNOWN`.
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
    """The publishes that wait for acks, by correlation id.

    Every operation takes constant time, expiry amortised. An entry takes about 60 bytes beside its context
    and its id (another 60, if generated), and 70 to 110 more if it expects other than one ack. What ends
    gives its memory back at once, or amortised over the entries that follow. Not safe for use from several
    threads at once.

    Args:
        on_stray: Called with each ack that completes nothing and the reason. Acks are counted before, and
            the table may be used from inside. An :class:`Exception` from it does not come out of
            :meth:`resolve`, where it would cost the caller the acks that follow: it goes to
            ``sys.excepthook``. A shell that knows a better place passes a callback that catches.
        resolution: The width in seconds of a slice of deadlines. Nothing expires before its deadline, nor
            later than one resolution after it provided that :meth:`expire` is called. Default 0.05.
        remember: How many ids to keep for telling stray acks apart: at least so many, and at most twice as
            many, of the entries given up last, and as many again of those completed under a user-supplied
            id. Beyond that a late ack counts as duplicate where the id was generated, else as unknown.
            Default 65,536, which takes up to 12 MB in each of the two kinds.

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
        if remember < 1:
            raise UsageError(f"remember must be at least 1, not {remember!r}")
        self._on_stray = on_stray
        self._deadlines = DeadlineBuckets(resolution)
        self._bucket = self._deadlines.bucket
        self._ids = IdSource()
        self._next_id = self._ids.stream.__next__
        # Generated ids with one ack each apart from all the rest, so that their path has no question to ask.
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
            correlation_id: The id that the acks will carry. Default: a new one, of 8 characters and slowly
                more (10 at the millionth). No other entry of this table has or will have it, nor has one
                of another table but by a chance of one in 2 ** 36.
            deadline: When to give up, in seconds on the clock whose readings go to :meth:`expire`.
            expected: How many acks complete it: as many as there are streams that record the subject.
                None collects until the deadline, whatever comes. Default 1.
            context: Whatever the caller wants back with the outcome. Default None.

        Returns:
            The id.

        Raises:
            UsageError: The id is outstanding already, is empty, or is one that this table is yet to
                generate; ``expected`` is less than 1; the deadline is not finite. Nothing was registered.
            UsageTypeError: One of them has the wrong type.
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
        """Add a batch of entries under generated ids, with no Python code run for each.

        Args:
            contexts: The context of each entry; or only how many there are, and their contexts are None.
                ``itertools.repeat(batch, n)`` gives all of them the same one.
            deadline: As in :meth:`register`, for all of them.
            expected: As in :meth:`register`, for each of them. Default 1.

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
        """Add a batch of entries under user-supplied ids: all of them, or none.

        Args:
            correlation_ids: The ids.
            contexts: The context of each, in the same order and number. Default: None for each.
            deadline: As in :meth:`register`, for all of them.
            expected: As in :meth:`register`, for each of them. Default 1.

        Returns:
            The ids.

        Raises:
            UsageError: As in :meth:`register`; or an id is there twice; or the contexts are more or fewer
                than the ids. Nothing was registered.
            UsageTypeError: As in :meth:`register`.
        """
        ids = list(correlation_ids)
        values = _contexts(len(ids) if contexts is None else contexts)
        if len(values) != len(ids):
            raise UsageError(f"{len(ids)} correlation ids but {len(values)} contexts")
        _check_expected(expected)
        self._check_ids(ids)
        bucket = self._bucket(deadline)
        self._named += len(ids)
        self._others.update(zip(ids, repeat(bucket), strict=False))
        bucket.update(zip(ids, _values(values, expected), strict=True))
        return ids

    def resolve(self, ack: Ack) -> Resolved | None:
        """Take an ack in.

        An ack completes its entry whether it reports success or an error: that is for the caller to see.

        Args:
            ack: The ack. Only its ``correlation_id`` matters here.

        Returns:
            The entry's context and the ack, or the tuple of its acks, as :data:`Resolved` says, when the
            ack completed an entry. None when the entry wants more acks, or the ack is a stray.
        """
        correlation_id = ack.correlation_id
        singles = self._singles
        bucket = singles.pop(correlation_id, None)
        if bucket is None:
            return self._resolve_other(ack, correlation_id)
        context = bucket.pop(correlation_id)
        if not bucket:
            # A dict that is popped empty keeps its table, which may be as large as the largest burst.
            bucket.clear()
            if not singles:
                singles.clear()
        return context, ack

    def expire(self, now: float) -> list[Ended]:
        """Take out the entries whose deadlines have passed.

        Args:
            now: The time in seconds, on the clock of the deadlines.

        Returns:
            Them, by slice of deadlines and then in the order of registration. Those with
            :attr:`Ended.complete` have collected what they were to collect; the rest have timed out.
        """
        expired: list[Ended] = []
        for bucket in self._deadlines.pop_due(now):
            self._forget(bucket)
            expired += [Ended(*fields) for fields in _entries(bucket)]
        self._expired += sum(not entry.complete for entry in expired)
        return expired

    def next_expiry(self) -> float | None:
        """When :meth:`expire` will next have something to do.

        Returns:
            The time in seconds, on the clock of the deadlines; None if nothing is outstanding. It can
            come to lie earlier when something is registered.
        """
        return self._deadlines.next_end()

    def cancel(self, correlation_id: str) -> bool:
        """Give an entry up. An ack that comes for it counts as late.

        Args:
            correlation_id: Its id.

        Returns:
            Whether it was outstanding.
        """
        bucket = self._singles.get(correlation_id) or self._others.get(correlation_id)
        if bucket is None:
            return False
        self._remove(correlation_id, bucket)
        self._late.add(correlation_id)
        self._cancelled += 1
        return True

    def fail_all(self, error: BaseException) -> list[Ended]:
        """Give every entry up, for instance because the connection is closed.

        The table can be used on. Acks that still come count as late.

        Args:
            error: Why. It is only handed back with each entry.

        Returns:
            All entries that were outstanding, in the same order as :meth:`expire` gives them.
        """
        failed: list[Ended] = []
        for bucket in self._deadlines.pop_due(math.inf):
            self._forget(bucket)
            failed += [Ended(*fields, error) for fields in _entries(bucket)]
        self._failed += len(failed)
        return failed

    @property
    def stats(self) -> PendingStats:
        """The counts up to now."""
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
                raise UsageTypeError(f"a correlation id must be str, not {type(correlation_id).__name__}")
            if not correlation_id:
                raise UsageError("a correlation id must not be empty: ''")
            if correlation_id in self:
                raise UsageError(f"correlation id {correlation_id!r} is outstanding already")
            if correlation_id in seen:
                raise UsageError(f"correlation id {correlation_id!r} is in the batch twice")
            if self._ids.is_reserved(correlation_id):
                raise UsageError(f"correlation id {correlation_id!r} is reserved for a generated one")
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
    """The entry of a publish that wants other than one ack, and the acks that have come.

    A list itself, which is 40 bytes less than an object with one.
    """

    __slots__ = ("context", "expected")

    def __init__(self, context: object, expected: int | None) -> None:
        self.context = context
        self.expected = expected


def _entries(bucket: _Bucket) -> Iterator[tuple[str, Any, tuple[Ack, ...], int | None]]:
    """The fields of :class:`Ended`, for each entry of a bucket."""
    for correlation_id, value in bucket.items():
        if isinstance(value, _Gathering):
            yield correlation_id, value.context, tuple(value), value.expected
        else:
            yield correlation_id, value, (), 1


def _contexts(contexts: int | Iterable[object]) -> Sequence[object]:
    if not isinstance(contexts, int):
        return list(contexts)
    if contexts < 0:
        raise UsageError(f"the number of entries must not be negative: {contexts}")
    return [None] * contexts


def _values(contexts: Sequence[object], expected: int | None) -> Iterable[object]:
    """What buckets hold for entries with these contexts."""
    return contexts if expected == 1 else map(_Gathering, contexts, repeat(expected))


def _check_expected(expected: int | None) -> None:
    if expected is None:
        return
    if not isinstance(expected, int):
        raise UsageTypeError(f"expected must be an int or None, not {type(expected).__name__}")
    if expected < 1:
        raise UsageError(f"expected must be at least 1, not {expected}")
