"""Streams on the same or overlapping subjects: hand-overs between them, and the messages that each gets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.gateway import Gateway
from liftenvelope.testing import NatsServer
from tests.conformance.actions import eventually, fill, read
from tests.handled import handled


@pytest.fixture
def nats_url(own_nats: NatsServer) -> str:
    return own_nats.url


@pytest.fixture
async def client(nc: NatsClient) -> AsyncIterator[Client]:
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        yield client


async def values(client: Client, stream: str, count: int) -> list[bytes]:
    """Return the values of a stream once it has ``count`` messages."""
    return [message.value for message in await read(client, stream, start=0, stop=count - 1)]


@pytest.mark.parametrize("change", ["delete", "pause", "readonly"])
@pytest.mark.parametrize("parts", [["a", "*"], ["*", "a"], ["a", "*", ">"]])
async def test_widest_copy_takes_over_the_subject_whatever_the_order_of_creation(
    client: Client, name: str, change: str, parts: list[str]
) -> None:
    copies = {part: f"{name}-{number}" for number, part in enumerate(parts)}
    await client.create_stream(f"{name}.>", name)
    for part, copy in copies.items():
        await client.create_stream(f"{name}.{part}", copy)
    if change == "delete":
        await client.delete_stream(name)
    elif change == "pause":
        await client.pause_stream(name)
    else:
        await client.set_stream_readonly(name)
    await client.publish_to_subject(f"{name}.b", b"1")
    await client.publish_to_subject(f"{name}.a", b"2")
    assert await values(client, copies["a"], 1) == [b"2"]
    assert await values(client, copies["*"], 2) == [b"1", b"2"]
    if ">" in parts:
        await client.publish_to_subject(f"{name}.b.c", b"3")
        assert await values(client, copies[">"], 3) == [b"1", b"2", b"3"]


async def test_gateway_that_starts_after_a_death_in_a_hand_over_gives_the_subject_to_the_widest_copy(
    nc: NatsClient, name: str
) -> None:
    """The dead gateway had noted the pause and stopped the recording, and not yet attached the copies."""
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(f"{name}.>", name)
        for number, part in enumerate("abcd*"):
            await client.create_stream(f"{name}.{part}", f"{name}-{number}")
        assert gateway._running is not None
        core = gateway._running.core
        record = core.registry.known(name)
        assert record is not None
        paused = {0: record.partitions[0].with_paused(True, 1)}
        await core.registry.change(name, lambda known: known.with_partitions(paused))
        await core.storage.detach(record, 0)
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:

        async def is_stored() -> bool:
            await nc.publish(f"{name}.e", b"1")
            await handled(nc)
            return (await client.fetch_partition_metadata(f"{name}-4")).newest_offset >= 0

        await eventually(is_stored)


async def test_stream_on_the_subject_of_a_deleted_one_is_created_while_a_copy_records_it(
    client: Client, name: str
) -> None:
    for number, part in enumerate((">", "a", ">")):
        await client.create_stream(f"{name}.{part}", f"{name}-{number}")
    await client.delete_stream(f"{name}-0")
    await client.create_stream(f"{name}.>", f"{name}-0")
    await client.publish_to_subject(f"{name}.b", b"1")
    assert await values(client, f"{name}-0", 1) == [b"1"]


@pytest.mark.parametrize(
    ("wide", "part", "change"),
    [("", "", "pause"), ("", "", "readonly"), (".*", ".*", "readonly"), (".>", ".a", "pause")],
)
async def test_copy_lacks_the_messages_of_the_times_when_it_was_paused_or_readonly(
    client: Client, name: str, wide: str, part: str, change: str
) -> None:
    subject, copy = f"{name}.a" if part else name, f"{name}-copy"
    await client.create_stream(f"{name}{wide}", name)
    await client.create_stream(f"{name}{part}", copy)
    await client.publish_to_subject(subject, b"a")
    expected = [b"a"]
    for missed, stored in ((b"b", b"c"), (b"d", b"e")):
        assert await values(client, copy, len(expected)) == expected  # a copy lags behind the acks
        expected.append(stored)
        if change == "pause":
            await client.pause_stream(copy)
            await client.publish_to_subject(subject, missed)
            await client.publish(copy, stored)
        else:
            await client.set_stream_readonly(copy)
            await client.publish_to_subject(subject, missed)
            await client.set_stream_readonly(copy, readonly=False)
            await client.publish_to_subject(subject, stored)
    assert await values(client, name, 5) == [b"a", b"b", b"c", b"d", b"e"]
    assert await values(client, copy, 3) == expected


@pytest.mark.parametrize("change", ["pause", "readonly"])
async def test_copy_that_has_recorded_the_subject_itself_stores_each_message_once(
    client: Client, name: str, change: str
) -> None:
    copy = f"{name}-copy"
    for stream in (name, copy):
        await client.create_stream(name, stream)
    await fill(client, name, [b"a"])
    await client.pause_stream(name)
    await fill(client, copy, [b"b"])
    await fill(client, name, [b"c"])  # resumes the first stream, which copies from the other one from now on
    assert await values(client, copy, 3) == [b"a", b"b", b"c"]
    assert await values(client, name, 2) == [b"a", b"c"]
    if change == "pause":
        await client.pause_stream(copy)
    else:
        await client.set_stream_readonly(copy)
        await client.set_stream_readonly(copy, readonly=False)
    await fill(client, copy, [b"d"])
    assert await values(client, copy, 4) == [b"a", b"b", b"c", b"d"]
    assert await values(client, name, 3) == [b"a", b"c", b"d"]
