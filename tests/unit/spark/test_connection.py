"""Which tasks of a process share kept connections, without servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from liftenvelope.bulk.idle import IdleConnections
from liftenvelope.spark import _connection
from liftenvelope.spark._options import source_options


@pytest.fixture(autouse=True)
def _no_connections() -> Iterator[None]:
    _connection._IDLE.clear()
    yield
    _connection._IDLE.clear()


def idle(format_: str = "jetstream", **given: Any) -> IdleConnections | None:
    """The kept connections of a task with some options."""
    options = {"servers": "127.0.0.1:1", "subscribe": "s", **given}
    return source_options(format_, options, streaming=False).connection.open_in_task().idle


def test_tasks_with_equal_options_share_connections() -> None:
    assert idle() is idle(subscribe="t", minPartitions="7")


@pytest.mark.parametrize(
    "given",
    [
        {"servers": "127.0.0.1:2"},
        {"servers": "127.0.0.1:1,127.0.0.1:2"},
        {"servers": "nats://ann:one@127.0.0.1:1"},
        {"user": "ann", "password": "one"},
        {"user": "ann", "password": "two"},
        {"token": "one"},
        {"tls": "true"},
        {"domain": "hub"},
        {"timeout": "1"},
        {"format_": "liftbridge"},
    ],
)
def test_tasks_with_other_options_share_no_connection(given: dict[str, Any]) -> None:
    mine, theirs = idle(), idle(**given)
    assert theirs is idle(**given)
    assert mine is not theirs


def test_driver_keeps_no_connection() -> None:
    options = source_options("jetstream", {"servers": "127.0.0.1:1", "subscribe": "s"}, streaming=True)
    assert options.connection.open().idle is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_forked_process_has_no_connection_of_its_parent() -> None:
    mine = idle()
    assert mine is not None
    pid = os.fork()
    if not pid:
        os._exit(int(idle() is mine))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert idle() is mine
