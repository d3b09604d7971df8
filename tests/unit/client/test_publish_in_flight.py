"""Outcomes of the messages on a publish stream, without I/O."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from liftenvelope.client._sending.in_flight import (
    AGAIN,
    DONE,
    SENT,
    WAITING,
    Ending,
    Entry,
    InFlight,
    Outcome,
    ending_of,
)
from liftenvelope.envelope import Ack
from liftenvelope.errors import (
    AckTimeoutError,
    IncorrectOffsetError,
    MessageTooLargeError,
    NoSuchStreamError,
    PermissionDeniedError,
    PublishError,
    ServerError,
    TransportError,
)
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode


class Sink:
    """Takes outcomes, as the client's futures do."""

    def __init__(self, stream: str = "orders", retry: bool = False) -> None:
        self.stream = stream
        self.retry = retry
        self.outcomes: dict[int, Outcome] = {}

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        assert entry.index not in self.outcomes
        self.outcomes[entry.index] = outcome


def entry(index: int, sink: Sink, size: int = 10) -> Entry:
    return Entry(f"id{index}", b"%010d" % index + b"x" * (size - 10), 3, sink, index)


def in_flight(
    count: int, *, retry: bool = False, sent: int = 0
) -> tuple[InFlight, list[Entry], dict[str, Any]]:
    flight, sink, bucket = InFlight(), Sink(retry=retry), dict[str, Any]()
    entries = [entry(i, sink) for i in range(count)]
    flight.add(entries, bucket, 0)
    if sent:
        flight.take(10 * sent)
    return flight, entries, bucket


def acked(index: int, stream: str = "orders", offset: int = 7) -> tuple[str, Ack | None, int, str]:
    return f"id{index}", Ack(stream=stream, offset=offset), -1, ""


def test_requests_are_taken_in_order_and_in_pieces() -> None:
    flight, entries, _ = in_flight(5)
    assert flight.waiting_bytes == 50
    assert flight.take(20) == [entries[0].request, entries[1].request]
    assert flight.take(1) == [entries[2].request]
    assert flight.waiting_bytes == 20
    assert [one.state for one in entries] == [SENT, SENT, SENT, WAITING, WAITING]
    assert len(flight.take(1000)) == 2
    assert flight.take(1000) == []
    assert flight.waiting_bytes == 0


def test_an_ack_settles_its_message_and_no_other() -> None:
    flight, entries, bucket = in_flight(2, sent=2)
    [(settled, outcome)] = flight.feed([acked(1)])
    assert settled is entries[1]
    assert isinstance(outcome, Ack)
    assert list(flight.pending) == list(bucket) == ["id0"]
    assert entries[1].state == DONE


def test_late_and_unknown_answers_are_dropped() -> None:
    flight, entries, bucket = in_flight(1, sent=1)
    assert flight.drop(entries[0])
    assert not flight.drop(entries[0])
    assert flight.feed([acked(0), acked(99), ("", None, -1, "")]) == []
    assert not bucket
    assert not flight.pending


def test_an_ack_of_another_stream_on_the_same_subject_settles_nothing() -> None:
    flight, _, _ = in_flight(1, sent=1)
    assert flight.feed([acked(0, stream="archive"), ("id0", None, -1, "")]) == []
    [(_, outcome)] = flight.feed([acked(0)])
    assert isinstance(outcome, Ack)
    assert outcome.stream == "orders"


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (0, "what", PublishError),
        (2, "No such stream", NoSuchStreamError),
        (5, "incorrect expected offset", IncorrectOffsetError),
        (1, "message exceeds max replication size", MessageTooLargeError),
        (3, "failed to publish to NATS: nats: maximum payload exceeded", MessageTooLargeError),
        (99, "new", PublishError),
    ],
)
def test_an_async_error_goes_before_the_empty_ack_beside_it(
    code: int, text: str, kind: type[Exception]
) -> None:
    flight, _, _ = in_flight(1, sent=1)
    [(_, outcome)] = flight.feed([("id0", Ack(), code, text)])
    assert type(outcome) is kind
    assert isinstance(outcome, ServerError)
    assert outcome.code == code
    assert "orders[3]" in str(outcome)


def test_an_ack_with_an_error_is_an_error() -> None:
    flight, _, _ = in_flight(1, sent=1)
    [(_, outcome)] = flight.feed([("id0", Ack(stream="orders", error=3), -1, "")])
    assert isinstance(outcome, MessageTooLargeError)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (None, Ending.LOST),
        (TransportError("cut"), Ending.LOST),
        (
            RpcError(
                StatusCode.UNAVAILABLE, "the gateway is stopping: 2 messages without an ack may be stored"
            ),
            Ending.LOST,
        ),
        (CallNotProcessedError("going away"), Ending.UNSEEN),
        (
            RpcError(
                StatusCode.RESOURCE_EXHAUSTED, "grpc: received message larger than max (5000010 vs. 4194304)"
            ),
            Ending.BROKEN,
        ),
        (RpcError(StatusCode.INTERNAL, "grpc: error unmarshalling request: unexpected EOF"), Ending.BROKEN),
        (RpcError(StatusCode.CANCELLED, "the server stopped serving the call"), Ending.LOST),
        # Liftbridge ends no publish stream like this; a proxy in front of it may.
        (RpcError(StatusCode.PERMISSION_DENIED, "no"), Ending.REFUSED),
    ],
)
def test_what_an_end_means(error: Any, ending: Ending) -> None:
    assert ending_of(error) is ending


@pytest.mark.parametrize(
    "error",
    [
        None,
        TransportError("cut"),
        RpcError(
            StatusCode.RESOURCE_EXHAUSTED, "grpc: received message larger than max (5000010 vs. 4194304)"
        ),
    ],
)
def test_when_a_stream_is_lost_the_outcome_of_what_was_sent_is_unknown(error: Any) -> None:
    flight, entries, bucket = in_flight(3, sent=2)
    settled = flight.ended(error)
    assert [one for one, _ in settled] == entries[:2]
    for _, outcome in settled:
        assert isinstance(outcome, TransportError)
        assert (outcome.sent, outcome.published) == (True, 1)
        assert "may be stored" in str(outcome)
    assert list(bucket) == ["id2"]
    assert flight.take(1000) == [entries[2].request]


def test_what_may_be_sent_again_is_sent_again_in_order_and_before_the_rest() -> None:
    flight, entries, _ = in_flight(4, retry=True, sent=3)
    flight.feed([acked(1)])
    assert flight.ended(TransportError("cut")) == []
    assert [one.state for one in entries] == [AGAIN, DONE, AGAIN, WAITING]
    assert flight.waiting_bytes == 30
    assert flight.take(1000) == [entries[0].request, entries[2].request, entries[3].request]


def test_a_broken_stream_is_not_fed_the_same_again() -> None:
    flight, _, _ = in_flight(2, retry=True, sent=1)
    [(settled, outcome)] = flight.ended(
        RpcError(
            StatusCode.RESOURCE_EXHAUSTED, "grpc: received message larger than max (5000010 vs. 4194304)"
        )
    )
    assert settled.index == 0
    assert isinstance(outcome, TransportError)
    assert outcome.sent


def test_what_no_server_looked_at_is_sent_again_by_all() -> None:
    flight, entries, _ = in_flight(2, sent=2)
    assert flight.ended(CallNotProcessedError("going away")) == []
    assert [one.state for one in entries] == [WAITING, WAITING]
    assert len(flight.take(1000)) == 2


def test_a_refusal_is_the_outcome_of_all() -> None:
    flight, entries, bucket = in_flight(2, sent=1)
    settled = flight.ended(RpcError(StatusCode.PERMISSION_DENIED, "no"))
    assert [type(outcome) for _, outcome in settled] == [PermissionDeniedError, PermissionDeniedError]
    assert not bucket
    assert not flight.has_waiting
    assert flight.waiting_bytes == 0
    assert all(one.state == DONE for one in entries)


def test_time_outs_say_whether_the_message_was_sent() -> None:
    flight, entries, _ = in_flight(2, retry=True, sent=1)
    first, second = entries[0].timed_out(), entries[1].timed_out()
    assert (first.sent, second.sent) == (True, False)
    assert isinstance(first, AckTimeoutError)
    assert first.correlation_id == "id0"
    flight.ended(TransportError("cut"))
    assert entries[0].timed_out().sent  # though it waits again


def test_abandoned_messages_are_all_settled() -> None:
    flight, _, bucket = in_flight(3, sent=1)
    outcomes = [outcome for _, outcome in flight.abandon("closed")]
    assert [outcome.sent for outcome in outcomes if isinstance(outcome, TransportError)] == [
        True,
        False,
        False,
    ]
    assert not bucket
    assert not flight.pending
    assert flight.take(1000) == []
    assert flight.waiting_bytes == 0


def test_failure_on_this_side_is_the_outcome_of_messages_that_were_not_sent() -> None:
    flight, entries, bucket = in_flight(3, retry=True, sent=1)
    flight.ended(None)
    failure = ValueError("no broker")
    outcomes = [outcome for _, outcome in flight.fail(failure)]
    assert isinstance(outcomes[0], TransportError)
    assert (outcomes[0].sent, outcomes[0].__cause__) == (True, failure)
    assert outcomes[1:] == [failure, failure]
    assert [one.state for one in entries] == [DONE] * 3
    assert not bucket
    assert not flight.pending


def test_ids_of_sent_messages_that_were_given_up_are_remembered_until_the_stream_ends() -> None:
    flight, entries, _ = in_flight(3, sent=2)
    flight.feed([acked(0)])
    flight.drop(entries[1])
    flight.drop(entries[2])
    assert [one.correlation_id in flight.given_up for one in entries] == [False, True, False]
    flight.ended(None)
    assert entries[1].correlation_id not in flight.given_up


def test_given_up_messages_are_not_sent() -> None:
    flight, entries, _ = in_flight(3)
    flight.drop(entries[1])
    assert flight.take(1000) == [b"%010d" % 0, b"%010d" % 2]
    flight.drop(entries[0])
    assert flight.waiting_bytes == 0


class Life(RuleBasedStateMachine):
    """Any order of what can happen: each message gets at most one outcome, none is forgotten or doubled."""

    @initialize(retry=st.booleans())
    def begin(self, retry: bool) -> None:
        self.flight, self.sink, self.bucket = InFlight(), Sink(retry=retry), dict[str, Any]()
        self.entries: list[Entry] = []
        self.dropped: set[int] = set()
        self.times_sent: dict[bytes, int] = {}
        self.serial = 0

    def _settle(self, outcomes: list[tuple[Entry, Outcome]]) -> None:
        for one, outcome in outcomes:
            self.sink.settle(one, outcome)

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        new = [entry(len(self.entries) + i, self.sink) for i in range(count)]
        self.entries += new
        self.serial += 1
        self.flight.add(new, self.bucket, self.serial)

    @rule(max_bytes=st.integers(1, 60))
    def take(self, max_bytes: int) -> None:
        for request in self.flight.take(max_bytes):
            self.times_sent[request] = self.times_sent.get(request, 0) + 1

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.entries))
        self._settle(self.flight.feed([acked(one.index, data.draw(st.sampled_from(["orders", "archive"])))]))

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.entries))
        if self.flight.drop(one):
            self.dropped.add(one.index)

    @rule(seen=st.booleans())
    def end(self, seen: bool) -> None:
        self._settle(self.flight.ended(TransportError("cut") if seen else CallNotProcessedError("unseen")))
        if not seen:
            self.times_sent.clear()

    @invariant()
    def nothing_is_forgotten_or_settled_twice(self) -> None:
        if not hasattr(self, "flight"):
            return
        settled = self.sink.outcomes.keys() | self.dropped
        assert not self.sink.outcomes.keys() & self.dropped
        pending = {one.index for one in self.flight.pending.values()}
        assert pending == {one.index for one in self.entries} - settled
        assert self.bucket.keys() == self.flight.pending.keys()
        assert [one.index for one in self.flight.pending.values()] == sorted(pending)
        waiting = [one for one in self.flight.pending.values() if one.state != SENT]
        assert self.flight.waiting_bytes == sum(len(one.request) for one in waiting)
        if not self.sink.retry:
            assert all(times == 1 for times in self.times_sent.values())


TestLife = Life.TestCase
