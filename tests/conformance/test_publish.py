"""Publishing: every policy, what comes back out, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient

from liftenvelope.client import Client
from liftenvelope.client._publish_many import OutgoingMessage
from liftenvelope.client.positions import Timestamp
from liftenvelope.envelope import AckPolicy, unmarshal_ack
from liftenvelope.errors import (
    AckTimeoutError,
    IncorrectOffsetError,
    LiftEnvelopeError,
    MessageTooLargeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    ReadonlyPartitionError,
    UsageError,
)
from liftenvelope.partition import KeyPartitioner
from tests.conformance.actions import PATIENCE, eventually, fill, new_stream, read, read_offsets
from tests.conformance.conftest import CHOSEN
from tests.handled import handled


@pytest.mark.parametrize("policy", [AckPolicy.LEADER, AckPolicy.ALL])
async def test_an_ack(client: Client, name: str, policy: AckPolicy) -> None:
    await client.create_stream(f"{name}.s", name, partitions=2)
    for offset in range(3):
        ack = await client.publish(
            name, b"value", partition=1, ack_policy=policy, correlation_id=f"id-{offset}"
        )
        assert ack is not None
        assert (ack.stream, ack.offset, ack.correlation_id) == (name, offset, f"id-{offset}")
        assert ack.ack_policy == policy
        # Liftbridge calls the stream's subject that of the partition.
        assert ack.partition_subject in (f"{name}.s", f"{name}.s.1")
        assert ack.msg_subject == f"{name}.s.1"


async def test_no_ack(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    for number in range(5):
        assert await client.publish(name, b"%d" % number, ack_policy=AckPolicy.NONE) is None
    found = await read(client, name, start=0, stop=4)
    assert [message.value for message in found] == [b"%d" % number for number in range(5)]


async def test_correlation_ids_are_made(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    acks = [await client.publish(name, b"x") for _ in range(3)]
    assert len({ack.correlation_id for ack in acks if ack is not None}) == 3


async def test_an_ack_inbox_of_one_s_own(client: Client, name: str, nc: NatsClient) -> None:
    await client.create_stream(name, name)
    inbox = await nc.subscribe(f"_INBOX.{name}")
    await handled(nc)
    ack = await client.publish(name, b"x", ack_inbox=f"_INBOX.{name}", correlation_id="both")
    assert ack is not None
    assert ack.offset == 0
    seen = unmarshal_ack((await inbox.next_msg(timeout=PATIENCE)).data)
    assert (seen.stream, seen.offset, seen.correlation_id) == (name, 0, "both")


@pytest.mark.parametrize("method", ["publish", "publish_async", "publish_to_subject"])
async def test_concurrent_publishes_on_one_ack_inbox_get_their_own_acks(
    client: Client, name: str, method: str
) -> None:
    await client.create_stream(name, name)
    ids = [f"id-{number}" for number in range(50)]
    calls: list[Any] = [
        getattr(client, method)(name, b"x", ack_inbox=f"_INBOX.{name}", correlation_id=one) for one in ids
    ]
    if method == "publish_async":
        calls = await asyncio.gather(*calls)
    acks = await asyncio.gather(*calls)
    assert [ack.correlation_id for ack in acks] == ids
    assert {ack.offset for ack in acks} == set(range(50))


async def test_what_goes_in_comes_out(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    headers = {"a": b"1", "b": b"", "bytes": bytes(range(256))}
    await client.publish(name, b"value", key=b"\0key", headers=headers)
    await client.publish(name, bytearray(b"mutable"), key=memoryview(b"view"))
    await client.publish(name, b"")
    found = await read(client, name, start="earliest", stop="latest")
    assert [(m.value, m.key, dict(m.headers)) for m in found] == [
        (b"value", b"\0key", headers),
        (b"mutable", b"view", {}),
        (b"", b"", {}),
    ]


async def test_what_comes_by_nats_has_no_headers_of_the_server(
    client: Client, name: str, nc: NatsClient
) -> None:
    # The server puts `subject` and `reply` among the headers of what it stores.
    await client.create_stream(name, name)
    await nc.publish(name, b"plain", reply="somebody")
    message = (await read(client, name, start=0, stop=0))[0]
    assert (message.value, dict(message.headers)) == (b"plain", {})
    assert message.subject == name
    # JetStream does not keep the reply subject: docs/gateway.md, differences.
    assert message.reply_subject == ("somebody" if CHOSEN == "liftbridge" else "")


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"subject": b"x"}},
        {"headers": {"reply": b"x"}},
        {"headers": {"h" * 32_768: b""}},
        {"partition": -1},
        {"expected_offset": 2**63},
        {"ack_policy": 7},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"partitioner": "random"},
        {"ack_inbox": "i" * 4_200},
        {"ack_inbox": "a b"},
        {"ack_inbox": "acks.*"},
        {"ack_inbox": b"acks"},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_what_would_break_something_is_refused_here(
    client: Client, name: str, options: dict[str, Any]
) -> None:
    # A header name of 32,768 bytes kills a Liftbridge server. After an ack inbox of more than 4,096 bytes,
    # NATS's longest line, it publishes no more for anybody.
    await client.create_stream(name, name)
    with pytest.raises((UsageError, ValueError)) as info:
        await client.publish(name, b"x", **options)
    assert isinstance(info.value, LiftEnvelopeError)
    assert await read_offsets(client, name, start="earliest", stop="latest") == []


@pytest.mark.parametrize("reserved", ["__cursors", "__activity"])
async def test_the_server_s_own_streams_are_not_published_to(client: Client, reserved: str) -> None:
    # Liftbridge lets everybody write to them.
    with pytest.raises(UsageError, match=reserved):
        await client.publish(reserved, b"x")
    with pytest.raises(UsageError, match=reserved):
        client.publish_many(reserved, [b"x"])


async def test_keys_choose_partitions(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=4)
    expected: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
    for number in range(40):
        key = b"key-%d" % (number % 10)
        await client.publish(name, b"%d" % number, key=key)
        expected[KeyPartitioner().partition(name, key, b"", 4)].append(b"%d" % number)
    for partition, values in expected.items():
        found = await read(client, name, partition=partition, start="earliest", stop="latest")
        assert [message.value for message in found] == values


async def test_round_robin_and_a_function_of_one_s_own(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=3)
    for _ in range(6):
        await client.publish(name, b"x", partitioner="round_robin")
    for partition in range(3):
        assert await read_offsets(client, name, partition=partition, start="earliest", stop="latest") == [
            0,
            1,
        ]
    await client.publish(name, b"last", partitioner=lambda key, value, partitions: partitions - 1)
    await client.publish(name, b"named", partition=0, partitioner=lambda key, value, partitions: 1)
    assert (await read(client, name, partition=2, start=2, stop=2))[0].value == b"last"
    assert (await read(client, name, partition=0, start=2, stop=2))[0].value == b"named"


async def test_refusals(client: Client, name: str) -> None:
    with pytest.raises(NoSuchStreamError, match=name):
        await client.publish(name, b"x")
    await client.create_stream(name, name)
    with pytest.raises(NoSuchPartitionError, match=name):
        await client.publish(name, b"x", partition=3)
    await client.set_stream_readonly(name)
    for policy in AckPolicy:
        with pytest.raises(ReadonlyPartitionError, match=name):
            await client.publish(name, b"x", ack_policy=policy)


@pytest.mark.parametrize("policy", [AckPolicy.LEADER, AckPolicy.ALL])
async def test_expected_offsets(client: Client, name: str, policy: AckPolicy) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    assert await fill(client, name, [b"0"], expected_offset=0, ack_policy=policy) == [0]
    assert await fill(client, name, [b"1"], expected_offset=1, ack_policy=policy) == [1]
    for wrong in (0, 1, 3):
        with pytest.raises(IncorrectOffsetError, match=name):
            await client.publish(name, b"no", expected_offset=wrong, ack_policy=policy)
    assert await fill(client, name, [b"2"], expected_offset=2, ack_policy=policy) == [2]


async def test_one_of_many_writers_wins(client: Client, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    outcomes = await asyncio.gather(
        *(client.publish(name, b"%d" % n, expected_offset=0) for n in range(10)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, IncorrectOffsetError)]
    assert len(refused) == 9
    assert await read_offsets(client, name, start="earliest", stop="latest") == [0]


@pytest.mark.parametrize("size", [(1 << 20) + 1, 3 << 20, 5 << 20])
@pytest.mark.parametrize("policy", list(AckPolicy))
async def test_too_large(client: Client, name: str, size: int, policy: AckPolicy) -> None:
    # Over 4 MiB Liftbridge ends the whole stream of publishes, with all that is on its way there.
    await client.create_stream(name, name)
    others = [await client.publish_async(name, b"%d" % n) for n in range(20)]
    with pytest.raises(MessageTooLargeError):
        await client.publish(name, bytes(size), ack_policy=policy)
    acks = await asyncio.gather(*others)
    assert [ack.offset for ack in acks if ack is not None] == list(range(20))
    assert await fill(client, name, [b"after"]) == [20]


async def test_as_large_as_can_be(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    values = [bytes([n]) * ((1 << 20) - 300) for n in range(5)]
    assert await fill(client, name, values) == [0, 1, 2, 3, 4]
    assert [m.value for m in await read(client, name, start="earliest", stop="latest")] == values


@pytest.mark.parametrize("policy", [AckPolicy.LEADER, AckPolicy.ALL])
async def test_several_streams_on_one_subject(client: Client, name: str, policy: AckPolicy) -> None:
    # Each stream acks what any of them is sent, with the same correlation id. The one asked for counts.
    streams = [f"{name}-{number}" for number in range(3)]
    for stream in streams:
        await client.create_stream(name, stream)
    await fill(client, streams[1], 2)
    for number in range(2, 30):
        stream = streams[number % 3]
        ack = await client.publish(stream, b"m%d" % number, ack_policy=policy)
        assert ack is not None
        assert (ack.stream, ack.offset) == (stream, number)
    for stream in streams:
        assert await read_offsets(client, stream, start=0, stop=29) == list(range(30))


async def test_on_a_subject(client: Client, name: str) -> None:
    await client.create_stream(f"{name}.*", name)
    ack = await client.publish_to_subject(
        f"{name}.a", b"value", key=b"k", headers={"h": b"1"}, correlation_id="mine"
    )
    assert ack is not None
    assert (ack.stream, ack.offset, ack.correlation_id) == (name, 0, "mine")
    assert await client.publish_to_subject(f"{name}.b", b"none", ack_policy=AckPolicy.NONE) is None
    found = await read(client, name, start=0, stop=1)
    assert [(m.value, m.key, dict(m.headers), m.subject) for m in found] == [
        (b"value", b"k", {"h": b"1"}, f"{name}.a"),
        (b"none", b"", {}, f"{name}.b"),
    ]


async def test_on_a_subject_that_nobody_records(client: Client, name: str) -> None:
    with pytest.raises(AckTimeoutError, match=name):
        await client.publish_to_subject(name, b"x", timeout=0.3)


async def test_on_a_subject_of_a_readonly_partition(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    await client.set_stream_readonly(name)
    with pytest.raises(AckTimeoutError, match=name):
        await client.publish_to_subject(name, b"x", timeout=0.3)
    assert await read_offsets(client, name, start="earliest", stop="latest") == []


async def test_an_error_in_an_ack_is_raised(client: Client, name: str) -> None:
    # Publishing on a subject ends well for the server also where the ack says that nothing was stored.
    await client.create_stream(name, name)
    with pytest.raises(MessageTooLargeError):
        await client.publish_to_subject(name, bytes((1 << 20) + 1))


@pytest.mark.parametrize("bad", ["", "a b", "a.*", ">", "a..b", "s" * 4_200])
async def test_subjects_that_can_not_be_published_on(client: Client, bad: str) -> None:
    with pytest.raises(UsageError, match="subject"):
        await client.publish_to_subject(bad, b"x")
    if bad:  # an empty one is none
        with pytest.raises(UsageError, match="ack_inbox"):
            await client.publish_to_subject("good", b"x", ack_inbox=bad)


async def test_long_subjects(client: Client, name: str) -> None:
    subject = f"{name}." + "s" * (2000 - len(name) - 1)
    await client.create_stream(subject, name, group="g" * 2000)
    ack = await client.publish_to_subject(subject, b"x", ack_inbox="_INBOX." + "i" * 1993)
    assert ack is not None
    assert ack.msg_subject == subject
    assert [message.subject for message in await read(client, name, start=0, stop=0)] == [subject]


async def test_waking_a_paused_partition(client: Client, name: str) -> None:
    await new_stream(client, name, 2)
    await client.pause_stream(name)
    assert await fill(client, name, [b"awake"]) == [2]
    assert await read_offsets(client, name, start="earliest", stop="latest") == [0, 1, 2]


async def test_without_waiting(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    futures = [await client.publish_async(name, b"%d" % number) for number in range(500)]
    acks = await asyncio.gather(*futures)
    assert [ack.offset for ack in acks if ack is not None] == list(range(500))


async def test_flush(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    futures = [await client.publish_async(name, b"%d" % number) for number in range(100)]
    await client.flush()
    assert all(future.done() for future in futures)
    assert [future.result().offset for future in futures] == list(range(100))  # type: ignore[union-attr]


async def test_message_is_stored_no_earlier_than_its_ack_says_it_was_received(
    client: Client, name: str
) -> None:
    """So a read from the reception time of an ack finds the message."""
    await client.create_stream(name, name)
    acks = [await client.publish(name, b"alone"), await client.publish_to_subject(name, b"on a subject")]
    # The gateway publishes the first one of a call in another way than the following ones.
    acks += [await (await client.publish_async(name, b"%d" % number)) for number in range(3)]
    found = await read(client, name, start="earliest", stop="latest")
    assert len(found) == len(acks)
    for message, ack in zip(found, acks, strict=True):
        assert ack is not None
        assert 0 < ack.reception_timestamp_ns <= message.timestamp_ns
        assert ack.reception_timestamp_ns <= ack.commit_timestamp_ns
    assert acks[-1] is not None
    since = await read(client, name, start=Timestamp(acks[-1].reception_timestamp_ns), stop="latest")
    assert found[-1] in since


async def test_errors_of_single_messages_among_others(client: Client, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    good = [await client.publish_async(name, b"%d" % n, expected_offset=n) for n in range(10)]
    bad = [await client.publish_async(name, b"no", expected_offset=99) for _ in range(3)]
    for future in bad:
        with pytest.raises(IncorrectOffsetError):
            await future
    assert [ack.offset for ack in await asyncio.gather(*good) if ack is not None] == list(range(10))


@pytest.mark.parametrize("in_flight", [1, 100, 10_000])
async def test_many(client: Client, name: str, in_flight: int) -> None:
    count = 500 if in_flight == 1 else 10_000
    await client.create_stream(name, name)
    summary = await client.publish_many(
        name, (b"%d" % number for number in range(count)), max_in_flight=in_flight
    )
    assert (summary.acked, summary.failures) == (count, {})
    assert summary.offsets == {0: (0, count - 1)}
    found = await read(client, name, start="earliest", stop=count - 1)
    assert [message.value for message in found] == [b"%d" % number for number in range(count)]
    assert [message.offset for message in found] == list(range(count))


async def test_many_over_partitions_from_an_async_iterable(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=3)

    async def messages() -> AsyncIterator[Any]:
        for number in range(300):
            yield b"key-%d" % (number % 17), b"%d" % number

    acks = {index: ack async for index, ack in client.publish_many(name, messages())}
    assert list(acks) == list(range(300))
    found = await read(client, name, partition="all", start="earliest", stop="latest")
    assert sorted(int(message.value) for message in found) == list(range(300))
    by_key: dict[bytes, list[int]] = {}
    for message in found:
        by_key.setdefault(message.key, []).append(int(message.value))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


async def test_many_with_a_faulty_one(client: Client, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    messages = [OutgoingMessage(value=b"x", expected_offset=n if n != 7 else 99) for n in range(7)]
    messages.append(OutgoingMessage(value=b"no", expected_offset=99))
    summary = await client.publish_many(name, messages, on_error="collect")
    assert summary.acked == 7
    assert [(index, type(error)) for index, error in summary.failures.items()] == [(7, IncorrectOffsetError)]
    with pytest.raises(IncorrectOffsetError, match=name) as info:
        await client.publish_many(name, messages[-1:])
    assert info.value.summary is not None
    assert info.value.summary.acked == 0


async def test_what_is_acked_by_all_can_be_read(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    for number in range(10):
        await fill(client, name, [b"x"], ack_policy=AckPolicy.ALL)
        info = await client.fetch_partition_metadata(name)
        assert info.newest_offset == number

        async def is_visible(expected: int = number) -> bool:
            return (await client.fetch_partition_metadata(name)).high_watermark == expected

        await eventually(is_visible)
