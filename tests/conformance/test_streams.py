"""Streams: made with every option, refused, listed, paused, read-only, deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.client._streams import MAX_REPLICATION
from liftenvelope.envelope import AckPolicy
from liftenvelope.errors import (
    AckTimeoutError,
    IncorrectOffsetError,
    LiftEnvelopeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    PartitionPausedError,
    ReadonlyPartitionError,
    ServerError,
    StreamExistsError,
    UsageError,
)
from liftenvelope.rpc.status import StatusCode
from tests.cleaner_clock import CleanerClock
from tests.conformance.actions import SOON, eventually, fill, new_stream, read, read_offsets
from tests.conformance.conftest import Server
from tests.handled import handled


async def test_a_stream_is_found_once_it_is_made(client: Client, name: str) -> None:
    await client.create_stream(f"{name}.subject", name, partitions=3)
    metadata = await client.fetch_metadata(streams=[name])
    stream = metadata.get_stream(name)
    assert stream is not None
    assert (stream.name, stream.subject) == (name, f"{name}.subject")
    assert list(stream.partitions) == [0, 1, 2]
    assert metadata.partition_count(name) == 3
    assert stream.created_ns > 0
    assert {p.leader for p in stream.partitions.values()} <= metadata.brokers.keys()
    assert metadata.addresses == tuple(broker.address for broker in metadata.brokers.values())
    assert name in (await client.fetch_metadata()).streams


async def test_what_does_not_exist_is_left_out(client: Client, name: str) -> None:
    metadata = await client.fetch_metadata(streams=[name], groups=[name])
    assert not metadata.streams
    assert not metadata.groups
    assert metadata.get_stream(name) is None
    with pytest.raises(NoSuchStreamError, match=name):
        metadata.partition_count(name)


async def test_connecting_lists_no_streams(client: Client, server: Server, name: str) -> None:
    # Where there are very many, the list is longer than the longest message.
    for number in range(5):
        await client.create_stream(f"{name}-{number}.{'s' * 200}", f"{name}-{number}")
    async with liftenvelope.connect(server.addresses, max_message_bytes=1000) as small:
        with pytest.raises(LiftEnvelopeError, match="1000"):
            await small.fetch_metadata()
        assert (await small.fetch_metadata(streams=[])).addresses
        ack = await small.publish(f"{name}-1", b"x")
        assert ack is not None


async def test_no_names_ask_for_no_streams(client: Client, name: str) -> None:
    # The API itself takes an empty list for "all".
    await client.create_stream(name, name)
    assert not (await client.fetch_metadata(streams=[])).streams


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("retention_max_bytes", 1 << 20),
        ("retention_max_messages", 1000),
        ("retention_max_age", 3600.5),
        ("cleaner_interval", 60.0),
        ("segment_max_bytes", 1 << 20),
        ("segment_max_age", 60.0),
        ("compact_max_goroutines", 2),
        ("auto_pause_time", 60.0),
        ("min_isr", 1),
    ],
)
async def test_each_limit_is_taken_and_zero_as_well(
    client: Client, name: str, option: str, value: Any, zero: bool
) -> None:
    chosen = 0 if zero and option not in ("cleaner_interval", "segment_max_bytes", "min_isr") else value
    await new_stream(client, name, 2, **{option: chosen})
    assert await read_offsets(client, name, start="earliest", stop="latest") == [0, 1]


@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize(
    "option", ["compact_enabled", "auto_pause_disable_if_subscribers", "optimistic_concurrency"]
)
async def test_each_switch_is_taken(client: Client, name: str, option: str, value: bool) -> None:
    await new_stream(client, name, 2, **{option: value})
    assert await read_offsets(client, name, start="earliest", stop="latest") == [0, 1]


async def test_all_options_together(client: Client, name: str) -> None:
    await new_stream(
        client,
        name,
        2,
        group="",
        partitions=2,
        replication_factor=1,
        retention_max_bytes=1 << 20,
        retention_max_messages=100,
        retention_max_age=0.5e6,
        cleaner_interval=30,
        segment_max_bytes=1 << 16,
        segment_max_age=3600,
        compact_enabled=True,
        compact_max_goroutines=1,
        auto_pause_time=600,
        auto_pause_disable_if_subscribers=True,
        min_isr=1,
        optimistic_concurrency=False,
        encryption=False,
    )
    assert await read_offsets(client, name, start="earliest", stop="latest") == [0, 1]


async def test_old_messages_go_and_offsets_stay(client: Client, name: str) -> None:
    # Only full segments can go: these hold a few messages each.
    cleaner = await CleanerClock.create_stream(
        client, name, retention_max_messages=10, segment_max_bytes=1024
    )
    for _ in range(40):
        await cleaner.wait_async()
        await fill(client, name, [b"x" * 200])

    async def are_gone() -> bool:
        return (await read_offsets(client, name, start="earliest", stop="latest"))[0] > 0

    await eventually(are_gone)
    offsets = await read_offsets(client, name, start="earliest", stop="latest")
    assert offsets == list(range(offsets[0], 40))
    # An offset that is gone begins with the first one there is.
    assert (await read_offsets(client, name, start=0, stop="latest"))[-1] == 39


async def test_a_partition_pauses_by_itself_and_wakes_for_a_message(client: Client, name: str) -> None:
    await new_stream(client, name, 1, auto_pause_time=0.2)

    async def is_paused() -> bool:
        stream = (await client.fetch_metadata(streams=[name])).get_stream(name)
        return stream is not None and stream.partitions[0].paused

    await eventually(is_paused)
    assert await fill(client, name, [b"woken"]) == [1]

    async def values() -> list[bytes]:
        try:
            found = await read(client, name, start="earliest", stop=1, resume=True)
        except PartitionPausedError:
            return []  # it has paused again, before it was read or while it was
        return [message.value for message in found]

    async def are_there() -> bool:
        return await values() == [b"m0", b"woken"]

    await eventually(are_there)


async def test_partitions_record_numbered_subjects(client: Client, name: str, nc: NatsClient) -> None:
    await client.create_stream(name, name, partitions=3)
    for subject in (name, f"{name}.1", f"{name}.2"):
        await nc.publish(subject, subject.encode())
    await handled(nc)
    for partition, subject in enumerate((name, f"{name}.1", f"{name}.2")):
        found = await read(client, name, partition=partition, start=0, stop=0)
        assert [(m.value, m.partition, m.subject) for m in found] == [(subject.encode(), partition, subject)]


@pytest.mark.liftbridge_only
async def test_streams_of_one_group_share_the_messages(client: Client, name: str, nc: NatsClient) -> None:
    pair = (f"{name}-a", f"{name}-b")
    for stream in pair:
        await client.create_stream(name, stream, group="sharing")
    for number in range(40):
        await nc.publish(name, b"%d" % number)
    await handled(nc)

    async def found() -> list[bytes]:
        parts = [await read(client, stream, start="earliest", stop="latest") for stream in pair]
        return sorted((message.value for part in parts for message in part), key=int)

    async def is_complete() -> bool:
        return len(await found()) >= 40

    await eventually(is_complete)
    assert await found() == [b"%d" % number for number in range(40)]


@pytest.mark.gateway_only
async def test_the_gateway_refuses_streams_that_would_share_messages(client: Client, name: str) -> None:
    # JetStream gives each stream all messages of a subject: docs/gateway.md, differences.
    await client.create_stream(name, f"{name}-a", group="sharing")
    with pytest.raises(ServerError, match="sharing") as info:
        await client.create_stream(name, f"{name}-b", group="sharing")
    assert info.value.code == StatusCode.FAILED_PRECONDITION
    await client.create_stream(name, f"{name}-c", group="another")


async def test_optimistic_concurrency_is_heeded(client: Client, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    assert await fill(client, name, [b"a"], expected_offset=0) == [0]
    with pytest.raises(IncorrectOffsetError, match=name):
        await client.publish(name, b"b", expected_offset=5)
    assert await fill(client, name, [b"b"], expected_offset=1) == [1]


@pytest.mark.liftbridge_only
async def test_more_replicas_in_sync_than_there_are(client: Client, name: str) -> None:
    # The server takes a min_isr that can't be reached. It stores with LEADER, and acks no ALL: no error
    # comes, and the message is stored all the same.
    await client.create_stream(name, name, min_isr=2)
    assert await fill(client, name, [b"leader"]) == [0]
    with pytest.raises(AckTimeoutError) as info:
        await client.publish(name, b"all", ack_policy=AckPolicy.ALL, timeout=SOON)
    assert info.value.sent


async def test_replication(client: Client, server: Server, name: str) -> None:
    await new_stream(client, name, 1, replication_factor=MAX_REPLICATION)
    info = await client.fetch_partition_metadata(name)
    assert len(info.replicas) == len(server.addresses)
    with pytest.raises(LiftEnvelopeError, match=f"{name}-more"):
        await client.create_stream(name, f"{name}-more", replication_factor=len(server.addresses) + 1)


@pytest.mark.parametrize(
    "bad",
    ["", "a b", "a\tb", "a\0b", ".a", "a.", "a..b", "x" * 300, "*", "a.>", ">", "__cursors", "__activity"],
)
async def test_names_that_break_a_server_are_refused_here(client: Client, bad: str) -> None:
    # Liftbridge does not check names, and panics at every start after some of these.
    with pytest.raises(UsageError):
        await client.create_stream("sound", bad)


@pytest.mark.parametrize("ending", [".b", "/b", ",b", "-ü", "-" + "x" * 200])
async def test_odd_names_that_work(client: Client, name: str, ending: str) -> None:
    await client.create_stream(name, name + ending)
    assert await fill(client, name + ending, 1) == [0]
    assert await read_offsets(client, name + ending, start="earliest", stop="latest") == [0]


@pytest.mark.parametrize("bad", ["", "a b", "a..b", ".a", "a.", "a\nb", "s" * 4_200])
async def test_subjects_that_can_not_be_are_refused_here(client: Client, name: str, bad: str) -> None:
    # NATS takes no longer line than 4,096 bytes: a Liftbridge server dies of it, and again at every start.
    with pytest.raises(UsageError, match="subject"):
        await client.create_stream(bad, name)
    assert name not in (await client.fetch_metadata(streams=[name])).streams


async def test_a_subject_may_have_wildcards(client: Client, name: str, nc: NatsClient) -> None:
    await client.create_stream(f"{name}.*.end", name)
    await nc.publish(f"{name}.a.end", b"yes")
    await nc.publish(f"{name}.a.b", b"no")
    await nc.publish(f"{name}.b.end", b"yes")
    found = await read(client, name, start=0, stop=1)
    assert [(m.value, m.subject) for m in found] == [(b"yes", f"{name}.a.end"), (b"yes", f"{name}.b.end")]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("partitions", -1),
        ("partitions", 0),
        ("replication_factor", 0),
        ("replication_factor", -2),
        ("cleaner_interval", -1),
        ("segment_max_bytes", -1),
        ("retention_max_age", -0.001),
        ("retention_max_messages", -1),
        ("min_isr", -1),
        ("auto_pause_time", float("inf")),
        ("partitions", True),
        ("compact_enabled", 1),
        ("group", "two words"),
        ("group", "g" * 4_200),
    ],
)
async def test_settings_that_break_a_server_are_refused_here(
    client: Client, name: str, option: str, value: Any
) -> None:
    with pytest.raises(UsageError, match=option):
        await client.create_stream(name, name, **{option: value})


async def test_making_it_twice(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    with pytest.raises(StreamExistsError, match=name):
        await client.create_stream(name, name)
    with pytest.raises(StreamExistsError, match=name):
        await client.create_stream(f"{name}.other", name, partitions=2)


async def test_making_it_at_the_same_time(client: Client, name: str) -> None:
    outcomes = await asyncio.gather(
        *(client.create_stream(name, name) for _ in range(5)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert [type(outcome) for outcome in refused] == [StreamExistsError] * 4


async def test_deleting(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    await client.delete_stream(name)
    assert name not in (await client.fetch_metadata()).streams
    with pytest.raises(NoSuchStreamError, match=name):
        await client.delete_stream(name)
    with pytest.raises(NoSuchStreamError, match=name):
        await client.fetch_partition_metadata(name)


async def test_a_stream_made_anew_is_empty(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    await client.delete_stream(name)
    await new_stream(client, name, [b"new"], partitions=2)
    assert [m.value for m in await read(client, name, start="earliest", stop="latest")] == [b"new"]
    assert (await client.fetch_metadata(streams=[name])).partition_count(name) == 2


async def test_pausing_and_waking(client: Client, name: str) -> None:
    await new_stream(client, name, 2, partitions=2)
    await client.pause_stream(name, partitions=[0])
    stream = (await client.fetch_metadata(streams=[name])).streams[name]
    assert [p.paused for p in stream.partitions.values()] == [True, False]
    assert await fill(client, name, [b"one"], partition=1) == [0]
    assert await fill(client, name, [b"woken"], partition=0) == [2]
    assert await read_offsets(client, name, start="earliest", stop="latest") == [0, 1, 2]


async def test_a_message_wakes_all_of_them(client: Client, name: str) -> None:
    await new_stream(client, name, 0, partitions=2)
    await fill(client, name, 1, partition=1)
    await client.pause_stream(name, resume_all=True)
    assert await fill(client, name, [b"woken"], partition=0) == [0]
    # Reading without `resume` works only where it is awake.
    assert await read_offsets(client, name, partition=1, start="earliest", stop="latest") == [0]


@pytest.mark.parametrize("resumed_by", ["publish", "subscribe"])
async def test_resume_all_of_some_partitions_is_heeded_for_a_partition_that_is_not_paused(
    client: Client, nc: NatsClient, name: str, resumed_by: str
) -> None:
    await client.create_stream(name, name, partitions=3)
    for partition in range(3):
        await fill(client, name, 1, partition=partition)
    await client.pause_stream(name, partitions=[0, 1], resume_all=True)
    if resumed_by == "publish":
        assert await fill(client, name, [b"resumes"], partition=2) == [1]
    else:
        assert await read_offsets(
            client, name, partition=2, start="earliest", stop="latest", resume=True
        ) == [0]
    # Partitions that record their subjects again store messages of plain NATS.
    for partition, subject in enumerate((name, f"{name}.1")):
        await nc.publish(subject, b"plain")
        assert await read_offsets(client, name, partition=partition, start="earliest", stop=1) == [0, 1]


async def test_pausing_what_is_not_there(client: Client, name: str) -> None:
    with pytest.raises(NoSuchStreamError, match=name):
        await client.pause_stream(name)
    await client.create_stream(name, name)
    with pytest.raises(NoSuchPartitionError, match=name):
        await client.pause_stream(name, partitions=[7])
    with pytest.raises(UsageError, match="-1"):
        await client.pause_stream(name, partitions=[-1])


async def test_readonly_and_back(client: Client, name: str) -> None:
    await new_stream(client, name, 2, partitions=2)
    await client.set_stream_readonly(name, partitions=[0])
    assert (await client.fetch_partition_metadata(name, 0)).readonly
    assert not (await client.fetch_partition_metadata(name, 1)).readonly
    with pytest.raises(ReadonlyPartitionError, match=name):
        await client.publish(name, b"no", partition=0)
    assert await fill(client, name, [b"one"], partition=1) == [0]
    await client.set_stream_readonly(name, readonly=False)
    assert not (await client.fetch_partition_metadata(name, 0)).readonly
    assert await fill(client, name, [b"again"], partition=0) == [2]


@pytest.mark.parametrize("readonly", [True, False])
async def test_readonly_times_change_with_each_request_even_if_the_state_does_not(
    client: Client, name: str, readonly: bool
) -> None:
    await client.create_stream(name, name)
    found = []
    for _ in range(2):
        await client.set_stream_readonly(name, readonly=readonly)
        found.append((await client.fetch_partition_metadata(name, 0)).readonly_times)
    once, twice = found
    assert 0 < once.first_ns == once.latest_ns == twice.first_ns < twice.latest_ns


async def test_readonly_of_what_is_not_there(client: Client, name: str) -> None:
    with pytest.raises(NoSuchStreamError, match=name):
        await client.set_stream_readonly(name)
    await client.create_stream(name, name)
    with pytest.raises(NoSuchPartitionError, match=name):
        await client.set_stream_readonly(name, partitions=[0, 9])


async def test_a_partition_s_state(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=2)
    empty = await client.fetch_partition_metadata(name, 1)
    assert (empty.id, empty.newest_offset, empty.high_watermark) == (1, -1, -1)
    assert (empty.readonly, empty.messages_received.latest_ns) == (False, 0)
    await fill(client, name, 3, partition=1)

    async def is_committed() -> bool:
        return (await client.fetch_partition_metadata(name, 1)).high_watermark == 2

    await eventually(is_committed)
    info = await client.fetch_partition_metadata(name, 1)
    assert info.newest_offset == 2
    assert info.leader in info.isr
    assert set(info.isr) <= set(info.replicas)
    assert 0 < info.messages_received.first_ns <= info.messages_received.latest_ns
    with pytest.raises(NoSuchPartitionError, match=name):
        await client.fetch_partition_metadata(name, 5)
