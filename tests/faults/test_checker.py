"""The checker, on histories made by hand: sound ones pass, and each way to be wrong is found."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from liftenvelope.bulk import WriteFailedError
from liftenvelope.errors import (
    AckTimeoutError,
    IncorrectOffsetError,
    InternalError,
    LiftEnvelopeError,
    TransportError,
    UsageError,
)
from tests.faults.checker import Checker
from tests.faults.ledger import REFUSED, UNKNOWN, UNORDERED, Ledger, is_sent, judge
from tests.faults.messages import Messages, make_marker

SEED = 7
LOST = TransportError("the connection was lost", sent=True)
NOT_SENT = TransportError("there was no connection")


class History:
    """A stream and a ledger, made by hand.

    A log is a list of ``(offset, index)`` in the order of the log; an index of None is a marker.
    """

    def __init__(self, count: int, *, partitions: int = 1, lane: int = 0) -> None:
        self.messages = Messages(SEED, partitions)
        self.ledger = Ledger()
        self.ledger.take_many(count, lane)

    def check(self, logs: Mapping[int, Iterable[tuple[int, int | None]]], **options: Any) -> list[str]:
        checker = Checker(self.messages, self.ledger, **{"once": True, **options})
        for partition, log in logs.items():
            for offset, index in log:
                key, value, headers = (b"", make_marker(0), {}) if index is None else self.messages.row(index)
                checker.feed(partition, [offset], [key or None], [value], [headers])
        return checker.finish()

    def check_one(self, log: Iterable[tuple[int, int | None]], **options: Any) -> list[str]:
        return self.check({0: log}, **options)


@pytest.fixture
def acked() -> History:
    """Five messages with acks at the offsets 0 to 4."""
    history = History(5)
    for index in range(5):
        history.ledger.stored(index, index)
    return history


SOUND = [(offset, offset) for offset in range(5)]


class TestSoundHistories:
    def test_every_message_at_its_offset(self, acked: History) -> None:
        assert acked.check_one(SOUND) == []

    def test_unknown_messages_are_stored_or_not(self) -> None:
        history = History(4)
        history.ledger.stored(0, 0)
        history.ledger.failed(1, LOST)
        history.ledger.failed(2, AckTimeoutError("no ack came"))
        history.ledger.stored(3, 2)
        assert history.check_one([(0, 0), (1, 1), (2, 3)]) == []

    def test_refused_messages_are_missing(self) -> None:
        history = History(2)
        history.ledger.failed(0, IncorrectOffsetError(3, "incorrect offset"))
        history.ledger.failed(1, NOT_SENT)
        assert history.check_one([]) == []

    def test_gaps_and_markers(self, acked: History) -> None:
        assert acked.check_one([*SOUND, (9, None)]) == []

    def test_partitions_have_offsets_of_their_own(self) -> None:
        history = History(4, partitions=2)
        for index in range(4):
            history.ledger.stored(index, index // 2)
        assert history.check({0: [(0, 0), (1, 2)], 1: [(0, 1), (1, 3)]}) == []

    def test_a_killed_liftbridge_gives_an_offset_twice_and_the_last_counts(self) -> None:
        history = History(3)
        history.ledger.stored(0, 0)
        history.ledger.failed(1, LOST)
        history.ledger.stored(2, 1)
        assert history.check_one([(0, 0), (1, 1), (1, 2)], repeats=True) == []

    def test_several_offsets_that_repeat_keep_the_later_ones_in_place(self) -> None:
        history = History(6)
        for index, offset in enumerate((0, None, None, 1, 2, 3)):
            if offset is None:
                history.ledger.failed(index, LOST)
            else:
                history.ledger.stored(index, offset)
        log = [(0, 0), (1, 1), (2, 2), (1, 3), (2, 4), (3, 5)]
        assert history.check_one(log, repeats=True) == []

    def test_duplicates_where_they_are_allowed(self, acked: History) -> None:
        assert acked.check_one([*SOUND, (5, 1)], once=False) == []

    def test_order_that_nobody_promises(self) -> None:
        history = History(2, lane=UNORDERED)
        history.ledger.stored(0, 1)
        history.ledger.stored(1, 0)
        assert history.check_one([(0, 1), (1, 0)]) == []

    def test_two_publishers_are_in_order_each(self) -> None:
        history = History(0)
        for lane in (0, 1, 0, 1):
            history.ledger.take(lane)
        for index, offset in enumerate([2, 0, 3, 1]):
            history.ledger.stored(index, offset)
        assert history.check_one([(0, 1), (1, 3), (2, 0), (3, 2)]) == []

    def test_a_bulk_write_that_ended_early(self) -> None:
        history = History(5)
        history.ledger.failed_span(range(5), WriteFailedError("lost", 2, 2))
        for stored in (2, 3, 4):
            assert history.check_one(SOUND[:stored]) == []

    def test_a_whole_bulk_write_in_three_partitions(self) -> None:
        history = History(7, partitions=3)
        history.ledger.stored_span(range(7), {0: (0, 2), 1: (0, 1), 2: (0, 1)})
        logs = {number: [(i // 3, i) for i in range(7) if i % 3 == number] for number in range(3)}
        assert history.check(logs) == []


class TestWrongHistories:
    def test_an_acked_message_is_lost(self, acked: History) -> None:
        (found,) = acked.check_one(SOUND[:4])
        assert found.startswith("1 acked messages that are lost: message 4, acked at 0[4]")

    def test_an_acked_message_is_at_another_offset(self, acked: History) -> None:
        found = acked.check_one([(0, 0), (1, 1), (2, 2), (3, 3), (5, 4)])
        assert [text.partition(":")[0] for text in found] == ["1 acked messages at another offset"]

    def test_two_messages_with_one_offset_in_their_acks(self) -> None:
        history = History(2)
        history.ledger.stored(0, 0)
        history.ledger.stored(1, 0)
        assert "acked messages that are lost" in history.check_one([(0, 0)])[0]

    def test_an_acked_row_that_another_one_has_replaced(self) -> None:
        history = History(2)
        history.ledger.stored(0, 0)
        history.ledger.failed(1, LOST)
        found = history.check_one([(0, 0), (0, 1)], repeats=True)
        assert "acked messages at another offset" in found[0]

    def test_offsets_that_repeat(self, acked: History) -> None:
        assert "offsets that do not ascend" in acked.check_one([*SOUND, (4, None)])[0]

    def test_a_row_twice(self, acked: History) -> None:
        assert acked.check_one([*SOUND, (5, 1)]) == ["1 rows stored twice: message 1 at 0[5]"]

    @pytest.mark.parametrize("error", [NOT_SENT, IncorrectOffsetError(3, "incorrect offset")])
    def test_a_refused_message_is_stored(self, error: LiftEnvelopeError) -> None:
        history = History(1)
        history.ledger.failed(0, error)
        assert "reported as not stored" in history.check_one([(0, 0)])[0]

    def test_another_order(self) -> None:
        history = History(2)
        history.ledger.stored(0, 1)
        history.ledger.stored(1, 0)
        assert history.check_one([(0, 1), (1, 0)]) == [
            "1 rows out of order: message 0 at 0[1], after message 1"
        ]

    def test_another_partition(self) -> None:
        history = History(2, partitions=2)
        history.ledger.stored(0, 0)
        history.ledger.failed(1, LOST)
        assert "rows in another partition" in history.check({0: [(0, 0), (1, 1)]})[0]

    @pytest.mark.parametrize("part", ["key", "value", "headers"])
    def test_another_key_value_or_headers(self, part: str) -> None:
        history = History(11)
        for index in range(11):
            history.ledger.failed(index, LOST)
        key, value, headers = history.messages.row(10)
        checker = Checker(history.messages, history.ledger, once=True)
        checker.feed(
            0,
            [0],
            [key + b"x" * (part == "key")],
            [value + b"x" * (part == "value")],
            [{"Number": b"11"} if part == "headers" else headers],
        )
        assert "rows that differ" in checker.finish()[0]

    @pytest.mark.parametrize("value", [b"8.0.of another seed", b"", b"7.x.", b"7.99.of the future"])
    def test_a_row_of_nobody(self, value: bytes) -> None:
        checker = Checker(Messages(SEED), Ledger(), once=True)
        checker.feed(0, [0], [None], [value], [{}])
        assert "rows that nobody published" in checker.finish()[0]

    def test_no_outcome(self) -> None:
        assert "messages without an outcome" in History(1).check_one([])[0]

    def test_two_outcomes(self, acked: History) -> None:
        acked.ledger.failed(2, LOST)
        assert acked.check_one(SOUND) == ["message 2 has two outcomes: 2, then -2"]

    def test_a_negative_offset(self) -> None:
        history = History(1)
        history.ledger.stored(0, -5)
        assert "acked at offset -5" in history.check_one([(0, 0)])[0]

    @pytest.mark.parametrize(("stored", "kind"), [(1, "lost rows"), (4, "more rows than can be")])
    def test_a_bulk_write_with_another_count(self, stored: int, kind: str) -> None:
        history = History(5)
        history.ledger.failed_span(range(5), WriteFailedError("lost", 2, 1))
        assert kind in history.check_one(SOUND[:stored])[0]

    @pytest.mark.parametrize("offsets", [{0: (1, 4)}, {0: (0, 3)}, {0: (0, 9)}, {1: (0, 4)}])
    def test_a_bulk_write_at_other_offsets(self, offsets: dict[int, tuple[int, int]]) -> None:
        history = History(5)
        history.ledger.stored_span(range(5), offsets)
        assert "spans at other offsets" in history.check_one(SOUND)[0]

    def test_a_bulk_write_that_counts_more_rows_than_it_has(self) -> None:
        history = History(2)
        history.ledger.failed_span(range(2), WriteFailedError("lost", 2, 1))
        assert "of 2 rows" in history.check_one(SOUND[:2])[0]

    def test_a_call_that_sent_nothing_says_that_it_did(self) -> None:
        history = History(1)
        history.ledger.failed_many(range(1), LOST)
        assert "sent nothing" in history.check_one([])[0]


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "sent"),
        [
            (LOST, True),
            (NOT_SENT, False),
            (AckTimeoutError("late"), True),
            (AckTimeoutError("never sent", sent=False), False),
            (IncorrectOffsetError(3, "incorrect offset"), False),
        ],
    )
    def test_what_a_fault_may_lead_to(self, error: LiftEnvelopeError, sent: bool) -> None:
        assert judge(error) == []
        assert is_sent(error) is sent
        ledger = Ledger()
        ledger.failed(ledger.take(), error)
        assert ledger.outcome[0] == (UNKNOWN if sent else REFUSED)
        assert ledger.errors == {type(error).__name__: 1}

    @pytest.mark.parametrize(
        "error",
        [
            OSError("untyped"),
            TimeoutError(),
            KeyError("answer"),
            UsageError("no fault of the caller"),
            InternalError("a bug"),
            TransportError(""),
        ],
    )
    def test_what_no_fault_may_lead_to(self, error: Exception) -> None:
        assert len(judge(error)) == 1

    def test_an_untyped_cause_is_found(self) -> None:
        ledger, error = Ledger(), WriteFailedError("lost", 0, 0)
        error.__cause__ = OSError("untyped")
        ledger.failed_span(ledger.take_many(1), error)
        assert ledger.violations == ["OSError('untyped') is no LiftEnvelopeError"]


class TestMessages:
    def test_messages_are_identified_again(self) -> None:
        messages = Messages(SEED, 3)
        assert [messages.index_of(messages.value(i)) for i in range(2_000)] == list(range(2_000))
        assert messages.index_of(make_marker(1)) == -1

    def test_messages_depend_on_the_seed_alone(self) -> None:
        one, same, other = Messages(1), Messages(1), Messages(2)
        assert [one.row(i) for i in range(500)] == [same.row(i) for i in range(500)]
        assert not {one.value(i) for i in range(500)} & {other.value(i) for i in range(500)}

    def test_a_million_outcomes_take_little_memory(self) -> None:
        ledger = Ledger()
        ledger.take_many(1_000_000)
        assert len(pickle.dumps(ledger.outcome)) + len(ledger.lane) < 10_000_000
