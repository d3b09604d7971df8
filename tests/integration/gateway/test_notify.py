"""States for systemd through a real socket that is full for a time."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from liftenvelope.gateway.notify import notify
from tests.integration.conftest import until


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of systemd, full of messages of the watchdog."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(str(tmp_path / "notify"))
        receiving.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    sending.sendto(b"old", str(tmp_path / "notify"))
        yield receiving


def received(told: socket.socket) -> list[str]:
    """Take what is in the socket, but for the old messages."""
    found = []
    while True:
        try:
            found.append(told.recv(4096).decode())
        except BlockingIOError:
            return [one for one in found if one != "old"]


async def test_states_are_sent_again_in_their_order(
    told: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        notify("READY=1", "STATUS=serving")
        notify("WATCHDOG=1")
        assert received(told) == []
        notify("STOPPING=1")  # there is room, but READY comes first
        found: list[str] = []

        def all_sent() -> bool:
            found.extend(received(told))
            return len(found) == 2

        await until(all_sent)
    assert found == ["READY=1\nSTATUS=serving", "STOPPING=1"]
    assert [one for one in caplog.records if one.name.startswith("liftenvelope")] == []


async def test_socket_that_is_gone_meanwhile_is_logged(
    told: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    notify("READY=1")
    os.unlink(os.environ["NOTIFY_SOCKET"])
    await until(lambda: "could not tell systemd the last states" in caplog.text)
