"""A process that starts servers on ports of a small range: ``python -m`` with kind, range and rounds.

Each server must be the process's own, before and after a restart, while other workers do the same. Prints the
number of rounds at the end.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from liftenvelope.testing import _ports, run_gateway, run_nats_server


def server_name(port: int) -> str:
    """Return the server name of the nats-server on a port."""
    with socket.create_connection((_ports.LOOPBACK, port), timeout=60) as connection:
        line = connection.makefile("rb").readline()
    return str(json.loads(line[5:])["server_name"])


def start_nats() -> None:
    """Start a nats-server with a name of its own, and look for that name."""
    with run_nats_server() as server:
        port = server.port
        lines = (server._folder / "nats-server.conf").read_text().splitlines()
        [name] = [json.loads(line.partition(": ")[2]) for line in lines if line.startswith("server_name: ")]
        assert server_name(port) == name
        server.stop()
        server.start()
        assert server.port == port
        assert server_name(port) == name


def start_gateway() -> None:
    """Start a gateway and make a stream, which only this gateway can have."""
    with run_gateway() as cluster:
        port, name = cluster.nodes[0].port, Path(cluster._folder).name
        cluster.create_stream(name)
        cluster.nodes[0].kill()
        cluster.start()
        assert cluster.nodes[0].port == port
        assert cluster.partition_metadata(name).newestOffset == -1


def main() -> None:
    """Start as many servers as the arguments say, one after the other."""
    kind, first, last, rounds = sys.argv[1], *map(int, sys.argv[2:])
    _ports._PORTS = range(first, last)
    for _ in range(rounds):
        start_nats() if kind == "nats" else start_gateway()
    print(rounds)


if __name__ == "__main__":
    main()
