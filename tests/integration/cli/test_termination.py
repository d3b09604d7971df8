"""SIGTERM ends a command at once, also one that waits for its input."""

from __future__ import annotations

import array
import fcntl
import subprocess
import termios
import time
from typing import IO

from liftenvelope.testing import NatsServer
from tests.integration.cli.commands import started, text_of


def unread(pipe: IO[bytes]) -> int:
    """Return the number of bytes in a pipe."""
    found = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def test_command_that_waits_for_its_input_ends(jetstream_server: NatsServer, name: str) -> None:
    at = ("--url", jetstream_server.url)
    text_of("stream", "create", name, *at)
    with started("publish", name, "--file", "-", *at, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"the beginning of a value")
        process.stdin.flush()
        while unread(process.stdin):
            time.sleep(0.01)
        process.terminate()
        assert process.wait(60) == 143
        assert process.stderr is not None
        assert process.stderr.read() == b""
