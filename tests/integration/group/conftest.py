"""A connection to the shared JetStream server, and a group on it with a coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect

from .play import LONG, Play, coordinator


@pytest.fixture
async def nc(jetstream_server: NatsServer) -> Client:
    """A connection."""
    return await connect(jetstream_server.url)


@pytest.fixture
async def play(nc: Client, name: str) -> AsyncIterator[Play]:
    """A group whose members have long sessions."""
    async with coordinator(nc, lease=LONG):
        yield await Play(nc, name, session=LONG).create()
