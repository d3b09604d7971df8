"""Requests of a user who may not send them: servers do not answer them, and tell the connection alone why."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_nats_server
from tests.integration.conftest import connect


async def publish_refused(nc: Client) -> None:
    while True:
        await nc.publish("denied")
        await asyncio.sleep(0.005)


async def test_refused_request_fails_at_once_while_others_are_refused(name: str) -> None:
    """nats-py keeps the last report alone, which is soon one about the others."""
    permissions = {"publish": {"deny": ["$JS.API.STREAM.UPDATE.>", "denied"]}}
    users = [{"user": "ann", "password": "x", "permissions": permissions}]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        nc = await connect(server.url, user="ann", password="x")
        js, config = JetStream(nc), StreamConfig(name=name, subjects=(name,))
        await js.create_stream(config)
        others = asyncio.create_task(publish_refused(nc))
        said = f"no answer on '$JS.API.STREAM.UPDATE.{name}'; the server said: nats: permissions violation"
        async with asyncio.timeout(60):
            with pytest.raises(CallTimeoutError) as caught:
                await js.update_stream(config, timeout=3_600)
        assert str(caught.value).startswith(said)
        others.cancel()
        with suppress(asyncio.CancelledError):
            await others
        await nc.close()
