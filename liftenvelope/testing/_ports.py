"""Reserves free loopback ports across processes, for servers that must keep theirs.

A port is reserved by binding the UDP port of the same number, which none of our servers uses. The kernel
gives that port to one process at a time, whatever its user, and releases it when the process ends, also by
SIGKILL. So no lock file can be left behind, or be blocked by another user.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
from itertools import chain
from typing import Final

from liftenvelope.testing._errors import ServerStartError

__all__ = ["LOOPBACK", "free_port", "release_port"]

LOOPBACK: Final = "127.0.0.1"

# Below the ephemeral ports of Linux (32768 and up) and macOS (49152 and up): an outgoing connection could
# otherwise take the port of a server that is stopped for a moment.
_PORTS = range(20_000, 32_000)

_lock = threading.Lock()
#: File descriptors of the UDP sockets that reserve ports for this process, by port.
_reserved: dict[int, int] = {}
# A separate generator, so that programs that seed the global one do not get the same ports in each process.
_random = random.SystemRandom()


def free_port() -> int:
    """Reserve a free port and return it.

    No other process of this package gets the port before :func:`release_port` or the end of this process. An
    unrelated program can still take the port, so check that a server started on it listens there.

    Raises:
        ServerStartError: Every port of the range is in use or reserved.
    """
    with _lock:
        # A random port, or the next free one. To shuffle the whole range took 25 ms for each server.
        first = _random.randrange(len(_PORTS))
        for port in chain(_PORTS[first:], _PORTS[:first]):
            if port not in _reserved and _reserve(port):
                return port
    raise ServerStartError(f"no free port between {_PORTS.start} and {_PORTS.stop}; stop other servers")


def release_port(port: int) -> None:
    """Release a reserved port. Does nothing for other ports."""
    with _lock:
        descriptor = _reserved.pop(port, None)
    if descriptor is not None:
        os.close(descriptor)


def _reserve(port: int) -> bool:
    with socket.socket(type=socket.SOCK_DGRAM) as holder:
        if not _bind(holder, port):
            return False
        with socket.socket() as listener:
            # As servers do. The bind still fails if another server listens.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not _bind(listener, port):
                return False
        _reserved[port] = holder.detach()
        return True


def _bind(endpoint: socket.socket, port: int) -> bool:
    try:
        endpoint.bind((LOOPBACK, port))
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            return False
        raise ServerStartError(f"can't bind port {port} of {LOOPBACK}: {exc}") from exc
    return True


def _forget_in_child() -> None:
    """Leave the reservations to the parent: a forked child that kept them open would extend them."""
    for descriptor in _reserved.values():
        os.close(descriptor)
    _reserved.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_in_child)
