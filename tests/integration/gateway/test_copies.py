"""Messages for partitions that copy from another stream: their acks, and the end of the wait for them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Hashable, Iterator

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.envelope import Ack, marshal_ack, unmarshal_ack, unmarshal_message
from liftenvelope.errors import EnvelopeTooLargeError, TransportError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._acks.copies import CopyAcks
from liftenvelope.gateway._clients.publish_places import PublishPlaces
from liftenvelope.gateway._publishing.intake import Intake
from liftenvelope.gateway._streams.service import StreamService
from liftenvelope.jetstream.publish_frames import PubAck
from liftenvelope.testing import NatsServer, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect

#: Seconds; no message of these tests expires.
NEVER = 10_000.0


async def publish(copies: CopyAcks, name: str, value: bytes = b"x") -> asyncio.Future[PubAck]:
    return await copies.publish(name, name, value, key=b"", headers={}, timeout=NEVER)


def open_futures(copies: CopyAcks) -> list[asyncio.Future[PubAck]]:
    return [future for _, future in copies._pending.values() if not future.done()]


async def test_ack_of_the_stream_settles_the_message(nats_server: NatsServer, name: str) -> None:
    nc = await connect(nats_server.url)
    copies = CopyAcks(nc)
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


async def test_message_that_is_not_published_leaves_nothing_pending(
    nats_server: NatsServer, name: str
) -> None:
    nc = await connect(nats_server.url)
    copies = CopyAcks(nc)
    waiting = await publish(copies, name)
    with pytest.raises(EnvelopeTooLargeError):
        await copies.publish(name, name, b"", key=b"", headers={"h" * 70_000: b""}, timeout=NEVER)
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
