"""A NATS server for each module of tests, so that streams and limits of one module do not disturb another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import jetstream


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        yield running


@pytest.fixture
def url(server: NatsServer) -> str:
    return server.url
