"""StartLookup without a server: every step is answered by a script or by a model of a Liftbridge log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._pb import api_pb2
from liftenvelope.client.start_lookup import (
    Answer,
    AskLeader,
    LookupStep,
    LookupSteps,
    Pause,
    Receive,
    StartLookup,
    Subscribe,
)
from liftenvelope.errors import CallTimeoutError, PermissionDeniedError, ServerProtocolError, TransportError
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import HANDSHAKE, LARGEST, message

_T = TypeVar("_T")

LOOKUP = StartLookup("foo", 0)
# Statuses of Liftbridge 1.9.0.
STOPPED = RpcError(StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")
CLOSED = RpcError(StatusCode.INTERNAL, "Failed to lookup offset for timestamp: segment has been closed")
DENIED = RpcError(StatusCode.UNKNOWN, "The client is not authorized to call Subscribe on resource foo")
NOT_LEADER = RpcError(StatusCode.FAILED_PRECONDITION, "Server not partition leader")
ENDED = RpcError(StatusCode.UNAVAILABLE, "the server ended the subscription and gave no reason")
LOST = TransportError("the connection was lost")


def before(start: int) -> RpcError:
    return RpcError(StatusCode.INVALID_ARGUMENT, f"Stop offset is before start offset: -2 < {start}")


def run(
    steps: LookupSteps[_T], answer: Callable[[LookupStep], Answer | Exception]
) -> tuple[_T, list[LookupStep]]:
    """Return the result of a lookup, and its steps."""
    asked: list[LookupStep] = []
    try:
        step = next(steps)
        while True:
            asked.append(step)
            assert len(asked) < 10_000
            found = answer(step)
            step = steps.throw(found) if isinstance(found, Exception) else steps.send(found)
    except StopIteration as end:
        result: _T = end.value
        return result, asked


def script(*answers: Answer | Exception, in_time: bool = True) -> Callable[[LookupStep], Answer | Exception]:
    """Give these answers to the Receive and AskLeader steps."""
    left = list(answers)

    def answer(step: LookupStep) -> Answer | Exception:
        match step:
            case Pause():
                return in_time
            case Receive() | AskLeader():
                return left.pop(0)
            case _:
                return None

    return answer


def subscriptions(steps: Sequence[LookupStep]) -> list[bool]:
    """Return for each subscription whether it is another attempt."""
    return [step.again for step in steps if isinstance(step, Subscribe)]


def is_lookup_of_time_0(request: api_pb2.SubscribeRequest) -> bool:
    return request.startPosition == api_pb2.TIMESTAMP and request.startTimestamp == 0


@dataclass
class ModelLog:
    """NOT A SERVER: a model of a Liftbridge log, given as offset and time of each message.

    Attributes:
        messages: Time in ns by offset.
        newest: Newest offset.
        has_empty_segment: Whether the newest segment is empty, so that the server resolves every time to the
            end of the log. Without messages, the server then reports 0 as the oldest offset.
    """

    messages: dict[int, int]
    newest: int
    has_empty_segment: bool = False
    peeks: int = 0
    _came: list[Answer | Exception] = field(default_factory=list)

    def __call__(self, step: LookupStep) -> Answer | Exception:
        match step:
            case Subscribe(request):
                self._came = self._subscribe(request)
                return None
            case Receive():
                return self._came.pop(0) if self._came else None
            case _:
                return True

    def _subscribe(self, request: api_pb2.SubscribeRequest) -> list[Answer | Exception]:
        if request.stopOffset == -2:
            return [before(self._start(request))]
        self.peeks += 1
        found = [
            offset for offset in sorted(self.messages) if request.startOffset <= offset <= request.stopOffset
        ]
        if not found:
            return [HANDSHAKE]
        return [HANDSHAKE, message(found[0], time_ns=self.messages[found[0]])]

    def _start(self, request: api_pb2.SubscribeRequest) -> int:
        if request.startPosition == api_pb2.EARLIEST:
            return min(self.messages, default=0)
        late = [offset for offset, time_ns in self.messages.items() if time_ns >= request.startTimestamp]
        return self.newest + 1 if self.has_empty_segment else min(late, default=self.newest + 1)


class TestResolve:
    @pytest.mark.parametrize("error", [CLOSED, NOT_LEADER, LOST, None], ids=str)
    def test_failed_attempts_are_repeated(self, error: Exception | None) -> None:
        found, steps = run(LOOKUP.oldest(), script(error, error, error, error, before(7)))
        assert found == 7
        assert subscriptions(steps) == [False, True, True, True, True]
        assert [step.attempt for step in steps if isinstance(step, Pause)] == [1, 2, 3, 4]

    def test_gives_up_after_five_attempts(self) -> None:
        found, steps = run(LOOKUP.oldest(), script(*[LOST] * 5))
        assert found is None
        assert len(subscriptions(steps)) == 5

    def test_gives_up_at_the_deadline(self) -> None:
        found, steps = run(LOOKUP.oldest(), script(CLOSED, in_time=False))
        assert found is None
        assert len(subscriptions(steps)) == 1

    def test_server_that_accepts_the_stop_is_asked_once(self) -> None:
        found, steps = run(LOOKUP.oldest(), script(HANDSHAKE))
        assert found is None
        assert len(subscriptions(steps)) == 1

    def test_denial_is_raised_at_once(self) -> None:
        with pytest.raises(PermissionDeniedError, match=r"foo\[0\]"):
            run(LOOKUP.oldest(), script(DENIED))


class TestPeek:
    def test_message_at_the_offset(self) -> None:
        found, _ = run(LOOKUP.peek(3, 9), script(HANDSHAKE, message(3)))
        assert found is not None
        assert found.offset == 3

    def test_stop_without_a_message(self) -> None:
        found, _ = run(LOOKUP.peek(3, 9), script(HANDSHAKE, STOPPED))
        assert found is None

    def test_silence_counts_only_while_the_leader_answers(self) -> None:
        found, steps = run(LOOKUP.peek(0, 0), script(HANDSHAKE, None, None, None, None))
        assert found is None
        assert [type(step) for step in steps] == [Subscribe, Receive, Receive, AskLeader, Receive, AskLeader]

    def test_leader_that_does_not_answer_is_not_an_empty_log(self) -> None:
        with pytest.raises(CallTimeoutError):
            run(LOOKUP.peek(0, 0), script(HANDSHAKE, None, CallTimeoutError("no answer")))

    @pytest.mark.parametrize("error", [CLOSED, NOT_LEADER, LOST, ENDED], ids=str)
    def test_failed_attempt_is_repeated(self, error: Exception) -> None:
        found, steps = run(LOOKUP.peek(3, 9), script(HANDSHAKE, error, HANDSHAKE, message(3)))
        assert found is not None
        assert subscriptions(steps) == [False, True]

    def test_subscription_that_does_not_stand_is_repeated(self) -> None:
        found, steps = run(LOOKUP.peek(3, 9), script(None, HANDSHAKE, message(3)))
        assert found is not None
        assert subscriptions(steps) == [False, True]

    def test_error_is_raised_at_the_deadline(self) -> None:
        with pytest.raises(TransportError, match=r"foo\[0\]: the connection was lost"):
            run(LOOKUP.peek(3, 9), script(LOST, in_time=False))

    def test_bytes_that_are_not_a_message(self) -> None:
        with pytest.raises(ServerProtocolError, match=r"foo\[0\].*not a message"):
            run(LOOKUP.peek(3, 9), script(HANDSHAKE, b"\xff\xff"))

    def test_message_below_the_offset_does_not_count(self) -> None:
        found, _ = run(LOOKUP.peek(3, 9), script(HANDSHAKE, message(2)))
        assert found is None


class TestAtTime:
    def test_one_question_if_the_server_finds_a_message(self) -> None:
        found, steps = run(LOOKUP.at_time(3, 4), ModelLog({0: 1, 1: 2, 2: 3, 3: 4, 4: 5}, 4))
        assert found == 2
        assert len(subscriptions(steps)) == 1

    def test_time_after_the_newest_message(self) -> None:
        log = ModelLog({0: 1, 1: 2}, 1)
        assert run(LOOKUP.at_time(3, 1), log)[0] == 2
        assert log.peeks == 0

    def test_search_if_the_server_does_not_say_whether_times_work(self) -> None:
        log = ModelLog({0: 1, 1: 2, 2: 3}, 2, has_empty_segment=True)

        def answer(step: LookupStep) -> Answer | Exception:
            is_check = isinstance(step, Subscribe) and is_lookup_of_time_0(step.request)
            return CLOSED if is_check else log(step)

        assert run(LOOKUP.at_time(2, 2), answer)[0] == 1

    def test_emptied_log_costs_one_peek(self) -> None:
        log = ModelLog({}, 1_000_000, has_empty_segment=True)
        assert run(LOOKUP.at_time(5, 1_000_000), log)[0] == 0
        assert log.peeks == 1

    @given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=30), st.integers(0, 100))
    def test_search_finds_the_first_message_at_or_after_the_time(
        self, gaps: list[tuple[int, int]], time_ns: int
    ) -> None:
        offset, now, messages = -1, 1, dict[int, int]()
        for distance, later in gaps:
            offset, now = offset + distance, now + later
            messages[offset] = now
        log = ModelLog(messages, offset, has_empty_segment=True)
        found, _ = run(LOOKUP.at_time(time_ns, offset), log)
        assert found is not None
        late = [offset for offset, at in messages.items() if at >= time_ns]
        # A gap before the message is as good a start as the message.
        assert [offset for offset in sorted(messages) if offset >= found] == late

    def test_search_ends_if_the_server_sends_the_same_message_for_every_offset(self) -> None:
        class SameMessage(ModelLog):
            sent = 0

            def _subscribe(self, request: api_pb2.SubscribeRequest) -> list[Answer | Exception]:
                came = super()._subscribe(request)
                return came if request.stopOffset == -2 else [HANDSHAKE, message(self.sent, time_ns=1)]

        log = SameMessage({0: 1}, 999, has_empty_segment=True)
        assert run(LOOKUP.at_time(5, 999), log)[0] == 1
        log.sent = LARGEST
        with pytest.raises(ServerProtocolError, match=rf"foo\[0\]: .* got {LARGEST}$"):
            run(LOOKUP.at_time(5, 999), log)


class TestIsEmpty:
    @pytest.mark.parametrize(
        ("log", "last", "expected"),
        [
            (ModelLog({5: 1}, 5), 4, True),
            (ModelLog({5: 1}, 5), 5, False),
            (ModelLog({0: 1}, 0), 0, False),
            (ModelLog({0: 1}, 0, has_empty_segment=True), 0, False),
            (ModelLog({}, 4, has_empty_segment=True), 4, True),
        ],
    )
    def test_is_empty(self, log: ModelLog, last: int, expected: bool) -> None:
        assert run(LOOKUP.is_empty(last, log.newest), log)[0] is expected

    def test_unknown_is_not_empty(self) -> None:
        assert run(LOOKUP.is_empty(4, 4), script(*[LOST] * 5))[0] is False
        assert run(LOOKUP.is_emptied(4), script(*[LOST] * 5))[0] is False
