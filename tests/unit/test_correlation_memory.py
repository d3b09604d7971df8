"""PendingAcks keeps bounded memory, measured."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from liftenvelope.correlation import PendingAcks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftenvelope.envelope import Ack


@dataclass
class AckStandIn:
    """A stand-in for Ack: the table reads nothing but the id."""

    correlation_id: str


SHARED = AckStandIn("")


def shared_ack(correlation_id: str) -> Ack:
    """One and the same object each time, so that acks kept by the table do not count as its memory."""
    SHARED.correlation_id = correlation_id
    return cast("Ack", SHARED)


class Context:
    """Something that a weak reference can watch."""


class TestMemory:
    N = 50_000
    BYTES_EACH = 250

    @pytest.fixture(autouse=True)
    def trace(self) -> Iterator[None]:
        PendingAcks().register_many(10_000, deadline=5.0)  # the process makes what all ids share, once
        gc.collect()
        tracemalloc.start()
        yield
        tracemalloc.stop()

    @staticmethod
    def traced() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    @pytest.mark.parametrize(
        "register",
        [
            lambda pending, n: pending.register(deadline=5.0),
            lambda pending, n: pending.register(deadline=5.0 + n * 2e-4),
            lambda pending, n: pending.register(f"user-{n}", deadline=5.0),
            lambda pending, n: pending.register(deadline=5.0, expected=2),
            lambda pending, n: pending.resolve(shared_ack(pending.register(deadline=5.0, expected=2))),
            lambda pending, n: pending.register(deadline=5.0, expected=None),
        ],
        ids=["one slice", "200 slices", "user ids", "two expected", "one of two", "collecting"],
    )
    def test_outstanding(self, register: Callable[[PendingAcks, int], object]) -> None:
        pending = PendingAcks()
        before = self.traced()
        for n in range(self.N):
            register(pending, n)
        each = (self.traced() - before) / self.N
        assert len(pending) == self.N
        # Id and index, at the least.
        assert 60 < each <= self.BYTES_EACH

    def test_answered_entries_leave_nothing_till_their_deadline(self) -> None:
        pending = PendingAcks()
        before = self.traced()
        ids = [pending.register(deadline=500.0 + n * 2e-4, context=Context()) for n in range(self.N)]
        for i in ids:
            pending.resolve(shared_ack(i))
        del ids, i
        assert self.traced() - before < self.N
        assert len(pending) == 0

    @pytest.mark.parametrize("named", [False, True])
    @pytest.mark.parametrize(
        "end",
        [
            lambda pending, ids: pending.expire(6.0),
            lambda pending, ids: pending.fail_all(OSError()),
            lambda pending, ids: [pending.cancel(i) for i in ids],
            lambda pending, ids: [pending.resolve(shared_ack(i)) for i in ids],
        ],
        ids=["expire", "fail_all", "cancel", "resolve"],
    )
    def test_a_burst_leaves_nothing(
        self, named: bool, end: Callable[[PendingAcks, list[str]], object]
    ) -> None:
        pending = PendingAcks(remember=100)
        before = self.traced()
        if named:
            ids = pending.register_ids([f"user-{n}" for n in range(20_000)], deadline=5.0)
        else:
            ids = pending.register_many(20_000, deadline=5.0)
        assert self.traced() - before > 1_000_000
        end(pending, ids)
        del ids
        assert len(pending) == 0
        assert self.traced() - before < 100_000

    def test_contexts_are_let_go_at_once(self) -> None:
        pending = PendingAcks()
        for end in (
            lambda i: pending.resolve(shared_ack(i)),
            pending.cancel,
            lambda i: pending.expire(6.0),
            lambda i: pending.fail_all(OSError()),
        ):
            context = Context()
            watch = weakref.ref(context)
            new_id = pending.register(deadline=5.0, context=context)
            del context
            assert watch() is not None
            end(new_id)
            assert watch() is None

    def test_a_few_unanswered_ones_do_not_keep_the_tables_large(self) -> None:
        pending = PendingAcks()
        before = self.traced()
        for k in range(200):
            ids = pending.register_many(1000, deadline=100.0 + k * 0.05)
            for i in ids[1:]:
                pending.resolve(shared_ack(i))
            del ids, i
        # 200 more slices come and are answered; meanwhile the old ones are shrunk.
        for k in range(200):
            pending.resolve(shared_ack(pending.register(deadline=200.0 + k * 0.05)))
        assert len(pending) == 200
        assert self.traced() - before < 200 * 2000

    def test_a_steady_stream_does_not_grow(self) -> None:
        pending = PendingAcks()

        def run(rounds: range) -> None:
            for k in rounds:
                pending.expire(k * 0.05)
                for i in pending.register_many(100, deadline=5.0 + k * 0.05):
                    pending.resolve(shared_ack(i))
                pending.resolve(shared_ack(pending.register(f"user-{k}", deadline=5.0 + k * 0.05)))
                pending.register(deadline=5.0 + k * 0.05)

        run(range(400))
        before = self.traced()
        run(range(400, 1200))
        # 800 ids more that are remembered, and 800 of the user's.
        assert self.traced() - before < 1600 * 150
