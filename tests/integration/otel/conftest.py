"""Instrumentation with an SDK in memory, and connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nats.aio.client import Client

from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect

from .recording import Recording


@pytest.fixture
def recording() -> Iterator[Recording]:
    """The process is instrumented, and its telemetry kept in memory."""
    with Recording() as found:
        yield found


@pytest.fixture
async def js_nc(jetstream_server: NatsServer) -> Client:
    """A connection to a server with JetStream."""
    return await connect(jetstream_server.url)
