"""Log lines of groups: the text of each event."""

from __future__ import annotations

import pytest

from liftenvelope.group import MemberFenced, StaleGenerationError
from liftenvelope.group._event_log import logged


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StaleGenerationError("the group has moved on"), "the group has moved on"),
        (None, "its session has ended"),
    ],
)
def test_line_of_a_fenced_member_has_a_reason(
    caplog: pytest.LogCaptureFixture, error: Exception | None, reason: str
) -> None:
    logged(lambda _: None)(MemberFenced("billing", "m1", error))
    assert caplog.messages == [
        f"group billing: m1 lost its membership and partitions, registering again: {reason}"
    ]
