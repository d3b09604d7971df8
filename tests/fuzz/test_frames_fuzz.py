"""A short campaign at every run; ``python -m tests.fuzz.frames_campaign`` is the long one."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import frames_campaign


def test_random_bytes_are_taken_alike_and_without_harm() -> None:
    assert frames_campaign.run(inputs=4_000, seed=1, seconds=10.0) > 0


def test_new_random_bytes_at_every_run() -> None:
    assert frames_campaign.run(inputs=2_000, seed=random.SystemRandom().randrange(2**32), seconds=5.0) > 0


def test_a_fault_names_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: random.Random) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(frames_campaign, "TARGETS", (broken,))
    with pytest.raises(ZeroDivisionError) as info:
        frames_campaign.run(inputs=1, seed=7)
    assert info.value.__notes__ == ["broken with random.Random('7:0')"]
