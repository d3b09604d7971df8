"""Fixtures for tests that pull messages: a connection that runs plain and accelerated, and a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from liftenvelope.nats import accelerate
from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect

from .pulling import Bench


@pytest.fixture(params=["plain", "accelerated"])
async def js_nc(request: pytest.FixtureRequest, jetstream_server: NatsServer) -> Client:
    """A connection to a server with JetStream, accelerated in one of two runs."""
    client = await connect(jetstream_server.url)
    if request.param == "accelerated":
        assert accelerate(client).active
    return client


@pytest.fixture
async def bench(jetstream_server: NatsServer, js_nc: Client, name: str) -> AsyncIterator[Bench]:
    """A stream of the test's own."""
    yield await Bench(js_nc, name).create()
    other = await connect(jetstream_server.url)
    await other.request(f"$JS.API.STREAM.DELETE.{name}", timeout=20)
    await other.close()
