"""Streams on a real server: made, changed, read, purged, deleted; and every field of their configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from nats.aio.client import Client

from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    InvalidConfigError,
    JetStreamError,
    MessageNotFoundError,
    NoJetStreamError,
    StreamNameInUseError,
    StreamNotFoundError,
    SubjectsOverlapError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream import _consumer_requests as requests
from liftenvelope.jetstream._advisories import ConsumerCreatedAdvisory
from liftenvelope.jetstream._consumer_config import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
    ReplayPolicy,
)
from liftenvelope.jetstream._stored import StoredMessage
from liftenvelope.jetstream._stream import Stream
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.context import JetStream
from liftenvelope.jetstream.stream_config import (
    Compression,
    ConsumerLimits,
    DiscardPolicy,
    ExternalStream,
    PersistMode,
    Placement,
    Republish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from liftenvelope.testing import NatsServer, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect, until

SOON = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A server of this file alone, which has no other streams."""
    with run_nats_server(jetstream=True) as running:
        yield running


@pytest.fixture
async def js_nc(server: NatsServer) -> Client:
    return await connect(server.url)


@pytest.fixture
async def js(js_nc: Client) -> AsyncIterator[JetStream]:
    async with JetStream(js_nc, timeout=60) as context:
        yield context
        if not js_nc.is_closed:
            for name in [name async for name in context.stream_names()]:
                await context.delete_stream(name)


async def filled(js: JetStream, name: str, count: int = 5) -> Stream:
    """A stream with a message on each of so many subjects."""
    config = StreamConfig(
        name=name,
        subjects=(f"{name}.>",),
        storage=StorageType.MEMORY,
        allow_direct=True,
        max_msgs_per_subject=9,
    )
    stream = await js.create_stream(config)
    for i in range(count):
        await js.publish(f"{name}.{i}", f"m{i}".encode(), headers={"n": str(i)})
    return stream


def full_configs(name: str) -> list[StreamConfig]:
    """Configurations that set every field between them, each to something that is no default."""
    return [
        StreamConfig(
            name=name,
            description="all of it",
            subjects=(f"{name}.a", f"{name}.b.>"),
            max_consumers=7,
            max_msgs=1000,
            max_bytes=1 << 20,
            max_age=3600.25,
            max_msgs_per_subject=10,
            max_msg_size=1 << 16,
            discard=DiscardPolicy.NEW,
            discard_new_per_subject=True,
            duplicate_window=60.5,
            compression=Compression.S2,
            first_seq=100,
            subject_transform=SubjectTransform(src=f"{name}.a", dest=f"{name}.c"),
            republish=Republish(src=f"{name}.>", dest=f"re.{name}.>", headers_only=True),
            allow_direct=True,
            deny_delete=True,
            allow_rollup_hdrs=True,
            consumer_limits=ConsumerLimits(inactive_threshold=120, max_ack_pending=50),
            allow_msg_ttl=True,
            allow_atomic=True,
            allow_batched=True,
            metadata={"owner": "tests"},
        ),
        StreamConfig(
            name=name,
            subjects=(f"{name}.*",),
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.MEMORY,
            deny_purge=True,
            no_ack=True,
        ),
        StreamConfig(name=name, subjects=(f"{name}.*",), retention=RetentionPolicy.INTEREST),
        StreamConfig(name=name, subjects=(f"{name}.*",), allow_msg_counter=True),
        StreamConfig(name=name, subjects=(f"{name}.*",), allow_msg_schedules=True, allow_msg_ttl=True),
        StreamConfig(name=name, subjects=(f"{name}.*",), persist_mode=PersistMode.ASYNC),
        StreamConfig(
            name=name,
            subjects=(f"{name}.*",),
            subject_delete_marker_ttl=60,
            allow_msg_ttl=True,
            allow_rollup_hdrs=True,
            max_age=3600,
        ),
        StreamConfig(
            name=name,
            mirror=StreamSource(name="elsewhere", opt_start_seq=5, filter_subject="x.*"),
            mirror_direct=True,
        ),
        StreamConfig(
            name=name,
            sources=(
                StreamSource(name="one", opt_start_time=SOON, filter_subject="x.*"),
                StreamSource(
                    name="two",
                    subject_transforms=(SubjectTransform(src="y.*", dest=f"{name}.y.{{{{wildcard(1)}}}}"),),
                    external=ExternalStream(api="$JS.hub.API", deliver="from.hub"),
                ),
            ),
        ),
        StreamConfig(name=name, subjects=(f"{name}.*",), placement=Placement(preferred="")),
        StreamConfig(name=name, subjects=(f"{name}.*",), sealed=False, max_age=31_536_000.000000001),
    ]


class TestConfig:
    @pytest.mark.parametrize("which", range(len(full_configs("x"))))
    async def test_round_trip(self, js: JetStream, name: str, which: int) -> None:
        config = full_configs(name)[which]
        stream = await js.create_stream(config)
        answered = stream.cached_info.config
        assert answered.extra == {}
        for field, value in vars(config).items():
            if value and field not in ("metadata", "exact", "placement", "subject_delete_marker_ttl"):
                assert getattr(answered, field) == value, field
        assert config.metadata.items() <= answered.metadata.items()
        # Sent back unchanged, it is taken, and nothing has changed.
        again = await js.update_stream(answered)
        assert again.cached_info.config == answered
        assert (await stream.info()).config == answered

    async def test_everything_is_known(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name)
        info = await stream.info(subjects_filter=">", deleted_details=True)
        assert info.extra.keys() <= {"type", "total", "offset", "limit"}
        assert info.state.extra == info.config.extra == {}
        assert (await js.account_info()).extra.keys() == {"type"}

    async def test_created_twice(self, js: JetStream, name: str) -> None:
        config = StreamConfig(name=name)
        assert (await js.create_stream(config)).cached_info.did_create
        again = await js.create_stream(config)
        assert again.cached_info.created == (await js.stream(name)).cached_info.created
        with pytest.raises(StreamNameInUseError) as caught:
            await js.create_stream(replace(config, max_msgs=5))
        assert (caught.value.code, caught.value.err_code) == (400, 10058)

    async def test_created_right_after_the_last_stream_was_deleted(self) -> None:
        """Before creations were repeated, 5 of 3,000 failed: the server removed the folder of streams."""
        with run_nats_server(jetstream=True) as server:
            nc = await connect(server.url)
            js = JetStream(nc, timeout=60)
            for number in range(500):
                await js.create_stream(StreamConfig(name=f"{number}"))
                await js.delete_stream(f"{number}")
            await nc.close()

    @pytest.mark.parametrize(("answers", "is_created"), [(1, True), (3, True), (4, False)])
    async def test_created_without_a_folder_for_streams(
        self, js: JetStream, name: str, answers: int, *, is_created: bool
    ) -> None:
        """The answers are fakes of those that the server was seen to give in the race above."""
        ask, asked = js.api.request_as, count(1)

        async def ask_late(*arguments: Any, **options: Any) -> Any:
            if next(asked) <= answers:
                raise JetStreamError(500, "error creating store for stream", 10049)
            return await ask(*arguments, **options)

        with patch.object(js.api, "request_as", ask_late):
            if is_created:
                assert (await js.create_stream(StreamConfig(name=name))).cached_info.did_create
            else:
                with pytest.raises(JetStreamError, match="error creating store"):
                    await js.create_stream(StreamConfig(name=name))

    async def test_updated(self, js: JetStream, name: str) -> None:
        with pytest.raises(StreamNotFoundError):
            await js.update_stream(StreamConfig(name=name))
        stream = await js.create_or_update_stream(StreamConfig(name=name))
        config = replace(stream.cached_info.config, max_msgs=3, max_age=60, duplicate_window=None)
        stream = await js.create_or_update_stream(config)
        assert (stream.cached_info.config.max_msgs, stream.cached_info.config.max_age) == (3, 60.0)
        assert stream.cached_info.config.duplicate_window == 60.0

    async def test_refusals(self, js: JetStream, name: str) -> None:
        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
        with pytest.raises(SubjectsOverlapError):
            await js.create_stream(StreamConfig(name=f"{name}-2", subjects=(f"{name}.a",)))
        with pytest.raises(InvalidConfigError):
            await js.create_stream(StreamConfig(name=f"{name}-2", max_age=0.01))
        with pytest.raises(UsageError, match=r"a\.b"):
            await js.delete_stream("a.b")
        with pytest.raises(UsageError, match="config must be a StreamConfig"):
            await js.create_stream({"name": "x"})  # type: ignore[arg-type]

    async def test_deleted(self, js: JetStream, name: str) -> None:
        stream = await js.create_stream(StreamConfig(name=name))
        await js.delete_stream(name)
        for call in (js.stream(name), js.delete_stream(name), stream.info(), stream.purge()):
            with pytest.raises(StreamNotFoundError):
                await call


CONSUMER_CONFIGS = [
    ConsumerConfig(
        durable_name="c",
        description="all of it",
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=3,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=12.5,
        max_deliver=4,
        backoff=(1, 2.5),
        replay_policy=ReplayPolicy.ORIGINAL,
        sample_freq="30%",
        max_waiting=64,
        max_ack_pending=77,
        headers_only=True,
        max_batch=500,
        max_expires=20,
        max_bytes=1 << 16,
        inactive_threshold=3600,
        num_replicas=1,
        mem_storage=True,
        metadata={"owner": "tests"},
        pause_until=SOON,
    ),
    ConsumerConfig(name="c", deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=SOON),
    ConsumerConfig(
        name="c",
        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
        ack_policy=AckPolicy.ALL,
        filter_subjects=("*.1", "*.2"),
    ),
    ConsumerConfig(
        durable_name="c",
        deliver_subject="push.to",
        deliver_group="readers",
        rate_limit_bps=1_000_000,
        idle_heartbeat=5,
        flow_control=False,
    ),
    ConsumerConfig(durable_name="c", deliver_subject="push.to", idle_heartbeat=5, flow_control=True),
    ConsumerConfig(
        durable_name="c",
        priority_groups=("g",),
        priority_policy=PriorityPolicy.PINNED_CLIENT,
        priority_timeout=9,
    ),
    ConsumerConfig(durable_name="c", priority_groups=("g",), priority_policy=PriorityPolicy.OVERFLOW),
    ConsumerConfig(durable_name="c", priority_groups=("g",), priority_policy=PriorityPolicy.PRIORITIZED),
    ConsumerConfig(durable_name="c", ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW),
    ConsumerConfig(durable_name="c", deliver_policy=DeliverPolicy.LAST),
]


class TestConsumerConfig:
    @pytest.mark.parametrize("which", range(len(CONSUMER_CONFIGS)))
    async def test_round_trip(self, js: JetStream, name: str, which: int) -> None:
        await filled(js, name)
        config = CONSUMER_CONFIGS[which]
        info = await requests.put_consumer(js.api, name, config, "create")
        assert info.config.extra == {}
        assert info.extra.keys() == {"type"}
        for field, value in vars(config).items():
            if value and field not in ("metadata", "exact"):
                # With backoff the server takes the first of it for ack_wait.
                expected = 1.0 if field == "ack_wait" and config.backoff else value
                assert getattr(info.config, field) == expected, field
        again = await requests.put_consumer(js.api, name, info.config, "update")
        assert again.config == info.config
        assert (await requests.consumer_info(js.api, name, "c")).config == info.config

    async def test_filters(self, js: JetStream, name: str) -> None:
        await filled(js, name)
        one = ConsumerConfig(filter_subject=f"{name}.1")
        info = await requests.put_consumer(js.api, name, one, "create")
        assert (info.config.filter_subject, info.num_pending, len(info.name)) == (f"{name}.1", 1, 16)
        several = ConsumerConfig(name="several", filter_subjects=(f"{name}.1", f"{name}.2"))
        info = await requests.put_consumer(js.api, name, several, "create")
        assert (info.config.filter_subjects, info.num_pending) == ((f"{name}.1", f"{name}.2"), 2)
        assert [each async for each in (await js.stream(name)).consumer_names()] == [
            each.name async for each in (await js.stream(name)).consumers()
        ]

    async def test_actions(self, js: JetStream, name: str) -> None:
        await filled(js, name)
        config = ConsumerConfig(durable_name="c")
        with pytest.raises(ConsumerNotFoundError) as caught:
            await requests.put_consumer(js.api, name, config, "update")
        assert caught.value.err_code == 10149
        await requests.put_consumer(js.api, name, config, "create")
        with pytest.raises(ConsumerExistsError):
            await requests.put_consumer(js.api, name, replace(config, max_deliver=3), "create")
        info = await requests.put_consumer(js.api, name, replace(config, max_deliver=3), "")
        assert info.config.max_deliver == 3
        await js.delete_consumer(name, "c")
        for call in (js.delete_consumer(name, "c"), requests.consumer_info(js.api, name, "c")):
            with pytest.raises(ConsumerNotFoundError):
                await call
        with pytest.raises(UsageError, match="name or durable_name must be given"):
            await requests.put_consumer(js.api, name, ConsumerConfig(), "update")


class TestConsumers:
    """Streams and the context create, find, list and delete consumers alike. Reading is tested elsewhere."""

    async def test_stream_creates_updates_and_deletes_consumers(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name)
        config = ConsumerConfig(durable_name="c")
        assert (await stream.create_consumer(config)).cached_info.num_pending == 5
        changed = await stream.update_consumer(replace(config, max_deliver=7))
        assert changed.cached_info.config.max_deliver == 7
        both = await stream.create_or_update_consumer(replace(config, max_deliver=8))
        assert both.cached_info.config.max_deliver == 8
        assert (await stream.consumer("c")).cached_info.config == both.cached_info.config
        await stream.delete_consumer("c")
        with pytest.raises(ConsumerNotFoundError):
            await stream.consumer("c")
        with pytest.raises(UsageError, match=r"'a\.b'"):
            await stream.consumer("a.b")

    async def test_context_creates_updates_and_deletes_consumers(self, js: JetStream, name: str) -> None:
        await filled(js, name)
        config = ConsumerConfig(durable_name="c")
        assert (await js.create_consumer(name, config)).cached_info.stream_name == name
        assert (await js.update_consumer(name, replace(config, max_deliver=7))).cached_info.name == "c"
        both = await js.create_or_update_consumer(name, replace(config, max_deliver=8))
        assert (await js.consumer(name, "c")).cached_info.config == both.cached_info.config
        with pytest.raises(StreamNotFoundError):
            await js.create_consumer(f"{name}-2", config)
        with pytest.raises(UsageError, match="must be a ConsumerConfig"):
            await js.create_consumer(name, None)  # type: ignore[arg-type]

    async def test_ordered(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name)
        seen = []
        async with stream.ordered_consumer(filter_subjects=[f"{name}.1", f"{name}.3"]).messages() as messages:
            async for message in messages:
                seen.append(message.data)
                if len(seen) == 2:
                    break
        assert seen == [b"m1", b"m3"]

    async def test_advisories(self, js: JetStream, name: str) -> None:
        await filled(js, name)
        async with js.advisories(name) as advisories, asyncio.timeout(20):
            await js.create_consumer(name, ConsumerConfig(durable_name="c"))
            advisory = await anext(aiter(advisories))
        assert isinstance(advisory, ConsumerCreatedAdvisory)
        assert (advisory.stream, advisory.consumer) == (name, "c")


class TestListings:
    async def test_streams(self, js: JetStream, name: str) -> None:
        # More than two pages of infos (256 each).
        names = {f"{name}-{i}" for i in range(520)}
        creating = [js.create_stream(StreamConfig(name=each, storage=StorageType.MEMORY)) for each in names]
        await asyncio.gather(*creating)
        assert {each async for each in js.stream_names()} == names
        assert {info.config.name async for info in js.streams()} == names
        assert [each async for each in js.stream_names(f"{name}-7")] == [f"{name}-7"]
        assert [info.config.name async for info in js.streams(f"{name}-8")] == [f"{name}-8"]

    async def test_by_subject(self, js: JetStream, name: str) -> None:
        await filled(js, name)
        assert await js.stream_name_by_subject(f"{name}.17") == name
        assert await js.stream_name_by_subject(f"{name}.*") == name
        with pytest.raises(StreamNotFoundError, match=r"nothing\.here"):
            await js.stream_name_by_subject("nothing.here")

    async def test_none(self, js: JetStream) -> None:
        assert [each async for each in js.stream_names()] == []
        assert [each async for each in js.streams()] == []

    async def test_subjects_of_a_stream(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name)
        info = await stream.info(subjects_filter=f"{name}.*")
        assert info.state.subjects == {f"{name}.{i}": 1 for i in range(5)}
        assert info.state.num_subjects == 5
        assert stream.cached_info == info
        assert (await stream.info()).state.subjects == {}

    async def test_account(self, js: JetStream, name: str) -> None:
        await filled(js, name)
        info = await js.account_info()
        assert (info.streams, info.consumers, info.limits.max_streams) == (1, 0, -1)
        assert info.api.level >= 1


class TestMessages:
    @pytest.mark.parametrize("direct", [True, False, None])
    async def test_get(self, js: JetStream, name: str, direct: bool | None) -> None:
        stream = await filled(js, name)
        message = await stream.get_message(2, direct=direct)
        assert (message.stream, message.subject, message.sequence) == (name, f"{name}.1", 2)
        assert (message.data, message.pending) == (b"m1", None)
        assert dict(message.headers) == {"n": "1"}
        assert datetime.now(UTC) - message.time < timedelta(minutes=1)
        last = await stream.get_message(last_by_subject=f"{name}.*", direct=direct)
        assert last.sequence == 5
        following = await stream.get_message(3, next_by_subject=f"{name}.>", direct=direct)
        assert following.sequence == 3
        first = await stream.get_message(next_by_subject=f"{name}.4", direct=direct)
        assert first.sequence == 5
        for arguments in ({"sequence": 77}, {"last_by_subject": f"{name}.none"}):
            with pytest.raises(MessageNotFoundError):
                await stream.get_message(**arguments, direct=direct)

    async def test_arguments(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name, 0)
        with pytest.raises(UsageError, match="must be given"):
            await stream.get_message()
        with pytest.raises(UsageError, match="last_by_subject excludes"):
            await stream.get_message(1, last_by_subject="x")
        with pytest.raises(UsageError, match="at least 1, got 0"):
            await stream.get_message(0)
        with pytest.raises(UsageError, match="empty token"):
            await stream.get_message(last_by_subject="a..b")
        with pytest.raises(UsageError, match="must be an integer"):
            await stream.get_message("1")  # type: ignore[arg-type]

    @pytest.mark.parametrize("status", ["503", "404", "204"])
    async def test_forged_status(self, js: JetStream, name: str, status: str) -> None:
        stream = await filled(js, name, 0)
        headers = {"Status": status, "Description": "EOB"}
        await js.publish(f"{name}.x", headers=headers)
        assert (await stream.get_message(1)).headers == headers
        assert [message.headers async for message in stream.get_messages(5)] == [headers]

    async def test_not_direct(self, js: JetStream, name: str) -> None:
        stream = await js.create_stream(StreamConfig(name=name))
        with pytest.raises(NoJetStreamError, match="allow_direct"):
            await stream.get_message(1, direct=True)

    async def test_deleted(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name)
        await stream.delete_message(2)
        await stream.delete_message(4, secure=True)
        for sequence in (2, 4):
            with pytest.raises(MessageNotFoundError):
                await stream.get_message(sequence)
            with pytest.raises(JetStreamError) as caught:
                await stream.delete_message(sequence)
            assert caught.value.err_code in (10057, 10043)
        info = await stream.info(deleted_details=True)
        assert (info.state.deleted, info.state.num_deleted, info.state.messages) == ((2, 4), 2, 3)

    async def test_purge(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name, 9)
        assert await stream.purge(subject=f"{name}.0") == 1
        assert await stream.purge(sequence=4) == 2
        assert await stream.purge(keep=2) == 4
        assert (await stream.info()).state.first_seq == 8
        assert await stream.purge(keep=0) == 2
        assert await stream.purge() == 0
        with pytest.raises(UsageError, match="exclude each other"):
            await stream.purge(keep=1, sequence=1)
        with pytest.raises(UsageError, match="got -1"):
            await stream.purge(keep=-1)


async def sequences(messages: AsyncIterator[StoredMessage]) -> list[int]:
    return [message.sequence async for message in messages]


class TestBatches:
    async def test_in_a_row(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name, 20)
        assert await sequences(stream.get_messages(7)) == [1, 2, 3, 4, 5, 6, 7]
        assert await sequences(stream.get_messages(100, sequence=15)) == [15, 16, 17, 18, 19, 20]
        assert await sequences(stream.get_messages(5, subject=f"{name}.3")) == [4]
        assert await sequences(stream.get_messages(5, max_bytes=1)) == [1]
        start = (await stream.get_message(19)).time
        assert (await sequences(stream.get_messages(9, start_time=start)))[-1] == 20
        pending = [message.pending async for message in stream.get_messages(3)]
        assert pending == [19, 18, 17]

    async def test_last_of_each(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name, 3)
        middle = (await stream.get_message(3)).time
        await js.publish(f"{name}.1", b"newer")
        assert await sequences(stream.get_last_messages([f"{name}.*"])) == [1, 3, 4]
        assert await sequences(stream.get_last_messages([f"{name}.0", f"{name}.1"])) == [1, 4]
        assert await sequences(stream.get_last_messages([f"{name}.*"], up_to_sequence=3)) == [1, 2, 3]
        assert await sequences(stream.get_last_messages([f"{name}.*"], batch=2)) == [1, 3]
        earlier = stream.get_last_messages([f"{name}.*"], up_to_time=middle + timedelta(microseconds=1))
        assert await sequences(earlier) == [1, 2, 3]

    async def test_nothing(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name, 1)
        for messages in (stream.get_messages(3, sequence=99), stream.get_last_messages(["none"])):
            with pytest.raises(MessageNotFoundError):
                await sequences(messages)

    async def test_too_many_subjects(self, js: JetStream, name: str) -> None:
        stream = await js.create_stream(
            StreamConfig(name=name, subjects=(f"{name}.*",), storage=StorageType.MEMORY, allow_direct=True)
        )
        futures = [await js.publish_async(f"{name}.{i}") for i in range(1025)]
        await asyncio.gather(*futures)
        with pytest.raises(JetStreamError) as caught:
            await sequences(stream.get_last_messages([f"{name}.*"]))
        assert caught.value.code == 413

    async def test_arguments(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name, 0)
        with pytest.raises(UsageError, match="got 0"):
            stream.get_messages(0)
        with pytest.raises(UsageError, match="exclude each other"):
            stream.get_messages(1, sequence=1, start_time=SOON)
        with pytest.raises(UsageError, match="time zone"):
            stream.get_messages(1, start_time=datetime(2026, 1, 1))
        with pytest.raises(UsageError, match="exclude each other"):
            stream.get_last_messages(["a"], up_to_sequence=1, up_to_time=SOON)
        with pytest.raises(UsageError, match="at least one, got 'a'"):
            stream.get_last_messages("a")
        with pytest.raises(UsageError, match="at least one, got"):
            stream.get_last_messages([])

    async def test_abandoned(self, js: JetStream, name: str) -> None:
        stream = await filled(js, name, 20)
        messages = stream.get_messages(20)
        assert (await anext(messages)).sequence == 1
        before = len(js.api.nc._subs)
        await messages.aclose()  # type: ignore[attr-defined]
        assert len(js.api.nc._subs) == before - 1


class TestElsewhere:
    async def test_domain(self, name: str) -> None:
        with run_nats_server(jetstream=True, config={"jetstream": {"domain": "hub"}}) as server:
            nc = await connect(server.url)
            for js in (JetStream(nc, domain="hub"), JetStream(nc, api_prefix="$JS.hub.API.")):
                async with js:
                    stream = await js.create_stream(StreamConfig(name=name))
                    assert (await stream.info()).domain == "hub"
                    assert (await js.publish(name, b"x")).domain == "hub"
                    assert (await js.account_info()).domain == "hub"
            with pytest.raises(NoJetStreamError):
                await JetStream(nc, domain="other").account_info()
            await nc.close()

    async def test_no_jetstream(self, nc: Client) -> None:
        js = JetStream(nc)
        with pytest.raises(NoJetStreamError, match=r"nothing answers.*JetStream is not enabled .*-js"):
            await js.account_info()
        with pytest.raises(NoJetStreamError, match=r"JetStream is not enabled, so .* 'foo': start .*-js"):
            await js.publish("foo", retry_attempts=0)
        with pytest.raises(
            NoJetStreamError, match="no stream records the subject 'foo', or JetStream is not"
        ):
            await (await js.publish_async("foo", retry_attempts=0))
        await js.close()

    async def test_account_without_jetstream_is_told_how_to_enable_it(self, name: str) -> None:
        accounts = {
            "with": {"jetstream": "enabled", "users": [{"user": "a", "password": "a"}]},
            "without": {"users": [{"user": "b", "password": "b"}]},
        }
        with run_nats_server(jetstream=True, config={"accounts": accounts}) as server:
            nc = await connect(server.url, user="b", password="b")
            async with JetStream(nc) as js:
                with pytest.raises(NoJetStreamError, match=r"not enabled.*enable it in the account"):
                    await js.account_info()
                with pytest.raises(NoJetStreamError, match=r"JetStream is not enabled, so .*in the account"):
                    await js.publish(name, retry_attempts=0)
            await nc.close()

    async def test_wrong_domain_is_named_as_a_cause(self, name: str) -> None:
        with run_nats_server(jetstream=True) as server:
            nc = await connect(server.url)
            with pytest.raises(NoJetStreamError, match=r"\$JS.nowhere.API.INFO.*or domain or API prefix are"):
                await JetStream(nc, domain="nowhere").account_info()
            await nc.close()

    async def test_no_answer(self, nc: Client) -> None:
        # Somebody listens, and says nothing.
        await nc.subscribe("$JS.API.INFO", cb=_silent)
        with pytest.raises(CallTimeoutError, match=r"0.2 s"):
            await Api(nc).request("INFO", timeout=0.2)

    async def test_closed_connection(self, nc: Client) -> None:
        await nc.subscribe("$JS.API.INFO", cb=_silent)
        js = JetStream(nc, timeout=30)
        waiting = asyncio.ensure_future(js.account_info())
        await handled(nc)
        await nc.close()
        async with asyncio.timeout(20):
            with pytest.raises(TransportError, match="closed before an answer"):
                await waiting
        with pytest.raises(TransportError, match="is closed"):
            await js.account_info()

    async def test_cancelled(self, nc: Client) -> None:
        await nc.subscribe("$JS.API.INFO", cb=_silent)
        waiting = asyncio.ensure_future(JetStream(nc).account_info(timeout=60))
        await until(lambda: bool(nc._resp_map))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: not nc._resp_map)

    async def test_too_large(self, js: JetStream) -> None:
        with pytest.raises(UsageError, match=r"must be at most .* bytes"):
            await js.api.request("INFO", b"x" * 2_000_000)


async def _silent(_: object) -> None:
    """Answer nothing."""
