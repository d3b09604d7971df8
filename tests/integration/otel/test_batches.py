"""Spans of batches of an envelope publisher, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from nats.aio.client import Client

from liftenvelope.envelope import Message, unmarshal_message
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.testing import LiftbridgeCluster
from tests.integration.conftest import connect, until

from .recording import Recording

TABLE = pa.table(
    {
        "value": [b"a", b"b"],
        "key": [b"k", None],
        "headers": pa.array([[("shop", b"7")], None], pa.map_(pa.string(), pa.binary())),
        "partition": [0, 0],
    }
)
BATCHES: dict[str, dict[str, Any]] = {
    "lists": {"values": [b"a", b"b"], "keys": [b"k", None], "headers": [{"shop": b"7"}, None]},
    "iterators": {"values": "iterator", "keys": [b"k", None], "headers": ({"shop": b"7"}, None)},
    "arrays": {"values": pa.array([b"a", b"b"]), "keys": [b"k", None], "headers": TABLE["headers"]},
    "table": {"values": TABLE},
    "batch": {"values": TABLE.to_batches()[0]},
}


def letters() -> Iterator[bytes]:
    yield b"a"
    yield b"b"


async def envelopes(seen: Any, count: int) -> list[Message]:
    return [unmarshal_message((await seen.next_msg(timeout=60)).data) for _ in range(count)]


@pytest.mark.parametrize("form", list(BATCHES))
async def test_every_envelope_of_a_batch_carries_the_context(
    lb_nc: Client, liftbridge_server: LiftbridgeCluster, recording: Recording, name: str, form: str
) -> None:
    liftbridge_server.create_stream(name)
    seen = await lb_nc.subscribe(name)
    columns = dict(BATCHES[form])
    if columns["values"] == "iterator":
        columns["values"] = letters()
    async with AckInbox(lb_nc, timeout=60) as inbox:
        publisher = EnvelopePublisher(lb_nc, name, inbox=inbox, timeout=60)
        assert (await (await publisher.publish_batch(**columns))).ok
    found = await envelopes(seen, 2)
    assert [(one.value, one.key) for one in found] == [(b"a", b"k"), (b"b", b"")]
    assert found[0].headers["shop"] == b"7"
    span = recording.one("publish")
    trace_id = span.get_span_context().trace_id  # type: ignore[union-attr]
    assert {one.headers["traceparent"].split(b"-")[1] for one in found} == {b"%032x" % trace_id}
    assert (span.attributes or {})["messaging.batch.message_count"] == 2
    assert recording.total("messaging.client.sent.messages") == 2


async def test_batch_without_acks_ends_its_span(nc: Client, recording: Recording, name: str) -> None:
    seen = await nc.subscribe(name)
    await EnvelopePublisher(nc, name).publish_batch([b"a", b"b", b"c"])
    assert all(one.headers["traceparent"] for one in await envelopes(seen, 3))
    assert (recording.one("publish").attributes or {})["messaging.batch.message_count"] == 3
    assert recording.total("messaging.client.sent.messages") == 3


async def test_failed_messages_of_a_batch_are_counted_by_their_error(
    nc: Client, recording: Recording, name: str
) -> None:
    async with AckInbox(nc) as inbox:
        publisher = EnvelopePublisher(nc, name, inbox=inbox, timeout=0.01)
        summary = await (await publisher.publish_batch([b"a", b"b"]))
        assert len(summary.failures) == 2
        await until(lambda: recording.open == 0)
    attributes = recording.one("publish").attributes or {}
    assert attributes["error.type"] == "AckTimeoutError"
    assert attributes["liftenvelope.failed_messages"] == 2
    assert recording.total("messaging.client.sent.messages", error_type="AckTimeoutError") == 2


async def test_invalid_batch_raises_the_same_error(nc: Client, recording: Recording, name: str) -> None:
    publisher = EnvelopePublisher(nc, name)
    unknown = pa.table({"value": [b"a"], "price": [7]})
    for values, columns, text in (
        ([b"a"], {"keys": [b"1", b"2"]}, "keys must have as many rows"),
        ([b"a"], {"headers": [{}, {}]}, "headers must have as many rows"),
        ("text", {}, "values must be an iterable"),
        (unknown, {}, "got a column 'price'"),
        (TABLE, {"keys": [b"1", b"2"]}, "no other column"),
        ([b"a", None], {}, "row 1"),
    ):
        with pytest.raises(UsageError, match=text):
            await publisher.publish_batch(values, **columns)
    assert recording.open == 0
    assert len(recording.spans()) == 6
    assert recording.points("messaging.client.sent.messages") == []


async def test_largest_row_is_published_without_the_context(
    nc: Client, recording: Recording, name: str
) -> None:
    seen = await nc.subscribe(name)
    value = b"x" * (nc.max_payload - 60)
    await EnvelopePublisher(nc, name).publish_batch(iter([value]))
    [found] = await envelopes(seen, 1)
    assert (found.value, found.headers) == (value, {})


async def test_batch_on_a_closed_connection_ends_its_span(
    nats_server: Any, recording: Recording, name: str
) -> None:
    nc = await connect(nats_server.url)
    publisher = EnvelopePublisher(nc, name)
    await nc.close()
    with pytest.raises(TransportError):
        await publisher.publish_batch([b"a"])
    assert (recording.one("publish").attributes or {})["error.type"] == "TransportError"
