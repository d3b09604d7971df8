"""Answers of nats-server to the request that asks whether a filtered tail has anything pending."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftenvelope.bulk._jetstream.consumer_read import ConsumerRead
from liftenvelope.jetstream.statuses import Status


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (Status.of(404, "No Messages"), ["nothing pending"]),
        (Status.of(408, "Requests Pending"), []),
        (Status.of(503), []),  # the pulls get their own
    ],
)
def test_only_an_answer_without_messages_proves_that_nothing_is_pending(
    status: Status, told: list[str]
) -> None:
    found: list[str] = []
    read: Any = SimpleNamespace(
        _rows=SimpleNamespace(line=()),
        _source=SimpleNamespace(stream="ORDERS"),
        _sid=1,
        _made_at=0.0,
        _check_moved=lambda _: None,
        _nothing_pending=lambda: found.append("nothing pending"),
        _pull_ended=lambda *_: found.append("fruitless"),
    )
    frame = SimpleNamespace(sid=1, number=0, status=status)
    link: Any = SimpleNamespace(handle=lambda _: frame)
    ConsumerRead._other(read, link)
    assert found == told
