"""Messages for partitions that copy from another stream: their acks, and the end of the wait for them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Hashable, Iterator
from functools import partial
from typing import Any

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.envelope import Ack, marshal_ack, unmarshal_ack, unmarshal_message
from liftenvelope.errors import EnvelopeTooLargeError, NoJetStreamError, TransportError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._acks.copies import CopyAcks
from liftenvelope.gateway._clients.publish_places import PublishPlaces
from liftenvelope.gateway._core import Core
from liftenvelope.gateway._publishing import service, unrecorded
from liftenvelope.gateway._publishing.intake import Intake
from liftenvelope.gateway._publishing.targets import PublishTarget
from liftenvelope.gateway._streams.handing_over import with_sources
from liftenvelope.gateway._streams.service import StreamService
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.jetstream.publish_frames import PubAck
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import PUBLISH_AGAIN
from liftenvelope.testing import NatsServer, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect

#: Seconds; no message of these tests expires.
NEVER = 10_000.0


async def publish(copies: CopyAcks, name: str, value: bytes = b"x") -> asyncio.Future[PubAck]:
    return await copies.publish(name, f"{name}-copy", name, value, key=b"", headers={}, timeout=NEVER)


def open_futures(copies: CopyAcks) -> list[asyncio.Future[PubAck]]:
    return [future for _, future in copies._pending.values() if not future.done()]


async def test_ack_of_the_stream_settles_the_message(nats_server: NatsServer, name: str) -> None:
    nc = await connect(nats_server.url)
    js = JetStream(nc)
    copies = CopyAcks(js)
    published = await nc.subscribe(name)
    future = await publish(copies, name)
    message = unmarshal_message((await published.next_msg(60)).data)
    for stream, offset in (("another", 3), (name, 7)):
        ack = Ack(stream=stream, offset=offset, correlation_id=message.correlation_id)
        await nc.publish(message.ack_inbox, marshal_ack(ack))
    async with asyncio.timeout(60):
        assert (await future).sequence == 8
    assert not open_futures(copies)
    await copies.close()
    await js.close()


async def test_message_that_no_stream_records_fails_at_once(own_nats: NatsServer, name: str) -> None:
    nc = await connect(own_nats.url)
    async with JetStream(nc) as js:
        copies = CopyAcks(js)
        with pytest.raises(NoJetStreamError):
            await (await publish(copies, name))
        await copies.close()
    await nc.close()


async def test_answer_of_the_copy_settles_the_message_and_that_of_another_stream_does_not(
    own_nats: NatsServer, name: str
) -> None:
    nc = await connect(own_nats.url)
    async with JetStream(nc) as js:
        copies = CopyAcks(js)
        await js.create_stream(StreamConfig(name=f"{name}-copy", subjects=(name,)))
        assert await (await publish(copies, name)) == PubAck(name, 1)
        await js.delete_stream(f"{name}-copy")
        await js.create_stream(StreamConfig(name=f"{name}-source", subjects=(name,)))
        waiting = await publish(copies, name)
        await js.publish_async_complete()
        assert open_futures(copies) == [waiting]
        await copies.close()
        with pytest.raises(TransportError, match="may be stored"):
            await waiting
    await nc.close()


async def test_message_that_is_not_published_leaves_nothing_pending(
    nats_server: NatsServer, name: str
) -> None:
    nc = await connect(nats_server.url)
    js = JetStream(nc)
    copies = CopyAcks(js)
    await nc.subscribe(name)
    waiting = await publish(copies, name)
    with pytest.raises(EnvelopeTooLargeError):
        await copies.publish(name, name, name, b"", key=b"", headers={"h" * 70_000: b""}, timeout=NEVER)
    with pytest.raises(EnvelopeTooLargeError, match=f"at most {nc.max_payload} bytes"):
        await publish(copies, name, bytes(nc.max_payload - 20))
    await nc.close()
    with pytest.raises(TransportError, match="closed"):
        await publish(copies, name)
    assert open_futures(copies) == [waiting]
    await copies.close()
    with pytest.raises(TransportError, match="may be stored") as failure:
        await waiting
    assert failure.value.sent
    await js.close()


@pytest.fixture
def own_nats() -> Iterator[NatsServer]:
    """A server of the test's own: gateways keep what they know in it."""
    with run_nats_server(jetstream=True) as server:
        yield server


async def test_ack_inbox_gets_the_ack_of_a_copy_unless_the_connection_is_closed(
    own_nats: NatsServer, name: str
) -> None:
    nc, other = await connect(own_nats.url), await connect(own_nats.url)
    acks = await other.subscribe(f"_INBOX.{name}")
    await handled(other)
    stored: asyncio.Future[PubAck] = asyncio.get_running_loop().create_future()
    stored.set_result(PubAck(name, 8))
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        assert gateway._running is not None
        core = gateway._running.core
        intake = Intake(core, StreamService(core))
        request = api_pb2.PublishRequest(stream=name, ackInbox=f"_INBOX.{name}")
        target = await intake.target(request)
        intake._pass_on(target, request, 9, stored)
        ack = unmarshal_ack((await acks.next_msg(60)).data)
        assert (ack.offset, ack.reception_timestamp_ns) == (7, 9)
        await client.delete_stream(name)
    await nc.close()
    intake._pass_on(target, request, 9, stored)
    (sending,) = intake._sending
    await asyncio.wait([sending])
    # An exception that nobody takes goes to the event loop with the task, and fails the test.
    del sending
    gc.collect()


async def test_both_acks_of_a_message_in_a_copy_have_one_time_of_reception(
    own_nats: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = PublishPlaces._take

    async def wait(places: PublishPlaces, connection: Hashable) -> None:
        await asyncio.sleep(0.01)
        await take(places, connection)

    nc = await connect(own_nats.url)
    acks = await nc.subscribe(f"_INBOX.{name}")
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        await client.create_stream(name, f"{name}-copy")
        monkeypatch.setattr(PublishPlaces, "_take", wait)
        ack = await client.publish(f"{name}-copy", b"one", ack_inbox=f"_INBOX.{name}")
        other = unmarshal_ack((await acks.next_msg(60)).data)
        assert ack is not None
        assert ack.reception_timestamp_ns == other.reception_timestamp_ns
    await nc.close()


@pytest.fixture
async def orphaned(own_nats: NatsServer, name: str, no_repairs: None) -> AsyncIterator[tuple[Gateway, Core]]:
    """A gateway whose stream ``name`` copies from one that records its subject no longer.

    So it is while another gateway hands the subject over.
    """
    nc = await connect(own_nats.url)
    async with Gateway(nc, ack_timeout=NEVER) as gateway:
        async with liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(name, f"{name}-source")
            await client.create_stream(name, name)
        assert gateway._running is not None
        core = gateway._running.core
        record = core.registry.known(f"{name}-source")
        assert record is not None
        await core.storage.detach(record, 0)
        yield gateway, core
    await nc.close()


async def test_publish_during_a_hand_over_is_stored_after_it(
    orphaned: tuple[Gateway, Core], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TRIES", 10_000)
    gateway, core = orphaned
    looked, find_again = asyncio.Event(), Intake.find_again

    async def noted(*arguments: Any) -> PublishTarget:
        looked.set()
        return await find_again(*arguments)

    monkeypatch.setattr(Intake, "find_again", noted)
    request = api_pb2.PublishRequest(stream=name, value=b"x").SerializeToString()
    async with await Channel.connect(gateway.address) as channel, asyncio.timeout(60):
        publishing = asyncio.create_task(channel.unary("/proto.API/Publish", request, timeout=NEVER))
        await looked.wait()
        record = core.registry.known(name)
        assert record is not None
        source = await core.storage.attach(record, 0)
        await core.registry.change(name, partial(with_sources, record, {0: source}))
        answer = api_pb2.PublishResponse.FromString(await publishing)
    assert answer.ack.offset == 0


async def test_message_of_publish_async_during_a_hand_over_is_answered(
    orphaned: tuple[Gateway, Core], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unrecorded, "TRY_PAUSE", 0.001)
    gateway, _ = orphaned
    request = api_pb2.PublishRequest(stream=name, value=b"x").SerializeToString()
    async with await Channel.connect(gateway.address) as channel, asyncio.timeout(60):
        call = channel.bidi("/proto.API/PublishAsync")
        await call.send([request])
        answer = api_pb2.PublishResponse.FromString(await anext(call))
        call.cancel()
    assert PUBLISH_AGAIN in answer.asyncError.message
