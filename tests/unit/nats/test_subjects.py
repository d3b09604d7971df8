"""Subjects that would break a line of the NATS protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from liftenvelope.errors import UsageError
from liftenvelope.nats.subjects import CommandHeads, publish_subject, wire_subject


def subscribed(subject: str) -> str:
    return wire_subject("subject", subject)


@pytest.mark.parametrize("check", [publish_subject, subscribed])
def test_subject_has_at_most_3500_bytes(check: Callable[[str], str]) -> None:
    longest = "€" * 1_166 + "ss"
    assert check(longest) == longest
    with pytest.raises(UsageError, match=r"^subject '€+'\.\.\. must be at most 3500 bytes, got 3501$"):
        check(longest + "s")


@pytest.mark.parametrize("check", [publish_subject, subscribed])
@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB b 0", "a\x00", "a\ud800"])
def test_subject_that_breaks_the_line_is_refused(check: Callable[[str], str], subject: str) -> None:
    with pytest.raises(UsageError, match="subject"):
        check(subject)


def test_command_heads_are_the_same_before_and_after_they_are_cached() -> None:
    heads = CommandHeads("_INBOX.x.")
    for number in [*range(2_000), *range(2_000)]:
        assert heads.of(f"ä.{number}") == f"PUB ä.{number} _INBOX.x.".encode()
    assert CommandHeads().of("a") == b"PUB a "


@pytest.mark.parametrize("subject", ["", "a b", "a.*", "a\ud800", None, 5, b"a", bytearray(b"a"), ["a"]])
def test_command_heads_refuse_what_is_no_subject_each_time(subject: Any) -> None:
    heads = CommandHeads()
    for _ in range(2):
        with pytest.raises(UsageError, match="subject"):
            heads.of(subject)
