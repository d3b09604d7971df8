"""The bucket of the streams' records is deleted: a gateway starts again, and deletes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from nats.aio.client import Client

import liftenvelope
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway import Gateway
from liftenvelope.jetstream import JetStream
from liftenvelope.testing import run_nats_server
from tests.integration.conftest import connect


@pytest.mark.parametrize("edited", [False, True])
async def test_gateway_starts_without_the_records_and_keeps_all_messages(name: str, edited: bool) -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(name, name)
            await client.publish(name, b"first")
            await client.set_cursor("reader", name, 0, 7)
            await recorded_events(nc, 1)
        async with JetStream(nc) as js:
            if edited:
                for reserved in ("lift___activity_0", "lift___cursors_0"):
                    stream = await js.stream(reserved)
                    await js.update_stream(replace(stream.cached_info.config, description="by hand"))
            kept = [f"lift_{name}_0", "lift___activity_0", "lift___cursors_0"]
            before = [(await js.stream(one)).cached_info for one in kept]
            assert [info.state.messages for info in before] == [1, 1, 0]
            await js.delete_stream("KV_lift_streams")
            async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
                assert await client.fetch_cursor("reader", name, 0) == 7
                # The stream is unknown. A new one of its name must not destroy the messages of the old one.
                with pytest.raises(LiftEnvelopeError, match="stream name already in use"):
                    await client.create_stream(name, name)
                after = [(await js.stream(one)).cached_info for one in kept]
                assert [info.created for info in after] == [info.created for info in before]
                assert [info.state.messages for info in after] == [1, 1, 0]
                await js.delete_stream(f"lift_{name}_0")
                await client.create_stream(name, name)
                await recorded_events(nc, 2)
        await nc.close()


async def recorded_events(nc: Client, count: int) -> None:
    """Wait until the activity stream has so many events."""
    async with JetStream(nc) as js, asyncio.timeout(240):
        while (await js.stream("lift___activity_0")).cached_info.state.messages != count:
            await asyncio.sleep(0.01)
