"""The table of what is made again after which failures."""

from __future__ import annotations

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.client.retries import READ, READ_ONCE, RETRIES, Fate, fate_of
from liftenvelope.errors import TransportError
from liftenvelope.rpc.status import PUBLISH_AGAIN, CallNotProcessedError, RpcError, StatusCode
from tests.unit.scripted_broker import METHODS


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (CallNotProcessedError("refused"), Fate.NOT_SENT),
        (TransportError("lost"), Fate.LOST),
        (RpcError(StatusCode.UNAVAILABLE, "the gateway is stopping"), Fate.LOST),
        (RpcError(StatusCode.DEADLINE_EXCEEDED, "context deadline exceeded"), Fate.TIMED_OUT),
        (RpcError(StatusCode.FAILED_PRECONDITION, "Server not partition leader"), Fate.NOT_LEADER),
        (
            RpcError(StatusCode.FAILED_PRECONDITION, "The request should be sent to partition leader"),
            Fate.NOT_LEADER,
        ),
        (
            RpcError(StatusCode.FAILED_PRECONDITION, "Server not leader for cursors partition 2"),
            Fate.NOT_LEADER,
        ),
        (
            RpcError(StatusCode.FAILED_PRECONDITION, "broker is not the consumer group coordinator"),
            Fate.NOT_LEADER,
        ),
        (RpcError(StatusCode.FAILED_PRECONDITION, "commit log was closed"), Fate.REFUSED),
        (RpcError(StatusCode.INTERNAL, "no known metadata leader"), Fate.NO_LEADER),
        (RpcError(StatusCode.ABORTED, "another gateway has removed stream 'a'"), Fate.NO_LEADER),
        (RpcError(StatusCode.UNAVAILABLE, f"{PUBLISH_AGAIN}: no stream records it"), Fate.NO_LEADER),
        (RpcError(StatusCode.INTERNAL, "Failed to delete stream: node is not the leader"), Fate.NO_LEADER),
        (
            RpcError(StatusCode.INTERNAL, "Failed to replicate partition: raft operation timed out"),
            Fate.TIMED_OUT,
        ),
        (
            RpcError(StatusCode.INTERNAL, "Failed to pause stream: leadership lost while committing log"),
            Fate.TIMED_OUT,
        ),
        (RpcError(StatusCode.INTERNAL, "context deadline exceeded"), Fate.TIMED_OUT),
        (RpcError(StatusCode.UNKNOWN, "raft operation timed out"), Fate.REFUSED),
        (RpcError(StatusCode.FAILED_PRECONDITION, "raft operation timed out"), Fate.TIMED_OUT),
        (RpcError(StatusCode.FAILED_PRECONDITION, "leadership lost while committing log"), Fate.TIMED_OUT),
        (RpcError(StatusCode.INTERNAL, "disk on fire"), Fate.REFUSED),
        (RpcError(StatusCode.NOT_FOUND, "Server not partition leader"), Fate.REFUSED),
        (
            RpcError(
                StatusCode.RESOURCE_EXHAUSTED, "grpc: received message larger than max (5000010 vs. 4194304)"
            ),
            Fate.REFUSED,
        ),
        (RpcError(StatusCode.CANCELLED, "the server stopped serving the call"), Fate.LOST),
        (RpcError(77, "a status of tomorrow"), Fate.REFUSED),
    ],
)
def test_what_is_known_of_a_call(error: RpcError | TransportError, fate: Fate) -> None:
    assert fate_of(error) is fate


def test_what_may_have_been_done() -> None:
    assert {fate for fate in Fate if fate.is_uncertain} == {Fate.LOST, Fate.TIMED_OUT}


def test_what_must_not_be_done_twice() -> None:
    assert {method for method, rule in RETRIES.items() if not rule.repeatable} == {
        "JoinConsumerGroup",
        "Publish",
        "PublishToSubject",
    }


def test_every_change_of_the_metadata_is_asked_for_again_after_some_seconds() -> None:
    """Liftbridge 1.9.0 left 1 of 3,223 such calls unanswered until their deadline, on a busy machine."""
    stored = {"SetCursor", "Publish", "PublishToSubject"}  # in logs, not in the metadata
    assert {method for method, rule in RETRIES.items() if rule.attempt_timeout is None} == stored


def test_only_reads_get_more_time_after_each_late_answer() -> None:
    """A broker may hold the lock of all changes for as long as an attempt at a change has."""
    assert [READ.timeout_after(late) for late in range(4)] == [3.0, 6.0, 12.0, 24.0]
    assert {rule for rule in RETRIES.values() if rule.doubles} == {READ}
    assert [RETRIES["CreateStream"].timeout_after(late) for late in (0, 1)] == [20.0, 20.0]
    assert RETRIES["SetCursor"].timeout_after(5) is None
    assert READ.timeout_after(1_000_000) == READ.timeout_after(20) == 3_145_728.0


def test_every_method_has_a_rule() -> None:
    methods = {method.name for method in api_pb2.DESCRIPTOR.services_by_name["API"].methods}
    assert set(RETRIES) == methods - {"Subscribe", "PublishAsync"}  # which are streams
    assert set(METHODS) <= methods


def test_the_table_can_not_be_changed() -> None:
    with pytest.raises(TypeError):
        RETRIES["Publish"] = RETRIES["SetCursor"]  # type: ignore[index]


def test_leader_that_may_be_missing_is_looked_for_once_more() -> None:
    assert [READ_ONCE.allows(Fate.NOT_LEADER, failed) for failed in (1, 2, 3)] == [True, False, False]
    assert READ_ONCE.allows(Fate.LOST, 9)
    assert READ.allows(Fate.NOT_LEADER, 9)
    assert not READ.allows(Fate.REFUSED, 1)
