"""How a test server's port is tried before the kernel's table of sockets is read."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from liftenvelope.testing._listening import is_listening


class _MeetsItself(socket.socket):
    """A socket that gets the port that it connects to, as the kernel may choose it in the ephemeral range."""

    def connect_ex(self, address: Any) -> int:
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(address)
        return super().connect_ex(address)


def test_connection_that_meets_itself_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    monkeypatch.setattr("liftenvelope.testing._listening._linux", lambda *_: True)
    monkeypatch.setattr("liftenvelope.testing._listening._lsof", lambda *_: True)
    monkeypatch.setattr(socket, "socket", _MeetsItself)
    assert not is_listening(os.getsid(0), port)


def test_process_that_listens_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_listening(os.getsid(0), port)
    assert not is_listening(os.getsid(0), port)
