"""Gateways that start on NATS servers that have only just found each other."""

from __future__ import annotations

import asyncio

import pytest

import liftenvelope
from liftenvelope.errors import CallTimeoutError, JetStreamError, TransportError
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_gateway
from tests.integration.conftest import connect
from tests.integration.jetstream_cluster import three_servers


async def formed(url: str) -> None:
    """Wait until the servers keep streams together: the metadata leader is elected, and knows all three."""
    nc = await connect(url)
    async with JetStream(nc) as js, asyncio.timeout(60):
        while True:
            try:
                await js.create_stream(StreamConfig(name="formed", subjects=("formed",), num_replicas=3))
                break
            except (JetStreamError, CallTimeoutError, TransportError):
                await asyncio.sleep(0.1)
    await nc.close()


@pytest.mark.parametrize("_round", range(3))
async def test_three_gateways_start_on_fresh_cluster(name: str, _round: int) -> None:
    """Each makes the buckets that it does not find, while their leaders are elected."""
    with three_servers() as servers:
        urls = [server.url for server in servers.values()]
        await formed(urls[0])
        async with (
            run_gateway(3, nats_url=",".join(urls), config={"replicas": 3, "ack_timeout": 10.0}) as cluster,
            liftenvelope.connect(cluster.addresses) as client,
        ):
            await client.create_stream(name, name, replication_factor=3)
            ack = await client.publish(name, b"value", timeout=60)
            assert ack is not None
            assert ack.offset == 0
