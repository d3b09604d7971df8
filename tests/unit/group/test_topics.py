"""Streams of topics: which of them were restored from a backup."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from liftenvelope.group import JetStreamTopic, JetStreamTopicSource
from liftenvelope.jetstream import StreamConfig

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "is_restored"),
    [(3_600.0, True), (5.1, True), (4.9, False), (0.0, False), (-60.0, False)],
)
async def test_stream_counts_as_restored_by_messages_that_are_clearly_older(
    seconds: float, is_restored: bool
) -> None:
    """The leader's clock, from which messages have their times, may be behind by some seconds."""
    state = SimpleNamespace(first_ts=CREATED - timedelta(seconds=seconds), first_seq=1, last_seq=4)

    class Streams:
        async def stream(self, _: str) -> Any:
            config = StreamConfig(name="S")
            return SimpleNamespace(cached_info=SimpleNamespace(created=CREATED, state=state, config=config))

    streams: Any = Streams()
    source = JetStreamTopicSource(streams, JetStreamTopic.of_streams("t", ["S"]))
    await source.end(0)
    assert source.created_ns(0) == 1_767_225_600 * 10**9
    assert source.is_restored(0) == is_restored
