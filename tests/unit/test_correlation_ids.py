from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from liftenvelope.correlation import PendingAcks, Stray
from liftenvelope.errors import UsageError, UsageTypeError
from tests.unit.test_correlation import ack, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftenvelope.envelope import Ack


class Strays(list[tuple[str, Stray]]):
    """An ``on_stray`` that writes down what it gets."""

    def __call__(self, ack: Ack, stray: Stray) -> None:
        self.append((ack.correlation_id, stray))


class TestStrays:
    def test_unknown(self) -> None:
        strays = Strays()
        pending = PendingAcks(on_stray=strays)
        ours = pending.register(deadline=5.0)
        ids = ["", "nobody", ours + "0", ours[:-1], ours[:6], ours[:6] + "~!", ours[:6] + "000", "x" + ours]
        for stranger in ids:
            assert pending.resolve(ack(stranger)) is None
        assert strays == [(stranger, Stray.UNKNOWN) for stranger in ids]
        assert pending.stats.unknown == len(ids)
        assert ours in pending

    def test_an_id_not_yet_generated_is_unknown(self) -> None:
        pending = PendingAcks()
        first = pending.register(deadline=5.0)
        future = first[:-1] + "5"
        assert kind_of(pending, future) is Stray.UNKNOWN
        ids = pending.register_many(10, deadline=5.0)
        assert future in ids
        pending.resolve(ack(future))
        assert kind_of(pending, future) is Stray.DUPLICATE

    @pytest.mark.parametrize("correlation_id", [None, "mine"])
    def test_duplicate(self, correlation_id: str | None) -> None:
        pending = PendingAcks()
        new_id = pending.register(correlation_id, deadline=5.0)
        pending.resolve(ack(new_id))
        assert kind_of(pending, new_id) is Stray.DUPLICATE
        assert kind_of(pending, new_id) is Stray.DUPLICATE
        assert pending.stats.duplicate == 2

    @pytest.mark.parametrize("correlation_id", [None, "mine"])
    @pytest.mark.parametrize("expected", [1, 2, None])
    @pytest.mark.parametrize("end", ["expire", "cancel", "fail_all"])
    def test_late(self, correlation_id: str | None, expected: int | None, end: str) -> None:
        strays = Strays()
        pending = PendingAcks(on_stray=strays)
        new_id = pending.register(correlation_id, deadline=5.0, expected=expected)
        ending: Callable[[], object] = {
            "expire": lambda: pending.expire(6.0),
            "cancel": lambda: pending.cancel(new_id),
            "fail_all": lambda: pending.fail_all(OSError()),
        }[end]
        ending()
        assert new_id not in pending
        assert pending.resolve(ack(new_id)) is None
        assert strays == [(new_id, Stray.LATE)]
        assert pending.stats.late == 1

    def test_a_user_id_is_what_it_was_last(self) -> None:
        pending = PendingAcks()
        pending.register("id", deadline=5.0)
        pending.expire(6.0)
        assert kind_of(pending, "id") is Stray.LATE
        pending.register("id", deadline=5.0)
        pending.resolve(ack("id"))
        assert kind_of(pending, "id") is Stray.DUPLICATE
        pending.register("id", deadline=5.0)
        pending.cancel("id")
        assert kind_of(pending, "id") is Stray.LATE

    def test_another_table_does_not_know_our_ids(self) -> None:
        first, second = PendingAcks(), PendingAcks()
        ours = first.register(deadline=5.0)
        second.register(deadline=5.0)
        assert kind_of(second, ours) is Stray.UNKNOWN

    def test_memory_of_late_ids_is_bounded(self) -> None:
        pending = PendingAcks(remember=10)
        ids = pending.register_many(100, deadline=5.0)
        pending.expire(6.0)
        kinds = [kind_of(pending, i) for i in ids]
        assert kinds[-10:] == [Stray.LATE] * 10
        assert kinds.count(Stray.LATE) <= 20
        # Generated ids are known to be ours for ever, but no longer for what.
        assert kinds[0] is Stray.DUPLICATE

    def test_memory_of_finished_user_ids_is_bounded(self) -> None:
        pending = PendingAcks(remember=10)
        ids = pending.register_ids([f"user-{n}" for n in range(100)], deadline=5.0)
        for i in ids:
            pending.resolve(ack(i))
        kinds = [kind_of(pending, i) for i in ids]
        assert kinds[-10:] == [Stray.DUPLICATE] * 10
        assert kinds.count(Stray.DUPLICATE) <= 20
        assert kinds[0] is Stray.UNKNOWN

    @pytest.mark.parametrize("n", [1, 9, 10, 11, 15, 19, 20, 21, 105])
    def test_so_many_late_ids_at_least_are_kept(self, n: int) -> None:
        pending = PendingAcks(remember=10)
        ids = pending.register_many(n, deadline=5.0)
        pending.expire(6.0)
        assert {kind_of(pending, i) for i in ids[-10:]} == {Stray.LATE}

    def test_the_last_outcome_counts_however_long_ago_the_one_before_was(self) -> None:
        pending = PendingAcks(remember=2)
        for others in (["a"], ["b", "c"]):
            pending.register("id", deadline=5.0)
            pending.register_ids(others, deadline=5.0)
            pending.expire(6.0)
            assert kind_of(pending, "id") is Stray.LATE
            pending.register("id", deadline=5.0)
            pending.resolve(ack("id"))
            assert kind_of(pending, "id") is Stray.DUPLICATE

    def test_finished_ids_do_not_push_out_late_ones(self) -> None:
        pending = PendingAcks(remember=10)
        pending.register("late", deadline=5.0)
        pending.expire(6.0)
        for n in range(100):
            pending.resolve(ack(pending.register(f"user-{n}", deadline=9.0)))
        assert kind_of(pending, "late") is Stray.LATE

    def test_the_table_may_be_used_inside(self) -> None:
        def again(ack: Ack, stray: Stray) -> None:
            pending.register(ack.correlation_id, deadline=9.0, context=pending.stats.unknown)

        pending = PendingAcks(on_stray=again)
        assert pending.resolve(ack("new")) is None
        answer = ack("new")
        assert pending.resolve(answer) == (1, answer)

    def test_an_error_inside_goes_to_the_excepthook(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[BaseException] = []
        monkeypatch.setattr(sys, "excepthook", lambda kind, error, traceback: seen.append(error))
        error = LookupError("in on_stray")

        def fail(ack: Ack, stray: Stray) -> None:
            raise error

        pending = PendingAcks(on_stray=fail)
        ours = pending.register(deadline=5.0, context="c")
        assert pending.resolve(ack("nobody")) is None
        assert seen == [error]
        assert pending.stats.unknown == 1
        answer = ack(ours)
        assert pending.resolve(answer) == ("c", answer)

    def test_an_interrupt_inside_passes(self) -> None:
        def interrupt(ack: Ack, stray: Stray) -> None:
            raise KeyboardInterrupt

        pending = PendingAcks(on_stray=interrupt)
        with pytest.raises(KeyboardInterrupt):
            pending.resolve(ack("nobody"))
        assert pending.stats.unknown == 1


class TestIds:
    def test_short_unique_and_plain(self) -> None:
        pending = PendingAcks()
        ids = pending.register_many(100_000, deadline=5.0)
        assert len(set(ids)) == 100_000
        assert len(ids[0]) == 8
        assert max(map(len, ids)) == 9
        assert all(i.isascii() and i.replace("-", "a").replace("_", "a").isalnum() for i in ids)

    def test_one_by_one_and_in_batches_go_on_from_each_other(self) -> None:
        pending = PendingAcks()
        ids = []
        for n in (1, 5000, 0, 4096, 7):
            ids.append(pending.register(deadline=5.0))
            ids += pending.register_many(n, deadline=5.0)
        assert len(set(ids)) == len(ids) == pending.stats.registered == len(pending)

    def test_tables_have_prefixes_of_their_own(self) -> None:
        assert len({PendingAcks().register(deadline=5.0) for _ in range(50)}) == 50

    def test_every_issued_id_is_known_and_no_other(self) -> None:
        pending = PendingAcks()
        ids = pending.register_many(4096 * 65 + 1, deadline=5.0)
        for n in (0, 1, 63, 64, 4095, 4096, 4097, 4096 * 64 - 1, 4096 * 64, 4096 * 65):
            pending.resolve(ack(ids[n]))
            assert kind_of(pending, ids[n]) is Stray.DUPLICATE
        [following] = pending.register_many(1, deadline=5.0)
        fresh = PendingAcks()
        assert kind_of(fresh, following) is Stray.UNKNOWN

    def test_outstanding_id_is_refused(self) -> None:
        pending = PendingAcks()
        generated = pending.register(deadline=5.0, context="first")
        for taken in (generated, pending.register("mine", deadline=5.0, context="first")):
            with pytest.raises(UsageError, match=f"{taken!r} is outstanding already"):
                pending.register(taken, deadline=5.0, context="second")
            answer = ack(taken)
            assert pending.resolve(answer) == ("first", answer)
        assert pending.stats.registered == 2

    def test_empty_id(self) -> None:
        with pytest.raises(UsageError, match="must not be empty"):
            PendingAcks().register("", deadline=5.0)

    @pytest.mark.parametrize("correlation_id", [1, b"id", 1.5, ("a",)])
    def test_id_of_another_type(self, correlation_id: Any) -> None:
        with pytest.raises(UsageTypeError, match=f"must be str, got {type(correlation_id).__name__}"):
            PendingAcks().register(correlation_id, deadline=5.0)

    def test_an_id_still_to_be_generated_is_refused(self) -> None:
        pending = PendingAcks()
        first = pending.register(deadline=5.0)
        future = first[:-1] + "1"
        with pytest.raises(UsageError, match="reserved"):
            pending.register(future, deadline=5.0)
        assert pending.register(deadline=5.0) == future

    def test_a_generated_id_can_be_used_again_by_hand(self) -> None:
        pending = PendingAcks()
        new_id = pending.register(deadline=5.0)
        pending.expire(6.0)
        pending.register(new_id, deadline=7.0, context="again")
        answer = ack(new_id)
        assert pending.resolve(answer) == ("again", answer)
        assert kind_of(pending, new_id) is Stray.DUPLICATE

    @pytest.mark.parametrize("suffix", ["", "0", "000", "~~", "0" * 40, "0 "])
    def test_ids_that_only_begin_like_ours_are_free(self, suffix: str) -> None:
        pending = PendingAcks()
        lookalike = pending.register(deadline=5.0)[:6] + suffix
        pending.register(lookalike, deadline=5.0, context="c")
        answer = ack(lookalike)
        assert pending.resolve(answer) == ("c", answer)
