"""Log lines of gateways: leases, other gateways, leadership, start and stop."""

from __future__ import annotations

import asyncio
import logging

import pytest

import liftenvelope
from liftenvelope.gateway import Gateway
from liftenvelope.testing import FaultProxy, run_nats_server
from tests.integration.conftest import connect, until


@pytest.fixture(autouse=True)
def information(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "liftenvelope.gateway")


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Return the levels of the lines of gateways with a text."""
    found = [one for one in caplog.records if one.name == "liftenvelope.gateway"]
    return [one.levelname for one in found if text in one.message]


async def test_start_and_stop_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        gateway = Gateway(nc, id="g1", broker_ttl=60.0)
        await gateway.start()
        assert lines(caplog, f"gateway g1 serves on {gateway.address}") == ["INFO"]
        assert lines(caplog, "gateway g1 has its lease") == ["INFO"]
        await gateway.close(grace=60.0)
        assert lines(caplog, "gateway g1 drains, for at most 60.0 s") == ["INFO"]
        assert lines(caplog, "gateway g1 has stopped") == ["INFO"]
        assert lines(caplog, "has lost its lease") == []
        await nc.close()


async def test_gateways_that_come_leave_and_die_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with run_nats_server(jetstream=True) as server, FaultProxy(server.address) as proxy:
        nc, other = await connect(server.url), await connect(f"nats://{proxy.address}")
        async with Gateway(nc, id="g1") as gateway:
            async with liftenvelope.connect([gateway.address]) as client:
                await client.create_stream("orders", "orders", partitions=64)
            second = Gateway(other, id="g2")
            await second.start()
            # A machine that hangs may end a short lease once more.
            await until(lambda: set(lines(caplog, f"gateway g2 at {second.address} is alive")) == {"INFO"})
            # Of 64 partitions the second gateway leads some.
            await until(lambda: len(lines(caplog, " partitions, ")) >= 2)
            caplog.clear()
            proxy.refuse()
            proxy.cut()
            await until(lambda: set(lines(caplog, "gateway g2 has lost its lease")) == {"WARNING"})
            await until(lambda: set(lines(caplog, "gateway g2 is dead: silent for 3.0 s")) == {"WARNING"})
            proxy.accept()
            await until(lambda: set(lines(caplog, "gateway g2 has its lease again")) == {"WARNING"})
            await until(lambda: set(lines(caplog, f"gateway g2 at {second.address} is alive")) == {"INFO"})
            await second.close()
            await until(lambda: set(lines(caplog, "gateway g2 has left")) == {"INFO"})
        await other.close()
        await nc.close()


async def test_streams_of_clients_are_logged_for_debugging_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Clients may create and delete streams all the time."""
    caplog.set_level(logging.DEBUG, "liftenvelope.gateway")
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
            for number in range(3):
                await client.create_stream(f"orders{number}", f"orders{number}")
            async with asyncio.timeout(240):
                while not lines(caplog, "leads 3 partitions"):
                    await asyncio.sleep(0.01)
            assert set(lines(caplog, " partitions, ")) == {"DEBUG"}
        await nc.close()
