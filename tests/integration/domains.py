"""Two NATS servers with a JetStream domain each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from liftenvelope.testing import NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port


@contextmanager
def hub_and_leaf(folder: Path) -> Iterator[tuple[NatsServer, NatsServer]]:
    """A hub, and a leaf node of it; both have JetStream, in the domains ``hub`` and ``leaf``."""
    port = free_port()

    def jetstream(domain: str) -> dict[str, str]:
        return {"domain": domain, "store_dir": str(Path(folder, domain))}

    listening = {"listen": f"127.0.0.1:{port}"}
    remote = {"remotes": [{"url": f"nats://127.0.0.1:{port}"}]}
    with (
        run_nats_server(
            jetstream=True, config={"server_name": "h", "jetstream": jetstream("hub"), "leafnodes": listening}
        ) as hub,
        run_nats_server(
            jetstream=True, config={"server_name": "l", "jetstream": jetstream("leaf"), "leafnodes": remote}
        ) as leaf,
    ):
        yield hub, leaf
