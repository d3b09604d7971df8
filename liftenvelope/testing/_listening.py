"""Asks the kernel which process listens on a port, to prove that a server that answers is our own.

A server's own answers prove nothing: two runs use the same ids, and servers that share a NATS server list
each other. Only the process that holds the listening socket answers on its port.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from liftenvelope.testing._ports import LOOPBACK

__all__ = ["is_listening"]

_LISTEN: Final = "0A"
_LSOF_TIMEOUT: Final = 60.0
_LOOPBACKS: Final = ((socket.AF_INET, LOOPBACK), (socket.AF_INET6, "::1"))
# The kernel answers at once, unless more connections wait than the server wants to hold.
_CONNECT_TIMEOUT: Final = 1.0


def is_listening(leader: int, port: int) -> bool:
    """Return True if a process in the session of ``leader`` listens on a TCP port of the loopback interface.

    The whole session counts, because the program given as the server can be a script that starts the server.

    If the system can't tell, the result is True: on Linux for a process whose files may not be read, and on
    other systems without ``lsof``.
    """
    try:
        # The kernel's table of sockets takes milliseconds, too long for each poll of a server that starts.
        # The price is a connection at the server that ends without a byte, once it listens.
        if not _accepts(port):
            return False
        return _linux(leader, port) if sys.platform == "linux" else _lsof(leader, port)
    except PermissionError:
        return True
    except OSError:
        return False  # the process ended meanwhile


def _accepts(port: int) -> bool:
    for family, host in _LOOPBACKS:
        try:
            connection = socket.socket(family)
        except OSError:
            continue  # a kernel without IPv6
        with connection:
            connection.settimeout(_CONNECT_TIMEOUT)
            if connection.connect_ex((host, port)) != 0:
                continue
            # If nobody listens on a port of the ephemeral range, the kernel may choose it as the port of this
            # socket, which then meets itself. The server can't bind the port until the socket is closed.
            if connection.getsockname() != connection.getpeername():
                return True
    return False


def _linux(leader: int, port: int) -> bool:
    return any(_is_held(leader, found) for found in _listening_sockets(leader, port))


def _is_held(leader: int, found: str) -> bool:
    # Other processes are only inspected if the leader does not hold the socket.
    return _has(leader, found) or any(
        _has(pid, found) for pid in _processes() if pid != leader and _session(pid) == leader
    )


def _listening_sockets(pid: int, port: int) -> Iterator[str]:
    """Yield the sockets that listen on a port, as named in ``/proc/PID/fd``. See proc(5).

    A table begins with the listening sockets. The kernel takes milliseconds for the others, which are read
    only if they are asked for.
    """
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        if table == "tcp6" and not path.exists():
            continue  # a kernel without IPv6
        with path.open(encoding="ascii") as lines:
            next(lines)
            for line in lines:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                    yield f"socket:[{inode}]"


def _has(pid: int, wanted: str) -> bool:
    return any(_target(file) == wanted for file in Path(f"/proc/{pid}/fd").iterdir())


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # closed meanwhile


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


def _lsof(leader: int, port: int) -> bool:
    command = ["lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-t"]
    try:
        run = subprocess.run(  # noqa: S603 - every argument is our own
            command,
            capture_output=True,
            text=True,
            timeout=_LSOF_TIMEOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return True
    return any(_session(int(pid)) == leader for pid in run.stdout.split())
