"""Rules of a gateway without I/O: names, records, bounds of reads, leaders, fencing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._pb import api_pb2
from liftenvelope.errors import (
    AckTimeoutError,
    InternalError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    TransportError,
    UsageError,
    WrongLastSequenceError,
)
from liftenvelope.gateway._calls.health import HealthService
from liftenvelope.gateway._cluster.brokers import leader_of
from liftenvelope.gateway._cluster.records import PartitionRecord, StreamPhase, StreamRecord
from liftenvelope.gateway._core import GatewayOptions
from liftenvelope.gateway._partitions.recordings import covers, width_order
from liftenvelope.gateway._partitions.storage import PartitionState
from liftenvelope.gateway._protocol.failures import status_of
from liftenvelope.gateway._protocol.names import encode_name, partition_stream
from liftenvelope.gateway._protocol.subjects import ClientSubjects
from liftenvelope.gateway._readers.positions import bounds
from liftenvelope.gateway._readers.reads import OpenReads, Read
from liftenvelope.gateway._streams.new_records import new_record
from liftenvelope.jetstream.api import parse_ns
from liftenvelope.rpc.status import RpcError, StatusCode

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=120)
TOKENS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)


def record(name: str = "s", **fields: Any) -> StreamRecord:
    return StreamRecord(**{"name": name, "subject": name, "id": "1", **fields})


def created(request: api_pb2.CreateStreamRequest, **options: Any) -> StreamRecord:
    return new_record(request, GatewayOptions(id="me", **options), ClientSubjects())


def subscribe(**fields: Any) -> api_pb2.SubscribeRequest:
    return api_pb2.SubscribeRequest(**{"stream": "s", **fields})


def from_offset(start: int, *, stop: int) -> dict[str, Any]:
    positions = {"startPosition": api_pb2.OFFSET, "stopPosition": api_pb2.STOP_OFFSET}
    return {**positions, "startOffset": start, "stopOffset": stop}


# Names


@given(st.lists(NAMES, min_size=2, max_size=5, unique=True))
def test_no_two_names_are_the_same_in_jetstream(names: list[str]) -> None:
    encoded = [encode_name(name) for name in names]
    assert len(set(encoded)) == len(names)
    for text in encoded:
        assert len(text) <= 200
        assert not set(text) & set(" .*>/\\\t\0")


def test_partitions_of_streams_whose_names_end_alike() -> None:
    assert partition_stream("a_1", 0) != partition_stream("a", 1)
    assert partition_stream("a", 11) != partition_stream("a_1", 1)


# Records


def test_a_record_survives_the_bucket() -> None:
    stored = record(
        "ü.x",
        state=StreamPhase.DELETING,
        settings={"minIsr": 2},
        partitions=(PartitionRecord(paused=True, source="S"), PartitionRecord(readonly=True)),
    )
    assert StreamRecord.from_json(stored.to_json()) == stored


def test_record_of_the_most_partitions_fits_into_a_message() -> None:
    whole = record("s" * 200, partitions=(PartitionRecord(),) * 10_000)
    assert len(whole.to_json()) < 50_000
    paused = whole.with_partitions(
        {n: part.with_paused(True, 2**60) for n, part in enumerate(whole.partitions)}
    )
    assert len(paused.to_json()) < 1 << 20
    copies = whole.with_partitions({n: PartitionRecord(source="s" * 60) for n in range(10_000)})
    assert len(copies.to_json()) < 1 << 20
    for one in (whole, paused, copies):
        assert StreamRecord.from_json(one.to_json()) == one


def test_record_with_all_fields_written_out_can_be_read() -> None:
    stored = record("s", partitions=(PartitionRecord(paused=True), PartitionRecord()), replicas=3)
    assert StreamRecord.from_json(json.dumps(asdict(stored)).encode()) == stored


SOUND = b'{"state":"ready","partitions":[{}],"name":"n","subject":"s","id":"1"'


def test_record_with_the_least_fields_can_be_read() -> None:
    assert StreamRecord.from_json(SOUND + b"}") == record("n", subject="s")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"name":1}',
        b"\xff",
        b'{"state":"odd"}',
        b"[" * 100_000,
        SOUND + b',"owner":5}',
        SOUND + b',"owner":"\\ud800"}',
        SOUND + b',"created_ns":9223372036854775808}',
        SOUND + b',"created_ns":true}',
        SOUND + b',"settings":[]}',
        SOUND + b',"settings":{"minIsr":9223372036854775808}}',
        SOUND + b',"events":[{"token":1,"gateway":"","run":"","data":""}]}',
        SOUND.replace(b"{}", b'{"paused":1}') + b"}",
        SOUND.replace(b"{}", b'{"source":1}') + b"}",
    ],
)
def test_what_is_no_record(data: bytes) -> None:
    with pytest.raises(InternalError, match="record"):
        StreamRecord.from_json(data)


def test_a_partition_keeps_when_it_was_changed() -> None:
    part = PartitionRecord().with_paused(True, 5).with_paused(True, 6).with_paused(False, 7)
    assert (part.paused, part.first_paused_ns, part.paused_ns) == (False, 5, 7)
    part = PartitionRecord().with_readonly(False, 5).with_readonly(True, 6)
    assert (part.readonly, part.first_readonly_ns, part.readonly_ns, part.records) == (True, 5, 6, False)
    assert part.with_readonly(True, 7).readonly_ns == 7


# What streams can be made


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"name": ""}, "empty"),
        ({"name": "__cursors"}, "reserved"),
        ({"name": "a b"}, "space"),
        ({"name": "a..b"}, "dot"),
        ({"partitions": 10_001}, "partitions must be from 1 to 10000, got 10001"),
        ({"name": "x" * 300}, "must be at most 240 bytes"),
        ({"subject": ""}, "Subject is invalid"),
        ({"subject": "a b"}, "Subject is invalid"),
        ({"subject": "a.>", "partitions": 2}, "Subject is invalid"),
        ({"subject": "$JS.API.x"}, "Subject is invalid"),
        ({"partitions": -1}, "partitions must .* got -1"),
        ({"replicationFactor": -2}, "replicationFactor must be at least -1, got -2"),
        ({"cleanerInterval": api_pb2.NullableInt64(value=-1)}, "cleanerInterval must be at least 0, got -1"),
        ({"segmentMaxBytes": api_pb2.NullableInt64(value=-1)}, "segmentMaxBytes must be at least 0, got -1"),
        ({"minIsr": api_pb2.NullableInt32(value=2), "replicationFactor": 1}, "minIsr must .* got 2"),
    ],
)
def test_streams_that_make_no_sense(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(RpcError, match=match) as info:
        created(api_pb2.CreateStreamRequest(**{"name": "n", "subject": "n", **fields}))
    assert info.value.code == StatusCode.INVALID_ARGUMENT


def test_encryption_is_promised_only_where_it_is_done() -> None:
    request = api_pb2.CreateStreamRequest(name="n", subject="n", encryption=api_pb2.NullableBool(value=True))
    with pytest.raises(RpcError, match="encrypt") as info:
        created(request)
    assert info.value.code == StatusCode.FAILED_PRECONDITION
    assert created(request, encrypted=True).setting("encryption") == 1


def test_what_is_not_said_is_as_in_liftbridge() -> None:
    made = created(api_pb2.CreateStreamRequest(name="n", subject="n"))
    assert (made.replicas, len(made.partitions), made.settings, made.state) == (
        1,
        1,
        {},
        StreamPhase.CREATING,
    )


# Where reads begin and end


def state(oldest: int = 2, newest: int = 9) -> PartitionState:
    return PartitionState(oldest, newest, newest - oldest + 1, 100, 1, 2)


EMPTY = PartitionState(0, -1, 0, 0, 0, 0)
#: There were messages, and all are gone.
EMPTIED = PartitionState(10, 9, 0, 0, 0, 2)


@pytest.mark.parametrize(
    ("there", "fields", "start_at", "expected"),
    [
        (state(), {"startPosition": api_pb2.NEW_ONLY}, None, 10),
        (state(), {"startPosition": api_pb2.OFFSET, "startOffset": 5}, None, 5),
        (state(), {"startPosition": api_pb2.OFFSET, "startOffset": -7}, None, 2),
        (state(), {"startPosition": api_pb2.OFFSET, "startOffset": 100}, None, 10),
        (state(), {"startPosition": api_pb2.EARLIEST}, None, 2),
        (state(), {"startPosition": api_pb2.LATEST}, None, 9),
        (state(), {"startPosition": api_pb2.TIMESTAMP}, 7, 7),
        (EMPTY, {"startPosition": api_pb2.LATEST}, None, 0),
        (EMPTY, {"startPosition": api_pb2.EARLIEST}, None, 0),
        (EMPTIED, {"startPosition": api_pb2.EARLIEST}, None, 10),
        (EMPTIED, {"startPosition": api_pb2.LATEST}, None, 10),
    ],
)
def test_starts(there: PartitionState, fields: dict[str, Any], start_at: int | None, expected: int) -> None:
    found = bounds(subscribe(**fields), there, readonly=False, start_at=start_at)
    assert (found.start, found.stop) == (expected, None)


@pytest.mark.parametrize(
    ("fields", "readonly", "expected"),
    [
        ({}, True, (9, True, "End of readonly partition")),
        ({"stopPosition": api_pb2.STOP_OFFSET, "stopOffset": 5}, False, (5, True, "Stop offset reached")),
        ({"stopPosition": api_pb2.STOP_OFFSET, "stopOffset": 50}, False, (50, False, "Stop offset reached")),
        (
            {"stopPosition": api_pb2.STOP_OFFSET, "stopOffset": 50},
            True,
            (9, True, "End of readonly partition"),
        ),
        ({"stopPosition": api_pb2.STOP_LATEST}, False, (9, True, "Stop offset reached")),
    ],
)
def test_stops(fields: dict[str, Any], readonly: bool, expected: tuple[int, bool, str]) -> None:
    found = bounds(subscribe(startPosition=api_pb2.EARLIEST, **fields), state(), readonly=readonly)
    assert (found.stop, found.ends, found.text) == expected


@pytest.mark.parametrize(
    ("fields", "there", "readonly", "code", "match"),
    [
        ({"stopPosition": api_pb2.STOP_LATEST}, EMPTY, False, 8, "Stream is empty"),
        ({"stopPosition": api_pb2.STOP_LATEST}, state(), False, 3, "before start offset: 9 < 10"),
        (from_offset(20, stop=5), state(), False, 3, "before start offset: 5 < 20"),
        (from_offset(5, stop=2), EMPTY, False, 3, "before start offset: 2 < 5"),
        (from_offset(5, stop=2), EMPTY, True, 3, "before start offset: 2 < 5"),
        (from_offset(20, stop=15), state(), True, 3, "before start offset: 15 < 20"),
        ({"startPosition": 77}, state(), False, 3, "StartPosition 77"),
        ({"stopPosition": 77}, state(), False, 3, "StopPosition 77"),
    ],
)
def test_nothing_to_read(
    fields: dict[str, Any], there: PartitionState, readonly: bool, code: int, match: str
) -> None:
    with pytest.raises(RpcError, match=match) as info:
        bounds(subscribe(**fields), there, readonly=readonly)
    assert info.value.code == code


@pytest.mark.parametrize("fields", [{}, from_offset(20, stop=30)])
@pytest.mark.parametrize("there", [state(), EMPTY])
def test_end_of_readonly_partition_is_no_contradiction(fields: dict[str, Any], there: PartitionState) -> None:
    found = bounds(subscribe(**fields), there, readonly=True)
    assert found.is_over
    assert found.text == "End of readonly partition"


# Leaders


@given(st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=6), st.integers(0, 50))
def test_only_the_partitions_of_the_dead_move(brokers: set[str], partition: int) -> None:
    leader = leader_of("s", partition, brokers)
    assert leader in brokers
    assert leader_of("s", partition, sorted(brokers, reverse=True)) == leader
    for dead in brokers - {leader}:
        assert leader_of("s", partition, brokers - {dead}) == leader


def test_leaders_are_spread() -> None:
    counts = Counter(leader_of("s", partition, ["a", "b", "c"]) for partition in range(3000))
    assert min(counts.values()) > 800
    assert leader_of("s", 0, []) == ""


# Subscriptions


def read_of(stream: StreamRecord, **fields: Any) -> Read:
    return Read(stream, subscribe(**fields))


def test_a_newer_epoch_ends_older_ones() -> None:
    reads, stream = OpenReads(), record()
    member = {"groupId": "g", "consumerId": "c"}
    old, other = read_of(stream, consumer={**member, "groupEpoch": 3}), read_of(stream)
    for read in (old, other):
        reads.add(read)
        reads.take_over(read)
    with pytest.raises(RpcError, match="not currently assigned"):
        reads.add(read_of(stream, consumer={**member, "groupEpoch": 2}))
    new = read_of(stream, consumer={**member, "groupEpoch": 3})
    reads.add(new)
    assert not old.ended  # the new one may still be refused
    reads.take_over(new)
    # A clean end is how a member learns that it was fenced.
    assert (old.ended, old.error, other.ended, new.ended) == (True, None, False, False)
    reads.remove(old)
    with pytest.raises(RpcError, match="not currently assigned"):
        reads.add(read_of(stream, consumer={**member, "groupEpoch": 2}))
    elsewhere = read_of(stream, consumer={"groupId": "h", "groupEpoch": 0, "consumerId": "c"})
    reads.add(elsewhere)
    reads.take_over(elsewhere)
    assert not new.ended


def test_a_newer_epoch_that_begins_first_fences_an_older_one_that_is_about_to() -> None:
    reads, stream = OpenReads(), record()
    older, newer = (
        read_of(stream, consumer={"groupId": "g", "consumerId": "c", "groupEpoch": epoch}) for epoch in (1, 2)
    )
    reads.add(older)
    reads.add(newer)
    reads.take_over(newer)
    with pytest.raises(RpcError, match="not currently assigned"):
        reads.take_over(older)
    assert not newer.ended


def test_what_ends_a_read() -> None:
    stream = record(partitions=(PartitionRecord(), PartitionRecord()))
    paused = stream.with_partitions({0: PartitionRecord(paused=True)})
    readonly = stream.with_partitions({0: PartitionRecord(readonly=True)})

    def changed(after: StreamRecord | None) -> tuple[Read, Read]:
        """Change the stream; return a read of the partition that changed and one of the other."""
        reads, read, elsewhere = OpenReads(), read_of(stream), read_of(stream, partition=1)
        reads.add(read)
        reads.add(elsewhere)
        reads.stream_changed(stream, after)
        return read, elsewhere

    ends = [str(changed(after)[0].error) for after in (paused, None, record(id="2"), stream)]
    assert ends[0].endswith("commit log was closed")
    assert ends[1].endswith("commit log was deleted")
    assert ends[2].endswith("commit log was deleted")
    assert ends[3] == "None"
    read, elsewhere = changed(readonly)
    assert (read.ended, read.became_readonly, elsewhere.became_readonly) == (False, True, False)


def test_another_leader_ends_a_read_unless_any_will_do() -> None:
    reads, stream = OpenReads(), record()
    read, anywhere = read_of(stream), read_of(stream, readISRReplica=True)
    reads.add(read)
    reads.add(anywhere)
    reads.leaders_changed(lambda name, partition: True)
    assert not read.ended
    reads.leaders_changed(lambda name, partition: False)
    assert isinstance(read.error, RpcError)
    assert read.error.code == StatusCode.UNAVAILABLE
    assert not anywhere.ended
    assert reads.has("s", 0)


# Odds and ends


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05.123456789Z", 1767323045123456789),
        ("2026-01-02T03:04:05.1Z", 1767323045100000000),
        ("2026-01-02T03:04:05Z", 1767323045000000000),
        ("2026-01-02T04:04:05.5+01:00", 1767323045500000000),
        ("2026-01-02T04:04:05.123456789+01:00", 1767323045123456789),
        ("2026-01-01T19:34:05-07:30", 1767323045000000000),
        ("0001-01-01T00:00:00Z", 0),
    ],
)
def test_times_of_jetstream(text: str, expected: int) -> None:
    assert parse_ns(text) == expected


@given(TOKENS, TOKENS)
def test_what_covers_what(wide: list[str], subject: list[str]) -> None:
    everything = ["a", "b", "c"]

    def literals(tokens: list[str]) -> set[tuple[str, ...]]:
        found: set[tuple[str, ...]] = {()}
        for token in tokens:
            found = {(*one, t) for one in found for t in (everything if token == "*" else [token])}
        return found

    assert covers(".".join(wide), ".".join(subject)) == (literals(subject) <= literals(wide))
    assert covers(".".join([*wide, ">"]), ".".join([*wide, "x", "y"]))
    assert not covers(".".join([*wide, ">"]), ".".join(wide))


@given(TOKENS, TOKENS, st.booleans())
def test_subject_comes_before_those_that_it_covers(tokens: list[str], others: list[str], full: bool) -> None:
    wide, subject = ".".join([*tokens, ">"] if full else tokens), ".".join(others)
    if covers(wide, subject) and wide != subject:
        assert width_order(wide) < width_order(subject)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RpcError(StatusCode.ABORTED, "x"), StatusCode.ABORTED),
        (WrongLastSequenceError(400, "x", 10071), StatusCode.UNKNOWN),
        (UsageError("x"), StatusCode.INVALID_ARGUMENT),
        (AckTimeoutError("x"), StatusCode.DEADLINE_EXCEEDED),
        (NoJetStreamError(503, "x"), StatusCode.UNAVAILABLE),
        (JetStreamError(500, "x", 1), StatusCode.INTERNAL),
        (InternalError("x"), StatusCode.INTERNAL),
        (TransportError("x"), StatusCode.UNAVAILABLE),
    ],
)
def test_every_error_has_a_status(error: LiftEnvelopeError, code: StatusCode) -> None:
    assert status_of(error).code == code


async def test_health_tells_whether_the_gateway_serves() -> None:
    is_connected, draining = True, asyncio.Event()
    health = HealthService(lambda: is_connected, draining)
    assert await health.check(b"") == await health.check(b"\x0a\x09proto.API") == b"\x08\x01"
    is_connected = False
    assert await health.check(b"") == b"\x08\x02"
    is_connected = True
    draining.set()
    assert await health.check(b"") == b"\x08\x02"


async def test_health_of_a_service_that_there_is_not() -> None:
    health = HealthService(lambda: True, asyncio.Event())
    with pytest.raises(RpcError, match="unknown service"):
        await health.check(b"\x0a\x01x")
    with pytest.raises(RpcError, match="can't be read"):
        await health.check(b"\x0a\xff")
