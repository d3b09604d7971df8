"""Topics of Liftbridge whose stream goes away, or becomes another one, while it is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftenvelope.errors import OffsetOutOfRangeError, PartitionPausedError, StreamDeletedError
from liftenvelope.group import LiftbridgeTopic, _liftbridge

DELETED = StreamDeletedError(5, "s: the stream was deleted")
PAUSED = PartitionPausedError(9, "s: the partition is paused")


class FakeClient:
    """A client of one stream, whose subscription fails at an offset."""

    def __init__(self, error: Exception, fails_at: int = 3) -> None:
        self.error = error
        self.fails_at = fails_at
        self.created_ns: int | None = 100
        self.next_offset = 0

    async def fetch_metadata(self, *, streams: list[str]) -> Any:
        found = None if self.created_ns is None else SimpleNamespace(created_ns=self.created_ns)
        return SimpleNamespace(get_stream=lambda _: found)

    async def fetch_partition_metadata(self, _: str, __: int, *, timeout: float) -> Any:
        return SimpleNamespace(newest_offset=7)

    def subscribe(self, _: str, *, partition: int, start: int, resume: bool) -> FakeClient:
        self.next_offset = start
        return self

    async def open(self) -> None:
        """Begin to read."""

    async def close(self) -> None:
        """End the read."""

    async def __anext__(self) -> Any:
        if self.next_offset == self.fails_at:
            raise self.error
        self.next_offset += 1
        return SimpleNamespace(offset=self.next_offset - 1, value=b"", key=b"", headers={})


@pytest.mark.parametrize(
    ("error", "created_ns", "expected"),
    [
        pytest.param(DELETED, None, StreamDeletedError, id="deleted"),
        pytest.param(DELETED, 100, StreamDeletedError, id="deleted, told by a broker that is behind"),
        pytest.param(DELETED, 200, OffsetOutOfRangeError, id="created again"),
        pytest.param(PAUSED, 200, OffsetOutOfRangeError, id="created again while the partition is paused"),
    ],
)
async def test_feed_of_a_stream_that_goes_away(
    monkeypatch: pytest.MonkeyPatch, error: Exception, created_ns: int | None, expected: type[Exception]
) -> None:
    monkeypatch.setattr(_liftbridge, "_LOOK_AGAIN", 0.0)
    fake: Any = FakeClient(error)
    feed = await LiftbridgeTopic(fake, "s", 1).open(0, 0)
    assert [(await feed.next()).offset for _ in range(3)] == [0, 1, 2]
    fake.created_ns = created_ns
    with pytest.raises(expected) as caught:
        await feed.next()
    if isinstance(caught.value, OffsetOutOfRangeError):
        assert "at offset 3 of an earlier stream of s[0]" in str(caught.value)
        assert caught.value.newest == 7


async def test_feed_that_has_read_nothing_does_not_ask_for_a_rewind() -> None:
    """The stream is replaced after the feed was opened; its reader opens the new one after this error."""
    fake: Any = FakeClient(DELETED, fails_at=0)
    feed = await LiftbridgeTopic(fake, "s", 1).open(0, 0)
    await feed._open()
    fake.created_ns = 200
    with pytest.raises(StreamDeletedError):
        await feed.next()
