"""The health service of real brokers."""

from __future__ import annotations

import liftenvelope
from liftenvelope.client._health import HealthStatus
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, run_liftbridge


async def test_a_broker_serves(liftbridge_server: LiftbridgeCluster) -> None:
    async with liftenvelope.connect(liftbridge_server.addresses) as client:
        [address] = liftbridge_server.addresses
        assert await client.check_health() == {address: HealthStatus.SERVING}
        assert await client.check_health(service="") == {address: HealthStatus.SERVING}
        assert await client.check_health(service="nobody") == {address: HealthStatus.SERVICE_UNKNOWN}


async def test_a_broker_that_is_gone() -> None:
    with run_liftbridge() as cluster:
        async with liftenvelope.connect(cluster.addresses) as client:
            cluster.kill()
            [status] = (await client.check_health(timeout=5.0)).values()
            assert status is HealthStatus.UNREACHABLE


async def test_a_broker_that_says_nothing(liftbridge_server: LiftbridgeCluster) -> None:
    [address] = liftbridge_server.addresses
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}) as client:
            proxy.stall()
            assert await client.check_health(timeout=0.3) == {address: HealthStatus.UNREACHABLE}
