"""Three servers that are one JetStream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from liftenvelope.testing import NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port


@contextmanager
def three_servers() -> Iterator[dict[str, NatsServer]]:
    """Them by their names. They need a while to find each other."""
    ports = [free_port() for _ in range(3)]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        servers = {}
        for number, port in enumerate(ports, 1):
            config = {
                "server_name": f"n{number}",
                "cluster": {"name": "three", "listen": f"127.0.0.1:{port}", "routes": routes},
            }
            servers[f"n{number}"] = stack.enter_context(run_nats_server(jetstream=True, config=config))
        yield servers
