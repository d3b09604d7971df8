"""Publishing to real streams: acks, refusals, duplicates, thousands at once, and servers that die."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from sys import getrefcount
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.errors import (
    AckTimeoutError,
    JetStreamError,
    LiftEnvelopeError,
    MessageNotFoundError,
    MessageTtlError,
    NoJetStreamError,
    PermissionDeniedError,
    StreamMessageTooLargeError,
    StreamSealedError,
    StreamStoreFailedError,
    TransportError,
    UnsupportedByServerError,
    UsageError,
    WrongLastMessageIdError,
    WrongLastSequenceError,
    WrongStreamError,
)
from liftenvelope.jetstream import AckPolicy, ConsumerConfig, Headers
from liftenvelope.jetstream._stream import Stream
from liftenvelope.jetstream.context import JetStream
from liftenvelope.jetstream.publish_frames import PubAck
from liftenvelope.jetstream.stream_config import DiscardPolicy, StorageType, StreamConfig
from liftenvelope.nats import accelerate
from liftenvelope.nats.receiving import DirectParser
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect, reload_with, until


@pytest.fixture(params=[False, True], ids=["plain", "accelerated"])
async def js_nc(jetstream_server: NatsServer, request: pytest.FixtureRequest) -> Client:
    nc = await connect(jetstream_server.url)
    if request.param:
        assert accelerate(nc).active
    return nc


@pytest.fixture
async def js(js_nc: Client) -> AsyncIterator[JetStream]:
    async with JetStream(js_nc, timeout=20) as context:
        yield context


@pytest.fixture
async def stream(js: JetStream, jetstream_server: NatsServer, name: str) -> AsyncIterator[Stream]:
    config = StreamConfig(
        name=name,
        subjects=(name, f"{name}.*"),
        storage=StorageType.MEMORY,
        allow_msg_ttl=True,
        allow_direct=True,
    )
    yield await js.create_stream(config)
    nc = await connect(jetstream_server.url)  # a test may have closed the other one
    await JetStream(nc).delete_stream(name)
    await nc.close()


@pytest.mark.parametrize("accelerated", [False, True])
async def test_refused_publishes_fail_at_once_and_no_others(name: str, accelerated: bool) -> None:
    reports: list[Exception] = []

    async def keep(report: Exception) -> None:
        reports.append(report)

    permissions = {"publish": {"deny": [f"{name}.No"]}}
    users = [{"user": "ann", "password": "x", "permissions": permissions}]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        nc = await connect(server.url, user="ann", password="x", error_cb=keep)
        with accelerate(nc) if accelerated else nullcontext():
            async with asyncio.timeout(120), JetStream(nc, timeout=10_000) as js:
                await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
                subjects = [f"{name}.{token}" for token in ("No", "no", "yes")] * 1_000
                futures = [await js.publish_async(subject, b"x") for subject in subjects]
                outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert "_process_err" not in vars(nc)  # reports reach nats-py as before
        await nc.close()
    assert len(reports) == 1_000
    kinds = [PermissionDeniedError, PubAck, PubAck] * 1_000
    assert [type(outcome) for outcome in outcomes] == kinds
    assert f"nats-server does not let this user publish on '{name}.No'" in str(outcomes[0])


async def test_late_ack_of_before_a_change_of_permissions_outlives_later_refusals(name: str) -> None:
    users = [
        {"user": "ann", "password": "x", "permissions": {"publish": {"deny": ["none", f"{name}.never"]}}},
        {"user": "stream", "password": "x"},
    ]
    with run_nats_server(config={"authorization": {"users": users}}) as server:
        taken: asyncio.Queue[Msg] = asyncio.Queue()
        reports: asyncio.Queue[Exception] = asyncio.Queue()
        stream = await connect(server.url, user="stream", password="x")  # in place of one with a slow leader
        await stream.subscribe(name, cb=taken.put)
        await stream.flush()
        nc = await connect(server.url, user="ann", password="x", error_cb=reports.put)
        async with asyncio.timeout(120), JetStream(nc, timeout=10_000) as js:
            allowed = await js.publish_async(name, b"allowed")
            message = await taken.get()
            reload_with(server, '"none"', f'"{name}"')
            refused = []
            while reports.empty():  # until the server has read its configuration
                refused.append(await js.publish_async(name, b"x"))
                await nc.flush()
            refused += [await js.publish_async(name, b"x") for _ in range(3)]
            while reports.qsize() < 4:
                await nc.flush()
            with pytest.raises(PermissionDeniedError):
                await js.publish(f"{name}.never")  # compared at the same time as the others, or later
            assert not allowed.done()
            await message.respond(b'{"stream": "S", "seq": 1}')
            await stream.flush()
            assert await allowed == PubAck("S", 1)
            while not taken.empty():
                await taken.get_nowait().respond(b'{"stream": "S", "seq": 2}')
            outcomes = await asyncio.gather(*refused, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes[-4:]] == [PermissionDeniedError] * 4
        await nc.close()
        await stream.close()


async def test_headers_that_the_server_does_not_take_leave_the_connection_open(name: str) -> None:
    with run_nats_server(jetstream=True, config={"no_header_support": True}) as server:
        nc = await connect(server.url)
        async with JetStream(nc, timeout=20) as js:
            await js.create_stream(StreamConfig(name=name, subjects=(name,)))
            with pytest.raises(UnsupportedByServerError, match="no_header_support"):
                await js.publish(name, message_id="1")
            assert await js.publish(name) == PubAck(name, 1)
        assert nc.stats["reconnects"] == 0
        await nc.close()


async def test_applications_handler_of_reports_stays_after_a_context_that_it_wraps(name: str) -> None:
    users = [{"user": "ann", "password": "x", "permissions": {"publish": {"deny": ["no"]}}}]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        nc = await connect(server.url, user="ann", password="x")
        seen: list[str] = []
        async with JetStream(nc, timeout=10_000) as js:
            await js.create_stream(StreamConfig(name=name, subjects=(name,)))
            await js.publish(name)
            inner: Any = nc._process_err

            async def outer(text: str) -> None:
                seen.append(text)
                await inner(text)

            vars(nc)["_process_err"] = outer
            with pytest.raises(PermissionDeniedError):
                await js.publish("no")
        assert vars(nc)["_process_err"] is outer
        async with JetStream(nc, timeout=10_000) as js:
            await js.publish(name)
            with pytest.raises(PermissionDeniedError):
                await js.publish("no")
        assert vars(nc)["_process_err"] is outer
        assert len(seen) == 2
        await nc.close()


class TestOne:
    async def test_ack(self, js: JetStream, stream: Stream, name: str) -> None:
        assert await js.publish(name, b"one") == PubAck(name, 1)
        assert await js.publish(
            f"{name}.a", bytearray(b"two"), headers={"A": "b c", "ä".encode().hex(): "ä"}
        ) == (PubAck(name, 2))
        assert await js.publish(name) == PubAck(name, 3)
        message = await stream.get_message(2)
        assert message.data == b"two"
        assert message.headers == {"A": "b c", "c3a4": "ä"}
        assert (await stream.get_message(3)).data == b""
        assert js.publish_async_pending == 0

    async def test_known_subject_takes_the_quick_path(
        self, js: JetStream, stream: Stream, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await js.publish(name)
        monkeypatch.setattr(js, "_send", None)  # the full path
        assert await js.publish(name, b"x", headers={"A": "b"}, timeout=10) == PubAck(name, 2)
        assert (await stream.get_message(2)).headers == {"A": "b"}

    async def test_repeated_headers(self, js: JetStream, js_nc: Client, stream: Stream, name: str) -> None:
        """All of them are stored; whoever reads by nats-py sees the last of a name."""
        await js.publish(name, headers={"Via": ["a", "b"], "Tag": "x"}, message_id="1")
        stored = await stream.get_message(1, direct=False)
        assert stored.headers.pairs == (("Nats-Msg-Id", "1"), ("Via", "a"), ("Via", "b"), ("Tag", "x"))
        await js.publish(name, headers=Headers(stored.headers.pairs[1:]))
        again = await stream.get_message(2, direct=False)
        assert again.headers.pairs == stored.headers.pairs[1:]
        directly = await stream.get_message(2, direct=True)
        assert directly.headers == {"Via": "b", "Tag": "x"}
        consumer = await stream.create_consumer(ConsumerConfig(ack_policy=AckPolicy.NONE))
        [_, message] = await consumer.fetch(2)
        accelerated = isinstance(js_nc._ps, DirectParser)
        for headers in (directly.headers, message.headers):
            assert headers.get_all("Via") == (("a", "b") if accelerated else ("b",))
            assert headers["Tag"] == "x"

    async def test_duplicates(self, js: JetStream, stream: Stream, name: str) -> None:
        first = await js.publish(name, b"x", message_id="id-1")
        again = await js.publish(name, b"y", message_id="id-1")
        assert (first.duplicate, again.duplicate) == (False, True)
        assert first.sequence == again.sequence == 1
        assert (await stream.info()).state.messages == 1
        assert await js.publish(name, b"z", message_id="id-2") == PubAck(name, 2)

    async def test_expectations(self, js: JetStream, stream: Stream, name: str) -> None:
        await js.publish(name, b"x", expected_last_sequence=0, expected_stream=name, message_id="id-1")
        await js.publish(name, b"x", expected_last_sequence=1, expected_last_message_id="id-1")
        await js.publish(f"{name}.a", expected_last_subject_sequence=0)
        await js.publish(f"{name}.a", expected_last_subject_sequence=3)
        await js.publish(
            f"{name}.b", expected_last_subject_sequence=4, expected_last_subject_filter=f"{name}.*"
        )
        with pytest.raises(WrongLastSequenceError) as caught:
            await js.publish(name, b"x", expected_last_sequence=2)
        assert (caught.value.code, caught.value.err_code) == (400, 10071)
        assert caught.value.description == "wrong last sequence: 5"
        with pytest.raises(WrongLastSequenceError):
            await js.publish(f"{name}.a", expected_last_subject_sequence=1)
        with pytest.raises(WrongLastMessageIdError):
            await js.publish(name, expected_last_message_id="id-1")
        with pytest.raises(WrongStreamError):
            await js.publish(name, expected_stream="other")
        assert (await stream.info()).state.last_seq == 5

    async def test_ttl(self, js: JetStream, stream: Stream, name: str) -> None:
        await js.publish(name, b"short", ttl=1)
        await js.publish(name, b"long", ttl=3600.5)
        await js.publish(name, b"ever", ttl="never")
        async with asyncio.timeout(60):
            while (await stream.info()).state.messages == 3:
                await asyncio.sleep(0.05)
        with pytest.raises(MessageNotFoundError):
            await stream.get_message(1)
        assert (await stream.get_message(2)).data == b"long"
        with pytest.raises(MessageTtlError):
            await js.publish(name, headers={"Nats-TTL": "soon"})

    async def test_atomic_batch_is_acked_as_a_whole_by_its_last_message(
        self, js: JetStream, js_nc: Client, name: str
    ) -> None:
        stream = await js.create_stream(StreamConfig(name=name, allow_atomic=True))
        places = [{"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(place)} for place in (1, 2, 3)]
        await js_nc.publish(name, b"1", headers=places[0])
        with pytest.raises(JetStreamError, match="an empty ack, as for a message of an atomic batch"):
            await js.publish(name, b"2", headers=places[1])
        assert (await stream.info()).state.messages == 0
        ack = await js.publish(name, b"3", headers={**places[2], "Nats-Batch-Commit": "1"})
        assert ack == PubAck(name, 3, batch_id="b", batch_size=3)
        assert [(await stream.get_message(number)).data for number in (1, 2, 3)] == [b"1", b"2", b"3"]
        with pytest.raises(JetStreamError, match="incomplete"):
            await js.publish(name, b"3", headers={**places[2], "Nats-Batch-Commit": "1"})
        await js.delete_stream(name)

    async def test_refusals_of_the_stream(self, js: JetStream, name: str) -> None:
        config = StreamConfig(name=name, max_msgs=1, max_msg_size=100, discard=DiscardPolicy.NEW)
        stream = await js.create_stream(config)
        with pytest.raises(StreamMessageTooLargeError):
            await js.publish(name, b"x" * 200)
        await js.publish(name, b"x")
        with pytest.raises(StreamStoreFailedError, match="maximum messages exceeded"):
            await js.publish(name, b"x")
        with pytest.raises(MessageTtlError):
            await js.publish(name, ttl=5)
        await js.update_stream(replace(stream.cached_info.config, sealed=True))
        with pytest.raises(JetStreamError) as caught:
            await js.publish(name)
        assert type(caught.value) in (StreamSealedError, NoJetStreamError)
        await js.delete_stream(name)

    async def test_no_stream(self, js: JetStream) -> None:
        with pytest.raises(NoJetStreamError, match=r"no stream records the subject 'nobody\.") as caught:
            await js.publish("nobody.records.this", b"x")
        assert (caught.value.code, caught.value.retriable) == (503, True)

    @pytest.mark.parametrize("wait_in", ["publish", "publish_async"])
    async def test_publish_is_retried_until_the_stream_exists(
        self, js: JetStream, name: str, wait_in: str
    ) -> None:
        """The stream is created between two attempts: the first one has just been refused."""
        options: Any = {"headers": {"A": "1"}, "retry_attempts": 1_000, "retry_wait": 0.05}
        if wait_in == "publish":
            publishing: Any = asyncio.create_task(js.publish(name, b"early", **options))
        else:
            publishing = await js.publish_async(name, b"early", **options)
        await until(lambda: js._retries)
        assert js.publish_async_pending == 1
        stream = await js.create_stream(StreamConfig(name=name, storage=StorageType.MEMORY))
        assert await publishing == PubAck(name, 1)
        message = await stream.get_message(1)
        assert (message.data, message.headers["A"]) == (b"early", "1")
        assert (await stream.info()).state.messages == 1
        assert js.publish_async_pending == 0
        await js.delete_stream(name)

    @pytest.mark.parametrize("attempts", [0, 1, 3])
    async def test_refused_publish_fails_after_the_last_retry(
        self, js: JetStream, name: str, attempts: int
    ) -> None:
        future = await js.publish_async(name, b"x", retry_attempts=attempts, retry_wait=0.01)
        with pytest.raises(NoJetStreamError, match=f"no stream records the subject {name!r}"):
            await future
        assert int(js._table.token) == 1 + attempts
        await js.publish_async_complete()

    async def test_publish_without_an_ack_is_not_retried(
        self, js: JetStream, js_nc: Client, name: str
    ) -> None:
        """It may be stored. Whoever answers 503 has not stored it."""
        await js_nc.subscribe(name, cb=_silent)
        with pytest.raises(AckTimeoutError):
            await js.publish(name, timeout=0.3, retry_wait=0.01)
        assert int(js._table.token) == 1

    async def test_no_retry_begins_after_the_timeout(self, js: JetStream, name: str) -> None:
        with pytest.raises(NoJetStreamError):
            await js.publish(name, timeout=60, retry_attempts=1, retry_wait=60)
        assert int(js._table.token) == 1

    async def test_messages_that_wait_for_a_retry_count_as_outstanding(
        self, js_nc: Client, name: str
    ) -> None:
        async with JetStream(js_nc, max_outstanding=1, timeout=60) as js:
            refused = await js.publish_async(name, retry_attempts=1_000, retry_wait=0.02)
            await until(lambda: js._retries)
            second = asyncio.create_task(js.publish_async(name, b"2"))
            complete = asyncio.create_task(js.publish_async_complete())
            await asyncio.sleep(0)
            assert not second.done()
            refused.cancel()
            async with asyncio.timeout(60):
                with pytest.raises(NoJetStreamError):
                    await (await second)
                await complete

    async def test_closed_context_fails_messages_that_wait_for_a_retry(
        self, js_nc: Client, name: str
    ) -> None:
        js = JetStream(js_nc)
        future = await js.publish_async(name, timeout=240, retry_attempts=1, retry_wait=120)
        await until(lambda: js._retries)
        await js.close()
        with pytest.raises(TransportError, match="not stored") as caught:
            await future
        assert not caught.value.sent
        await until(lambda: not js._retries)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"retry_attempts": -1}, "retry_attempts must be at least 0, got -1"),
            ({"retry_attempts": 1.5}, "retry_attempts must be an integer, got 1.5"),
            ({"retry_wait": 0}, "retry_wait must be a positive number"),
            ({"headers": 5}, "headers must be a mapping, got int"),
            ({"headers": [("a", "b")]}, "headers must be a mapping, got list"),
        ],
    )
    async def test_options_are_checked_before_anything_is_sent(
        self, js: JetStream, js_nc: Client, name: str, options: dict[str, Any], text: str
    ) -> None:
        sent = js_nc.stats["out_msgs"]
        with pytest.raises(UsageError, match=text):
            await js.publish(name, **options)
        assert js_nc.stats["out_msgs"] == sent

    @pytest.mark.parametrize("attempts", [0, 2])
    async def test_payload_is_kept_only_while_it_may_be_sent_again(
        self, js: JetStream, js_nc: Client, name: str, attempts: int
    ) -> None:
        await js_nc.subscribe(name, cb=_silent)  # takes the message: neither an ack nor a 503 comes
        payload = bytes(1_000)
        count = getrefcount(payload)
        future = await js.publish_async(name, payload, retry_attempts=attempts)
        assert getrefcount(payload) == count + bool(attempts)
        future.cancel()
        assert getrefcount(payload) == count

    async def test_payload_is_not_kept_after_the_ack(self, js: JetStream, stream: Stream, name: str) -> None:
        payload = bytes(1_000)
        count = getrefcount(payload)
        future = await js.publish_async(name, payload)
        await future
        assert getrefcount(payload) == count

    async def test_payload_is_not_kept_after_the_timeout(
        self, js: JetStream, js_nc: Client, name: str
    ) -> None:
        await js_nc.subscribe(name, cb=_silent)
        payload = bytes(1_000)
        count = getrefcount(payload)
        future = await js.publish_async(name, payload, timeout=0.1)
        with pytest.raises(AckTimeoutError):
            await future
        assert getrefcount(payload) == count

    async def test_nobody_acks(self, js: JetStream, js_nc: Client, name: str) -> None:
        await js_nc.subscribe(name, cb=_silent)
        with pytest.raises(AckTimeoutError, match="may be stored") as caught:
            await js.publish(name, timeout=0.1)
        assert caught.value.sent
        assert f"for the message on {name!r}: the message may be stored" in str(caught.value)
        assert "Usual causes: the stream has no leader" in str(caught.value)
        assert js.publish_async_pending == 0

    async def test_a_late_ack(self, js: JetStream, js_nc: Client, name: str) -> None:
        replies = []

        async def keep(msg: object) -> None:
            replies.append(msg)

        await js_nc.subscribe(name, cb=keep)
        with pytest.raises(AckTimeoutError):
            await js.publish(name, timeout=0.1)
        await until(lambda: bool(replies))
        await js_nc.publish(replies[0].reply, b'{"stream":"S","seq":1}')  # type: ignore[attr-defined]
        future = await js.publish_async(name)
        await until(lambda: len(replies) == 2)
        assert not future.done()
        await js_nc.publish(replies[1].reply, b'{"stream":"S","seq":2}')  # type: ignore[attr-defined]
        assert await future == PubAck("S", 2)

    @pytest.mark.parametrize("answer", [b"", b"no json", b"[]", b"{}", b'{"stream":"S"}', b'{"error":5}'])
    async def test_what_is_no_ack(self, js: JetStream, js_nc: Client, name: str, answer: bytes) -> None:
        async def reply(msg: object) -> None:
            await msg.respond(answer)  # type: ignore[attr-defined]

        await js_nc.subscribe(name, cb=reply)
        with pytest.raises(JetStreamError, match="an invalid ack" if answer else "an empty ack"):
            await js.publish(name)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"subject": "a b"}, "'a b'"),
            ({"subject": "a.*"}, r"'a\.\*'"),
            ({"subject": ""}, "''"),
            ({"payload": "text"}, "payload must be bytes-like, got str"),
            ({"payload": b"x" * 2_000_000}, "must be at most .* bytes, the server's limit, got 2000000"),
            ({"timeout": 0}, "timeout must be a positive"),
            ({"headers": {"a b": "c"}}, "'a b'"),
            ({"headers": {"a:b": "c"}}, "'a:b'"),
            ({"headers": {"a": "c\r\nd"}}, "line end"),
            ({"headers": {"a": 5}}, "must be str, got int"),
            ({"headers": {"a": ["b", 5]}}, "must be str, got int"),
            ({"message_id": ""}, "message_id must not be empty"),
            ({"message_id": "a\nb"}, "line end"),
            ({"expected_last_sequence": -1}, "must be at least 0, got -1"),
            ({"expected_last_subject_sequence": "1"}, "must be an integer, got '1'"),
            ({"expected_stream": "a.b"}, r"'a\.b'"),
            ({"expected_last_subject_filter": "a"}, "expected_last_subject_sequence must be given"),
            ({"ttl": 0.5}, "0.5"),
            ({"ttl": "soon"}, "'soon'"),
            ({"msg_id": "x"}, "no option 'msg_id'"),
        ],
    )
    async def test_usage(self, js: JetStream, arguments: dict[str, object], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            await js.publish(**{"subject": "foo", **arguments})  # type: ignore[arg-type]
        assert js.publish_async_pending == 0

    async def test_max_outstanding(self, js_nc: Client) -> None:
        for value in (0, True, 1.5):
            with pytest.raises(UsageError, match="max_outstanding"):
                JetStream(js_nc, max_outstanding=value)  # type: ignore[arg-type]


async def _silent(_: object) -> None:
    """Ack nothing."""


class TestMany:
    async def test_order_and_window(self, js_nc: Client, stream: Stream, name: str) -> None:
        async with JetStream(js_nc, max_outstanding=50) as js:
            futures = []
            for i in range(3_000):
                futures.append(await js.publish_async(name, b"%d" % i))
                assert js.publish_async_pending <= 50
            acks = await asyncio.gather(*futures)
            assert [ack.sequence for ack in acks] == list(range(1, 3_001))
            assert js.publish_async_pending == 0
        for sequence in (1, 1_500, 3_000):
            assert (await stream.get_message(sequence)).data == b"%d" % (sequence - 1)

    async def test_accelerated_in_between(
        self, js: JetStream, js_nc: Client, stream: Stream, name: str
    ) -> None:
        """An ack is taken once, by whoever reads at the time."""
        futures: list[asyncio.Future[PubAck]] = []
        for _ in range(10):
            futures += [await js.publish_async(name) for _ in range(200)]
            with accelerate(js_nc):
                futures += [await js.publish_async(name) for _ in range(200)]
                await futures[-300]
        acks = await asyncio.gather(*futures)
        assert [ack.sequence for ack in acks] == list(range(1, 4_001))

    async def test_several_tasks(self, js_nc: Client, stream: Stream, name: str) -> None:
        async with JetStream(js_nc, max_outstanding=7) as js:
            await asyncio.gather(*(js.publish(name, b"x") for _ in range(500)))
        assert (await stream.info()).state.messages == 500

    async def test_complete(self, js: JetStream, stream: Stream, name: str) -> None:
        futures = [await js.publish_async(name) for _ in range(1_000)]
        assert js.publish_async_pending > 0
        await js.publish_async_complete()
        assert all(future.done() for future in futures)
        await js.publish_async_complete()

    async def test_complete_in_time(self, js: JetStream, js_nc: Client, name: str) -> None:
        await js_nc.subscribe(name, cb=_silent)
        future = await js.publish_async(name, timeout=60)
        with pytest.raises(TimeoutError):
            await js.publish_async_complete(timeout=0.05)
        assert not future.done()
        future.cancel()

    async def test_refusals_between(self, js: JetStream, stream: Stream, name: str) -> None:
        futures = []
        for i in range(20):
            expected = {"expected_last_sequence": 999} if i % 2 else {}
            futures.append(await js.publish_async(name, **expected))  # type: ignore[arg-type]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [PubAck, WrongLastSequenceError] * 10

    async def test_cancelled_future(self, js: JetStream, stream: Stream, name: str) -> None:
        future = await js.publish_async(name)
        future.cancel()
        await js.publish_async_complete()
        assert (await stream.info()).state.messages == 1

    async def test_cancelled_while_it_waits(self, js_nc: Client, name: str) -> None:
        await js_nc.subscribe(name, cb=_silent)
        js = JetStream(js_nc, max_outstanding=1)
        first = await js.publish_async(name, timeout=60)
        waiting = asyncio.ensure_future(js.publish_async(name))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert js.publish_async_pending == 1
        assert not first.done()
        first.cancel()
        await js.close()

    async def test_several_streams(self, js: JetStream, name: str) -> None:
        names = [f"{name}-{i}" for i in range(3)]
        for each in names:
            await js.create_stream(StreamConfig(name=each, storage=StorageType.MEMORY))
        acks = await asyncio.gather(*[await js.publish_async(names[i % 3]) for i in range(99)])
        assert [(ack.stream, ack.sequence) for ack in acks] == [(names[i % 3], i // 3 + 1) for i in range(99)]
        for each in names:
            await js.delete_stream(each)

    async def test_without_the_inside_of_nats_py(self, js: JetStream, stream: Stream, name: str) -> None:
        js._link.direct = False
        futures = [await js.publish_async(name, b"%d" % i, headers={"n": str(i)}) for i in range(20)]
        assert [ack.sequence for ack in await asyncio.gather(*futures)] == list(range(1, 21))
        message = await stream.get_message(7)
        assert message.data == b"6"
        assert message.headers == {"n": "6"}
        ack = await js.publish(name, headers={"Via": ["a", "b:  c"]})
        message = await stream.get_message(ack.sequence, direct=False)
        assert message.headers.pairs == (("Via", "a"), ("Via", "b:  c"))


async def _slowly(subscribe: Any, inside: asyncio.Event, *arguments: Any, **options: Any) -> Any:
    with suppress(asyncio.CancelledError):
        await inside.wait()
    return await subscribe(*arguments, **options)


class TestEnds:
    async def test_closed_context(self, js_nc: Client, name: str) -> None:
        before = len(js_nc._subs)
        await js_nc.subscribe(name, cb=_silent)
        js = JetStream(js_nc)
        future = await js.publish_async(name)
        await js.close()
        await js.close()
        with pytest.raises(TransportError, match="context was closed before an ack") as caught:
            await future
        assert caught.value.sent
        with pytest.raises(TransportError, match="was closed"):
            await js.publish(name)
        assert len(js_nc._subs) == before + 1
        assert not js_nc.is_closed

    async def test_closed_or_cancelled_while_it_subscribes(
        self, js_nc: Client, stream: Stream, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Faked: nats-py waits only while its queue of flushes is full. It swallows what cancels it."""
        before, inside = set(js_nc._subs), asyncio.Event()
        closed, cancelled = JetStream(js_nc), JetStream(js_nc)
        monkeypatch.setattr(js_nc, "subscribe", partial(_slowly, js_nc.subscribe, inside))
        first = asyncio.create_task(closed.publish_async(name))
        second = asyncio.create_task(cancelled.publish_async(name))
        await asyncio.sleep(0)
        await closed.close()
        second.cancel()
        inside.set()
        with pytest.raises(TransportError, match="context was closed"):
            await first
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (closed.publish_async_pending, cancelled.publish_async_pending) == (0, 0)
        assert (await cancelled.publish(name)).sequence == 1
        await cancelled.close()
        assert set(js_nc._subs) == before

    @pytest.mark.parametrize("how", ["close", "drain"])
    async def test_ended_connection(self, js_nc: Client, name: str, how: str) -> None:
        await js_nc.subscribe(name, cb=_silent)
        js = JetStream(js_nc, max_outstanding=1)
        future = await js.publish_async(name, timeout=60)
        waiting = asyncio.ensure_future(js.publish_async(name, timeout=60))
        await asyncio.sleep(0)
        await getattr(js_nc, how)()
        async with asyncio.timeout(60):
            with pytest.raises(TransportError, match="given up, closed or drained before an ack"):
                await future
            with pytest.raises(TransportError, match="given up, closed or drained"):
                await waiting
        with pytest.raises(TransportError):
            await js.publish(name)
        await js.close()

    async def test_nothing_in_the_background_after_the_end(
        self, js_nc: Client, stream: Stream, name: str
    ) -> None:
        subscriptions, tasks = len(js_nc._subs), asyncio.all_tasks()
        async with JetStream(js_nc) as js:
            await js.publish(name)
        await until(lambda: asyncio.all_tasks() == tasks)
        assert len(js_nc._subs) == subscriptions
        assert js._timer.at == math.inf

    async def test_nothing_in_the_background_before_the_first(self, js_nc: Client) -> None:
        subscriptions, tasks = len(js_nc._subs), len(asyncio.all_tasks())
        js = JetStream(js_nc)
        assert (len(js_nc._subs), len(asyncio.all_tasks())) == (subscriptions, tasks)
        await js.close()


class TestFaults:
    @pytest.mark.parametrize(("how", "accelerated"), [("kill", False), ("stop", False), ("kill", True)])
    async def test_restart_under_load(self, name: str, how: str, accelerated: bool) -> None:
        """Every message that was acked is there; those whose acks got lost are said to be unknown."""
        with run_nats_server(jetstream=True, config={"jetstream": {"sync_interval": "always"}}) as server:
            nc = await connect(server.url)
            if accelerated:
                accelerate(nc)
            async with JetStream(nc, timeout=1.5, max_outstanding=500) as js:
                stream = await js.create_stream(StreamConfig(name=name), timeout=60)
                done = asyncio.Event()
                acks = Acks()
                publishing = asyncio.ensure_future(_publish_until(js, name, done, acks))
                await until(lambda: acks.count > 500)
                await asyncio.to_thread(getattr(server, how))
                await asyncio.to_thread(server.start)
                await until(lambda: nc.is_connected)
                count = acks.count
                await until(lambda: acks.count > count + 500)
                done.set()
                outcomes = await publishing
                await self._check(js, stream, outcomes)
            await nc.close()

    async def _check(
        self, js: JetStream, stream: Stream, outcomes: dict[int, PubAck | LiftEnvelopeError]
    ) -> None:
        state = (await stream.info(timeout=60)).state
        acked = {i: outcome for i, outcome in outcomes.items() if isinstance(outcome, PubAck)}
        assert len(acked) > 1_000
        assert max(ack.sequence for ack in acked.values()) <= state.last_seq
        async with stream.ordered_consumer().messages() as messages:
            stored = {
                (message := await messages.next(timeout=60)).metadata.stream_sequence: int(message.data)
                for _ in range(state.messages)
            }
        assert {i: stored.get(ack.sequence) for i, ack in acked.items()} == {i: i for i in acked}
        assert len({ack.sequence for ack in acked.values()}) == len(acked)
        failed = [outcome for outcome in outcomes.values() if not isinstance(outcome, PubAck)]
        assert {type(outcome) for outcome in failed} <= {AckTimeoutError, NoJetStreamError, TransportError}
        assert js.publish_async_pending == 0

    async def test_down_for_long(self, name: str) -> None:
        with run_nats_server(jetstream=True) as server:
            nc = await connect(server.url, pending_size=1_000)
            async with JetStream(nc, timeout=0.3) as js:
                await js.create_stream(StreamConfig(name=name), timeout=60)
                await js.publish(name, b"x", timeout=60)
                await asyncio.to_thread(server.kill)
                await until(lambda: not nc.is_connected)
                with pytest.raises(AckTimeoutError):
                    await js.publish(name, b"small")
                with pytest.raises(TransportError, match="buffer is full") as caught:
                    await js.publish(name, b"x" * 2_000)
                assert not caught.value.sent
                # The outcome of the small one was unknown indeed: it waited in the buffer.
                await asyncio.to_thread(server.start)
                await until(lambda: nc.is_connected)
                assert (await js.publish(name, timeout=60)).sequence == 3
            await nc.close()


class Acks:
    """Counts them as they come."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, future: asyncio.Future[PubAck]) -> None:
        self.count += future.exception() is None


async def _publish_until(
    js: JetStream, subject: str, done: asyncio.Event, acks: Acks
) -> dict[int, PubAck | LiftEnvelopeError]:
    """Publish numbers; the outcome of each."""
    futures: dict[int, asyncio.Future[PubAck]] = {}
    outcomes: dict[int, PubAck | LiftEnvelopeError] = {}
    i = 0
    while not done.is_set():
        try:
            futures[i] = await js.publish_async(subject, b"%d" % i)
            futures[i].add_done_callback(acks.note)
        except TransportError as exc:
            outcomes[i] = exc
        i += 1
        if i % 100 == 0:
            await asyncio.sleep(0)
    for number, future in futures.items():
        try:
            outcomes[number] = await future
        except LiftEnvelopeError as exc:
            outcomes[number] = exc
    return outcomes


async def test_refused_message_without_an_ack_has_an_unknown_outcome(name: str) -> None:
    """The report is in lower case, so that it may be about the subject of a message that is stored."""
    permissions = {"publish": {"deny": [f"{name}.No"]}}
    users = [{"user": "ann", "password": "x", "permissions": permissions}]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        nc = await connect(server.url, user="ann", password="x")
        async with JetStream(nc, timeout=240) as js:
            stream = await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",), no_ack=True))
            futures = [await js.publish_async(f"{name}.{token}", b"") for token in ("no", "No")]
            await nc.flush()
            async with asyncio.timeout(60):
                while not (await stream.info()).state.messages:
                    await asyncio.sleep(0.05)
            js._expire(asyncio.get_running_loop().time() + 300)
            for future in futures:
                with pytest.raises(
                    AckTimeoutError, match=r"may be stored.*; the server said: .*no"
                ) as caught:
                    await future
                assert caught.value.sent
            assert (await stream.info()).state.messages == 1
        await nc.close()
