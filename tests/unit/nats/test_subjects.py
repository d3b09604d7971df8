"""Subjects that would break a line of the NATS protocol."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liftenvelope.errors import UsageError
from liftenvelope.nats.subjects import publish_subject, wire_subject


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
