from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.correlation import Ended, PendingAcks, Stray
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftenvelope.envelope import Ack


@dataclass
class AckStandIn:
    """A stand-in for Ack: the table reads nothing but the id."""

    correlation_id: str


def ack(correlation_id: str) -> Ack:
    return cast("Ack", AckStandIn(correlation_id))


def kind_of(pending: PendingAcks, correlation_id: str) -> Stray:
    """Return the kind of a stray ack with this id."""
    before = pending.stats
    assert pending.resolve(ack(correlation_id)) is None
    after = pending.stats
    grown = [stray for stray in Stray if getattr(after, stray.value) > getattr(before, stray.value)]
    assert len(grown) == 1
    return grown[0]


class TestOneAck:
    def test_completes_with_context_and_ack(self) -> None:
        pending = PendingAcks()
        context = object()
        correlation_id = pending.register(deadline=5.0, context=context)
        answer = ack(correlation_id)
        resolved = pending.resolve(answer)
        assert resolved is not None
        assert resolved[0] is context
        assert resolved[1] is answer
        assert len(pending) == 0
        assert correlation_id not in pending

    def test_context_defaults_to_none(self) -> None:
        pending = PendingAcks()
        answer = ack(pending.register(deadline=5.0))
        assert pending.resolve(answer) == (None, answer)

    def test_falsy_contexts_come_back(self) -> None:
        pending = PendingAcks()
        contexts: list[object] = [None, 0, "", [], False]
        for context in contexts:
            for correlation_id in (None, "mine"):
                answer = ack(pending.register(correlation_id, deadline=5.0, context=context))
                assert pending.resolve(answer) == (context, answer)

    def test_out_of_order(self) -> None:
        pending = PendingAcks()
        ids = [pending.register(deadline=5.0, context=n) for n in range(100)]
        completed = [pending.resolve(ack(i)) for i in reversed(ids)]
        assert [entry[0] for entry in completed if entry] == list(reversed(range(100)))

    def test_user_id(self) -> None:
        pending = PendingAcks()
        assert pending.register("order-7", deadline=5.0, context="c") == "order-7"
        assert "order-7" in pending
        answer = ack("order-7")
        assert pending.resolve(answer) == ("c", answer)
        assert "order-7" not in pending

    def test_user_id_can_be_used_again(self) -> None:
        pending = PendingAcks()
        for context in range(3):
            pending.register("order-7", deadline=5.0, context=context)
            answer = ack("order-7")
            assert pending.resolve(answer) == (context, answer)
            assert kind_of(pending, "order-7") is Stray.DUPLICATE


class TestSeveralAcks:
    @pytest.mark.parametrize("correlation_id", [None, "mine"])
    @pytest.mark.parametrize("expected", [2, 3, 7])
    def test_completes_at_the_last_in_order_of_arrival(
        self, correlation_id: str | None, expected: int
    ) -> None:
        pending = PendingAcks()
        new_id = pending.register(correlation_id, deadline=5.0, expected=expected, context="c")
        answers = [ack(new_id) for _ in range(expected)]
        for answer in answers[:-1]:
            assert pending.resolve(answer) is None
            assert new_id in pending
        resolved = pending.resolve(answers[-1])
        assert resolved is not None
        assert resolved[0] == "c"
        assert isinstance(resolved[1], tuple)
        assert all(got is sent for got, sent in zip(resolved[1], answers, strict=True))
        assert new_id not in pending
        assert kind_of(pending, new_id) is Stray.DUPLICATE

    def test_wanted_acks_are_no_strays(self) -> None:
        pending = PendingAcks()
        new_id = pending.register(deadline=5.0, expected=3)
        pending.resolve(ack(new_id))
        pending.resolve(ack(new_id))
        assert pending.stats[-3:] == (0, 0, 0)

    def test_some_missing_at_the_deadline(self) -> None:
        pending = PendingAcks()
        new_id = pending.register(deadline=5.0, expected=3, context="c")
        first = ack(new_id)
        pending.resolve(first)
        [ended] = pending.expire(6.0)
        assert ended == Ended(new_id, "c", (first,), 3)
        assert not ended.complete
        assert pending.stats.expired == 1
        assert kind_of(pending, new_id) is Stray.LATE

    @pytest.mark.parametrize("n", [0, 1, 20])
    def test_none_collects_until_the_deadline(self, n: int) -> None:
        pending = PendingAcks()
        new_id = pending.register(deadline=5.0, expected=None, context="c")
        answers = tuple(ack(new_id) for _ in range(n))
        assert [pending.resolve(answer) for answer in answers] == [None] * n
        [ended] = pending.expire(6.0)
        assert ended == Ended(new_id, "c", answers, None)
        assert ended.complete
        assert (pending.stats.completed, pending.stats.expired) == (1, 0)
        assert kind_of(pending, new_id) is Stray.LATE


class TestDeadlines:
    def test_deadline_expires_within_one_resolution_and_never_early(self) -> None:
        pending = PendingAcks(resolution=0.5)
        new_id = pending.register(deadline=3.2, context="c")
        assert pending.expire(3.2) == []
        assert pending.expire(3.49) == []
        assert pending.next_expiry() == 3.5
        assert pending.expire(3.5) == [Ended(new_id, "c", (), 1)]
        assert pending.next_expiry() is None

    @given(
        st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20),
        st.sampled_from([0.001, 0.05, 0.3, 1.0, 7.0]),
    )
    def test_bounds_hold_for_any_deadlines(self, deadlines: list[float], resolution: float) -> None:
        pending = PendingAcks(resolution=resolution)
        for deadline in deadlines:
            pending.register(deadline=deadline, context=deadline)
        seen = []
        while (due := pending.next_expiry()) is not None:
            assert pending.expire(math.nextafter(due, -math.inf)) == []
            batch = [entry.context for entry in pending.expire(due)]
            assert batch != []
            # Multiples of the resolution are rounded, by a few units in the last place.
            slack = resolution + 4 * math.ulp(due)
            assert all(deadline <= due <= deadline + slack for deadline in batch)
            seen += batch
        assert sorted(seen) == sorted(deadlines)
        assert len(pending) == 0

    def test_many_slices_at_once_earliest_first(self) -> None:
        pending = PendingAcks()
        for deadline in (9.0, 1.0, 5.0, 1.0, 3.0):
            pending.register(deadline=deadline, context=deadline)
        assert [entry.context for entry in pending.expire(6.0)] == [1.0, 1.0, 3.0, 5.0]
        assert [entry.context for entry in pending.expire(6.0)] == []
        assert [entry.context for entry in pending.expire(10.0)] == [9.0]

    def test_next_expiry_passes_over_what_is_answered(self) -> None:
        pending = PendingAcks(resolution=0.5)
        early, later = pending.register(deadline=1.2), pending.register(deadline=2.2)
        assert pending.next_expiry() == 1.5
        pending.resolve(ack(early))
        assert pending.next_expiry() == 2.5
        pending.register(deadline=1.2)
        assert pending.next_expiry() == 1.5
        pending.cancel(later)
        assert len(pending.expire(1.5)) == 1
        assert pending.next_expiry() is None

    def test_a_deadline_that_has_passed_expires_at_the_next_call(self) -> None:
        pending = PendingAcks()
        assert pending.expire(100.0) == []
        new_id = pending.register(deadline=3.0)
        assert [entry.correlation_id for entry in pending.expire(100.0)] == [new_id]

    def test_registering_after_a_slice_was_taken_out(self) -> None:
        pending = PendingAcks(resolution=0.5)
        first = pending.register(deadline=1.1)
        assert [entry.correlation_id for entry in pending.expire(1.5)] == [first]
        second = pending.register(deadline=1.1)
        assert [entry.correlation_id for entry in pending.expire(1.5)] == [second]

    def test_answered_entries_do_not_expire(self) -> None:
        pending = PendingAcks()
        ids = [pending.register(deadline=5.0, context=n) for n in range(10)]
        for answered in ids[::2]:
            pending.resolve(ack(answered))
        assert [entry.context for entry in pending.expire(6.0)] == [1, 3, 5, 7, 9]

    @pytest.mark.parametrize("deadline", [math.nan, math.inf, -math.inf, 10**400])
    @pytest.mark.parametrize("warm", [False, True])
    def test_infinite_deadline_is_refused(self, deadline: float, warm: bool) -> None:
        pending = PendingAcks()
        if warm:
            pending.register(deadline=5.0)
        with pytest.raises(UsageError, match=f"finite number of seconds, got {deadline!r}"):
            pending.register(deadline=deadline)
        with pytest.raises(UsageError, match="finite"):
            pending.register_many(3, deadline=deadline)
        with pytest.raises(UsageError, match="finite"):
            pending.register_ids(["a"], deadline=deadline)
        assert pending.stats.registered == len(pending) == int(warm)

    @pytest.mark.parametrize("deadline", ["5", None, b"5", [5]])
    def test_deadline_of_another_type_is_refused(self, deadline: Any) -> None:
        with pytest.raises(UsageTypeError, match=f"number of seconds, got {re.escape(repr(deadline))}"):
            PendingAcks().register(deadline=deadline)


class TestExpected:
    @pytest.mark.parametrize("expected", [0, -1])
    def test_too_few_expected_entries_are_refused(self, expected: int) -> None:
        pending = PendingAcks()
        for call in self.calls(pending, expected):
            with pytest.raises(UsageError, match=f"expected must be at least 1, got {expected}"):
                call()
        assert pending.stats.registered == len(pending) == 0

    @pytest.mark.parametrize("expected", [1.5, "2", (3,)])
    def test_other_type(self, expected: Any) -> None:
        pending = PendingAcks()
        for call in self.calls(pending, expected):
            with pytest.raises(UsageTypeError, match=f"got {re.escape(repr(expected))}"):
                call()
        assert pending.stats.registered == len(pending) == 0

    @staticmethod
    def calls(pending: PendingAcks, expected: int) -> Iterator[Callable[[], object]]:
        yield lambda: pending.register(deadline=5.0, expected=expected)
        yield lambda: pending.register("a", deadline=5.0, expected=expected)
        yield lambda: pending.register_many(2, deadline=5.0, expected=expected)
        yield lambda: pending.register_ids(["a", "b"], deadline=5.0, expected=expected)


class TestBatch:
    def test_contexts_in_order(self) -> None:
        pending = PendingAcks()
        ids = pending.register_many(["a", "b", "c"], deadline=5.0)
        assert len(pending) == 3
        for i, context in zip(ids, "abc", strict=True):
            answer = ack(i)
            assert pending.resolve(answer) == (context, answer)

    def test_count(self) -> None:
        pending = PendingAcks()
        ids = pending.register_many(3, deadline=5.0)
        answers = [ack(i) for i in ids]
        assert [pending.resolve(a) for a in answers] == [(None, a) for a in answers]

    def test_nothing(self) -> None:
        pending = PendingAcks()
        assert pending.register_many(0, deadline=5.0) == []
        assert pending.register_many([], deadline=5.0) == []
        assert pending.register_ids([], deadline=5.0) == []
        assert pending.next_expiry() is None
        assert pending.stats.registered == 0

    def test_iterator_of_contexts(self) -> None:
        pending = PendingAcks()
        ids = pending.register_many(itertools.repeat("batch", 5), deadline=5.0)
        assert [(e.correlation_id, e.context) for e in pending.expire(6.0)] == [(i, "batch") for i in ids]

    def test_negative_count(self) -> None:
        with pytest.raises(UsageError, match="contexts must be at least 0, got -1"):
            PendingAcks().register_many(-1, deadline=5.0)

    def test_contexts_that_fail_leave_nothing(self) -> None:
        def broken() -> Iterator[int]:
            yield 1
            raise LookupError

        pending = PendingAcks()
        with pytest.raises(LookupError):
            pending.register_many(broken(), deadline=5.0)
        with pytest.raises(LookupError):
            pending.register_ids(["a", "b"], broken(), deadline=5.0)
        assert pending.stats.registered == len(pending) == 0

    @pytest.mark.parametrize("ids", [None, ["a", "b"]])
    def test_each_entry_gathers_by_itself(self, ids: list[str] | None) -> None:
        pending = PendingAcks()
        if ids is None:
            a, b = pending.register_many(["ca", "cb"], deadline=5.0, expected=2)
        else:
            a, b = pending.register_ids(ids, ["ca", "cb"], deadline=5.0, expected=2)
        acks = [ack(a), ack(b), ack(b), ack(a)]
        resolved = [pending.resolve(answer) for answer in acks]
        assert resolved == [None, None, ("cb", (acks[1], acks[2])), ("ca", (acks[0], acks[3]))]

    def test_user_ids(self) -> None:
        pending = PendingAcks()
        assert pending.register_ids(iter(["x", "y"]), iter([1, 2]), deadline=5.0) == ["x", "y"]
        answers = [ack("y"), ack("x")]
        assert [pending.resolve(a) for a in answers] == [(2, answers[0]), (1, answers[1])]

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            (["a", "", "b"], "must not be empty"),
            (["a", "b", "a"], "'a' is in the batch twice"),
            (["a", "taken"], "'taken' is outstanding already"),
            (["a", 3], "must be str, got int"),
            (["a", None], "must be str, got NoneType"),
        ],
    )
    def test_user_ids_all_or_none(self, ids: list[Any], message: str) -> None:
        pending = PendingAcks()
        pending.register("taken", deadline=5.0, context="first")
        with pytest.raises(UsageError, match=message):
            pending.register_ids(ids, deadline=5.0)
        assert len(pending) == pending.stats.registered == 1
        assert "a" not in pending
        assert [entry.context for entry in pending.expire(6.0)] == ["first"]

    @pytest.mark.parametrize("contexts", [[], [1], [1, 2, 3]])
    def test_contexts_must_match_the_ids(self, contexts: list[int]) -> None:
        pending = PendingAcks()
        with pytest.raises(
            UsageError, match=f"contexts must be as many as the correlation ids, 2, got {len(contexts)}"
        ):
            pending.register_ids(["a", "b"], contexts, deadline=5.0)
        assert len(pending) == 0


class TestGivingUp:
    def test_cancel(self) -> None:
        pending = PendingAcks()
        ids = [pending.register(deadline=5.0), pending.register("mine", deadline=5.0, expected=2)]
        assert [pending.cancel(i) for i in ids] == [True, True]
        assert [pending.cancel(i) for i in ids] == [False, False]
        assert pending.cancel("nobody") is False
        assert len(pending) == 0
        assert pending.expire(6.0) == []
        assert pending.stats.cancelled == 2

    def test_fail_all_hands_every_entry_back_with_the_error(self) -> None:
        pending = PendingAcks()
        single = pending.register(deadline=7.0, context=1)
        pending.register("mine", deadline=6.0, context=2)
        several = pending.register(deadline=5.0, expected=3, context=3)
        collecting = pending.register(deadline=4.0, expected=None, context=4)
        got = ack(several)
        pending.resolve(got)
        error = ConnectionError("closed")
        failed = pending.fail_all(error)
        assert failed == [
            Ended(collecting, 4, (), None, error),
            Ended(several, 3, (got,), 3, error),
            Ended("mine", 2, (), 1, error),
            Ended(single, 1, (), 1, error),
        ]
        assert not any(entry.complete for entry in failed)
        assert len(pending) == 0
        assert pending.next_expiry() is None
        assert pending.expire(100.0) == []
        assert pending.stats.failed == 4

    def test_fail_all_of_nothing(self) -> None:
        assert PendingAcks().fail_all(OSError()) == []

    def test_the_table_lives_on_after_fail_all(self) -> None:
        pending = PendingAcks()
        pending.register(deadline=5.0)
        pending.fail_all(OSError())
        answer = ack(pending.register(deadline=5.0, context="new"))
        assert pending.resolve(answer) == ("new", answer)

    def test_stats(self) -> None:
        pending = PendingAcks()
        ids = pending.register_many(10, deadline=5.0)
        pending.resolve(ack(ids[0]))
        pending.resolve(ack(ids[0]))
        pending.cancel(ids[1])
        pending.resolve(ack(ids[1]))
        pending.register("mine", deadline=3.0)
        pending.register(deadline=3.0, expected=None)
        pending.expire(4.0)
        pending.register(deadline=9.0)
        pending.expire(6.0)
        pending.register(deadline=9.0)
        pending.fail_all(OSError())
        pending.register(deadline=9.0)
        pending.resolve(ack("nobody"))
        assert pending.stats._asdict() == {
            "registered": 15,
            "outstanding": 1,
            "completed": 2,
            "expired": 9,
            "cancelled": 1,
            "failed": 2,
            "late": 1,
            "duplicate": 1,
            "unknown": 1,
        }


@pytest.mark.parametrize("resolution", [0, -1.0, math.nan, math.inf])
def test_resolution_must_be_positive(resolution: float) -> None:
    with pytest.raises(UsageError, match=f"resolution .* got {resolution!r}"):
        PendingAcks(resolution=resolution)


def test_remember_must_be_positive() -> None:
    with pytest.raises(UsageError, match="remember must be at least 1, got 0"):
        PendingAcks(remember=0)
