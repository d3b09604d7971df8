"""The login of a URL, at a server of the cluster that the URL does not name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager

import pytest
from nats.aio.client import Client as NatsClient

from liftenvelope.cli._connecting.contexts import NatsContext
from liftenvelope.cli._connecting.servers import CommandServers
from liftenvelope.gateway._program.nats_connection import connection_to
from liftenvelope.nats.logins import with_login_of
from liftenvelope.testing import NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port
from tests.integration.conftest import until


@pytest.fixture
def two_servers() -> Iterator[tuple[NatsServer, NatsServer]]:
    """Two servers of a cluster that asks for a login."""
    ports = [free_port(), free_port()]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        first, second = [
            stack.enter_context(
                run_nats_server(
                    config={
                        "cluster": {"name": "two", "listen": f"127.0.0.1:{port}", "routes": routes},
                        "authorization": {"user": "app", "password": "secret"},
                    }
                )
            )
            for port in ports
        ]
        yield first, second


@asynccontextmanager
async def of_gateway(url: str) -> AsyncIterator[NatsClient]:
    nc = NatsClient()
    async with connection_to(nc, url, {}, "connection", "nothing is served"):
        yield nc


@asynccontextmanager
async def of_command(url: str) -> AsyncIterator[NatsClient]:
    async with CommandServers(
        scheme="nats", urls=(url,), context=NatsContext(name=""), timeout=60.0
    ).nats() as nc:
        yield nc


@pytest.mark.parametrize("connected", [of_gateway, of_command])
async def test_connection_that_lost_its_server_logs_in_to_another_one_of_the_cluster(
    two_servers: tuple[NatsServer, NatsServer],
    connected: Callable[[str], AbstractAsyncContextManager[NatsClient]],
) -> None:
    first, second = two_servers
    async with connected(f"nats://app:secret@127.0.0.1:{first.port}") as nc:
        await until(lambda: nc.discovered_servers)
        first.kill()
        await until(lambda: nc.is_connected and getattr(nc.connected_url, "port", 0) == second.port)


def test_different_logins_are_left_to_nats_py() -> None:
    options = {"name": "a"}
    assert with_login_of(["nats://a:x@n1", "nats://b:y@n2"], options) == options
    assert with_login_of(["nats://n1", "n2:4222"], options) == options
    assert with_login_of(["nats://s3cr3t@n1"], options) == {"token": "s3cr3t", "name": "a"}
    assert with_login_of(["nats://a:x@n1"], {"token": "t"}) == {"token": "t"}
    assert with_login_of(["nats://a%40b:x%2Fy@n1"], {}) == {"user": "a@b", "password": "x/y"}
