"""Key-value buckets on a real server: configuration, compare-and-set, deletions, listing and requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.errors import MessageNotFoundError, StreamNotFoundError, UsageError, WrongLastSequenceError
from liftenvelope.jetstream import DiscardPolicy, JetStream, StorageType, StreamConfig
from liftenvelope.jetstream.bucket import Bucket, BucketEntry
from liftenvelope.testing import NatsServer, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect, until


@pytest.fixture
async def nc(jetstream_server: NatsServer) -> Client:
    return await connect(jetstream_server.url)


@pytest.fixture
async def js(nc: Client) -> AsyncIterator[JetStream]:
    async with JetStream(nc) as context:
        yield context


@pytest.fixture
async def bucket(js: JetStream, name: str) -> Bucket:
    made = Bucket(js, name, marker_ttl=3600.0)
    await made.create()
    return made


async def config_of(bucket: Bucket) -> StreamConfig:
    return (await bucket.js.stream(bucket.stream)).cached_info.config


# Creation


async def test_bucket_is_created_with_the_configuration_of_adr_8(js: JetStream, name: str) -> None:
    bucket = Bucket(js, name, ttl=60.0)
    await bucket.create()
    config = await config_of(bucket)
    assert (config.name, config.subjects) == (f"KV_{name}", (f"$KV.{name}.>",))
    assert (config.max_msgs_per_subject, config.discard) == (1, DiscardPolicy.NEW)
    assert (config.max_age, config.num_replicas, config.storage) == (60.0, 1, StorageType.FILE)
    assert config.allow_rollup_hdrs
    assert config.deny_delete
    assert config.allow_direct
    assert not config.allow_msg_ttl


async def test_bucket_with_marker_ttl_allows_a_ttl_per_message(bucket: Bucket) -> None:
    assert (await config_of(bucket)).allow_msg_ttl


async def test_create_keeps_an_existing_bucket(js: JetStream, bucket: Bucket, name: str) -> None:
    await bucket.put("a", b"1")
    again = Bucket(js, name, ttl=60.0)
    await again.create()
    assert (await config_of(again)).max_age == 0.0
    assert (await again.get("a")).value == b"1"


async def test_concurrent_creations_with_different_settings_all_succeed(js: JetStream, name: str) -> None:
    buckets = [Bucket(js, name, ttl=float(60 + number)) for number in range(5)]
    await asyncio.gather(*(bucket.create() for bucket in buckets))
    ages = {(await bucket.handle()).cached_info.config.max_age for bucket in buckets}
    assert len(ages) == 1


async def test_bucket_that_does_not_exist_is_not_found(js: JetStream, name: str) -> None:
    bucket = Bucket(js, name)
    for call in (bucket.get("a"), bucket.entries(">"), bucket.last_revision()):
        with pytest.raises(StreamNotFoundError):
            await call


def test_invalid_name_is_refused_before_any_request(js: JetStream) -> None:
    with pytest.raises(UsageError):
        Bucket(js, "a.b")


# Reading and writing


async def test_entry_of_a_key_that_was_never_set_has_revision_0(bucket: Bucket) -> None:
    assert await bucket.get("a") == BucketEntry("a", None, 0)
    assert await bucket.last_revision() == 0


async def test_put_returns_the_revision_that_get_reports(bucket: Bucket) -> None:
    assert await bucket.put("a.b", b"1") == 1
    assert await bucket.put("a.c", b"2") == 2
    assert await bucket.get("a.b") == BucketEntry("a.b", b"1", 1)
    assert await bucket.put("a.b", b"") == 3
    assert await bucket.get("a.b", direct=True) == BucketEntry("a.b", b"", 3)
    assert await bucket.last_revision() == 3


async def test_put_with_another_revision_of_the_key_stores_nothing(bucket: Bucket) -> None:
    assert await bucket.put("a", b"1", revision=0) == 1
    assert await bucket.put("b", b"1", revision=0) == 2
    for revision in (0, 2, 7):
        with pytest.raises(WrongLastSequenceError):
            await bucket.put("a", b"2", revision=revision)
    assert await bucket.put("a", b"3", revision=1) == 3
    assert await bucket.get("a") == BucketEntry("a", b"3", 3)


async def test_put_with_another_revision_of_the_bucket_stores_nothing(bucket: Bucket) -> None:
    assert await bucket.put("a", b"1") == 1
    assert await bucket.put("b", b"1", bucket_revision=1) == 2
    with pytest.raises(WrongLastSequenceError):
        await bucket.put("a", b"2", bucket_revision=1)
    assert (await bucket.get("a")).value == b"1"


async def test_one_of_many_concurrent_writers_wins(bucket: Bucket) -> None:
    writes = (bucket.put("a", b"%d" % number, revision=0) for number in range(20))
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, int)]
    assert [(await bucket.get("a")).value] == [b"%d" % number for number in winners]
    assert all(isinstance(outcome, int | WrongLastSequenceError) for outcome in outcomes)


# Deleting


async def test_deleted_key_has_no_value_and_the_revision_of_its_marker(bucket: Bucket) -> None:
    revision = await bucket.put("a", b"1")
    with pytest.raises(WrongLastSequenceError):
        await bucket.delete("a", revision=revision + 1)
    marker = await bucket.delete("a", revision=revision)
    assert await bucket.get("a") == BucketEntry("a", None, marker)
    marker = await bucket.delete("a", left=b"note")
    assert await bucket.get("a") == BucketEntry("a", None, marker, b"note")
    assert await bucket.put("a", b"2", revision=marker) == marker + 1


@pytest.mark.parametrize("operation", ["DEL", "PURGE"])
async def test_key_deleted_by_another_client_has_no_value(bucket: Bucket, operation: str) -> None:
    await bucket.put("a", b"1")
    await bucket.js.publish(f"$KV.{bucket.name}.a", headers={"KV-Operation": operation})
    assert await bucket.get("a") == BucketEntry("a", None, 2)


async def test_deletion_marker_carries_the_marker_ttl(bucket: Bucket) -> None:
    await bucket.delete("a")
    marker = await (await bucket.handle()).get_message(1)
    assert set(marker.headers.pairs) == {("KV-Operation", "DEL"), ("Nats-TTL", "3600000000000ns")}


@pytest.mark.parametrize("marker_ttl", [None, 3600.0])
async def test_deletion_marker_stays_in_a_bucket_without_message_ttl(
    js: JetStream, name: str, marker_ttl: float | None
) -> None:
    await Bucket(js, name).create()
    bucket = Bucket(js, name, marker_ttl=marker_ttl)
    await bucket.delete("a")
    marker = await (await bucket.handle()).get_message(1)
    assert marker.headers.pairs == (("KV-Operation", "DEL"),)


# Listing


async def test_entries_match_the_filter_and_leave_out_deleted_keys(bucket: Bucket) -> None:
    for key in ("group.a", "group.b.c", "group.gone", "other.a"):
        await bucket.put(key, key.encode())
    await bucket.delete("group.gone")
    found = await bucket.entries("group.>")
    assert sorted(found, key=lambda entry: entry.key) == [
        BucketEntry("group.a", b"group.a", 1),
        BucketEntry("group.b.c", b"group.b.c", 2),
    ]
    assert await bucket.entries("none.>") == []


async def test_entries_of_more_bytes_than_the_server_sends_at_once() -> None:
    with run_nats_server(jetstream=True, config={"max_pending": 8_000_000}) as server:
        client = await connect(server.url)
        async with JetStream(client, timeout=60) as js:
            bucket = Bucket(js, "large")
            await bucket.create()
            for number in range(12):
                await bucket.put(f"k.{number}", bytes(900_000))
            found = await bucket.entries("k.*")
        await client.close()
    assert sorted(entry.key for entry in found) == sorted(f"k.{number}" for number in range(12))


async def test_entries_of_more_keys_than_one_request_may_name(bucket: Bucket) -> None:
    expected = {f"k.{number}": b"%d" % number for number in range(1_100)}
    await asyncio.gather(*(bucket.put(key, value) for key, value in expected.items()))
    assert {entry.key: entry.value for entry in await bucket.entries("k.*")} == expected


class CutReplies:
    """FAKE: cuts replies to reads of many keys, as the server does at a message that a write has replaced.

    It serves the API of the domain ``cut`` and passes requests on to JetStream.

    Args:
        nc: Connection.
        lengths: Messages to let through of each reply, in order. Later replies are whole.
    """

    def __init__(self, nc: Client, lengths: list[int]) -> None:
        self.nc = nc
        self.lengths = lengths
        self.asked: list[int] = []

    async def start(self) -> None:
        await self.nc.subscribe("$JS.cut.API.>", cb=self.answer)

    async def answer(self, request: Msg) -> None:
        subject = request.subject.replace("$JS.cut.", "$JS.")
        if ".DIRECT.GET." not in subject:
            await request.respond((await self.nc.request(subject, request.data, timeout=60)).data)
            return
        self.asked.append(len(json.loads(request.data)["multi_last"]))
        left = self.lengths.pop(0) if self.lengths else -1
        replies = await self.nc.subscribe(inbox := self.nc.new_inbox())
        await self.nc.publish(subject, request.data, reply=inbox)
        while left and (message := await replies.next_msg(timeout=60)).headers:
            await self.nc.publish(request.reply, message.data, headers=message.headers)
            if "Status" in message.headers:
                break
            left -= 1
        else:
            not_found = {"Status": "404", "Description": "Message Not Found"}
            await self.nc.publish(request.reply, headers=not_found)
        await replies.unsubscribe()


@pytest.mark.parametrize(
    ("lengths", "asked"), [([3, 0, 2], [10, 7, 7, 5]), ([0] * 9, [10] * 10), ([9, 1], [10, 1])]
)
async def test_entries_are_whole_though_writes_cut_replies(
    bucket: Bucket, nc: Client, lengths: list[int], asked: list[int]
) -> None:
    """A reply that ended early counted as one for keys that have all expired."""
    replies = CutReplies(nc, lengths)
    await replies.start()
    expected = {f"k.{number}": b"%d" % number for number in range(10)}
    for key, value in expected.items():
        await bucket.put(key, value)
    async with JetStream(nc, domain="cut", timeout=60) as js:
        assert {entry.key: entry.value for entry in await Bucket(js, bucket.name).entries("k.*")} == expected
        assert replies.asked == asked


async def test_entries_raise_if_writes_cut_every_reply_before_its_first_message(
    bucket: Bucket, nc: Client
) -> None:
    replies = CutReplies(nc, [0] * 100)
    await replies.start()
    await bucket.put("a", b"1")
    async with JetStream(nc, domain="cut", timeout=60) as js:
        with pytest.raises(MessageNotFoundError):
            await Bucket(js, bucket.name).entries(">")
    assert len(replies.asked) == 10


async def test_keys_that_have_all_expired_are_left_out(bucket: Bucket) -> None:
    assert await bucket.last(["a", "b"]) == []


# Other clients, and permissions


async def test_bucket_is_one_to_nats_py(bucket: Bucket, nc: Client) -> None:
    theirs = await nc.jetstream().key_value(bucket.name)
    revision = await bucket.put("a", b"1")
    entry = await theirs.get("a")
    assert (entry.value, entry.revision) == (b"1", revision)
    revision = await theirs.update("a", b"2", last=revision)
    assert await bucket.get("a") == BucketEntry("a", b"2", revision)
    await theirs.delete("a")
    assert (await bucket.get("a")).value is None


async def test_requests_need_the_documented_permissions_alone(
    js: JetStream, jetstream_server: NatsServer, name: str
) -> None:
    """docs/operating.md allows the subjects of these requests to gateways and coordinators."""
    observer = await connect(jetstream_server.url)
    seen: list[str] = []

    async def note(message: Msg) -> None:
        if name in message.subject:
            seen.append(message.subject.replace(name, "NAME"))

    # One subscription, because nats-py keeps the order of messages only within a subscription.
    await observer.subscribe(">", cb=note)
    await handled(observer)
    bucket = Bucket(js, name, marker_ttl=3600.0)
    await bucket.create()
    await Bucket(js, name, marker_ttl=3600.0).create()
    await bucket.put("a", b"1")
    await bucket.get("a")
    await bucket.get("a", direct=True)
    await bucket.entries(">")
    await bucket.delete("a")
    await js.api.nc.publish(f"{name}.end")
    await until(lambda: "NAME.end" in seen)
    assert [subject for subject in seen if "ADVISORY" not in subject] == [
        "$JS.API.STREAM.INFO.KV_NAME",
        "$JS.API.STREAM.CREATE.KV_NAME",
        "$JS.API.STREAM.INFO.KV_NAME",
        "$KV.NAME.a",
        "$JS.API.STREAM.MSG.GET.KV_NAME",
        "$JS.API.DIRECT.GET.KV_NAME",
        "$JS.API.STREAM.INFO.KV_NAME",
        "$JS.API.DIRECT.GET.KV_NAME",
        "$KV.NAME.a",
        "NAME.end",
    ]
    await observer.close()
