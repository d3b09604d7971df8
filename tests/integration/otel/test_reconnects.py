"""The metric of reconnects, on servers that go away."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest
from nats.aio.client import Client

import liftenvelope
from liftenvelope import otel
from liftenvelope.errors import CallTimeoutError, TransportError
from liftenvelope.group import GroupConsumer, JetStreamTopic
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.nats import AckInbox
from liftenvelope.testing import FaultProxy, run_gateway, run_nats_server
from tests.integration.conftest import connect, until

from .recording import Recording

METRIC = "liftenvelope.client.reconnects"


def count(recording: Recording, kind: str) -> float:
    return recording.total(METRIC, liftenvelope_connection=kind)


async def lose(nc: Client, proxy: FaultProxy) -> None:
    """Cut a connection, and wait until it is back."""
    before = nc.stats["reconnects"]
    proxy.cut()
    await until(lambda: nc.stats["reconnects"] == before + 1 and nc.is_connected)


async def test_nats_connection_that_comes_back_counts_once_for_all_who_use_it(name: str) -> None:
    with run_nats_server(jetstream=True) as server, FaultProxy(server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        await lose(nc, proxy)
        with Recording() as recording:
            async with JetStream(nc) as js, AckInbox(nc) as inbox:
                await js.create_stream(StreamConfig(name=name, subjects=(name,)))
                await js.publish(name, b"x")
                inbox.publish_nowait(name, b"x").cancel()
                before = count(recording, "nats")  # of earlier tests: the first loss was not watched
                for number in (1, 2):
                    await lose(nc, proxy)
                    assert count(recording, "nats") == before + number
            await nc.close()
            del nc, js, inbox
            gc.collect()
            assert count(recording, "nats") == before + 2
            otel.uninstrument()
            assert recording.points(METRIC) == []


async def test_member_of_a_group_is_watched(name: str) -> None:
    with run_nats_server(jetstream=True) as server, FaultProxy(server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        async with JetStream(nc) as js:
            await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        with Recording() as recording:
            member = GroupConsumer(nc, name, JetStreamTopic.of_streams(name, [name]), timeout=0.2)
            assert member.nc is nc
            before = count(recording, "nats")
            with pytest.raises(CallTimeoutError, match="coordinator"):
                await member.open()
            await lose(nc, proxy)
            assert count(recording, "nats") == before + 1
        await nc.close()


async def test_liftbridge_client_that_loses_its_broker(name: str) -> None:
    async with run_gateway() as server:
        with FaultProxy(server.addresses[0]) as proxy, Recording() as recording:
            mapped = {server.addresses[0]: proxy.address}
            async with liftenvelope.connect(proxy.address, address_map=mapped) as client:
                await client.create_stream(name, name)
                await client.publish(name, b"x")
                before = count(recording, "liftbridge")
                assert client.reconnects == 0
                proxy.cut()
                with suppress(TransportError):  # a publish that was on its way
                    await client.publish(name, b"x")
                await client.publish(name, b"x")
                assert client.reconnects >= 1
                assert count(recording, "liftbridge") - before == client.reconnects
