"""pytest fixtures with running servers. pytest finds them by itself once liftenvelope is installed.

- ``nats_server``: a :class:`~liftenvelope.testing.NatsServer`.
- ``jetstream_server``: another one, with JetStream.
- ``liftbridge_server``: a :class:`~liftenvelope.testing.LiftbridgeCluster` of one node, with its own NATS.
- ``gateway_server``: a :class:`~liftenvelope.testing.GatewayCluster` of one gateway, with its own NATS.

Each is started by the first test that asks for it and serves every test of the run. So a test leaves it
running, and takes names that no other test uses. A test that stops or kills its server starts one of its own,
with :func:`~liftenvelope.testing.run_nats_server` or :func:`~liftenvelope.testing.run_liftbridge`. ::

    def test_orders(liftbridge_server):
        liftbridge_server.create_stream("orders")
        ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from liftenvelope import testing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer

__all__ = ["gateway_server", "jetstream_server", "liftbridge_server", "nats_server"]


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """A nats-server, shared by the whole run."""
    with testing.run_nats_server() as server:
        yield server


@pytest.fixture(scope="session")
def jetstream_server() -> Iterator[NatsServer]:
    """A nats-server with JetStream, shared by the whole run."""
    with testing.run_nats_server(jetstream=True) as server:
        yield server


@pytest.fixture(scope="session")
def liftbridge_server() -> Iterator[LiftbridgeCluster]:
    """A Liftbridge cluster of one node, shared by the whole run."""
    with testing.run_liftbridge() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def gateway_server() -> Iterator[GatewayCluster]:
    """A gateway, shared by the whole run."""
    with testing.run_gateway() as cluster:
        yield cluster
