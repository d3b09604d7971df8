"""The choice of a consumer whose copy of the stream has all messages."""

from __future__ import annotations

import pytest

from liftenvelope.errors import TransportError
from liftenvelope.jetstream.lagging import LeaderSearch, server_of


@pytest.mark.parametrize(
    ("leader", "server"),
    [("n1", "n1"), ("", "n1"), ("n1", ""), ("", "")],
    ids=["leader", "no leader told", "no server told", "no cluster"],
)
def test_consumer_is_accepted(leader: str, server: str) -> None:
    search = LeaderSearch("orders")
    search.leader = leader
    assert search.accepts(server)


def test_leader_is_asked_for_again_and_the_search_ends() -> None:
    search = LeaderSearch("orders")
    asked = 0
    for _ in range(99):
        asked += search.needs_leader
        search.leader = "n1"
        assert not search.accepts("n2")
    with pytest.raises(TransportError, match="orders: no consumer of 100 came to the leader 'n1'"):
        search.accepts("n2")
    assert asked == 10


def test_new_leader_is_accepted() -> None:
    search = LeaderSearch("orders")
    search.leader = "n1"
    assert not search.accepts("n2")
    search.leader = "n2"
    assert search.accepts("n2")


@pytest.mark.parametrize(
    "info", [{}, {"cluster": None}, {"cluster": {"name": "C1"}}, {"cluster": {"leader": ""}}]
)
def test_server_that_is_not_told(info: dict[str, object]) -> None:
    assert server_of(info) == ""
