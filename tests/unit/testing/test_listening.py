"""How a test server's port is tried before the kernel's table of sockets is read."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from liftenvelope.testing._listening import is_listening


class _MeetsItself(socket.socket):
    """A socket that gets the port that it connects to, as the kernel may choose it in the ephemeral range."""

    def connect_ex(self, address: Any) -> int:
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(address)
        return super().connect_ex(address)


# Waits for the end of its input with the socket open.
_LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def _listening_process() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a process that listens, in a session of its own as every test server is."""
    command = [sys.executable, "-c", _LISTENER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def test_connection_that_meets_itself_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    monkeypatch.setattr("liftenvelope.testing._listening._linux", lambda *_: True)
    monkeypatch.setattr("liftenvelope.testing._listening._lsof", lambda *_: True)
    monkeypatch.setattr(socket, "socket", _MeetsItself)
    assert not is_listening(os.getpid(), port)


def test_process_that_listens_is_found() -> None:
    with _listening_process() as (process, port):
        assert is_listening(process.pid, port)
        assert not is_listening(os.getpid(), port)
    assert not is_listening(process.pid, port)
