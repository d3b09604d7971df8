"""pytest fixtures with running servers. pytest loads them by itself once liftenvelope is installed.

- ``nats_server``: a :class:`~liftenvelope.testing.NatsServer`.
- ``jetstream_server``: another :class:`~liftenvelope.testing.NatsServer`, with JetStream.
- ``liftbridge_server``: a :class:`~liftenvelope.testing.LiftbridgeCluster` of one node, with its own NATS.
- ``gateway_server``: a :class:`~liftenvelope.testing.GatewayCluster` of one gateway, with its own NATS.

Each server is started by the first test that uses it and is shared by all tests of the run. Tests must
therefore leave it running and use names of their own. A test that stops or kills a server must start one
itself, with :func:`~liftenvelope.testing.run_nats_server` or :func:`~liftenvelope.testing.run_liftbridge`. ::

    def test_orders(liftbridge_server):
        liftbridge_server.create_stream("orders")
        ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from liftenvelope import testing

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer

__all__ = ["gateway_server", "jetstream_server", "liftbridge_server", "nats_server"]

#: Characters of a log that a report shows, from its end: a Go program that panics prints every goroutine.
_SHOWN: Final = 64 * 1024


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the log of a shared server that has ended to the report of a failed test that uses it."""
    report = yield
    fixtures: dict[str, object] = getattr(item, "funcargs", {})
    for name in __all__ if report.failed else ():
        server = fixtures.get(name)
        if server is not None:
            report.sections += _log_of_ended(name, server)
    return report


def _log_of_ended(name: str, server: object) -> list[tuple[str, str]]:
    # Imported here, because most test runs need no asyncio. The classes of the clusters would need an extra.
    from liftenvelope.testing._lifecycle import ManagedServer

    if not isinstance(server, ManagedServer) or server.is_running:
        return []
    return [(f"{name} has ended, its log", server.log()[-_SHOWN:])]


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """Run a nats-server, shared by the whole run."""
    with testing.run_nats_server() as server:
        yield server


@pytest.fixture(scope="session")
def jetstream_server() -> Iterator[NatsServer]:
    """Run a nats-server with JetStream, shared by the whole run."""
    with testing.run_nats_server(jetstream=True) as server:
        yield server


@pytest.fixture(scope="session")
def liftbridge_server() -> Iterator[LiftbridgeCluster]:
    """Run a Liftbridge cluster of one node, shared by the whole run."""
    with testing.run_liftbridge() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def gateway_server() -> Iterator[GatewayCluster]:
    """Run a gateway, shared by the whole run."""
    with testing.run_gateway() as cluster:
        yield cluster
