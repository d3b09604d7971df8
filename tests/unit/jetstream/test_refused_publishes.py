"""Publishes that nats-server refused: its reports name the subject alone."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from liftenvelope.jetstream._refused_publishes import RefusedPublishes


@dataclass
class Published:
    """A message, in place of the future of its ack."""

    subject: str


class Traffic:
    """Messages in flight on one connection, and refusals that are on their way."""

    def __init__(self) -> None:
        self.refusals = RefusedPublishes()
        self.waiting: dict[str, Published] = {}
        self.refused: set[str] = set()
        self.sent = 0

    def send(self, subject: str, *, is_allowed: bool) -> None:
        self.sent += 1
        self.waiting[str(self.sent)] = Published(subject)
        if not is_allowed:
            self.refused.add(str(self.sent))

    def settle(self) -> list[str]:
        found = [token for _, token in self.refusals.settle([(one, t) for t, one in self.waiting.items()])]
        for token in found:
            del self.waiting[token]
        return found


def test_messages_from_before_a_change_of_permissions_keep_their_acks() -> None:
    traffic = Traffic()
    traffic.send("a", is_allowed=True)
    traffic.send("b", is_allowed=True)
    traffic.send("a", is_allowed=False)
    traffic.refusals.note({"a": 1})
    traffic.send("a", is_allowed=True)
    assert traffic.settle() == []
    del traffic.waiting["1"]  # acked
    assert traffic.settle() == []  # the refusal may be about the last message
    del traffic.waiting["4"]  # acked
    assert traffic.settle() == ["3"]
    assert sorted(traffic.waiting) == ["2"]
    assert not traffic.refusals


def test_refusal_of_a_message_whose_time_has_passed_is_not_assigned_to_another() -> None:
    traffic = Traffic()
    traffic.send("a", is_allowed=False)
    traffic.send("a", is_allowed=True)
    traffic.refusals.note({"a": 1})
    del traffic.waiting["1"]
    traffic.refusals.expired("a")
    assert traffic.settle() == []
    assert not traffic.refusals


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


@given(_STEPS)
@example(["send a", "change", "send a", "refusal", "send a", "refusal", "compare"])  # the first ack is late
def test_only_refused_messages_fail_and_all_of_them_do(steps: list[str]) -> None:
    traffic, is_allowed, on_the_way, failed = Traffic(), True, [], []
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
            acked = next((token for token in traffic.waiting if token not in traffic.refused), None)
            if acked is not None:
                del traffic.waiting[acked]
        elif step == "compare":
            failed += traffic.settle()
    assert set(failed) == traffic.refused
    assert not traffic.waiting
    assert not traffic.refusals
