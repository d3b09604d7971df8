"""Pulls of a user who may not pull: servers do not answer them, and tell the connection alone why."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError
from liftenvelope.jetstream import MissedHeartbeats, PullEvent
from liftenvelope.testing import run_nats_server
from tests.integration.conftest import connect, until

from .pulling import Bench

_REFUSAL = 'the server said: nats: permissions violation for publish to "$js.api.consumer.msg.next.'


@pytest.fixture
async def bench(name: str) -> AsyncIterator[Bench]:
    """A stream, and the connection of a user who may do everything but pull."""
    permissions = {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.>"]}}
    users = [{"user": "ann", "password": "x", "permissions": permissions}]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        nc: Client = await connect(server.url, user="ann", password="x")
        yield await Bench(nc, name).create()
        await nc.close()


async def test_fetch_with_heartbeats_says_that_the_pull_is_not_permitted(bench: Bench) -> None:
    consumer = await bench.consumer()
    with pytest.raises(CallTimeoutError) as caught:
        await consumer.fetch(1, expires=60, idle_heartbeat=0.5)
    assert str(caught.value).startswith("the server has been silent for ")
    assert _REFUSAL in str(caught.value)


async def test_event_of_missed_heartbeats_says_that_the_pull_is_not_permitted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = await bench.consumer()
    events: asyncio.Queue[PullEvent] = asyncio.Queue()
    async with asyncio.timeout(240):
        async with consumer.messages(expires=1, idle_heartbeat=0.5, on_event=events.put_nowait):
            event = await events.get()
    assert isinstance(event, MissedHeartbeats)
    assert _REFUSAL in event.refusal
    assert caplog.messages[0].endswith(f"pulling again{event.refusal}")


async def test_event_of_a_server_that_is_silent_later_has_no_old_refusal(
    name: str,
) -> None:
    """The connection keeps its last error, the earlier refusal."""
    deny = 'deny: ["$JS.API.CONSUMER.MSG.NEXT.>"]'
    permissions = f"{{publish: {{{deny}}}}}"
    users = f"authorization {{ users: [{{user: u, password: p, permissions: {permissions}}}] }}"
    events: asyncio.Queue[PullEvent] = asyncio.Queue()
    with run_nats_server(jetstream=True, config_text=users) as server:
        assert server.pid is not None
        nc: Client = await connect(server.url, user="u", password="p")
        bench = await Bench(nc, name).create()
        consumer = await bench.consumer()
        iteration = consumer.messages(expires=60, idle_heartbeat=0.5, on_event=events.put_nowait)
        async with asyncio.timeout(240), iteration as messages:
            while not isinstance(event := await events.get(), MissedHeartbeats):
                pass
            assert _REFUSAL in event.refusal
            config = server._folder / "nats-server.conf"
            config.write_text(config.read_text().replace(deny, 'deny: ["other.>"]'))
            os.kill(server.pid, signal.SIGHUP)
            await until(lambda: "Reloaded server configuration" in server.log() and nc.is_connected)
            await bench.publish([b"x"])
            (await anext(messages)).ack()
            assert "permissions violation" in str(nc.last_error)
            while not events.empty():
                events.get_nowait()
            os.kill(server.pid, signal.SIGSTOP)
            try:
                while not isinstance(event := await events.get(), MissedHeartbeats):
                    pass
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert event.refusal == ""
        await nc.close()
