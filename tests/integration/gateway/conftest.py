"""Fixtures for tests of the gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from liftenvelope.testing import GatewayCluster, run_gateway


@pytest.fixture(scope="session")
def gateway_server() -> Iterator[GatewayCluster]:
    """Run a gateway, shared by these tests, whose lease a pause of the machine does not end."""
    with run_gateway(config={"broker_ttl": 60.0}) as cluster:
        yield cluster
