"""Publishes that nats-server refused: its reports name the subject alone."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from liftenvelope.nats.refusals import RefusedPublishes


class Traffic:
    """Messages in flight on one connection, and refusals that are on their way."""

    def __init__(self) -> None:
        self.refusals = RefusedPublishes()
        self.waiting: dict[int, str] = {}
        self.refused: set[int] = set()
        self.sent = 0
        self.now = 0.0

    def send(self, subject: str, *, is_allowed: bool) -> None:
        self.sent += 1
        self.waiting[self.sent] = subject
        if not is_allowed:
            self.refused.add(self.sent)

    def end(self, message: int) -> None:
        """End a message without an ack: it is cancelled, or its time has passed."""
        self.refusals.ended(self.waiting.pop(message), self.now)

    def settle(self) -> list[int]:
        found = self.refusals.settle([(subject, n) for n, subject in self.waiting.items()], self.now)
        for _, message in found:
            del self.waiting[message]
        return [message for _, message in found]


def test_messages_from_before_a_change_of_permissions_keep_their_acks() -> None:
    traffic = Traffic()
    traffic.send("a", is_allowed=True)
    traffic.send("b", is_allowed=True)
    traffic.send("a", is_allowed=False)
    traffic.refusals.note({"a": 1})
    traffic.send("a", is_allowed=True)
    assert traffic.settle() == []
    del traffic.waiting[1]  # acked
    assert traffic.settle() == []  # the refusal may be about the last message
    del traffic.waiting[4]  # acked
    assert traffic.settle() == [3]
    assert sorted(traffic.waiting) == [2]
    assert not traffic.refusals


def test_refusal_of_a_message_whose_time_has_passed_is_not_assigned_to_another() -> None:
    traffic = Traffic()
    traffic.send("a", is_allowed=False)
    traffic.send("a", is_allowed=True)
    traffic.refusals.note({"a": 1})
    traffic.end(1)
    assert traffic.settle() == []
    assert not traffic.refusals


def test_refusal_that_comes_after_the_end_of_its_message_is_not_assigned_to_another() -> None:
    traffic = Traffic()
    traffic.send("a", is_allowed=True)
    traffic.send("a", is_allowed=False)
    traffic.end(2)
    traffic.refusals.note({"a": 1})
    assert traffic.settle() == []
    del traffic.waiting[1]  # acked
    assert traffic.settle() == []
    assert not traffic.refusals
    traffic.send("a", is_allowed=False)
    traffic.refusals.note({"a": 1})
    assert traffic.settle() == [3]


def test_message_that_has_ended_delays_refusals_for_ten_seconds_only() -> None:
    traffic = Traffic()
    traffic.send("a", is_allowed=True)
    traffic.end(1)
    for traffic.now in (1.0, 9.0):
        traffic.send("a", is_allowed=False)
        traffic.refusals.note({"a": 1})
        assert traffic.settle() == []
        traffic.end(traffic.sent)
    traffic.now = 10.0
    traffic.send("a", is_allowed=False)
    traffic.refusals.note({"a": 1})
    assert traffic.settle() == [traffic.sent]


def test_too_many_subjects_of_ended_messages_are_forgotten_and_nothing_is_assigned_meanwhile() -> None:
    traffic = Traffic()
    for number in range(10_001):
        traffic.refusals.ended(f"subject {number}", traffic.now)
    traffic.send("subject 0", is_allowed=True)
    traffic.refusals.note({"subject 0": 1})
    assert traffic.settle() == []
    traffic.now = 10.0
    traffic.refusals.note({"subject 0": 1})
    assert traffic.settle() == [1]
    assert len(traffic.refusals._ended) <= 1


def test_refusals_of_others_are_forgotten() -> None:
    traffic = Traffic()
    traffic.refusals.note({"a": 5})
    assert traffic.settle() == []
    assert not traffic.refusals


_STEPS = st.lists(
    st.one_of(
        st.sampled_from(["change", "refusal", "ack", "compare"]),
        st.sampled_from(["a", "b"]).map(lambda subject: f"send {subject}"),
    ),
    max_size=60,
)
_STEPS_WITH_ENDS = st.lists(
    st.one_of(
        st.sampled_from(["change", "refusal", "ack", "compare"]),
        st.sampled_from(["a", "b"]).map(lambda subject: f"send {subject}"),
        st.sampled_from(["end oldest", "end newest"]),
    ),
    max_size=60,
)


def failed_after(traffic: Traffic, steps: list[str]) -> list[int]:
    """Return the messages that fail as refused. At the end, all refusals and acks that are due have come."""
    is_allowed, on_the_way, failed = True, [], []
    for step in [*steps, *["refusal", "ack"] * len(steps), "compare", "compare"]:
        if step.startswith("send "):
            subject = step.removeprefix("send ")
            traffic.send(subject, is_allowed=is_allowed)
            if not is_allowed:
                on_the_way.append(subject)
        elif step == "change":
            is_allowed = not is_allowed
        elif step == "refusal" and on_the_way:
            traffic.refusals.note({on_the_way.pop(0): 1})
        elif step == "ack":
            acked = next((message for message in traffic.waiting if message not in traffic.refused), None)
            if acked is not None:
                del traffic.waiting[acked]
        elif step.startswith("end ") and traffic.waiting:
            traffic.end((min if step == "end oldest" else max)(traffic.waiting))
        elif step == "compare":
            failed += traffic.settle()
    return failed


@given(_STEPS)
@example(["send a", "change", "send a", "refusal", "send a", "refusal", "compare"])  # the first ack is late
def test_only_refused_messages_fail_and_all_of_them_do(steps: list[str]) -> None:
    traffic = Traffic()
    assert set(failed_after(traffic, steps)) == traffic.refused
    assert not traffic.waiting
    assert not traffic.refusals


@given(_STEPS_WITH_ENDS)
@example(["send a", "change", "send a", "end newest", "refusal", "compare"])
@example(["send a", "change", "send a", "send a", "refusal", "end newest", "refusal", "compare"])
def test_only_refused_messages_fail_although_others_end_without_an_ack(steps: list[str]) -> None:
    traffic = Traffic()
    assert set(failed_after(traffic, steps)) <= traffic.refused
