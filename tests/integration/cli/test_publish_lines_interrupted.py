"""``liftenvelope publish --lines`` while a server is killed, on Ctrl-C, and when nobody reads its records."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest

from liftenvelope.testing import (
    FaultProxy,
    GatewayCluster,
    LiftbridgeCluster,
    NatsServer,
    run_gateway,
    run_liftbridge,
)
from tests.integration.cli.commands import json_of, lines_of, started, text_of


class Lines:
    """A running ``publish --lines --json``, whose standard input stays open."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.records, self.errors = process.stdout, process.stderr
        self._input: IO[bytes] = process.stdin
        self._next = 0

    def send(self, count: int) -> None:
        """Write the next numbers, one per line."""
        lines = range(self._next, self._next + count)
        self._next += count
        self._input.write(b"".join(b"%d\n" % number for number in lines))
        self._input.flush()

    def read(self, count: int) -> list[Any]:
        return [json.loads(self.records.readline()) for _ in range(count)]

    def end(self) -> tuple[list[Any], str, int]:
        """Wait for the end; return the other records, the messages, and the exit code."""
        rest = [json.loads(line) for line in self.records]
        return rest, self.errors.read().decode(), self.process.wait(240)


@contextmanager
def publishing(stream: str, *options: str) -> Iterator[Lines]:
    send = ("publish", stream, "--lines", "--json", *options)
    with started(*send, stdin=subprocess.PIPE) as process:
        yield Lines(process)


@pytest.fixture
def proxy(jetstream_server: NatsServer, name: str) -> Iterator[FaultProxy]:
    """A proxy before a server that has a stream NAME."""
    text_of("stream", "create", name, "--url", jetstream_server.url)
    with FaultProxy(jetstream_server.url) as found:
        yield found
    text_of("stream", "rm", name, "--yes", "--url", jetstream_server.url)


def wait_for_messages(url: str, stream: str, count: int) -> None:
    while json_of("stream", "info", stream, "--url", url)["state"]["messages"] < count:
        pass


@pytest.mark.parametrize("kind", ["liftbridge", "gateway"])
def test_killed_server_leaves_no_line_without_an_outcome(kind: str, name: str) -> None:
    cluster: LiftbridgeCluster | GatewayCluster
    with run_liftbridge() if kind == "liftbridge" else run_gateway() as cluster:
        at = ("--url", f"liftbridge://{cluster.addresses[0]}")
        text_of("stream", "create", name, *at)
        with publishing(name, "--timeout", "10", "--in-flight", "50", *at) as lines:
            lines.send(500)
            acked = lines.read(500)
            cluster.kill()
            lines.send(20)
            rest, errors, code = lines.end()
        assert code == 1
        assert [one["line"] for one in acked + rest] == [*range(1, 501 + len(rest))]
        assert {one["outcome"] for one in acked} == {"acked"}
        assert rest
        assert {one["outcome"] for one in rest} <= {"unknown", "refused"}
        unknown = sum(one["outcome"] == "unknown" for one in rest)
        counts = f"500 acked, {len(rest) - unknown} refused, {unknown} unknown"
        assert f"{counts}. Line {501 + len(rest)} and" in errors
        cluster.start()
        # A message makes Liftbridge commit those before it again: it has lost its high watermark.
        text_of("publish", name, "after", *at)
        *stored, after = lines_of("tail", name, "--start", "earliest", "--no-follow", *at)
        assert after["value"] == "after"
        assert [one["value"] for one in stored] == [str(number) for number in range(len(stored))]
        assert 500 <= len(stored) <= 500 + unknown


@pytest.mark.usefixtures("interruptible")
def test_interrupt_waits_for_lines_in_flight(
    jetstream_server: NatsServer, proxy: FaultProxy, name: str
) -> None:
    with publishing(name, "--url", f"nats://{proxy.address}") as lines:
        lines.send(3)
        assert [one["line"] for one in lines.read(3)] == [1, 2, 3]
        proxy.stall("to_client")
        lines.send(2)
        wait_for_messages(jetstream_server.url, name, 5)
        lines.process.send_signal(signal.SIGINT)
        proxy.delay(0.5, "to_client")
        proxy.resume("to_client")
        rest, errors, code = lines.end()
    assert [(one["line"], one["outcome"]) for one in rest] == [(4, "acked"), (5, "acked")]
    assert "5 acked, 0 refused, 0 unknown. Line 6 and" in errors
    assert code == 130


@pytest.mark.usefixtures("interruptible")
def test_interrupt_tells_lines_without_an_ack(
    jetstream_server: NatsServer, proxy: FaultProxy, name: str
) -> None:
    with publishing(name, "--timeout", "15", "--url", f"nats://{proxy.address}") as lines:
        lines.send(1)
        lines.read(1)
        proxy.stall("to_client")
        lines.send(2)
        wait_for_messages(jetstream_server.url, name, 3)
        lines.process.send_signal(signal.SIGINT)
        rest, errors, code = lines.end()
    assert [(one["line"], one["outcome"]) for one in rest] == [(2, "unknown"), (3, "unknown")]
    assert "1 acked, 0 refused, 2 unknown. Line 4 and" in errors
    assert code == 130


@pytest.mark.usefixtures("interruptible")
def test_second_interrupt_does_not_wait_for_acks(
    jetstream_server: NatsServer, proxy: FaultProxy, name: str
) -> None:
    with publishing(name, "--timeout", "3600", "--url", f"nats://{proxy.address}") as lines:
        lines.send(1)
        lines.read(1)
        proxy.stall("to_client")
        lines.send(1)
        wait_for_messages(jetstream_server.url, name, 2)
        lines.process.send_signal(signal.SIGINT)
        assert b"waiting for the acks of 1 line; Ctrl-C again" in lines.errors.readline()
        lines.process.send_signal(signal.SIGINT)
        assert lines.process.wait(240) == 130
        assert b"Traceback" not in lines.errors.read()


def test_reader_of_the_records_that_leaves_ends_publishing(jetstream_server: NatsServer, name: str) -> None:
    text_of("stream", "create", name, "--url", jetstream_server.url)
    with publishing(name, "--url", jetstream_server.url) as lines:
        lines.send(1)
        lines.read(1)
        lines.records.close()
        lines.send(1)
        assert lines.process.wait(240) == 1
        assert b"Traceback" not in lines.errors.read()
