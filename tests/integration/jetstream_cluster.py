"""Three servers that are one JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import nats

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port
from tests.patience import short_requests


@contextmanager
def three_servers(
    config: Mapping[str, Any] | None = None, **cluster: object
) -> Iterator[dict[str, NatsServer]]:
    """Yield the servers by name, once they have found each other.

    Args:
        config: Settings of each server.
        cluster: Settings of the servers' cluster.
    """
    ports = [free_port() for _ in range(3)]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        stack.enter_context(short_requests())
        servers = {}
        for number, port in enumerate(ports, 1):
            own = {
                "server_name": f"n{number}",
                "cluster": {"name": "three", "listen": f"127.0.0.1:{port}", "routes": routes, **cluster},
                **(config or {}),
            }
            servers[f"n{number}"] = stack.enter_context(run_nats_server(jetstream=True, config=own))
        with ThreadPoolExecutor(1) as thread:  # the caller's thread may run a loop
            thread.submit(_wait_until_formed, servers["n1"].url).result()
        yield servers


def make_replicated(url: str, name: str, **config: Any) -> None:
    """Make a stream on all three."""
    asyncio.run(_make(url, StreamConfig(name=name, subjects=(f"{name}.>",), num_replicas=3, **config)))


def _wait_until_formed(url: str) -> None:
    """Wait until the metadata leader is elected and knows all three: a stream can be kept on each."""
    asyncio.run(_make(url, StreamConfig(name="FORMED", subjects=("FORMED",), num_replicas=3), keep=False))


async def _make(url: str, wanted: StreamConfig, *, keep: bool = True) -> None:
    async with await nats.connect(url) as nc, asyncio.timeout(120):
        js = JetStream(nc)
        while True:
            try:
                await js.create_stream(wanted, timeout=5)  # while there is no leader, nobody answers
                if not keep:
                    await js.delete_stream(wanted.name, timeout=60)
                return
            except LiftEnvelopeError:
                await asyncio.sleep(0.1)
