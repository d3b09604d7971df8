"""``liftenvelope top``, in a pseudo-terminal and without a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from liftenvelope.cli._connecting.servers import find_servers
from liftenvelope.group.calls import DEFAULT_PREFIX
from liftenvelope.monitor import Collector
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer, run_nats_server
from tests.integration.cli.commands import error_of, json_of, run, started, text_of

#: Makes standard input the controlling terminal, so that it turns Ctrl-C into a signal, and runs the command.
#: The signal is ignored from birth if the tests run in the background of a shell.
IN_OWN_SESSION = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "liftenvelope", *sys.argv[1:]])
"""


class Terminal:
    """A pseudo-terminal with a command in it."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.master = master
        self.process = process
        self.seen = b""

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def until(self, text: bytes) -> None:
        """Read until the text has been written after the last one that was waited for."""
        deadline = time.monotonic() + 240
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-2_000:]
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536)
        self.seen = self.seen.partition(text)[2]


@contextmanager
def in_terminal(*arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    before = termios.tcgetattr(slave)

    process = subprocess.Popen(
        [sys.executable, "-c", IN_OWN_SESSION, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "LINES": "40"},
    )
    try:
        yield Terminal(master, process)
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize(("keys", "status"), [(b"q", 0), (b"\x03", 130)])
def test_live_screen_follows_keys_and_restores_the_terminal(
    jetstream_server: NatsServer, name: str, keys: bytes, status: int
) -> None:
    url = ("--url", jetstream_server.url)
    text_of("stream", "create", name, *url)
    with in_terminal("top", "--interval", "200ms", *url, "--timeout", "60") as terminal:
        terminal.until(b"\x1b[?1049h")
        terminal.until(b"sorted by rate")
        terminal.press(b"s")
        terminal.until(b"sorted by messages")
        terminal.press(b"s")
        terminal.until(b"sorted by name")
        terminal.press(keys)
        terminal.until(b"\x1b[?1049l")
        assert terminal.process.wait(240) == status


@pytest.mark.parametrize("kind", ["jetstream", "liftbridge", "gateway"])
def test_one_screen_without_a_terminal(request: pytest.FixtureRequest, kind: str, name: str) -> None:
    server: NatsServer | LiftbridgeCluster | GatewayCluster = request.getfixturevalue(f"{kind}_server")
    address = server.url if isinstance(server, NatsServer) else f"liftbridge://{server.addresses[0]}"
    url = ("--url", address, "--interval", "100ms")
    text_of("stream", "create", name, "--url", address)
    text_of("publish", name, "x", "--count", "3", "--url", address)
    shown = text_of("top", *url)
    assert name in shown
    assert "\x1b" not in shown
    (stream,) = [one for one in json_of("top", "--once", *url)["streams"] if one["stream"] == name]
    assert (stream["recorded"], stream["rate"]) == (3, 0)


def test_narrow_screen_cuts_names_and_no_numbers(jetstream_server: NatsServer, name: str) -> None:
    url = ("--url", jetstream_server.url)
    text_of("stream", "create", name, *url)
    text_of("consumer", "create", name, "reader-with-a-long-name", *url)
    text_of("publish", name, "x", "--count", "1234", *url)
    done = run("top", "--once", "--interval", "100ms", *url, COLUMNS="40")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 40
    assert [line for line in lines if line.startswith("kind") and line.endswith("lag")]
    assert [line for line in lines if line.startswith("consumer  reader-…") and line.endswith("1,234")]


def test_json_has_one_line_per_sample(jetstream_server: NatsServer) -> None:
    call = ("top", "--json", "--interval", "50ms", "--url", jetstream_server.url, "--timeout", "60")
    with started(*call) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert lines[0]["at"] < lines[1]["at"] < lines[2]["at"]


async def test_json_goes_on_while_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    command = importlib.import_module("liftenvelope.cli.top")
    lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    monkeypatch.setattr(command, "echo_json", lines.put_nowait)
    async with asyncio.timeout(240), asyncio.TaskGroup() as group:
        with run_nats_server(jetstream=True) as server:
            servers = find_servers(server.url, None, 60)
            collector = Collector(
                lambda: command._sampler(servers, DEFAULT_PREFIX), kind="jetstream", interval=0.05
            )
            tasks = [
                group.create_task(collector.run()),
                group.create_task(command._print(collector, "here", False, True)),
            ]
            assert not _has_lost(await lines.get())
            monkeypatch.setattr("liftenvelope.monitor.jetstream._PAGE", 0.5)  # a sample fails soon
            await asyncio.to_thread(server.stop)
            while not _has_lost(await lines.get()):
                pass
            await asyncio.to_thread(server.start)
            while _has_lost(await lines.get()):
                pass
            for task in tasks:
                task.cancel()


def _has_lost(sample: dict[str, Any]) -> bool:
    return any("sampling of connection failed" in one["text"] for one in sample["alerts"])


def test_sigterm_closes_the_connections(jetstream_server: NatsServer) -> None:
    """Repeated, because a signal at some moments left them open and at others did not."""
    words = ["top", "--json", "--interval", "50ms", "--url", jetstream_server.url, "--timeout", "60"]
    line = [sys.executable, "-W", "default", "-m", "liftenvelope", *words]
    for _ in range(6):
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())
            process.terminate()
            _, errors = process.communicate(timeout=240)
        assert (process.returncode, errors) == (143, "")


def test_no_server() -> None:
    assert "can't connect to NATS" in error_of("top", "--url", "nats://127.0.0.1:1", "--timeout", "2")
