"""Three servers that are one JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import nats

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port


@contextmanager
def three_servers(**cluster: object) -> Iterator[dict[str, NatsServer]]:
    """Yield the servers by name. They need a while to find each other.

    Args:
        cluster: More settings of the servers' cluster.
    """
    ports = [free_port() for _ in range(3)]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        servers = {}
        for number, port in enumerate(ports, 1):
            config = {
                "server_name": f"n{number}",
                "cluster": {"name": "three", "listen": f"127.0.0.1:{port}", "routes": routes, **cluster},
            }
            servers[f"n{number}"] = stack.enter_context(run_nats_server(jetstream=True, config=config))
        yield servers


def make_replicated(url: str, name: str, **config: Any) -> None:
    """Make a stream on all three, as soon as they have found each other."""
    wanted = StreamConfig(name=name, subjects=(f"{name}.>",), num_replicas=3, **config)

    async def make() -> None:
        async with await nats.connect(url) as nc, asyncio.timeout(120):
            while True:
                try:
                    await JetStream(nc).create_stream(wanted, timeout=5)
                    return
                except LiftEnvelopeError:
                    await asyncio.sleep(0.1)

    asyncio.run(make())
