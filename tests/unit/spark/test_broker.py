"""Tasks of a query whose streams are deleted and created again, without servers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from liftenvelope.errors import NoSuchStreamError, TransportError
from liftenvelope.rpc.status import StatusCode
from liftenvelope.spark import _broker
from liftenvelope.spark._broker import SourceBroker
from liftenvelope.spark._options import source_options
from liftenvelope.spark._planning import Extents, Span
from liftenvelope.spark.errors import DataLossError

SPAN = Span("s", 0, 0, 10, created=1_000)


class _Remade(SourceBroker):
    """A broker of a stream that tests delete and create: a mock, since its time in a read can't be set."""

    def __init__(self, *, fails: bool = False) -> None:
        given = {"servers": "127.0.0.1:1", "subscribe": "s", "failOnDataLoss": fails}
        super().__init__(source_options("liftbridge", given, streaming=True))
        self.time = SPAN.created
        self.exists = True

    def _source(self, stream: str) -> Any:
        return SimpleNamespace(created=lambda: self.time)

    def _extents(self, part: tuple[str, int]) -> Extents:
        if not self.exists:
            raise NoSuchStreamError(StatusCode.NOT_FOUND, f"there is no stream {part[0]!r}")
        return Extents(0, 10, 10)


@pytest.fixture(autouse=True)
def deleted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Pauses of the waits for a stream that is missing."""
    pauses: list[float] = []
    monkeypatch.setattr(_broker, "_GONE_AFTER", 0.05)
    monkeypatch.setattr(_broker, "_GONE_POLL", 0.01)
    monkeypatch.setattr("liftenvelope.spark._broker.time.sleep", pauses.append)
    _broker._DELETED.clear()
    yield pauses
    _broker._DELETED.clear()


def test_stream_that_is_found_again_is_waited_for_again(deleted: list[float]) -> None:
    missing = _Remade()
    missing.exists = False
    with pytest.warns(RuntimeWarning, match="does not exist any more"):
        assert not missing.await_readable(SPAN)
    assert deleted
    assert _Remade().await_readable(SPAN)

    deleted.clear()
    again = _Remade()
    again.exists = False
    with pytest.warns(RuntimeWarning, match="does not exist any more"):
        assert not again.await_readable(SPAN)
    assert deleted


def test_read_of_a_stream_that_was_created_again_meanwhile_is_tried_again() -> None:
    """Its rows may be of the new stream, from whose start the next batch reads."""
    broker = _Remade()
    assert broker.await_readable(SPAN)
    broker.check_whole(SPAN, 10)
    broker.time = 2_000
    with (
        pytest.warns(RuntimeWarning, match="s was deleted and created again, but"),
        pytest.raises(TransportError, match=r"s was deleted and created again during .*; run the task again"),
    ):
        broker.check_whole(SPAN, 10)
    with pytest.warns(RuntimeWarning, match="s was deleted and created again, but"):
        assert not broker.await_readable(SPAN)


def test_read_of_a_stream_that_was_created_again_meanwhile_fails_for_its_loss() -> None:
    broker = _Remade(fails=True)
    broker.time = 2_000
    with pytest.raises(DataLossError, match="s was deleted and created again"):
        broker.check_whole(SPAN, 10)
