"""Fixtures for tests of the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from nats.aio.client import Client

from liftenvelope.gateway._streams.repairing import Repairs
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect


@pytest.fixture(scope="module")
def own_nats() -> Iterator[NatsServer]:
    """A server of each file's own: gateways keep what they know in it."""
    with run_nats_server(jetstream=True) as server:
        yield server


@pytest.fixture
def no_repairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subjects that a test stops the recording of stay so. The check of a gateway that has just started may
    come after it, and would record them again.
    """

    async def nothing(repairs: Repairs, name: str) -> None:
        pass

    monkeypatch.setattr(Repairs, "repair", nothing)


@pytest.fixture
async def nc(nats_url: str) -> AsyncIterator[Client]:
    """A connection to the server of the test, whose URL each module gives by the fixture ``nats_url``."""
    client = await connect(nats_url)
    yield client
    await client.close()
