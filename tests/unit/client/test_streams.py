"""Requests about streams as they go over the wire, and those that must never go."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client._streams import MAX_REPLICATION, _put_settings, _Settings
from liftenvelope.client.client import Client
from liftenvelope.errors import (
    NoSuchPartitionError,
    NoSuchStreamError,
    PermissionDeniedError,
    StreamExistsError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import ScriptedBroker, client_of, scripted

pytestmark = pytest.mark.usefixtures("loop_errors")

SECONDS = {
    "retention_max_age": "retentionMaxAge",
    "cleaner_interval": "cleanerInterval",
    "segment_max_age": "segmentMaxAge",
    "auto_pause_time": "autoPauseTime",
}
INTEGERS = {
    "retention_max_bytes": "retentionMaxBytes",
    "retention_max_messages": "retentionMaxMessages",
    "segment_max_bytes": "segmentMaxBytes",
    "compact_max_goroutines": "compactMaxGoroutines",
    "min_isr": "minIsr",
}
FLAGS = {
    "compact_enabled": "compactEnabled",
    "auto_pause_disable_if_subscribers": "autoPauseDisableIfSubscribers",
    "optimistic_concurrency": "optimisticConcurrencyControl",
    "encryption": "encryption",
}
SETTINGS = {**SECONDS, **INTEGERS, **FLAGS}


@dataclass
class Pair:
    """A broker, and a client of it.

    Attributes:
        opening: Calls that opened the client. On a loaded machine an attempt is given up and repeated.
    """

    broker: ScriptedBroker
    client: Client
    opening: int

    async def created(self, **options: Any) -> api_pb2.CreateStreamRequest:
        """Create a stream; return what the broker was asked for."""
        await self.client.create_stream("subject", "name", **options)
        found: api_pb2.CreateStreamRequest = self.broker.read("CreateStream")[-1]
        return found

    @property
    def sent(self) -> int:
        """Number of calls, without those that opened the client."""
        calls: dict[str, int] = self.broker.calls
        return sum(calls.values()) - self.opening


@pytest.fixture
async def pair(loop_errors: list[dict[str, Any]]) -> AsyncIterator[Pair]:
    async with scripted() as (broker,), client_of([broker]) as client:
        yield Pair(broker, client, sum(broker.calls.values()))


class TestCreate:
    async def test_leaves_everything_to_the_server(self, pair: Pair) -> None:
        request = await pair.created()
        assert (request.subject, request.name, request.group) == ("subject", "name", "")
        assert (request.partitions, request.replicationFactor) == (1, 1)
        assert [name for name in SETTINGS.values() if request.HasField(name)] == []

    async def test_everything(self, pair: Pair) -> None:
        request = await pair.created(
            group="workers", partitions=7, replication_factor=MAX_REPLICATION, retention_max_age=1, min_isr=2
        )
        assert (request.group, request.partitions, request.replicationFactor) == ("workers", 7, -1)
        assert (request.retentionMaxAge.value, request.minIsr.value) == (1000, 2)

    @pytest.mark.parametrize("name", [*SECONDS, *INTEGERS])
    async def test_zero_is_not_unset(self, pair: Pair, name: str) -> None:
        request = await pair.created(**{name: 0})
        assert [field for field in SETTINGS.values() if request.HasField(field)] == [SETTINGS[name]]
        assert getattr(request, SETTINGS[name]).value == 0

    @pytest.mark.parametrize("name", FLAGS)
    @pytest.mark.parametrize("value", [True, False])
    async def test_false_is_not_unset(self, pair: Pair, name: str, value: bool) -> None:
        request = await pair.created(**{name: value})
        assert [field for field in SETTINGS.values() if request.HasField(field)] == [FLAGS[name]]
        assert getattr(request, FLAGS[name]).value is value

    @pytest.mark.parametrize("name", INTEGERS)
    async def test_integers(self, pair: Pair, name: str) -> None:
        assert getattr(await pair.created(**{name: 12345}), INTEGERS[name]).value == 12345

    @pytest.mark.parametrize("name", SECONDS)
    @pytest.mark.parametrize(
        ("seconds", "milliseconds"),
        [
            (1, 1000),
            (0.001, 1),
            (0.0001, 1),
            (1e-12, 1),
            (1.0005, 1001),
            (16.1, 16100),
            (64.9, 64900),
            (3600.5, 3_600_500),
            (0.3, 300),
        ],
    )
    async def test_seconds(self, pair: Pair, name: str, seconds: float, milliseconds: int) -> None:
        assert getattr(await pair.created(**{name: seconds}), SECONDS[name]).value == milliseconds

    async def test_answers_of_the_server(self, pair: Pair) -> None:
        pair.broker.next(
            "CreateStream",
            RpcError(StatusCode.ALREADY_EXISTS, "stream already exists"),
            RpcError(StatusCode.INVALID_ARGUMENT, "Stream is reserved"),
            RpcError(StatusCode.UNKNOWN, "The client is not authorized to call CreateStream on resource foo"),
        )
        for kind in (StreamExistsError, RpcError, PermissionDeniedError):
            with pytest.raises(kind, match="stream 'name'"):
                await pair.created()

    async def test_creation_is_repeated_when_the_cluster_has_not_decided(self, pair: Pair) -> None:
        undecided = RpcError(StatusCode.INTERNAL, "Failed to replicate partition: raft operation timed out")
        exists = RpcError(StatusCode.ALREADY_EXISTS, "stream already exists")
        pair.broker.log(0, stream="name")
        pair.broker.next("CreateStream", undecided, exists)
        await pair.client.create_stream("name", "name")  # the first attempt created it
        assert pair.broker.calls["CreateStream"] == 2

    async def test_is_seen_at_once(self, pair: Pair) -> None:
        # What was known of a stream of that name is forgotten.
        pair.broker.log(0, stream="name")
        await pair.client.fetch_partition_metadata("name")
        await pair.client.delete_stream("name")
        await pair.created()
        before = pair.broker.calls["FetchMetadata"]
        await pair.client.fetch_partition_metadata("name")
        assert pair.broker.calls["FetchMetadata"] == before + 1


@given(st.integers(0, 10**12), st.sampled_from(sorted(SECONDS)))
@example(8_464_247_890, "auto_pause_time")
@example(135_275_876_777, "auto_pause_time")
def test_whole_milliseconds_stay_what_they_are(milliseconds: int, name: str) -> None:
    request = api_pb2.CreateStreamRequest()
    given_settings: dict[str, Any] = dict.fromkeys(SETTINGS) | {name: milliseconds / 1000}
    _put_settings(request, _Settings(**given_settings))
    assert getattr(request, SECONDS[name]).value == milliseconds


@given(st.floats(0, 1e9, exclude_min=True), st.sampled_from(sorted(SECONDS)))
def test_times_are_never_shortened(seconds: float, name: str) -> None:
    request = api_pb2.CreateStreamRequest()
    given_settings: dict[str, Any] = dict.fromkeys(SETTINGS) | {name: seconds}
    _put_settings(request, _Settings(**given_settings))
    wire = getattr(request, SECONDS[name]).value
    assert wire >= 1
    assert seconds * 1000 - 1e-3 <= wire <= seconds * 1000 + 1


class TestRefusedBeforeAnythingIsSent:
    """Each of these would kill a server, some of them at every start, or can't be meant."""

    @pytest.mark.parametrize(
        "name",
        [
            "",
            " ",
            "a b",
            "a\tb",
            "a\0b",
            "a\nb",
            ".a",
            "a.",
            "a..b",
            "*",
            "a.*",
            ">",
            "a.>",
            "x" * 241,
            "é" * 121,
            "__cursors",
            "__activity",
            "a\u2028b",
            "a\ud800",
            "a\x7f",
        ],
    )
    async def test_names(self, pair: Pair, name: str) -> None:
        with pytest.raises(UsageError):
            await pair.client.create_stream("subject", name)
        assert pair.sent == 0

    @pytest.mark.parametrize("name", ["a.b", "a/b", "a,b", "héllo", "__x", "x" * 240, "é" * 120])
    async def test_names_that_servers_accept_are_sent(self, pair: Pair, name: str) -> None:
        await pair.client.create_stream("subject", name)
        assert pair.broker.read("CreateStream")[0].name == name

    @pytest.mark.parametrize(
        "subject", ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\0", "a\r\n", "a\ud800"]
    )
    async def test_subjects(self, pair: Pair, subject: str) -> None:
        with pytest.raises(UsageError, match="subject"):
            await pair.client.create_stream(subject, "name")
        assert pair.sent == 0

    @pytest.mark.parametrize("subject", ["a", "a.b", "a.*.b", ">", "a.>", "$SYS.x", "héllo"])
    async def test_subjects_that_nats_accepts_are_sent(self, pair: Pair, subject: str) -> None:
        await pair.client.create_stream(subject, "name")
        assert pair.broker.read("CreateStream")[0].subject == subject

    @pytest.mark.parametrize(
        ("subject", "name"), [(None, "a"), (b"a", "a"), ("a", None), ("a", b"a"), ("a", 5)]
    )
    async def test_types_of_names(self, pair: Pair, subject: Any, name: Any) -> None:
        with pytest.raises(UsageTypeError):
            await pair.client.create_stream(subject, name)
        assert pair.sent == 0

    @pytest.mark.parametrize("name", [*SECONDS, *INTEGERS])
    @pytest.mark.parametrize("value", [-1, -(2**63), 2**63, 10**400])
    async def test_settings_out_of_range(self, pair: Pair, name: str, value: int) -> None:
        with pytest.raises(UsageError):
            await pair.created(**{name: value})
        assert pair.sent == 0

    @pytest.mark.parametrize("name", SECONDS)
    @pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), 9_300_000_000.0, 1e300])
    async def test_times_out_of_range(self, pair: Pair, name: str, value: float) -> None:
        with pytest.raises(UsageError):
            await pair.created(**{name: value})
        assert pair.sent == 0

    @pytest.mark.parametrize("name", ["min_isr", "compact_max_goroutines"])
    async def test_integers_of_32_bits(self, pair: Pair, name: str) -> None:
        with pytest.raises(UsageError, match=f"^{name} must be at most 2147483647, got 2147483648$"):
            await pair.created(**{name: 2**31})
        assert pair.sent == 0

    @pytest.mark.parametrize("name", SETTINGS)
    @pytest.mark.parametrize("value", ["1", b"1", [], 1j])
    async def test_settings_of_another_type(self, pair: Pair, name: str, value: Any) -> None:
        with pytest.raises(UsageTypeError, match=name):
            await pair.created(**{name: value})
        assert pair.sent == 0

    @pytest.mark.parametrize(
        ("name", "value"), [("min_isr", True), ("retention_max_bytes", 1.5), ("encryption", 1)]
    )
    async def test_settings_of_a_type_that_is_close(self, pair: Pair, name: str, value: Any) -> None:
        with pytest.raises(UsageTypeError, match=name):
            await pair.created(**{name: value})
        assert pair.sent == 0

    @pytest.mark.parametrize("name", ["partitions", "replication_factor"])
    @pytest.mark.parametrize("value", [0, -2, 2**31])
    async def test_counts_out_of_range(self, pair: Pair, name: str, value: int) -> None:
        with pytest.raises(UsageError, match=rf"^{name} must .* got {value}"):
            await pair.created(**{name: value})
        assert pair.sent == 0

    async def test_minus_one_partitions(self, pair: Pair) -> None:
        with pytest.raises(UsageError, match=r"^partitions must .* got -1"):
            await pair.created(partitions=-1)
        assert pair.sent == 0

    @pytest.mark.parametrize("group", ["a b", "a\tb", "a\r\nb", "a\0"])
    async def test_groups(self, pair: Pair, group: str) -> None:
        with pytest.raises(UsageError, match="group"):
            await pair.created(group=group)
        assert pair.sent == 0

    @pytest.mark.parametrize("group", [None, 5, b"a"])
    async def test_groups_of_another_type(self, pair: Pair, group: Any) -> None:
        with pytest.raises(UsageTypeError, match="group"):
            await pair.created(group=group)
        assert pair.sent == 0

    @pytest.mark.parametrize("method", ["pause_stream", "set_stream_readonly"])
    @pytest.mark.parametrize("partitions", [[-1], [2**31], ["0"], [True], "01", [], (), set(), 1])
    async def test_partitions(self, pair: Pair, method: str, partitions: Any) -> None:
        # An empty list would ask for all of them.
        with pytest.raises(UsageError, match="partition"):
            await getattr(pair.client, method)("foo", partitions=partitions)
        assert pair.sent == 0

    @pytest.mark.parametrize(
        ("method", "flag"), [("pause_stream", "resume_all"), ("set_stream_readonly", "readonly")]
    )
    @pytest.mark.parametrize("value", ["no", 0, None])
    async def test_flags_of_requests(self, pair: Pair, method: str, flag: str, value: Any) -> None:
        with pytest.raises(UsageTypeError, match=f"^{flag} must be True or False, got {value!r}$"):
            await getattr(pair.client, method)("foo", **{flag: value})
        assert pair.sent == 0

    @pytest.mark.parametrize("service", [None, 5, b"proto.API", "a\ud800"])
    async def test_service_of_a_health_check(self, pair: Pair, service: Any) -> None:
        with pytest.raises(UsageError, match=r"^service must "):
            await pair.client.check_health(service=service)

    @pytest.mark.parametrize(
        "method", ["delete_stream", "pause_stream", "set_stream_readonly", "fetch_partition_metadata"]
    )
    @pytest.mark.parametrize("name", ["", None, 5, b"foo", "a\ud800"])
    async def test_names_of_streams_to_use(self, pair: Pair, method: str, name: Any) -> None:
        with pytest.raises(UsageError, match="stream"):
            await getattr(pair.client, method)(name)
        assert pair.sent == 0

    @pytest.mark.parametrize("option", ["streams", "groups"])
    @pytest.mark.parametrize("names", ["foo", 5, [None], [b"foo"], ["a\ud800"]])
    async def test_names_to_ask_for(self, pair: Pair, option: str, names: Any) -> None:
        with pytest.raises(UsageError, match=option.removesuffix("s")):
            await pair.client.fetch_metadata(**{option: names})
        assert pair.sent == 0

    @pytest.mark.parametrize("partition", [-1, 2**31, "0", True, None, 1.0])
    async def test_a_partition(self, pair: Pair, partition: Any) -> None:
        with pytest.raises(UsageError, match="partition"):
            await pair.client.fetch_partition_metadata("foo", partition)
        assert pair.sent == 0


class TestOthers:
    async def test_delete(self, pair: Pair) -> None:
        await pair.client.delete_stream("foo")
        assert [request.name for request in pair.broker.read("DeleteStream")] == ["foo"]

    async def test_pause(self, pair: Pair) -> None:
        await pair.client.pause_stream("foo")
        await pair.client.pause_stream("foo", partitions=[2, 0, 2], resume_all=True)
        found = [(r.name, list(r.partitions), r.resumeAll) for r in pair.broker.read("PauseStream")]
        assert found == [("foo", [], False), ("foo", [0, 2], True)]

    async def test_readonly(self, pair: Pair) -> None:
        await pair.client.set_stream_readonly("foo")
        await pair.client.set_stream_readonly("foo", partitions=iter([1]), readonly=False)
        found = [(r.name, list(r.partitions), r.readonly) for r in pair.broker.read("SetStreamReadonly")]
        assert found == [("foo", [], True), ("foo", [1], False)]

    @pytest.mark.parametrize("method", ["pause_stream", "set_stream_readonly"])
    async def test_what_there_is_not(self, pair: Pair, method: str) -> None:
        called = {"pause_stream": "PauseStream", "set_stream_readonly": "SetStreamReadonly"}[method]
        pair.broker.next(
            called,
            RpcError(StatusCode.NOT_FOUND, "stream not found"),
            RpcError(StatusCode.NOT_FOUND, "partition does not exist"),
        )
        for kind in (NoSuchStreamError, NoSuchPartitionError):
            with pytest.raises(kind, match="stream 'foo'"):
                await getattr(pair.client, method)("foo")

    async def test_metadata(self, pair: Pair) -> None:
        pair.broker.log(0)
        await pair.client.fetch_metadata(streams=["foo"], groups=["g"])
        request = pair.broker.read("FetchMetadata")[-1]
        assert (list(request.streams), list(request.groups)) == (["foo"], ["g"])

    async def test_a_partition_s_metadata(self, pair: Pair) -> None:
        pair.broker.log(0, 1, high_watermark=0)
        found = await pair.client.fetch_partition_metadata("foo", 0)
        assert (found.id, found.leader, found.high_watermark, found.newest_offset) == (0, "b0", 0, 1)

    async def test_many_at_once(self, pair: Pair) -> None:
        names = [f"s{number}" for number in range(50)]
        await asyncio.gather(*(pair.client.create_stream(name, name) for name in names))
        assert sorted(request.name for request in pair.broker.read("CreateStream")) == sorted(names)
        assert len(pair.broker.server.links) == 2


@pytest.mark.parametrize(("subject", "partitions"), [("a.>", 2), (">", 3), ("a.>.b", 1)])
async def test_a_subject_that_cuts_the_server_off_is_refused(subject: str, partitions: int) -> None:
    # Nothing is listening there: it would be another error if anything were sent.
    client = liftenvelope.connect("127.0.0.1:1")
    with pytest.raises(UsageError, match=re.escape(repr(subject))):
        await client.create_stream(subject, "name", partitions=partitions)
    await client.close()
