"""Subscriptions: every start and stop, every end, and messages of every shape."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope.arrow import STORED_SCHEMA
from liftenvelope.client import Client
from liftenvelope.client._events import ClientEvent, SubscriptionLost
from liftenvelope.client.positions import Cursor, Start, Timestamp
from liftenvelope.errors import (
    NoSuchPartitionError,
    NoSuchStreamError,
    PartitionPausedError,
    ReadonlyPartitionError,
    StreamDeletedError,
    UnsupportedByServerError,
    UsageError,
)
from liftenvelope.payload import ArrowBatches, BadPayloadError, Json
from liftenvelope.rpc.status import StatusCode
from tests.cleaner_clock import CleanerClock
from tests.conformance.actions import PATIENCE, eventually, fill, new_stream, read, read_offsets, take

EMPTY: list[int] = []
FIVE = [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        ("earliest", "latest", FIVE),
        ("earliest", 2, [0, 1, 2]),
        ("earliest", 4, FIVE),
        ("earliest", 0, [0]),
        ("latest", "latest", [4]),
        ("latest", 4, [4]),
        ("new", "latest", EMPTY),
        (0, "latest", FIVE),
        (0, 0, [0]),
        (2, 3, [2, 3]),
        (3, "latest", [3, 4]),
        (4, 4, [4]),
        (5, "latest", EMPTY),
        (50, "latest", EMPTY),
        (timedelta(hours=1), "latest", FIVE),
        (timedelta(hours=1), 1, [0, 1]),
        (timedelta(0), "latest", EMPTY),
        (datetime(2020, 1, 1, tzinfo=UTC), "latest", FIVE),
        (datetime(2020, 1, 1, tzinfo=UTC), 3, [0, 1, 2, 3]),
        (Timestamp(0), "latest", FIVE),
        ("earliest", datetime(2020, 1, 1, tzinfo=UTC), EMPTY),
        (2, datetime(2020, 1, 1, tzinfo=UTC), EMPTY),
        (Cursor("none"), "latest", FIVE),
        (Cursor("none", default="latest"), "latest", [4]),
        (Cursor("none", default="new"), "latest", EMPTY),
        (Cursor("none"), 1, [0, 1]),
    ],
    ids=str,
)
async def test_bounded_reads(client: Client, name: str, start: Any, stop: Any, expected: list[int]) -> None:
    await new_stream(client, name, 5)
    assert await read_offsets(client, name, start=start, stop=stop) == expected


@pytest.mark.parametrize(
    "start", ["earliest", "latest", "new", 0, 9, timedelta(hours=1), Cursor("none")], ids=str
)
async def test_a_bounded_read_of_an_empty_stream_ends_at_once(client: Client, name: str, start: Any) -> None:
    await client.create_stream(name, name)
    assert await read_offsets(client, name, start=start, stop="latest") == EMPTY
    assert await read_offsets(client, name, start=start, stop=datetime.now(UTC)) == EMPTY


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 1, 2, 3]),
        ("latest", [2, 3]),
        ("new", [3]),
        (1, [1, 2, 3]),
        (3, [3]),
        (timedelta(hours=1), [0, 1, 2, 3]),
        (datetime(2020, 1, 1, tzinfo=UTC), [0, 1, 2, 3]),
        (Cursor("none"), [0, 1, 2, 3]),
    ],
    ids=str,
)
async def test_unbounded_reads(client: Client, name: str, start: Any, expected: list[int]) -> None:
    await new_stream(client, name, 3)
    async with client.subscribe(name, start=start) as messages:
        await fill(client, name, [b"later"])
        assert [message.offset for message in await take(messages, len(expected))] == expected
        assert await messages.next(0.05) is None
        assert not messages.finished
        assert messages.position == 4


async def test_the_default_is_new_messages_only(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    async with client.subscribe(name) as messages:
        # Its place is known before the first message, so that a lost connection loses none.
        assert messages.position == 3
        await fill(client, name, 2)
        assert [message.offset for message in await take(messages, 2)] == [3, 4]


async def test_latest_of_an_empty_stream_is_its_first_message(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    async with client.subscribe(name, start="latest") as messages:
        await fill(client, name, 2)
        assert [message.offset for message in await take(messages, 2)] == [0, 1]


async def test_times_between_messages(client: Client, name: str) -> None:
    await new_stream(client, name, 5)
    stored = await read(client, name, start="earliest", stop="latest")
    assert all(a.timestamp_ns < b.timestamp_ns for a, b in pairwise(stored))
    at, after = Timestamp(stored[2].timestamp_ns), Timestamp(stored[2].timestamp_ns + 1)
    assert await read_offsets(client, name, start=at, stop="latest") == [2, 3, 4]
    assert await read_offsets(client, name, start=after, stop="latest") == [3, 4]
    assert await read_offsets(client, name, start="earliest", stop=at) == [0, 1, 2]
    assert await read_offsets(client, name, start=after, stop=Timestamp(stored[3].timestamp_ns)) == [3]
    assert await read_offsets(client, name, start="earliest", stop=datetime.now(UTC)) == FIVE


async def test_stopping_at_an_offset_that_is_yet_to_come(client: Client, name: str) -> None:
    await new_stream(client, name, 2)
    reading = asyncio.create_task(read_offsets(client, name, start="earliest", stop=3))
    await fill(client, name, 5)
    assert await reading == [0, 1, 2, 3]


async def test_latest_is_what_is_newest_at_the_beginning(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        await fill(client, name, 3)
        assert [message.offset async for message in messages] == [0, 1, 2]
        assert messages.finished


async def test_starting_beyond_the_end_waits_for_that_offset(client: Client, name: str) -> None:
    # Liftbridge begins with the next message there is, whatever its offset. That is not what was asked for.
    await new_stream(client, name, 1)
    async with client.subscribe(name, start=3) as messages:
        await fill(client, name, 4)
        assert [message.offset for message in await take(messages, 2)] == [3, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"start": -1},
        {"stop": -1},
        {"start": 5, "stop": 2},
        {"start": "oldest"},
        {"stop": "earliest"},
        {"start": datetime(2024, 1, 1)},
        {"start": timedelta(seconds=-1)},
        {"stop": datetime(2999, 1, 1, tzinfo=UTC)},
        {"start": True},
        {"start": 1.5},
        {"stop": timedelta(1)},
        {"partition": -1},
        {"partition": "some"},
        {"partitions": "some"},
        {"partitions": []},
        {"partitions": [-1]},
        {"partitions": 1},
        {"partition": 1, "partitions": [2]},
        {"partition": "all", "partitions": "all"},
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_refused(client: Client, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        client.subscribe(name, **options)


async def test_a_cursor(client: Client, name: str) -> None:
    await new_stream(client, name, 5)
    await client.set_cursor("reader", name, 0, 2)
    assert await read_offsets(client, name, start=Cursor("reader"), stop="latest") == [3, 4]
    await client.set_cursor("reader", name, 0, 4)
    assert await read_offsets(client, name, start=Cursor("reader"), stop="latest") == EMPTY


async def test_a_cursor_of_an_earlier_stream(client: Client, name: str, events: list[ClientEvent]) -> None:
    # Cursors outlive their stream.
    await new_stream(client, name, 5)
    await client.set_cursor("reader", name, 0, 4)
    await client.delete_stream(name)
    await new_stream(client, name, 2)
    assert await read_offsets(client, name, start=Cursor("reader"), stop="latest") == [0, 1]
    assert "CursorAheadOfStream" in [type(event).__name__ for event in events]


async def test_all_partitions(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=4)
    for partition in range(3):
        await fill(client, name, [b"%d-%d" % (partition, n) for n in range(20)], partition=partition)
    found = await read(client, name, partitions="all", start="earliest", stop="latest")
    assert len(found) == 60
    for partition in range(3):
        values = [message.value for message in found if message.partition == partition]
        assert values == [b"%d-%d" % (partition, n) for n in range(20)]


async def test_several_partitions(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=4)
    for partition in range(4):
        await fill(client, name, 3, partition=partition)
    found = await read(client, name, partitions=[3, 1, 3], start=1, stop="latest")
    assert sorted((m.partition, m.offset) for m in found) == [(1, 1), (1, 2), (3, 1), (3, 2)]
    one = client.subscribe(name, partitions=iter([2]), start="earliest", stop="latest")
    async with one as messages:
        assert [message.offset async for message in messages] == [0, 1, 2]
        assert messages.positions == {(name, 2): 3}
    with pytest.raises(NoSuchPartitionError, match=r"no partition 4"):
        await read(client, name, partitions=[0, 4])


async def test_all_partitions_as_they_come(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=3)
    async with client.subscribe(name, partition="all") as messages:
        assert messages.positions == {(name, 0): 0, (name, 1): 0, (name, 2): 0}
        for partition in (2, 0, 2, 1):
            await fill(client, name, [b"x"], partition=partition)
        found = await take(messages, 4)
        assert sorted((m.partition, m.offset) for m in found) == [(0, 0), (1, 0), (2, 0), (2, 1)]
        assert messages.positions == {(name, 0): 1, (name, 1): 1, (name, 2): 2}


async def test_all_partitions_go_on_where_they_are(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=2)
    for partition in range(2):
        await fill(client, name, 10, partition=partition)
    async with client.subscribe(name, partition="all", start="earliest") as messages:
        seen = {(m.partition, m.offset) for m in await take(messages, 7)}
        positions = messages.positions
    for (_, partition), position in positions.items():
        # Of a partition that nothing was read of yet, the position is not known.
        start = "earliest" if position is None else position
        rest = await read(client, name, partition=partition, start=start, stop="latest")
        seen |= {(m.partition, m.offset) for m in rest}
        assert len([1 for p, _ in seen if p == partition]) == 10
    assert len(seen) == 20


async def test_one_end_ends_all_partitions(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=2)
    async with client.subscribe(name, partition="all") as messages:
        await client.set_stream_readonly(name, partitions=[1])
        with pytest.raises(ReadonlyPartitionError, match=name):
            async with asyncio.timeout(PATIENCE):
                await anext(messages)


async def test_what_does_not_exist(client: Client, name: str) -> None:
    with pytest.raises(NoSuchStreamError, match=name):
        await read(client, name)
    await client.create_stream(name, name)
    with pytest.raises(NoSuchPartitionError, match=name):
        await read(client, name, partition=3)
    with pytest.raises(NoSuchStreamError, match=name):
        await read(client, f"{name}-other", partition="all")


async def test_a_paused_partition(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    await client.pause_stream(name)
    with pytest.raises(PartitionPausedError, match=name) as info:
        await read(client, name, start="earliest")
    # With FAILED_PRECONDITION, Go's client would look for another leader.
    assert info.value.code == StatusCode.INTERNAL
    assert await read_offsets(client, name, start="earliest", stop="latest", resume=True) == [0, 1, 2]
    # It is awake now. Liftbridge goes on saying in its metadata that it is paused; that must not confuse.
    assert await read_offsets(client, name, start="earliest", stop="latest") == [0, 1, 2]


@pytest.mark.parametrize(("values", "start"), [(0, "earliest"), (3, "new")])
async def test_the_end_of_a_paused_partition(client: Client, name: str, values: int, start: Start) -> None:
    """A server confirms a subscription that starts after the newest message, and then closes it."""
    await new_stream(client, name, values)
    await client.pause_stream(name)
    with pytest.raises(PartitionPausedError, match=name):
        async with asyncio.timeout(PATIENCE), client.subscribe(name, start=start) as messages:
            await anext(messages)


async def test_paused_while_it_is_read(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    async with client.subscribe(name, start="earliest") as messages:
        await take(messages, 3)
        await client.pause_stream(name)
        with pytest.raises(PartitionPausedError, match=name):
            async with asyncio.timeout(PATIENCE):
                await anext(messages)
        assert messages.position == 3
        with pytest.raises(PartitionPausedError):
            await anext(messages)


async def test_deleted_while_it_is_read(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    async with client.subscribe(name, start="earliest") as messages:
        await take(messages, 3)
        await client.delete_stream(name)
        with pytest.raises(StreamDeletedError, match=name):
            async with asyncio.timeout(PATIENCE):
                await anext(messages)


async def test_made_readonly_while_it_is_read(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    async with client.subscribe(name, start="earliest") as messages:
        await take(messages, 2)
        await client.set_stream_readonly(name)
        assert (await take(messages, 1))[0].offset == 2
        with pytest.raises(ReadonlyPartitionError, match=name):
            async with asyncio.timeout(PATIENCE):
                await anext(messages)


async def test_reading_a_readonly_partition(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    await client.set_stream_readonly(name)
    assert await read_offsets(client, name, start="earliest", stop="latest") == [0, 1, 2]
    assert await read_offsets(client, name, start="earliest", stop=1) == [0, 1]
    async with client.subscribe(name, start=1) as messages:
        assert [message.offset for message in await take(messages, 2)] == [1, 2]
        with pytest.raises(ReadonlyPartitionError, match=name):
            await anext(messages)
    # Liftbridge says "stop offset is before start offset" here, as for a read that is done.
    with pytest.raises(ReadonlyPartitionError, match=name):
        await read(client, name)


async def test_a_compacted_stream_without_the_stop_offset(client: Client, name: str) -> None:
    cleaner = await CleanerClock.create_stream(client, name, compact_enabled=True, segment_max_bytes=1024)
    for number in range(60):
        await cleaner.wait_async()
        await fill(client, name, [b"x" * 150], key=b"k%d" % (number % 3))

    async def is_compacted() -> bool:
        return len(await read_offsets(client, name, start="earliest", stop="latest")) < 30

    await eventually(is_compacted)
    while True:
        found = await read(client, name, start="earliest", stop="latest")
        offsets = [message.offset for message in found]
        missing = next(offset for offset in range(59, 0, -1) if offset not in offsets)
        until = await read_offsets(client, name, start="earliest", stop=missing)
        after = await read_offsets(client, name, start=missing, stop="latest")
        if offsets == await read_offsets(client, name, start="earliest", stop="latest"):
            break  # the compaction did not go on meanwhile
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 59
    assert {message.key for message in found} == {b"k0", b"k1", b"k2"}
    assert until == [offset for offset in offsets if offset < missing]
    assert after == [offset for offset in offsets if offset > missing]


@pytest.mark.parametrize("size", [0, 1, 1 << 10, 1 << 16, 1_000_000])
async def test_sizes(client: Client, name: str, size: int) -> None:
    values = [bytes([n]) * size for n in range(3)]
    await new_stream(client, name, values)
    assert [m.value for m in await read(client, name, start="earliest", stop="latest")] == values


@pytest.mark.parametrize("key", [b"", b"\0", bytes(range(256)), b"k" * 10_000, "ключ".encode()])
async def test_keys(client: Client, name: str, key: bytes) -> None:
    await client.create_stream(name, name)
    await fill(client, name, [b"value"], key=key)
    assert [m.key for m in await read(client, name, start=0, stop=0)] == [key]


async def test_headers(client: Client, name: str) -> None:
    headers = {"a": b"", "b": bytes(range(256)), "ключ": b"value", "": b"nameless", "x" * 1000: b"y" * 1000}
    await client.create_stream(name, name)
    await fill(client, name, [b"value"], headers=headers)
    # The server adds headers of its own, `subject` and `reply`: readers don't see them among theirs.
    assert [dict(m.headers) for m in await read(client, name, start=0, stop=0)] == [headers]


async def test_very_many_headers(client: Client, name: str) -> None:
    headers = {f"{number}": b"%d" % number for number in range(40_000)}
    await client.create_stream(name, name)
    await fill(client, name, [b"value"], headers=headers)
    assert [dict(m.headers) for m in await read(client, name, start=0, stop=0)] == [headers]


async def test_what_a_message_knows(client: Client, name: str) -> None:
    await client.create_stream(f"{name}.s", name, partitions=2)
    before = datetime.now(UTC)
    await fill(client, name, [b"value"], partition=1, correlation_id="mine")
    message = (await read(client, name, partition=1, start=0, stop=0))[0]
    assert (message.stream, message.partition, message.offset) == (name, 1, 0)
    assert message.subject == f"{name}.s.1"
    assert message.timestamp is not None
    assert timedelta(seconds=-1) < message.timestamp - before < timedelta(seconds=PATIENCE)


async def test_batches(client: Client, name: str) -> None:
    await new_stream(client, name, 25)
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        sizes, offsets = [], []
        async for batch in messages.batches(10, PATIENCE):
            sizes.append(len(batch))
            offsets += [message.offset for message in batch]
    assert sizes == [10, 10, 5]
    assert offsets == list(range(25))


async def test_a_batch_waits_only_so_long(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    async with client.subscribe(name, start="earliest") as messages:
        offsets: list[int] = []
        async with asyncio.timeout(PATIENCE):
            async for batch in messages.batches(10, max_wait=0.05):
                offsets += [message.offset for message in batch]
                if len(offsets) == 3:
                    break
    assert offsets == [0, 1, 2]


async def test_one_by_one_and_in_batches_in_turn(client: Client, name: str) -> None:
    await new_stream(client, name, 20)
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        offsets = [message.offset for message in await take(messages, 3)]
        async for batch in messages.batches(4, max_wait=1):
            offsets += [message.offset for message in batch]
            assert messages.position == offsets[-1] + 1
            if len(offsets) > 8:
                break
        offsets += [message.offset async for message in messages]
    assert offsets == list(range(20))


async def test_arrow_batches(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    for number in range(25):
        await fill(client, name, [b"v%d" % number], key=b"k%d" % number, headers={"n": b"%d" % number})
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        batches = [batch async for batch in messages.arrow_batches(10, max_wait=PATIENCE)]
    assert [batch.num_rows for batch in batches] == [10, 10, 5]
    columns = {
        column: [value for batch in batches for value in batch.column(column).to_pylist()]
        for column in ("offset", "value", "key", "headers")
    }
    numbers = [b"%d" % number for number in range(25)]
    assert columns["offset"] == list(range(25))
    assert columns["value"] == [b"v" + number for number in numbers]
    assert columns["key"] == [b"k" + number for number in numbers]
    assert [dict(headers) for headers in columns["headers"]] == [{"n": number} for number in numbers]


async def test_arrow_batches_are_bounded_in_bytes(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    sizes = [100_000] * 7 + [400_000] + [100_000] * 2
    await fill(client, name, [bytes(size) for size in sizes])
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        batches = messages.arrow_batches(max_wait=PATIENCE, max_bytes=350_000)
        found = [[len(value) for value in batch.column("value").to_pylist()] async for batch in batches]
        assert found == [[100_000] * 3, [100_000] * 3, [100_000], [400_000], [100_000] * 2]
        assert messages.position == len(sizes)


async def test_payload_becomes_typed_columns(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=2)
    for partition in (0, 1):
        values = [b'{"id": %d, "name": "tea"}' % (10 * partition + number) for number in range(3)]
        for value in values:
            await client.publish(name, value, partition=partition, key=b"k", headers={"n": b"1"})
    async with client.subscribe(name, partition="all", start="earliest", stop="latest") as messages:
        batches = [batch async for batch in messages.arrow_batches(max_wait=PATIENCE, payload="json")]
    own = [column for column in STORED_SCHEMA.names if column != "value"]
    assert {tuple(batch.schema.names) for batch in batches} == {(*own, "id", "name")}
    rows = [row for batch in batches for row in batch.to_pylist()]
    found = sorted((row["partition"], row["offset"], row["id"], row["name"], row["key"]) for row in rows)
    assert found == [(p, number, 10 * p + number, "tea", b"k") for p in (0, 1) for number in range(3)]


async def test_bad_payload_fails_after_the_rows_before_it_and_is_read_next(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    await fill(client, name, [b'{"id": 0}', b'{"id": 1}', b"oops", b'{"id": 3}'])
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        batches = messages.arrow_batches(max_wait=PATIENCE, payload="json")
        assert (await anext(batches))["id"].to_pylist() == [0, 1]
        with pytest.raises(BadPayloadError, match=rf"{name}\[0\]: message 2 is bad") as caught:
            await anext(batches)
        assert (caught.value.offset, messages.position) == (2, 2)
        kept = messages.arrow_batches(max_wait=PATIENCE, payload="json", on_bad="column")
        (batch,) = [each async for each in kept]
    assert batch.select(["offset", "id", "bad_value"]).to_pylist() == [
        {"offset": 2, "id": None, "bad_value": b"oops"},
        {"offset": 3, "id": 3, "bad_value": None},
    ]


async def test_messages_with_many_rows_are_read_with_other_ways_in_between(client: Client, name: str) -> None:
    schema = pa.schema({"number": pa.int64()})
    encoder = ArrowBatches().encoder(schema)
    values = [
        encoder.encode(pa.record_batch([pa.array([10 * n, 10 * n + 1])], schema=schema))[0].as_py()
        for n in range(6)
    ]
    await client.create_stream(name, name)
    await fill(client, name, values, key=b"k" * 1_000)
    small = ArrowBatches(max_repeated_bytes=3_000)  # the key is repeated: pieces of one message each
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        batches = messages.arrow_batches(max_wait=PATIENCE, payload=small)
        first = await anext(batches)
        assert first.select(["offset", "number"]).to_pylist() == [
            {"offset": 0, "number": 0},
            {"offset": 0, "number": 1},
        ]
        assert messages.position == 1
        between = await messages.next()
        assert between is not None
        assert between.offset == 1
        rest = [batch async for batch in batches]
    assert sorted({offset for batch in rest for offset in batch["offset"].to_pylist()}) == [2, 3, 4, 5]


async def test_options_of_payloads_are_checked_and_lose_no_message(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    await fill(client, name, [b'{"offset": 7}'])
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        with pytest.raises(UsageError, match="on_bad must be 'fail' without payload"):
            await anext(messages.arrow_batches(on_bad="column"))
        with pytest.raises(UsageError, match="field 'offset' must not have the name of a column"):
            await anext(messages.arrow_batches(payload="json"))
        batch = await anext(messages.arrow_batches(payload=Json(prefix="value_")))
        assert batch.select(["offset", "value_offset"]).to_pylist() == [{"offset": 0, "value_offset": 7}]


async def test_many_readers_of_one_partition(client: Client, name: str) -> None:
    await new_stream(client, name, 50)
    found = await asyncio.gather(
        *(read_offsets(client, name, start="earliest", stop="latest") for _ in range(10))
    )
    assert found == [list(range(50))] * 10


async def test_reading_and_publishing_at_the_same_time(
    client: Client, name: str, events: list[ClientEvent]
) -> None:
    await client.create_stream(name, name)
    async with client.subscribe(name) as messages:
        publishing = asyncio.create_task(fill(client, name, 500))
        found = await take(messages, 500)
        assert await publishing == list(range(500))
    assert [message.value for message in found] == [b"m%d" % number for number in range(500)]
    assert not [event for event in events if isinstance(event, SubscriptionLost)]


async def test_closing_ends_it(client: Client, name: str) -> None:
    await new_stream(client, name, 3)
    subscription = client.subscribe(name, start="earliest")
    async with subscription as messages:
        waiting = asyncio.create_task(_all_of(messages))
        await eventually(lambda: _is_at(messages, 3))
        await client.close()
        assert await waiting == [0, 1, 2]
    await subscription.close()


async def _all_of(messages: Any) -> list[int]:
    return [message.offset async for message in messages]


async def _is_at(messages: Any, position: int) -> bool:
    return bool(messages.position == position)


@pytest.mark.parametrize("partitions", [[0], "all"], ids=str)
async def test_two_tasks_on_one_subscription(client: Client, name: str, partitions: Any) -> None:
    await client.create_stream(name, name)
    async with client.subscribe(name, partitions=partitions) as messages:
        first = asyncio.create_task(anext(messages))
        await asyncio.sleep(0)
        for second in (lambda: anext(messages), messages.next, lambda: anext(messages.batches())):
            with pytest.raises(UsageError, match="one task"):
                await second()
        await fill(client, name, 2)
        assert [(await first).offset, (await anext(messages)).offset] == [0, 1]


async def test_unopened_and_twice_opened_subscriptions_are_refused(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    subscription = client.subscribe(name)
    with pytest.raises(UsageError, match=name):
        await anext(subscription)
    async with subscription:
        with pytest.raises(UsageError, match=name):
            await subscription.open()


async def test_backwards(client: Client, name: str) -> None:
    # Servers before 2026 ignore what asks for it and read forwards without a word. Then it is an error, and
    # nothing came in the wrong order.
    await new_stream(client, name, 5)
    found: list[int] = []
    try:
        async with client.subscribe(name, reverse=True) as messages:
            while (message := await messages.next()) is not None:
                found.append(message.offset)
    except UnsupportedByServerError:
        assert found in ([], [4])
    else:
        assert found == [4, 3, 2, 1, 0]


async def test_backwards_from_a_start_that_retention_removed(client: Client, name: str) -> None:
    cleaner = await CleanerClock.create_stream(
        client, name, retention_max_messages=10, segment_max_bytes=1024
    )
    for _ in range(30):
        await cleaner.wait_async()
        await fill(client, name, [b"x" * 150])

    async def has_removed_the_start() -> bool:
        return (await read_offsets(client, name, start="earliest", stop="latest"))[0] > 3

    await eventually(has_removed_the_start)
    try:
        assert await read_offsets(client, name, start=3, reverse=True) == []
    except UnsupportedByServerError:
        assert await read_offsets(client, name, start=3, stop=3) == []
