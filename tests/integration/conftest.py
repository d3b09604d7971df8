"""Fixtures of the tests on real servers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import nats
import pytest
from nats.aio.client import Client

from liftenvelope.nats.closing import close_connection
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer, run_gateway, run_liftbridge
from tests.patience import patient_clients

__all__ = ["patient_clients"]

#: The connections that tests have made, by their event loops.
_made: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Client]] = WeakKeyDictionary()


@pytest.fixture(autouse=True)
async def loop_errors() -> AsyncIterator[None]:
    """Fail a test in whose event loop something went wrong that nobody saw."""
    seen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(context))
    yield
    # Those of a test that has failed: left open, they would fail the next one.
    for client in _made.pop(loop, []):
        await close_connection(client)
    assert not seen


async def _no_noise(_: Exception) -> None:
    """nats-py prints what goes wrong on the connection; the tests look at the outcome."""


async def connect(url: str | list[str], **options: Any) -> Client:
    """A connection that comes back quickly when it is lost.

    Its attempts to connect are patient: nats-py reports one that fails to ``error_cb``, also before it is
    connected at all, and without ``allow_reconnect`` raises what failed. If the process stands still for two
    seconds meanwhile, nats-py takes the server's ping for the answer to its login, and sends nothing.
    """
    options = {
        "connect_timeout": 60,
        "reconnect_time_wait": 0.05,
        "max_reconnect_attempts": -1,
        "error_cb": _no_noise,
        **options,
    }
    while (client := await nats.connect(url, **options)).is_connecting:
        await client.close()
    _made.setdefault(asyncio.get_running_loop(), []).append(client)
    return client


async def until(condition: Callable[[], object]) -> None:
    """Poll, with a deadline that a busy machine keeps, too."""
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0.01)


def resident_mib(pid: int, kind: str = "VmRSS") -> float:
    """Return the resident memory of a process, in MiB; with ``"VmHWM"`` its highest until now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{kind}:")[1].split()[0]) / 1024


def freeze(pid: int) -> None:
    """Stop a child process where it is. The signal takes effect a moment later, so wait until it has."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def wait_until(condition: Callable[[], object]) -> None:
    """Poll in a thread, with the same deadline."""
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def keep_streams_folder(server: NatsServer) -> None:
    """Let the folder of all streams outlive the last one of them.

    A moment after nats-server has deleted the last stream, it removes the empty folder, even while it makes a
    new stream there. That fails with error 10049. ``JetStream.create_stream`` tries again, nats-py does not.
    """
    (server._folder / "jetstream" / "jetstream" / "$G" / "streams" / "kept").mkdir(parents=True)


@pytest.fixture(scope="session")
def jetstream_server(jetstream_server: NatsServer) -> NatsServer:
    """The shared server with JetStream. Most tests delete their stream, which often is the last one."""
    keep_streams_folder(jetstream_server)
    return jetstream_server


@pytest.fixture(scope="module")
def liftbridge_server() -> Iterator[LiftbridgeCluster]:
    """Run a Liftbridge server for each file: it writes a file for each partition every five seconds."""
    with run_liftbridge() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def gateway_server() -> Iterator[GatewayCluster]:
    """Run a gateway, shared by these tests, whose leases and sessions a pause of the machine does not end."""
    timeouts = dict.fromkeys(("broker_ttl", "consumer_timeout", "coordinator_timeout"), 60.0)
    with run_gateway(config=timeouts) as cluster:
        yield cluster


@pytest.fixture
async def nc(nats_server: NatsServer) -> Client:
    """A connection to a plain NATS server."""
    return await connect(nats_server.url)


@pytest.fixture
async def lb_nc(liftbridge_server: LiftbridgeCluster) -> Client:
    """A connection to the NATS server that the Liftbridge server uses."""
    return await connect(liftbridge_server.nats_url)


@pytest.fixture
def name() -> str:
    """A name for a stream and its subject that no other test uses."""
    return f"t-{uuid4().hex[:12]}"


def reload_with(server: NatsServer, old: str, new: str) -> None:
    """Change the configuration of a server, and let it read that again."""
    config = server._folder / "nats-server.conf"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    assert server.pid is not None
    os.kill(server.pid, signal.SIGHUP)
