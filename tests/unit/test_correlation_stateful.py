"""PendingAcks against a model that is too simple to be wrong: one dict, searched from end to end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from liftenvelope.correlation import Ended, PendingAcks, Stray
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.envelope import Ack

RESOLUTION = 0.5
#: Rounding of deadlines that are sums of tenths.
SLACK = 1e-9

EXPECTED = st.sampled_from([1, 1, 1, 2, 3, None])
TIMEOUTS = st.integers(-5, 60).map(lambda tenths: tenths / 10)
USER_IDS = st.sampled_from(["a", "b", "c", "d"])


@dataclass(eq=False)
class AckStandIn:
    """A stand-in for Ack: the table reads nothing but the id. Equal to itself alone."""

    correlation_id: str


@dataclass
class Entry:
    context: int
    deadline: float
    expected: int | None
    acks: list[Ack] = field(default_factory=list)


class PendingAcksMachine(RuleBasedStateMachine):
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.outstanding: dict[str, Entry] = {}
        self.gone: dict[str, Stray] = {}
        self.counts: Counter[str] = Counter()
        #: The contexts of the entries that have ended; each context is used once.
        self.ended: list[int] = []
        self.strays: list[tuple[Ack, Stray]] = []
        self.table = PendingAcks(
            on_stray=lambda ack, stray: self.strays.append((ack, stray)), resolution=RESOLUTION
        )

    def next_context(self) -> int:
        return self.counts["registered"]

    def add(self, correlation_id: str, timeout: float, expected: int | None) -> None:
        assert correlation_id not in self.outstanding
        self.outstanding[correlation_id] = Entry(self.next_context(), self.now + timeout, expected)
        self.counts["registered"] += 1

    def end(self, correlation_id: str, outcome: str, later: Stray) -> Entry:
        entry = self.outstanding.pop(correlation_id)
        self.gone[correlation_id] = later
        self.counts[outcome] += 1
        self.ended.append(entry.context)
        return entry

    @rule(target=ids, timeout=TIMEOUTS, expected=EXPECTED)
    def register(self, timeout: float, expected: int | None) -> str:
        new_id = self.table.register(
            deadline=self.now + timeout, expected=expected, context=self.next_context()
        )
        assert new_id not in self.gone
        self.add(new_id, timeout, expected)
        return new_id

    @rule(target=ids, count=st.integers(0, 5), timeout=TIMEOUTS, expected=EXPECTED)
    def register_many(self, count: int, timeout: float, expected: int | None) -> object:
        first = self.next_context()
        new_ids = self.table.register_many(
            range(first, first + count), deadline=self.now + timeout, expected=expected
        )
        assert len(new_ids) == count
        for new_id in new_ids:
            assert new_id not in self.gone
            self.add(new_id, timeout, expected)
        return multiple(*new_ids)

    @rule(target=ids, user_id=st.one_of(USER_IDS, ids), timeout=TIMEOUTS, expected=EXPECTED)
    def register_user_id(self, user_id: str, timeout: float, expected: int | None) -> str:
        def register() -> str:
            return self.table.register(
                user_id, deadline=self.now + timeout, expected=expected, context=self.next_context()
            )

        if user_id in self.outstanding:
            with pytest.raises(UsageError, match="outstanding already"):
                register()
        else:
            assert register() == user_id
            self.add(user_id, timeout, expected)
        return user_id

    @rule(
        target=ids,
        user_ids=st.lists(st.one_of(USER_IDS, ids), max_size=4),
        timeout=TIMEOUTS,
        expected=EXPECTED,
    )
    def register_user_ids(self, user_ids: list[str], timeout: float, expected: int | None) -> object:
        first = self.next_context()
        contexts = range(first, first + len(user_ids))

        def register() -> list[str]:
            return self.table.register_ids(user_ids, contexts, deadline=self.now + timeout, expected=expected)

        if len(set(user_ids)) < len(user_ids) or set(user_ids) & self.outstanding.keys():
            with pytest.raises(UsageError, match=r"outstanding already|in the batch twice"):
                register()
        else:
            assert register() == user_ids
            for user_id in user_ids:
                self.add(user_id, timeout, expected)
        return multiple(*user_ids)

    @rule(correlation_id=ids)
    def resolve(self, correlation_id: str) -> None:
        ack = cast("Ack", AckStandIn(correlation_id))
        resolved = self.table.resolve(ack)
        if correlation_id not in self.outstanding:
            stray = self.gone.get(correlation_id, Stray.UNKNOWN)
            assert resolved is None
            assert self.strays.pop() == (ack, stray)
            self.counts[stray.value] += 1
            return
        entry = self.outstanding[correlation_id]
        entry.acks.append(ack)
        if entry.expected is None or len(entry.acks) < entry.expected:
            assert resolved is None
            return
        self.end(correlation_id, "completed", Stray.DUPLICATE)
        assert resolved == (entry.context, ack if entry.expected == 1 else tuple(entry.acks))

    @precondition(lambda self: self.outstanding)
    @rule(pick=st.integers(0, 1000))
    def resolve_outstanding(self, pick: int) -> None:
        # By number, since the ids are others in every run, which would make the drawing irreproducible.
        self.resolve(list(self.outstanding)[pick % len(self.outstanding)])

    @rule(stranger=st.sampled_from(["", "nobody", "000000", "z"]))
    def resolve_unknown(self, stranger: str) -> None:
        self.resolve(stranger)

    @rule(step=st.integers(0, 30))
    def expire(self, step: int) -> None:
        self.now += step / 10
        must = {i for i, e in self.outstanding.items() if e.deadline + RESOLUTION + SLACK <= self.now}
        may = {i for i, e in self.outstanding.items() if e.deadline <= self.now}
        expired = self.table.expire(self.now)
        assert must <= {entry.correlation_id for entry in expired} <= may
        for entry in expired:
            assert entry.complete is (entry.expected is None)
            self.check_ended(entry, "completed" if entry.complete else "expired", None)

    @rule(correlation_id=consumes(ids))
    def cancel(self, correlation_id: str) -> None:
        cancelled = self.table.cancel(correlation_id)
        assert cancelled is (correlation_id in self.outstanding)
        if cancelled:
            self.end(correlation_id, "cancelled", Stray.LATE)

    @rule()
    def fail_all(self) -> None:
        error = ConnectionError("closed")
        failed = self.table.fail_all(error)
        assert len(failed) == len(self.outstanding)
        for entry in failed:
            assert not entry.complete
            self.check_ended(entry, "failed", error)
        assert self.outstanding == {}

    def check_ended(self, ended: Ended, outcome: str, error: BaseException | None) -> None:
        entry = self.end(ended.correlation_id, outcome, Stray.LATE)
        assert ended.context == entry.context
        assert ended.acks == tuple(entry.acks)
        assert ended.expected == entry.expected
        assert ended.error is error

    @invariant()
    def same_entries(self) -> None:
        assert len(self.table) == len(self.outstanding)
        assert all(i in self.table for i in self.outstanding)
        assert not any(i in self.table for i in self.gone.keys() - self.outstanding.keys())

    @invariant()
    def waiting_has_the_entries_without_acks(self) -> None:
        without = {i: entry.context for i, entry in self.outstanding.items() if not entry.acks}
        found = list(self.table.waiting())
        assert dict(found) == without
        assert len(found) == len(without)

    @invariant()
    def same_counts(self) -> None:
        stats = self.table.stats._asdict()
        assert stats.pop("outstanding") == len(self.outstanding)
        assert stats == {name: self.counts[name] for name in stats}

    @invariant()
    def no_other_strays(self) -> None:
        assert self.strays == []

    @invariant()
    def wakes_in_time(self) -> None:
        due = self.table.next_expiry()
        if not self.outstanding:
            assert due is None
            return
        first = min(entry.deadline for entry in self.outstanding.values())
        assert due is not None
        assert first < due <= first + RESOLUTION + SLACK

    def teardown(self) -> None:
        """Every entry has had exactly one outcome once the last ones have failed."""
        self.fail_all()
        assert sorted(self.ended) == list(range(self.counts["registered"]))


PendingAcksMachine.TestCase.settings = settings(deadline=None, max_examples=150, stateful_step_count=60)
TestPendingAcks = PendingAcksMachine.TestCase
