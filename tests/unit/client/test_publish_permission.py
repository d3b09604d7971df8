"""Permission to publish: when a broker is asked, and what its answers mean.

The scripted broker answers as Liftbridge 1.9.0 was seen to; tests/integration/client/test_authorization.py
asks a real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.client import publish_permission
from liftenvelope.client._sending.in_flight import Entry, InFlight, Outcome, Sink
from liftenvelope.client._sending.leader_check import is_served
from liftenvelope.client.publish_permission import PublishPermissions
from liftenvelope.client.retries import Retry
from liftenvelope.errors import CallTimeoutError, PermissionDeniedError, TransportError
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import client_of, scripted, stall

DENIED = RpcError(StatusCode.UNKNOWN, "The client is not authorized to call Publish on resource foo")
GRANTED = RpcError(StatusCode.NOT_FOUND, "no such partition: -1")


async def test_plain_connection_is_not_asked_before_a_refusal() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        permissions = PublishPermissions(client._context.cluster)
        await permissions.check(broker.address, "foo", Deadline(60))
        assert broker.calls["Publish"] == 0
        permissions.refused("foo")
        await permissions.check(broker.address, "bar", Deadline(60))
        assert broker.calls["Publish"] == 0


async def test_broker_is_asked_until_it_grants_and_then_no_more() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        permissions = PublishPermissions(client._context.cluster)
        permissions.refused("foo")
        broker.next("Publish", DENIED, DENIED, GRANTED)
        for _ in range(2):
            with pytest.raises(PermissionDeniedError, match="Publish on resource foo") as info:
                await permissions.check(broker.address, "foo", Deadline(60))
            assert info.value.sent is False
        for _ in range(3):
            await permissions.check(broker.address, "foo", Deadline(60))
        assert broker.calls["Publish"] == 3
        asked: Sequence[api_pb2.PublishRequest] = broker.read("Publish")
        assert {(one.stream, one.partition, one.value) for one in asked} == {("foo", -1, b"")}
        permissions.refused("foo")
        broker.next("Publish", DENIED)
        with pytest.raises(PermissionDeniedError):
            await permissions.check(broker.address, "foo", Deadline(60))


async def test_concurrent_callers_share_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_permission, "READ", Retry(repeatable=True))  # with time for a loaded machine
    async with scripted() as (broker,), client_of([broker]) as client:
        permissions = PublishPermissions(client._context.cluster)
        permissions.refused("foo")
        broker.next("Publish", GRANTED)
        await asyncio.gather(*(permissions.check(broker.address, "foo", Deadline(60)) for _ in range(50)))
        assert broker.calls["Publish"] == 1


async def test_broker_that_stalls_is_waited_for_until_the_deadline() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        permissions = PublishPermissions(client._context.cluster)
        permissions.refused("foo")
        broker.always("Publish", stall)
        with pytest.raises(CallTimeoutError, match="stream 'foo'"):
            await permissions.check(broker.address, "foo", Deadline(0.1))
        await permissions.close()


async def test_another_broker_is_asked_where_the_first_is_lost() -> None:
    async with scripted(2) as (first, second), client_of([first, second]) as client:
        permissions = PublishPermissions(client._context.cluster)
        permissions.refused("foo")
        first.always("Publish", RpcError(StatusCode.UNAVAILABLE, "the gateway is stopping"))
        second.always("Publish", GRANTED)
        await permissions.check(first.address, "foo", Deadline(60))
        assert (first.calls["Publish"], second.calls["Publish"]) == (1, 1)


async def test_lost_broker_gives_no_permission() -> None:
    async with scripted() as (broker,), client_of([broker], timeout=2.0) as client:
        permissions = PublishPermissions(client._context.cluster)
        permissions.refused("foo")
        broker.always("Publish", broker.drop_at)
        with pytest.raises((TransportError, CallTimeoutError)):  # the last attempt may end with the time
            await permissions.check(broker.address, "foo", Deadline(60))


@pytest.mark.usefixtures("patient_attempts")
async def test_partition_counts_as_served_for_a_client_that_may_only_publish() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(0)
        text = "The client is not authorized to call FetchPartitionMetadata on resource foo"
        broker.always("FetchPartitionMetadata", RpcError(StatusCode.UNKNOWN, text))
        assert await is_served(client._context.cluster, "foo", 0, timeout=60.0)


class Told:
    """Keeps outcomes."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.retry = True

    def settle(self, entry: Entry, outcome: Outcome) -> None: ...


@pytest.mark.parametrize(("was_sent", "may_be_stored"), [(False, False), (True, True)])
def test_messages_that_wait_are_given_up_with_the_refused_one(was_sent: bool, may_be_stored: bool) -> None:
    flight, bucket = InFlight(), dict[str, Entry]()
    entries = [
        Entry(name, b"request", 0, cast("Sink", Told(stream)), 0)
        for name, stream in (("a", "foo"), ("b", "other"))
    ]
    flight.add(entries, bucket, 1)
    if was_sent:
        flight.take(10_000)
        flight.ended(None)  # to be sent again, since the sink lets them
    why = PermissionDeniedError(7, "foo[0]: PublishAsync was refused", sent=True)
    [(entry, outcome)] = flight.deny("foo", why)
    assert (entry, type(outcome)) == (entries[0], PermissionDeniedError)
    assert isinstance(outcome, PermissionDeniedError)
    assert outcome.sent is may_be_stored
    assert list(flight.pending) == ["b"]
    assert flight.take(10_000) == [b"request"]


def test_message_on_its_way_is_left_to_its_own_answer() -> None:
    flight = InFlight()
    flight.add([Entry("a", b"request", 0, cast("Sink", Told("foo")), 0)], {}, 1)
    flight.take(10_000)
    assert flight.deny("foo", PermissionDeniedError(7, "no", sent=True)) == []
