"""Fixtures for tests of the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from tests.integration.conftest import connect


@pytest.fixture
async def nc(nats_url: str) -> AsyncIterator[Client]:
    """A connection to the server of the test, whose URL each module gives by the fixture ``nats_url``."""
    client = await connect(nats_url)
    yield client
    await client.close()
