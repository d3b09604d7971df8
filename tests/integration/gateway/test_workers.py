"""``liftenvelope serve --workers``: several gateways of one program, which starts and stops them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import liftenvelope
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.testing import NatsServer, run_nats_server
from liftenvelope.testing._ports import _reserve, free_port, release_port
from tests.handled import handled
from tests.integration.certificates import Certificates
from tests.integration.conftest import connect, until

from .http_client import Samples, get, scrape
from .program_log import unexpected
from .test_reload import handshake, options

LINE = re.compile(r"serving the Liftbridge API on (\S+), with the streams of (nats://\S+).*\n")
SERVE = (sys.executable, "-W", "error", "-m", "liftenvelope", "serve", "--workers", "2")


@pytest.fixture(scope="module")
def jetstream_server() -> Iterator[NatsServer]:
    """A server of this file's own: workers that are killed count as alive for the gateways of other tests."""
    with run_nats_server(jetstream=True) as server:
        yield server


class Program:
    """``liftenvelope serve --workers 2`` as a process.

    Attributes:
        http: Address of its HTTP server.
        addresses: Those of the workers.
        url: URL of the NATS server.
    """

    def __init__(self, process: Process, log: Path, http: str, line: re.Match[str]) -> None:
        self.process = process
        self._log = log
        self.http = http
        self.addresses = line[1].split(",")
        self.url = line[2]

    def log(self) -> str:
        return self._log.read_text()

    def worker_pid(self, number: int) -> int:
        """Return the process id of a worker that runs."""
        [found] = [pid for pid, worker in children(self.process.pid).items() if worker == number]
        return found

    async def samples(self, wanted: Any) -> Samples:
        """Scrape until the metrics are as wanted."""
        async with asyncio.timeout(240):
            while not wanted(found := await scrape(self.http)):
                await asyncio.sleep(0.05)
        return found

    async def stopped(self) -> None:
        """Send SIGTERM, and see that it ends as it should."""
        self.process.terminate()
        async with asyncio.timeout(240):
            assert await self.process.wait() == 0, self.log()
        assert unexpected(self.log()) == []


def children(parent: int) -> dict[int, int]:
    """Return the numbers of the workers of a process, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if above == parent and b"liftenvelope.cli._serving.worker" in arguments:
                found[int(folder.name)] = int(arguments[-2])
    return found


def two_ports() -> int:
    """Reserve two free ports, one after the other; return the first."""
    while True:
        port = free_port()
        if _reserve(port + 1):
            return port
        release_port(port)


@asynccontextmanager
async def program(folder: Path, *arguments: str, **variables: str) -> AsyncIterator[Program]:
    """Run the program until the block ends."""
    http, log, listen = f"127.0.0.1:{free_port()}", folder / "log", f"127.0.0.1:{two_ports()}"
    with log.open("a") as errors:
        process = await asyncio.create_subprocess_exec(
            *(*SERVE, "--listen", listen, "--http", http, "--drain", "60", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **variables},
        )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        match = LINE.fullmatch(line)
        assert match is not None, line + log.read_text()
        assert f"serving health and metrics on http://{http}\n" in log.read_text()
        yield Program(process, log, http, match)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextmanager
def systemd(address: Path) -> Iterator[list[list[str]]]:
    """Yield what a program tells systemd; it is whole after the block.

    A thread takes the messages: the socket holds 10 of them, and further ones fail.
    """
    states: list[list[str]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(address))

        def take() -> None:
            while message := told.recv(4096):
                states.append(message.decode().splitlines())

        taking = Thread(target=take)
        taking.start()
        try:
            yield states
        finally:
            told.sendto(b"", str(address))
            taking.join()


async def test_workers_share_the_streams_and_one_port_tells_about_all(
    tmp_path: Path, jetstream_server: NatsServer, name: str
) -> None:
    with systemd(tmp_path / "notify") as states:
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        arguments = ("--nats", jetstream_server.url, "--id", name)
        async with program(tmp_path, *arguments, **variables) as served:
            async with liftenvelope.connect(served.addresses[:1]) as client:
                await client.create_stream(name, name, partitions=32)
                for partition in range(32):
                    await client.publish(name, b"%d" % partition, partition=partition)
                brokers = (await client.fetch_metadata()).brokers
                assert [brokers[f"{name}-{number}"].address for number in (1, 2)] == served.addresses
                led = await served.samples(lambda found: found["partitions_led", "2"] > 0)
                assert led["partitions_led", "1"] > 0
                assert sum(led[metric] for metric in led if metric[0] == "publishes_total") == 32
                assert {led[metric, worker] for metric in ("ready", "worker_up") for worker in "12"} == {1}
                assert led["process_open_fds", "1"] > 5
                await client.delete_stream(name)
            async with asyncio.timeout(240):
                # It tells what each worker said when it was last asked, maybe before that was ready.
                while (await get(served.http, "/readyz")).body != "ready\n":
                    await asyncio.sleep(0.05)
            await served.stopped()
    assert states.count(["WATCHDOG=1"]) >= 2
    status = f"STATUS=serving on {', '.join(served.addresses)}"
    assert [state for state in states if state != ["WATCHDOG=1"]] == [
        ["READY=1", status],
        ["STOPPING=1", "STATUS=draining, for at most 60.0 s"],
    ]


async def test_killed_worker_is_back_at_its_address_and_no_acked_message_is_lost(
    tmp_path: Path, jetstream_server: NatsServer, name: str
) -> None:
    going, acked = True, list[tuple[int, bytes]]()

    async def publish(client: Any) -> None:
        number = 0
        while going:
            value = b"%d" % number
            with suppress(liftenvelope.LiftEnvelopeError):
                await client.publish(name, value, partition=number % 8)
                acked.append((number % 8, value))
            number += 1

    async with program(tmp_path, "--nats", jetstream_server.url, "--id", name) as served:
        async with liftenvelope.connect(served.addresses) as client:
            await client.create_stream(name, name, partitions=8)
            publishing = asyncio.create_task(publish(client))
            await until(lambda: len(acked) > 100)
            before, pid = len(acked), served.worker_pid(2)
            os.kill(pid, signal.SIGKILL)
            found = await served.samples(
                lambda found: found["worker_up", "2"] == 1 == found["worker_restarts_total", "2"]
            )
            assert found["worker_restarts_total", "1"] == 0
            assert "worker 2 has ended, and starts again in" in served.log()
            assert served.worker_pid(2) != pid
            await until(lambda: len(acked) > before + 100)
            going = False
            await publishing
            await served.samples(lambda found: found["brokers", "1"] == found["brokers", "2"] == 2)
            brokers = (await client.fetch_metadata()).brokers
            assert [brokers[f"{name}-{number}"].address for number in (1, 2)] == served.addresses
            read = set[tuple[int, bytes]]()
            for partition in range(8):
                async with client.subscribe(
                    name, partition=partition, start="earliest", stop="latest"
                ) as stored:
                    read |= {(partition, message.value) async for message in stored}
            assert set(acked) <= read
            await client.delete_stream(name)
        await served.stopped()


async def test_nothing_outlives_a_killed_supervisor(tmp_path: Path, name: str) -> None:
    ports = ("--data-dir", str(tmp_path / "data"), "--nats-listen", f"127.0.0.1:{free_port()}")
    async with program(tmp_path, *ports) as served:
        async with liftenvelope.connect(served.addresses) as client:
            await client.create_stream(name, name)
            first = await client.publish(name, b"first")
            assert first is not None
            assert first.offset == 0
        pids = children(served.process.pid)
        assert sorted(pids.values()) == [1, 2]
        served.process.kill()
        await until(lambda: not any(is_alive(pid) for pid in pids))
        # A process counts as a zombie while its last thread still closes the sockets.
        await until(lambda: not any(map(is_taken, served.addresses)))
    # The next one uses the folder and the port of the nats-server again.
    async with program(tmp_path, *ports) as served:
        async with liftenvelope.connect(served.addresses) as client:
            second = await client.publish(name, b"second")
            assert second is not None
            assert second.offset == 1
        await served.stopped()


def is_taken(address: str) -> bool:
    """Return whether a program accepts connections at an address."""
    with socket.socket() as calling:
        return calling.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0


def is_alive(pid: int) -> bool:
    """Return whether a process runs: an orphan that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_every_stored_message_is_acked_when_all_workers_stop(tmp_path: Path, name: str) -> None:
    ports = ("--data-dir", str(tmp_path / "data"), "--nats-listen", f"127.0.0.1:{free_port()}")
    async with program(tmp_path, *ports) as served:
        async with liftenvelope.connect(served.addresses) as client:
            await client.create_stream(name, name, partitions=4)
        nc = await connect(served.url)
        inbox, acked = nc.new_inbox(), set[str]()

        async def note(msg: Any) -> None:
            acked.add(unmarshal_ack(msg.data).correlation_id)

        await nc.subscribe(inbox, cb=note)
        subjects = [name, *(f"{name}.{partition}" for partition in range(1, 4))]
        ids = {f"{subject}/{number}": subject for number in range(5_000) for subject in subjects}
        for id_, subject in ids.items():
            await nc.publish(subject, new_message(b"x", ack_inbox=inbox, correlation_id=id_))
        await handled(nc)
        await served.stopped()
        await until(lambda: not nc.is_connected)
    assert acked == set(ids)


async def test_sighup_makes_all_workers_use_new_certificates(
    tmp_path: Path, jetstream_server: NatsServer
) -> None:
    old = Certificates(tmp_path)
    async with program(tmp_path, "--nats", jetstream_server.url, *options(old)) as served:
        before = [await handshake(address, old.anonymous()) for address in served.addresses]
        for path in tmp_path.glob("*.pem"):
            path.unlink()
        new = Certificates(tmp_path)
        served.process.send_signal(signal.SIGHUP)
        await until(lambda: served.log().count("reloaded the certificates") == 2)
        after = [await handshake(address, new.anonymous()) for address in served.addresses]
        assert not set(before) & set(after)
        await served.stopped()


async def test_worker_that_does_not_reload_in_time_is_logged(
    tmp_path: Path, jetstream_server: NatsServer
) -> None:
    async with program(tmp_path, "--nats", jetstream_server.url, *options(Certificates(tmp_path))) as served:
        pid = served.worker_pid(2)
        os.kill(pid, signal.SIGSTOP)
        served.process.send_signal(signal.SIGHUP)
        await until(lambda: "worker 2 did not reload its certificates and policy" in served.log())
        os.kill(pid, signal.SIGCONT)
        assert "worker 1 did not reload" not in served.log()
        await until(lambda: served.log().count("reloaded the certificates") == 2)
        await served.stopped()


async def test_worker_that_ends_before_it_reloads_is_not_logged_as_late(
    tmp_path: Path, jetstream_server: NatsServer
) -> None:
    async with program(tmp_path, "--nats", jetstream_server.url, *options(Certificates(tmp_path))) as served:
        pid = served.worker_pid(2)
        os.kill(pid, signal.SIGSTOP)
        served.process.send_signal(signal.SIGHUP)
        await until(lambda: served.log().count("reloaded the certificates") == 1)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: "worker 2 has ended, and starts again" in served.log())
        assert "did not reload" not in served.log()
        await served.stopped()


async def test_port_of_a_worker_that_is_taken_is_one_line(jetstream_server: NatsServer) -> None:
    port = two_ports()
    with socket.create_server(("127.0.0.1", port + 1)):
        process = await asyncio.create_subprocess_exec(
            *(*SERVE, "--nats", jetstream_server.url, "--listen", f"127.0.0.1:{port}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(240):
            output, errors = await process.communicate()
    *_, error = errors.decode().splitlines()
    assert error == f"Error: can't listen on 127.0.0.1:{port + 1}: address already in use"
    assert (process.returncode, output) == (1, b"")
    assert "Traceback" not in errors.decode()
