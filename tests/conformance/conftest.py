"""Conformance suite: tests that hold for any server of the Liftbridge API.

The fixture ``server`` is all that they know of it. Which one that is, the environment variable
``LIFTENVELOPE_CONFORMANCE_SERVER`` says, a name in ``SERVERS``: a server of another make is put into that
table. Nothing here is about who is taken for dead, so nobody may be who only hangs for some seconds. Tests
marked ``liftbridge_only`` are about what the Liftbridge server itself does wrong, or about its own
configuration, those marked ``gateway_only`` about what the gateway does in another way on purpose; they are
left out for others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol
from uuid import uuid4

import nats
import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.client._events import ClientEvent
from liftenvelope.testing import run_gateway, run_liftbridge
from tests.patience import patient_clients

__all__ = ["patient_clients"]

CHOSEN: Final = os.environ.get("LIFTENVELOPE_CONFORMANCE_SERVER", "liftbridge")
#: For how many seconds a member of a group or a server has to be silent to be taken for dead.
SILENCE: Final = 10.0


class Server(Protocol):
    """A server, or a cluster of them, which runs as long as a ``with`` block."""

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of each broker."""
        ...

    @property
    def nats_url(self) -> str:
        """The NATS server whose subjects its streams record."""
        ...


def liftbridge() -> AbstractContextManager[Server]:
    """The real one."""
    timeouts = dict.fromkeys(("groups.consumer.timeout", "groups.coordinator.timeout"), f"{SILENCE:g}s")
    return run_liftbridge(config=timeouts)


def gateway() -> AbstractContextManager[Server]:
    """Ours."""
    timeouts = dict.fromkeys(("consumer_timeout", "coordinator_timeout", "broker_ttl"), SILENCE)
    return run_gateway(config=timeouts)


#: By name, what makes the server.
SERVERS: Final[dict[str, Callable[[], AbstractContextManager[Server]]]] = {
    "liftbridge": liftbridge,
    "gateway": gateway,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about one make of server where another is tested."""
    marks = [f"{server}_only" for server in SERVERS if server != CHOSEN]
    others = [item for item in items if any(item.get_closest_marker(mark) is not None for mark in marks)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The server under test, shared by a file: with cursors, groups and the activity stream."""
    with SERVERS[CHOSEN]() as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name for a stream and its subject that no other test uses."""
    return f"c-{uuid4().hex[:12]}"


@pytest.fixture(autouse=True)
async def loop_errors() -> AsyncIterator[None]:
    """Fail a test in whose event loop something went wrong that nobody saw."""
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    yield
    assert not seen


@pytest.fixture
def events() -> list[ClientEvent]:
    """Events that ``client`` reported in the background."""
    return []


@pytest.fixture
async def client(server: Server, events: list[ClientEvent]) -> AsyncIterator[Client]:
    """A client of the server. Closing it must leave no task behind."""
    before = asyncio.all_tasks()
    async with liftenvelope.connect(server.addresses, on_event=events.append) as client:
        yield client
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left


@pytest.fixture
async def nc(server: Server) -> AsyncIterator[NatsClient]:
    """A connection to the NATS server that the streams record."""
    connection = await nats.connect(server.nats_url)
    yield connection
    await connection.close()
