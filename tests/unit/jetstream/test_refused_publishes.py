"""Publishes that nats-server refused: its reports name the subject alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.errors import PermissionDeniedError
from liftenvelope.jetstream import _refused_publishes
from liftenvelope.jetstream._refused_publishes import RefusalTimer, RefusedPublishes
from liftenvelope.nats.subjects import CommandHeads


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
    traffic.refusals.note({"a": 1}, traffic.sent)
    traffic.send("a", is_allowed=True)
    assert traffic.settle() == []
    del traffic.waiting["1"]  # acked
    assert traffic.settle() == ["3"]
    assert sorted(traffic.waiting) == ["2", "4"]
    assert not traffic.refusals


def test_refusals_of_others_are_forgotten() -> None:
    traffic = Traffic()
    traffic.refusals.note({"a": 5}, 0)
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
            traffic.refusals.note({on_the_way.pop(0): 1}, traffic.sent)
        elif step == "ack":
            acked = next((token for token in traffic.waiting if token not in traffic.refused), None)
            if acked is not None:
                del traffic.waiting[acked]
        elif step == "compare":
            failed += traffic.settle()
    assert set(failed) == traffic.refused
    assert not traffic.waiting
    assert not traffic.refusals


class Message(asyncio.Future[None]):
    """Future of an ack."""

    subject: str


class Table:
    """The messages in flight, and what follows from refusals on their connection."""

    def __init__(self) -> None:
        self.token, self.index = "0", dict[str, Message]()
        self.heads = CommandHeads()
        table: Any = self
        self.timer = RefusalTimer(table, self.heads, lambda future, error: future.set_exception(error))

    def __len__(self) -> int:
        return len(self.index)

    def waiting(self) -> list[tuple[Message, str]]:
        return [(future, token) for token, future in self.index.items()]

    def withdraw(self, token: str) -> None:
        del self.index[token]

    def send(self, subject: str) -> Message:
        future = Message()
        future.subject = subject
        if subject not in self.heads.known:
            self.heads.of(subject)
            self.timer.follow(future)
        self.token = str(int(self.token) + 1)
        self.index[self.token] = future
        return future

    async def acked(self, future: Message) -> None:
        self.index = {token: one for token, one in self.index.items() if one is not future}
        future.set_result(None)
        await asyncio.sleep(0)

    async def compared(self) -> None:
        """Wait until no refusals are left to compare."""
        async with asyncio.timeout(60):
            await asyncio.sleep(0.02)
            while self.timer._comparing is not None:
                await asyncio.sleep(0.01)


async def test_message_on_a_subject_with_acks_outlives_the_refusal_of_another_publisher() -> None:
    table = Table()
    await table.acked(table.send("a"))
    assert "a" in table.heads.known
    stored = table.send("a")
    table.timer.note({"a": 1})
    await table.compared()
    assert not stored.done()
    refused = table.send("a")
    table.timer.note({"a": 1})
    await table.compared()
    assert isinstance(refused.exception(), PermissionDeniedError)
    assert not stored.done()
    assert "a" not in table.heads.known  # so the next ack is noticed
    await table.acked(table.send("a"))
    allowed = table.send("a")
    table.timer.note({"a": 1})
    await table.compared()
    assert not allowed.done()


async def test_refused_messages_on_a_subject_without_acks_fail_each_time() -> None:
    table = Table()
    await table.acked(table.send("b"))
    for _ in range(2):
        messages = [table.send("a"), table.send("a")]
        table.timer.note({"a": 2})
        await table.compared()
        assert [type(one.exception()) for one in messages] == [PermissionDeniedError] * 2


async def test_ack_of_one_message_lets_the_others_on_its_subject_wait() -> None:
    table = Table()
    first, second = table.send("a"), table.send("a")
    table.timer.note({"a": 1})
    await table.acked(first)
    await table.compared()
    assert not second.done()


async def test_subjects_beyond_the_limit_may_have_had_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_refused_publishes, "_SUBJECTS", 2)
    table = Table()
    for subject in "abc":
        await table.acked(table.send(subject))
    for subject in "abcd":
        stored = table.send(subject)
        table.timer.note({subject: 1})
        await table.compared()
        assert not stored.done()
    assert len(table.timer._answered) <= 2
    assert len(table.timer._refused_from) <= 2
