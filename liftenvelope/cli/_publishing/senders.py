"""Publishes the messages of ``liftenvelope publish``, one at a time or many in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from liftenvelope.cli._connecting.servers import CommandServers
from liftenvelope.cli._publishing.outgoing import Outgoing

if TYPE_CHECKING:
    from liftenvelope.envelope import Ack
    from liftenvelope.jetstream import PubAck

__all__ = ["Send", "open_sender"]

#: Publishes a value with a key, and returns the future of the ack; the ack is None if none was asked for.
Send: TypeAlias = Callable[[bytes, "bytes | None"], Awaitable["asyncio.Future[Any]"]]


def open_sender(
    servers: CommandServers, message: Outgoing, *, in_flight: int | None = None
) -> AbstractAsyncContextManager[Send]:
    """Connect, and return the function that publishes values with the options of a message.

    Args:
        servers: Servers to publish to.
        message: Target and options.
        in_flight: Messages that may wait for their acks at a time. They are stored in the order of the calls,
            so none is sent twice. Default None: one at a time, which may be repeated if that is safe.

    Raises:
        UsageError: The message has an option that these servers don't have.
    """
    if message.envelope:
        servers.need("nats", "--envelope")
        message.check_for_envelopes()
        if message.ack_policy == "none":
            return _unacked_envelope_sender(servers, message)
        return _envelope_sender(servers, message, in_flight or 1)
    if servers.is_jetstream:
        message.check_for_jetstream()
        return _jetstream_sender(servers, message, in_flight)
    message.check_for_liftbridge()
    return _liftbridge_sender(servers, message, in_flight)


@asynccontextmanager
async def _jetstream_sender(
    servers: CommandServers, message: Outgoing, in_flight: int | None
) -> AsyncIterator[Send]:
    # A repeated message would be stored after those that follow it.
    options = message.jetstream_options | ({} if in_flight is None else {"retry_attempts": 0})
    async with servers.jetstream(max_outstanding=in_flight or 1) as js:

        async def send(value: bytes, _: bytes | None) -> asyncio.Future[PubAck]:
            return await js.publish_async(message.target, value, **options)

        yield send


@asynccontextmanager
async def _envelope_sender(servers: CommandServers, message: Outgoing, in_flight: int) -> AsyncIterator[Send]:
    from liftenvelope.nats import AckInbox

    options = message.envelope_options
    async with (
        servers.nats() as nc,
        AckInbox(nc, timeout=servers.timeout, max_outstanding=in_flight) as inbox,
    ):

        async def send(value: bytes, key: bytes | None) -> asyncio.Future[Ack]:
            await inbox.capacity()
            return inbox.publish_nowait(message.target, value, **{**options, "key": key})

        yield send


@asynccontextmanager
async def _unacked_envelope_sender(servers: CommandServers, message: Outgoing) -> AsyncIterator[Send]:
    """Publish without an inbox, which the user may have no permission to subscribe to."""
    from liftenvelope.envelope import new_message
    from liftenvelope.nats.link import Link

    options = message.envelope_options
    async with servers.nats() as nc:

        async def send(value: bytes, key: bytes | None) -> asyncio.Future[None]:
            await nc.publish(message.target, new_message(value, **{**options, "key": key}))
            await Link(nc).barrier(servers.timeout)
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

        yield send


@asynccontextmanager
async def _liftbridge_sender(
    servers: CommandServers, message: Outgoing, in_flight: int | None
) -> AsyncIterator[Send]:
    options = {**message.envelope_options, "partition": message.partition}
    async with servers.liftbridge() as client:

        async def send_one(value: bytes, key: bytes | None) -> asyncio.Future[Ack | None]:
            return asyncio.ensure_future(client.publish(message.target, value, **{**options, "key": key}))

        async def send(value: bytes, key: bytes | None) -> asyncio.Future[Ack | None]:
            given = {**options, "key": key, "max_outstanding": in_flight}
            return await client.publish_async(message.target, value, **given)

        yield send_one if in_flight is None else send
