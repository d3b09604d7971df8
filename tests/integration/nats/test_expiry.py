"""Deadlines of acks after the event loop was blocked."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time

import pytest
from nats.aio.client import Client

from liftenvelope.envelope import Ack, marshal_ack
from liftenvelope.errors import AckTimeoutError, CallTimeoutError
from liftenvelope.jetstream import ConsumerConfig, JetStream, StreamConfig
from liftenvelope.nats import AckInbox, accelerate, expiry
from liftenvelope.nats.link import Link
from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect

_TIMEOUT = 1.0
pytestmark = pytest.mark.punctual


@pytest.fixture(params=["plain", "accelerated"])
async def nc(request: pytest.FixtureRequest, jetstream_server: NatsServer) -> Client:
    client = await connect(jetstream_server.url)
    if request.param == "accelerated":
        assert accelerate(client).active
    return client


def block_beyond_the_timeout(nc: Client, text: bytes) -> None:
    """Send what is buffered; block the event loop until the answer is in the socket and the time is up."""
    Link(nc).send_now()
    end = time.monotonic() + _TIMEOUT + 0.5
    theirs = nc._transport._io_writer.get_extra_info("socket")  # type: ignore[union-attr]
    with socket.socket(fileno=os.dup(theirs.fileno())) as same:
        received = b""
        while text not in received:
            select.select([same], [], [])
            received = same.recv(65_536, socket.MSG_PEEK)
    time.sleep(max(end - time.monotonic(), 0))


async def test_publish_whose_ack_waits_in_the_socket_does_not_time_out(nc: Client, name: str) -> None:
    async with JetStream(nc, timeout=60) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        await js.publish(name)
        future = await js.publish_async(name, timeout=_TIMEOUT)
        block_beyond_the_timeout(nc, b'"seq":2')
        assert (await future).sequence == 2
        await js.delete_stream(name)


async def test_publishes_that_were_not_sent_while_the_loop_was_blocked_do_not_time_out(
    nc: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "_PAUSE", 1.0)  # a server may need more than 0.2 s to store so many
    async with JetStream(nc, timeout=60) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        await js.publish(name)
        futures = [await js.publish_async(name, b"x", timeout=_TIMEOUT) for _ in range(1_000)]
        time.sleep(_TIMEOUT + 0.5)
        assert [ack.sequence for ack in await asyncio.gather(*futures)] == list(range(2, 1_002))
        await js.delete_stream(name)


async def test_envelope_whose_ack_waits_in_the_socket_does_not_time_out(nc: Client) -> None:
    async with AckInbox(nc, timeout=60) as inbox:
        future = inbox.expect(timeout=_TIMEOUT)
        ack = marshal_ack(Ack(correlation_id=future.correlation_id, offset=7))
        await nc.publish(inbox.subject, ack)
        block_beyond_the_timeout(nc, ack)
        assert (await future).offset == 7


@pytest.mark.parametrize("request_was_sent", [True, False], ids=["sent", "not sent"])
async def test_ack_sync_that_is_answered_while_the_loop_is_blocked_does_not_time_out(
    nc: Client, name: str, request_was_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "_GRACE", 60.0)  # a busy server may need more than 0.2 s
    async with JetStream(nc, timeout=60) as js:
        stream = await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        await js.publish(name)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        message = await consumer.next(timeout=60)
        acking = asyncio.ensure_future(message.ack_sync(timeout=_TIMEOUT))
        while not nc._pending:
            await asyncio.sleep(0)
        if request_was_sent:
            block_beyond_the_timeout(nc, b"MSG _INBOX")
        else:
            time.sleep(_TIMEOUT + 0.5)
        await acking
        await js.delete_stream(name)


async def test_stored_message_that_waits_in_the_socket_is_read_after_a_blocked_loop(
    nc: Client, name: str
) -> None:
    async with JetStream(nc, timeout=60) as js:
        stream = await js.create_stream(StreamConfig(name=name, subjects=(name,), allow_direct=True))
        await js.publish(name, b"stored")
        reading = asyncio.ensure_future(stream.get_message(1, timeout=_TIMEOUT))
        while not any(b"DIRECT.GET" in frame for frame in nc._pending):
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # it waits for the answer
        block_beyond_the_timeout(nc, b"stored")
        assert (await reading).data == b"stored"
        await js.delete_stream(name)


async def test_request_without_an_answer_times_out_after_a_blocked_loop(nc: Client) -> None:
    await nc.subscribe("$JS.silent.API.INFO")
    async with JetStream(nc, domain="silent", timeout=_TIMEOUT) as js:
        asking = asyncio.ensure_future(js.account_info())
        await asyncio.sleep(0)
        time.sleep(_TIMEOUT + 0.5)
        with pytest.raises(CallTimeoutError, match="within 1 s"):
            await asking


async def test_publish_without_an_ack_times_out_after_a_blocked_loop(nc: Client) -> None:
    async with AckInbox(nc, timeout=60) as inbox:
        futures = [inbox.expect(timeout=_TIMEOUT) for _ in range(3)]
        time.sleep(_TIMEOUT + 0.5)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [AckTimeoutError] * 3
