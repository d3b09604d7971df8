"""Servers for the command, a stream on them, and children that Ctrl-C reaches."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer
from tests.integration.cli.commands import text_of


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folder of what commands keep for the next call, such as the last run of ``bench``."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def nats_url(jetstream_server: NatsServer) -> str:
    return jetstream_server.url


@pytest.fixture(params=["liftbridge", "gateway"])
def cluster(request: pytest.FixtureRequest) -> LiftbridgeCluster | GatewayCluster:
    found: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def at(cluster: LiftbridgeCluster | GatewayCluster) -> tuple[str, str]:
    """Options that name a Liftbridge server or a gateway."""
    return "--url", f"liftbridge://{cluster.addresses[0]}"


@pytest.fixture
def stream(nats_url: str, name: str) -> Iterator[str]:
    """A JetStream stream that records NAME.>"""
    text_of("stream", "create", name, "--subject", f"{name}.>", "--url", nats_url)
    yield name
    text_of("stream", "rm", name, "--yes", "--url", nats_url)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have children react to SIGINT, which a shell has its background jobs ignore, and their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
