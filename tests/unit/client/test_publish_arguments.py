"""Publishing refuses wrong arguments before anything is sent. No server runs."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from liftenvelope.client import connect
from liftenvelope.client._publish_many import OutgoingMessage
from liftenvelope.client._publish_summary import PublishSummary
from liftenvelope.client.client import Client
from liftenvelope.errors import (
    AckTimeoutError,
    EnvelopeTooLargeError,
    IncorrectOffsetError,
    TransportError,
    UsageError,
    UsageTypeError,
)


@pytest.fixture
def client() -> Client:
    return connect("127.0.0.1:1")


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"stream": ""}, UsageError, "''"),
    ({"stream": 5}, UsageTypeError, "int"),
    ({"stream": "__cursors"}, UsageError, "__cursors"),
    ({"stream": "__activity"}, UsageError, "__activity"),
    ({"value": "text"}, UsageTypeError, "str"),
    ({"value": None}, UsageTypeError, "NoneType"),
    ({"key": 5}, UsageTypeError, "int"),
    ({"headers": {"subject": b"x"}}, UsageError, "subject"),
    ({"headers": {"reply": b"x"}}, UsageError, "reply"),
    ({"headers": {"k" * 32768: b"x"}}, EnvelopeTooLargeError, "32768"),
    ({"headers": [("a", b"b")]}, UsageTypeError, "list"),
    ({"partition": -1}, UsageError, "-1"),
    ({"partition": "0"}, UsageTypeError, "'0'"),
    ({"partitioner": "random"}, UsageError, "'random'"),
    ({"partitioner": 5}, UsageTypeError, "5"),
    ({"partitioner": b"key"}, UsageTypeError, "b'key'"),
    ({"retry_unacked": "no"}, UsageTypeError, "retry_unacked must be True or False, got 'no'"),
    ({"ack_policy": 3}, UsageError, "3"),
    ({"expected_offset": "1"}, UsageTypeError, "str"),
    ({"ack_inbox": 5}, UsageTypeError, "int"),
    ({"correlation_id": 5}, UsageTypeError, "int"),
    ({"timeout": 0}, UsageError, "timeout must be a positive number of seconds, got 0"),
    ({"timeout": "5"}, UsageTypeError, "'5'"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), WRONG)
@pytest.mark.parametrize("method", ["publish", "publish_async"])
async def test_wrong_arguments(
    client: Client, method: str, arguments: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as caught:
        await getattr(client, method)(**{"stream": "orders", "value": b"v", **arguments})
    assert type(caught.value) is kind
    await client.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"stream": "__cursors"}, "__cursors"),
        ({"messages": 5}, "int"),
        ({"messages": b"abc"}, "bytes"),
        ({"messages": "abc"}, "str"),
        ({"messages": {b"k": b"v"}}, "dict"),
        ({"max_in_flight": 0}, "max_in_flight must be at least 1, got 0"),
        ({"max_in_flight": True}, "True"),
        ({"partition": -1}, "-1"),
        ({"partitioner": "no"}, "'no'"),
        ({"ack_policy": 2}, "NONE"),
        ({"timeout": -1}, "timeout must be a positive number of seconds, got -1"),
        ({"on_error": "ignore"}, "'ignore'"),
        ({"retry_unacked": 1}, "retry_unacked must be True or False, got 1"),
    ],
)
async def test_wrong_arguments_of_publish_many(client: Client, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        client.publish_many(**{"stream": "orders", "messages": [b"v"], **arguments})
    await client.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"subject": ""}, "''"),
        ({"subject": "a.*"}, "wildcard"),
        ({"subject": "a.>"}, "wildcard"),
        ({"subject": "a..b"}, "a..b"),
        ({"subject": "a b"}, "a b"),
        ({"headers": {"reply": b""}}, "reply"),
        ({"value": 5}, "int"),
        ({"ack_policy": -1}, "-1"),
        ({"headers": 5}, "headers must be a mapping, got int"),
        ({"correlation_id": ""}, "empty"),
        ({"correlation_id": 5}, "correlation_id must be str, got int"),
        ({"correlation_id": "a\ud800"}, "correlation_id must not contain a lone surrogate"),
        ({"timeout": 0}, "timeout must be a positive number of seconds, got 0"),
    ],
)
async def test_wrong_arguments_of_publish_to_subject(
    client: Client, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        await client.publish_to_subject(**{"subject": "orders", "value": b"v", **arguments})
    await client.close()


async def test_max_outstanding_is_checked(client: Client) -> None:
    with pytest.raises(UsageError, match=r"^max_outstanding must .* got 0"):
        await client.publish_async("orders", b"v", max_outstanding=0)
    await client.close()


async def test_a_closed_client_publishes_nothing(client: Client) -> None:
    await client.close()
    with pytest.raises(TransportError, match="closed"):
        await client.publish("orders", b"v")
    with pytest.raises(TransportError, match="closed"):
        client.publish_many("orders", [b"v"])
    await client.flush()


def test_a_summary_reads_well_and_travels_with_its_error() -> None:
    error = IncorrectOffsetError(5, "no")
    error.summary = PublishSummary(2, {2: AckTimeoutError("late")}, {0: (4, 5)})
    assert str(error.summary) == "2 stored, 1 failed"
    loaded = pickle.loads(pickle.dumps(error))
    assert loaded.summary.offsets == {0: (4, 5)}
    assert list(loaded.summary.failures) == [2]


def test_an_outgoing_message_is_a_value() -> None:
    message = OutgoingMessage(value=b"v", key=b"k")
    assert message == OutgoingMessage(key=b"k", value=b"v", headers=None, partition=None, expected_offset=-1)
    with pytest.raises(AttributeError):
        message.value = b"w"  # type: ignore[misc]  # that is the point
