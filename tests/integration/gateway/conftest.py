"""Fixtures for tests of the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from nats.aio.client import Client

from liftenvelope.testing import GatewayCluster, run_gateway
from tests.integration.conftest import connect


@pytest.fixture(scope="session")
def gateway_server() -> Iterator[GatewayCluster]:
    """Run a gateway, shared by these tests, whose lease a pause of the machine does not end."""
    with run_gateway(config={"broker_ttl": 60.0}) as cluster:
        yield cluster


@pytest.fixture
async def nc(nats_url: str) -> AsyncIterator[Client]:
    """A connection to the server of the test, whose URL each module gives by the fixture ``nats_url``."""
    client = await connect(nats_url)
    yield client
    await client.close()
