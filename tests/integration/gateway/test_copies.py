"""Messages for partitions that copy from another stream: their acks, and the end of the wait for them."""

from __future__ import annotations

import asyncio

import pytest

from liftenvelope.envelope import Ack, marshal_ack, unmarshal_message
from liftenvelope.errors import EnvelopeTooLargeError, TransportError
from liftenvelope.gateway._acks.copies import CopyAcks
from liftenvelope.jetstream.publish_frames import PubAck
from liftenvelope.testing import NatsServer
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
    await nc.close()
    with pytest.raises(TransportError, match="closed"):
        await publish(copies, name)
    assert open_futures(copies) == [waiting]
    await copies.close()
    with pytest.raises(TransportError, match="may be stored") as failure:
        await waiting
    assert failure.value.sent
