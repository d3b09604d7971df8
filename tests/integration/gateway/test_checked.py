"""Streams that check offsets, on raw NATS: stored where the publisher expects it, or refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.envelope import Ack, Message, marshal_message, new_message, unmarshal_ack
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    IncorrectOffsetError,
    JetStreamError,
    NoSuchStreamError,
    TransportError,
)
from liftenvelope.gateway import Gateway, Limits
from liftenvelope.gateway._acks.checked import CheckedIntake, wait_for_intakes
from liftenvelope.gateway._clients.pending import PendingBytes
from liftenvelope.gateway._cluster.records import StreamRecord
from liftenvelope.gateway._protocol.subjects import AckInboxes
from liftenvelope.jetstream import JetStream, PubAck
from liftenvelope.nats import AckInbox
from liftenvelope.testing import NatsServer
from liftenvelope.types import AckError, AckPolicy
from tests.conformance.actions import fill
from tests.handled import handled
from tests.integration.conftest import connect


@pytest.fixture
async def gateway(own_nats: NatsServer) -> AsyncIterator[Gateway]:
    async with Gateway(await connect(own_nats.url), id="first") as serving:
        yield serving


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    # CreateStream waits for the leader, however busy the machine is.
    async with liftenvelope.connect([gateway.address], timeout=240) as client:
        yield client


@pytest.fixture
def nats_url(own_nats: NatsServer) -> str:
    return own_nats.url


class Inbox:
    """The acks that come to an inbox, by correlation id."""

    def __init__(self, nc: NatsClient) -> None:
        self._nc = nc
        self.subject = nc.new_inbox()
        self.acks: dict[str, Ack] = {}

    async def open(self) -> Inbox:
        await self._nc.subscribe(self.subject, cb=self._note)
        return self

    async def _note(self, msg: Msg) -> None:
        ack = unmarshal_ack(msg.data)
        self.acks[ack.correlation_id] = ack

    async def publish(
        self, subject: str, ident: str, expected: int, policy: AckPolicy = AckPolicy.LEADER
    ) -> None:
        envelope = new_message(
            ident.encode(),
            ack_inbox=self.subject,
            correlation_id=ident,
            expected_offset=expected,
            ack_policy=policy,
        )
        await self._nc.publish(subject, envelope)

    async def outcome(self, ident: str) -> tuple[int, AckError]:
        async with asyncio.timeout(60):
            while ident not in self.acks:
                await asyncio.sleep(0.01)
        return self.acks[ident].offset, self.acks[ident].error


async def values(client: Client, name: str) -> list[bytes]:
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        return [message.value async for message in messages]


async def test_what_is_expected_is_checked(client: Client, nc: NatsClient, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    inbox = await Inbox(nc).open()
    for ident, expected in (
        ("a", 0),
        ("early", 5),
        ("b", 1),
        ("late", 0),
        ("any", -1),
        ("below", -2),
        ("c", 3),
    ):
        await inbox.publish(name, ident, expected)
    await inbox.publish(name, "unasked", 9, AckPolicy.NONE)
    await inbox.publish(name, "all", 4, AckPolicy.ALL)
    assert [await inbox.outcome(ident) for ident in ("a", "b", "any", "c", "all")] == [
        (offset, AckError.OK) for offset in range(5)
    ]
    for ident in ("early", "late", "below", "unasked"):
        assert await inbox.outcome(ident) == (0, AckError.INCORRECT_OFFSET)
    refusal = inbox.acks["early"]
    assert (refusal.stream, refusal.msg_subject, refusal.ack_inbox) == (name, name, inbox.subject)
    assert await values(client, name) == [b"a", b"b", b"any", b"c", b"all"]


async def test_plain_values_and_odd_envelopes(
    client: Client, nc: NatsClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    inbox = await Inbox(nc).open()
    await nc.publish(name, b"plain")
    refused = [b"plain, and not the first", b"", b"\xb9\x0e\x43\xb4\x00\xff\x00\x00"]
    for value in refused:
        answer = json.loads((await nc.request(name, value, timeout=60)).data)
        assert answer["error"]["err_code"] == 10071
    await nc.publish(name, marshal_message(Message(b"no", offset=77, ack_inbox="a b")))
    await nc.publish(name, marshal_message(Message(b"no", offset=-9, ack_inbox="$KV.x.y")))
    await inbox.publish(name, "last", 1)
    assert await inbox.outcome("last") == (1, AckError.OK)
    assert await values(client, name) == [b"plain", b"last"]
    assert "a plain value is not stored" in caplog.text


async def test_one_of_many_wins(client: Client, nc: NatsClient, own_nats: NatsServer, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    connections = [await connect(own_nats.url) for _ in range(4)]
    inboxes = [await Inbox(connection).open() for connection in connections]
    for offset in range(20):
        ids = [f"{offset}-{number}" for number in range(4)]
        pairs = list(zip(inboxes, ids, strict=True))
        await asyncio.gather(*(inbox.publish(name, ident, offset) for inbox, ident in pairs))
        outcomes = [await inbox.outcome(ident) for inbox, ident in pairs]
        assert sorted(outcomes) == sorted([(offset, AckError.OK), *[(0, AckError.INCORRECT_OFFSET)] * 3])
    for connection in connections:
        await connection.close()
    assert [value.split(b"-")[0] for value in await values(client, name)] == [b"%d" % n for n in range(20)]


async def test_this_package_s_own_publisher(client: Client, nc: NatsClient, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True, partitions=2)
    async with AckInbox(nc) as inbox:
        for subject in (name, f"{name}.1"):
            assert (await inbox.publish(subject, b"x", expected_offset=0)).offset == 0
            with pytest.raises(IncorrectOffsetError):
                await inbox.publish(subject, b"x", expected_offset=0)
            assert (await inbox.publish(subject, b"x", expected_offset=1)).offset == 1


async def test_grpc_and_raw_nats_take_turns(client: Client, nc: NatsClient, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    async with AckInbox(nc) as inbox:
        for offset in range(0, 10, 2):
            assert await fill(client, name, [b"grpc"], expected_offset=offset) == [offset]
            assert (await inbox.publish(name, b"raw", expected_offset=offset + 1)).offset == offset + 1
        with pytest.raises(IncorrectOffsetError):
            await client.publish_to_subject(name, b"to subject")
        with pytest.raises(IncorrectOffsetError):
            await client.publish(name, b"no", expected_offset=5)


async def test_subjects_are_kept(client: Client, nc: NatsClient, name: str) -> None:
    await client.create_stream(f"{name}.*", name, optimistic_concurrency=True)
    inbox = await Inbox(nc).open()
    await inbox.publish(f"{name}.kitchen", "a", 0)
    await inbox.publish(f"{name}.hall", "b", 1)
    assert (await inbox.outcome("b")) == (1, AckError.OK)
    assert inbox.acks["a"].msg_subject == f"{name}.kitchen"
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        assert [m.subject async for m in messages] == [f"{name}.kitchen", f"{name}.hall"]


async def test_another_stream_on_the_subject_records_all(client: Client, nc: NatsClient, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    await client.create_stream(name, f"{name}-all")
    inbox = await Inbox(nc).open()
    await inbox.publish(name, "a", 0)
    await inbox.publish(name, "b", 7)
    await inbox.publish(name, "c", 1)
    async with asyncio.timeout(60):
        while (await client.fetch_partition_metadata(f"{name}-all", 0)).newest_offset < 2:
            await asyncio.sleep(0.01)
        while (await client.fetch_partition_metadata(name, 0)).newest_offset < 1:
            await asyncio.sleep(0.01)
    assert await values(client, name) == [b"a", b"c"]
    assert await values(client, f"{name}-all") == [b"a", b"b", b"c"]


async def test_paused_and_readonly_partitions_store_nothing(
    gateway: Gateway, client: Client, nc: NatsClient, name: str
) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    inbox = await Inbox(nc).open()
    await inbox.publish(name, "a", 0)
    assert await inbox.outcome("a") == (0, AckError.OK)
    await client.pause_stream(name)
    await inbox.publish(name, "paused", 1)
    await handled(nc)
    await handled(gateway._setup.nc)  # it has come there, too
    await client.publish(name, b"wakes", expected_offset=1)
    await client.set_stream_readonly(name)
    await inbox.publish(name, "readonly", 2)
    await handled(nc)
    await handled(gateway._setup.nc)
    await client.set_stream_readonly(name, readonly=False)
    await inbox.publish(name, "b", 2)
    assert await inbox.outcome("b") == (2, AckError.OK)
    assert await values(client, name) == [b"a", b"wakes", b"b"]
    assert set(inbox.acks) == {"a", "b"}


async def test_a_publisher_that_asks_jetstream_gets_its_answer(
    client: Client, nc: NatsClient, name: str
) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    stored = json.loads((await nc.request(name, new_message(b"x", expected_offset=0), timeout=60)).data)
    assert stored["seq"] == 1
    refused = json.loads((await nc.request(name, new_message(b"x", expected_offset=0), timeout=60)).data)
    assert refused["error"]["err_code"] == 10071


async def test_ack_of_a_raw_publish_goes_to_inboxes_alone(
    client: Client, nc: NatsClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    others = [f"$KV.{name}.a", f"_lift.{name}", f"liftenvelope.groups.{name}", f"{name}.acks"]
    spies = [await nc.subscribe(subject) for subject in others]
    sound = await nc.subscribe(f"_INBOX.{name}")
    for reply in (*others, f"_INBOX.{name}"):
        await nc.publish(name, new_message(b"x"), reply=reply)
    assert json.loads((await sound.next_msg(60)).data)["seq"] == 5
    assert [spy.pending_msgs for spy in spies] == [0, 0, 0, 0]
    assert refusals(caplog) == [(name, f"$KV.{name}.a")]


@pytest.mark.parametrize("is_probe", [True, False])
async def test_questions_of_gateways_are_answered_to_inboxes_alone(
    client: Client, nc: NatsClient, name: str, is_probe: bool, caplog: pytest.LogCaptureFixture
) -> None:
    probes = await nc.subscribe("_lift.intake.>")
    await handled(nc)
    await client.create_stream(name, name, optimistic_concurrency=True)
    probe = await probes.next_msg(60)
    seen = json.dumps({"name": name, "revision": 0}).encode()
    question, payload = (probe.subject, b"") if is_probe else ("_lift.seen.first", seen)
    spy, sound = await nc.subscribe(f"$KV.{name}.a"), await nc.subscribe(f"_INBOX.{name}")
    for reply in (f"$KV.{name}.a", f"_INBOX.{name}"):
        await nc.publish(question, payload, reply=reply)
    assert (await sound.next_msg(60)).data == b""
    assert spy.pending_msgs == 0
    assert refusals(caplog) == [(question, f"$KV.{name}.a")]


def refusals(caplog: pytest.LogCaptureFixture) -> list[object]:
    """Return the subject and the reply subject of the requests that the log says get no answer."""
    return [record.args for record in caplog.records if "gets no answer" in record.msg]


async def test_the_next_leader_goes_on(own_nats: NatsServer, nc: NatsClient, name: str) -> None:
    connections = [await connect(own_nats.url) for _ in range(2)]
    gateways = [Gateway(connections[number], id=f"g{number}", broker_ttl=60.0) for number in range(2)]
    for gateway in gateways:
        await gateway.start()
    async with liftenvelope.connect([gateway.address for gateway in gateways]) as client:
        await client.create_stream(name, name, partitions=4, optimistic_concurrency=True)
        async with AckInbox(nc) as inbox:
            subjects = [name, *(f"{name}.{number}" for number in range(1, 4))]
            for subject in subjects:
                assert (await inbox.publish(subject, b"x", expected_offset=0, timeout=60)).offset == 0
            await gateways[0].close()
            for subject in subjects:
                assert await stored_next(inbox, subject) == 1
    await gateways[1].close()
    for connection in connections:
        await connection.close()


async def stored_next(inbox: AckInbox, subject: str) -> int:
    """Publish until somebody takes it: what comes while nobody leads the partition has no ack."""
    async with asyncio.timeout(60):
        while True:
            try:
                return (await inbox.publish(subject, b"y", expected_offset=1, timeout=0.5)).offset
            except IncorrectOffsetError:
                return 1  # stored, and the ack came too late
            except TimeoutError:
                continue


async def _slowly(subscribe: Any, inside: asyncio.Event, *arguments: Any, **options: Any) -> Any:
    with suppress(asyncio.CancelledError):
        inside.set()
        await asyncio.sleep(60)
    return await subscribe(*arguments, **options)


async def test_a_start_that_is_cancelled(nc: NatsClient, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faked: nats-py waits only while its queue of flushes is full. It swallows what cancels it."""
    record = StreamRecord(name=name, subject=name, id=name, settings={"optimisticConcurrencyControl": 1})
    inside = asyncio.Event()
    async with JetStream(nc) as js:
        before = set(nc._subs)
        held = PendingBytes(1, 1).of("")
        intake = CheckedIntake(js, record, 0, inboxes=AckInboxes(["_INBOX."]), held=held, on_error=print)
        with monkeypatch.context() as faked:
            faked.setattr(nc, "subscribe", partial(_slowly, nc.subscribe, inside))
            starting = asyncio.create_task(intake.start())
            await inside.wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        assert set(nc._subs) == before
        await intake.start()
        await intake.close()
        assert set(nc._subs) == before


async def test_create_stream_is_answered_once_its_leader_takes_messages(
    client: Client, nc: NatsClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: a leader that takes long to start."""
    may_start, start = asyncio.Event(), CheckedIntake.start

    async def late(self: CheckedIntake) -> None:
        await may_start.wait()
        await start(self)

    monkeypatch.setattr(CheckedIntake, "start", late)
    # Each probe waits a second for an answer. This subscription receives it and gives none.
    probes = await nc.subscribe("_lift.intake.>")
    await handled(nc)
    inbox = await Inbox(nc).open()
    creating = asyncio.create_task(client.create_stream(name, name, optimistic_concurrency=True, timeout=240))
    for _ in range(7):
        await probes.next_msg(240)
        assert not creating.done()
    may_start.set()
    await creating
    await inbox.publish(name, "first", 0)
    assert await inbox.outcome("first") == (0, AckError.OK)


async def test_create_stream_without_a_leader_ends_with_its_deadline(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: a leader that does not start."""
    monkeypatch.setattr(CheckedIntake, "start", AsyncMock(side_effect=TransportError("not now")))
    with pytest.raises(CallTimeoutError):
        await client.create_stream(name, name, optimistic_concurrency=True, timeout=1)
    with suppress(NoSuchStreamError):  # the second may be over before anything is stored
        await client.delete_stream(name)


async def test_reply_to_a_publisher_says_error_only_if_nothing_is_stored(
    client: Client, nc: NatsClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: JetStream's answers to a message."""
    await client.create_stream(name, name, optimistic_concurrency=True)
    publish = JetStream.publish_async
    outcomes: dict[bytes, Exception] = {
        b"late": AckTimeoutError("no ack came"),
        b"lost": TransportError("the connection was lost", sent=True),
        b"full": JetStreamError(503, "maximum messages exceeded", err_code=10077),
        b"down": TransportError("the connection is closed"),
    }

    async def faked(js: JetStream, subject: str, payload: bytes, **options: Any) -> Any:
        if payload not in outcomes:
            return await publish(js, subject, payload, **options)
        future = asyncio.get_running_loop().create_future()
        future.set_exception(outcomes[payload])
        return future

    monkeypatch.setattr(JetStream, "publish_async", faked)
    replies = await nc.subscribe(inbox := nc.new_inbox())
    for payload in (*outcomes, b"stored"):
        await nc.publish(name, payload, reply=inbox)
    found = [json.loads((await replies.next_msg(60)).data) for _ in range(3)]
    assert [answer.get("error", {}).get("err_code") for answer in found] == [10077, 0, None]
    assert found[2]["seq"] == 1


async def test_messages_beyond_what_may_wait_for_jetstream_are_refused(
    name: str, own_nats: NatsServer, nc: NatsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: a JetStream that does not answer."""
    publish = JetStream.publish_async
    unanswered: list[asyncio.Future[Any]] = []

    async def faked(js: JetStream, subject: str, payload: bytes, **options: Any) -> Any:
        if payload != bytes(1_000):
            return await publish(js, subject, payload, **options)
        unanswered.append(asyncio.get_running_loop().create_future())
        return unanswered[-1]

    monkeypatch.setattr(JetStream, "publish_async", faked)
    limits = Limits(max_pending_bytes_per_client=10_000)
    gateway_nc = await connect(own_nats.url)
    async with (
        Gateway(gateway_nc, id="bounded", limits=limits) as gateway,
        liftenvelope.connect([gateway.address], timeout=240) as client,
    ):
        await client.create_stream(name, name, partitions=2, optimistic_concurrency=True)
        replies = await nc.subscribe(inbox := nc.new_inbox())
        for partition in (0, 1):
            subject = f"{name}.1" if partition else name
            for _ in range(10):
                await nc.publish(subject, bytes(1_000), reply=inbox)
        answers = [json.loads((await replies.next_msg(240)).data) for _ in range(10)]
        assert {answer["error"]["err_code"] for answer in answers} == {10023}
        assert len(unanswered) == 10
        unanswered[0].set_result(PubAck(stream="lift", sequence=1))
        await replies.next_msg(240)
        await nc.publish(name, b"x", reply=inbox)
        assert json.loads((await replies.next_msg(240)).data)["seq"] == 1
    await gateway_nc.close()


async def test_wait_for_intakes_ends_with_the_stream(nc: NatsClient, name: str) -> None:
    record = StreamRecord(name=name, subject=name, id=name, settings={"optimisticConcurrencyControl": 1})
    records: list[StreamRecord | None] = [record]
    probes = await nc.subscribe("_lift.intake.>")
    await handled(nc)
    async with JetStream(nc) as js:
        for left in (None, replace(record, id="another")):
            records.append(record)
            waiting = asyncio.create_task(wait_for_intakes(js, lambda: records[-1]))
            await probes.next_msg(60)
            records.append(left)
            await waiting
