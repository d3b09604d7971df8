"""Ports that nobody uses, for servers that must get the same port back after a restart."""

from __future__ import annotations

import random
import socket
import threading
from typing import Final

from liftenvelope.testing._errors import ServerStartError

__all__ = ["LOOPBACK", "free_port"]

LOOPBACK: Final = "127.0.0.1"

# Below the range from which Linux (32768 and up) and macOS (49152 and up) take the ports of outgoing
# connections: one of those could take the port of a server that is stopped for a moment.
_PORTS: Final = range(20_000, 32_000)

_lock = threading.Lock()
_given: set[int] = set()
# Its own, so that programs under test that seed the global one don't get the same ports in each process.
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port of the loopback interface that is free now, and not given before by this process."""
    with _lock:
        for port in _random.sample(_PORTS, len(_PORTS)):
            if port not in _given and _can_bind(port):
                _given.add(port)
                return port
    raise ServerStartError(f"no free port between {_PORTS.start} and {_PORTS.stop}")


def _can_bind(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
