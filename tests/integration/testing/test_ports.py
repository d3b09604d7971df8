"""Ports of test servers: reserved across processes, and never shared with a stranger."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from liftenvelope.errors import UsageError
from liftenvelope.testing import (
    FaultProxy,
    ServerStartError,
    _ports,
    run_gateway,
    run_liftbridge,
    run_nats_server,
)
from tests.integration.certificates import Certificates
from tests.integration.conftest import wait_until

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture
def small_range(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], range]:
    """Leaves so many ports to choose from: a block that nobody uses, so far as can be seen."""

    def narrow(size: int) -> range:
        # No server of other tests is here, and no connection: Linux gives them ports from 32,768 on.
        for first in range(32_000, 32_768 - size, size):
            block = range(first, first + size)
            with monkeypatch.context() as patch:
                patch.setattr(_ports, "_PORTS", block)
                if all_are_free(size):
                    break
        else:
            pytest.fail(f"no {size} free ports in a row")
        monkeypatch.setattr(_ports, "_PORTS", block)
        return block

    return narrow


def all_are_free(size: int) -> bool:
    taken: list[int] = []
    try:
        taken.extend(_ports.free_port() for _ in range(size))
    except ServerStartError:
        return False
    finally:
        for port in taken:
            _ports.release_port(port)
    return True


@contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another process, killed at the end, that has printed its first line."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


HOLD = """
import sys
from liftenvelope.testing import _ports
_ports._PORTS = range(int(sys.argv[1]), int(sys.argv[2]))
print(*[_ports.free_port() for _ in _ports._PORTS], flush=True)
sys.stdin.read()
"""


def test_reserved_port_is_not_given_to_another_process_until_its_owner_is_killed(
    small_range: Callable[[int], range],
) -> None:
    block = small_range(2)
    with python(HOLD, block.start, block.stop) as owner:
        assert sorted(map(int, line(owner).split())) == list(block)
        with pytest.raises(ServerStartError, match=f"no free port between {block.start} and {block.stop}"):
            _ports.free_port()
        owner.kill()
        owner.wait()
        port = _ports.free_port()
        assert port in block
        _ports.release_port(port)


def test_released_port_can_be_reserved_again(small_range: Callable[[int], range]) -> None:
    (only,) = small_range(1)
    for _ in range(3):
        assert _ports.free_port() == only
        with pytest.raises(ServerStartError, match="no free port"):
            _ports.free_port()
        _ports.release_port(only)
        _ports.release_port(only)


def test_stopped_server_keeps_its_port_until_it_is_closed(small_range: Callable[[int], range]) -> None:
    (only,) = small_range(1)
    with run_nats_server() as server:
        assert server.port == only
        server.stop()
        with pytest.raises(ServerStartError, match="no free port"), run_nats_server():
            pass
        server.start()
        assert server.port == only
    with run_nats_server() as server:
        assert server.port == only


def test_refusing_proxy_keeps_its_port_until_it_is_closed(small_range: Callable[[int], range]) -> None:
    (only,) = small_range(1)
    with FaultProxy("127.0.0.1:1") as proxy:
        proxy.refuse()
        with pytest.raises(ServerStartError, match="no free port"):
            _ports.free_port()
        proxy.accept()
        assert proxy.port == only
    with FaultProxy("127.0.0.1:1") as proxy:
        assert proxy.port == only


@pytest.mark.parametrize(("kind", "processes", "rounds"), [("nats", 6, 4), ("gateway", 2, 1)])
def test_processes_that_share_a_few_ports_get_their_own_servers(
    small_range: Callable[[int], range], kind: str, processes: int, rounds: int
) -> None:
    # A gateway has a nats-server as well, so that at most one or two ports are left at any time.
    block = small_range(processes * (1 if kind == "nats" else 2) + 1)
    command = [sys.executable, "-m", "tests.integration.testing.port_worker", kind]
    arguments = map(str, (block.start, block.stop, rounds))
    command = [*command, *arguments]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
                )
            )
            for _ in range(processes)
        ]
        said = [worker.communicate()[0].strip() for worker in workers]
    assert said == [str(rounds)] * processes


def test_nats_server_of_another_run_with_the_same_name_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"server_name": "same"}
    with run_nats_server(config=config) as stranger:
        choose(monkeypatch, "_nats", stranger.port)
        with run_nats_server(config=config) as server:
            assert server.port != stranger.port
            pid = stranger.pid
            server.kill()
            assert stranger.pid == pid


def choose(monkeypatch: pytest.MonkeyPatch, module: str, *ports: int) -> None:
    """Have a module choose these ports first, as if somebody had taken them in the moment since."""
    chosen, real = iter(ports), _ports.free_port
    monkeypatch.setattr(f"liftenvelope.testing.{module}.free_port", lambda: next(chosen, None) or real())


def test_liftbridge_server_of_another_run_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    config, tls = certificates.liftbridge_config, certificates.client("app")
    with run_liftbridge(config=config, tls=tls) as stranger:
        choose(monkeypatch, "_cluster", stranger.nodes[0].port)
        with run_liftbridge(config=config, tls=tls) as cluster:
            assert cluster.addresses != stranger.addresses
            cluster.create_stream("mine")
            stranger.create_stream("mine")  # it would exist


def test_gateway_of_another_run_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_gateway() as stranger:
        choose(monkeypatch, "_cluster", stranger.nodes[0].port)
        with run_gateway() as cluster:
            assert not {*cluster.addresses} & {*stranger.addresses}
            cluster.create_stream("mine")
            stranger.create_stream("mine")


def test_three_liftbridge_servers_leave_taken_ports_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_gateway() as stranger:
        choose(monkeypatch, "_cluster", stranger.nodes[0].port, stranger.nodes[0].port)
        with run_liftbridge(nodes=3) as cluster:
            assert stranger.addresses[0] not in cluster.addresses
            cluster.create_stream("mine", replication_factor=3, timeout=120)


def test_server_whose_port_was_taken_while_it_was_stopped_does_not_start() -> None:
    with run_nats_server() as server:
        server.stop()
        with (
            run_nats_server(port=server.port, config={"server_name": "stranger"}),
            pytest.raises(ServerStartError, match="address already in use") as info,
        ):
            server.start()
        # The log of this start, not that of the first.
        assert "Server is ready" not in str(info.value)
        server.start()


FORK = """
import os, sys
from liftenvelope.testing import _ports, run_nats_server
_ports._PORTS = range(int(sys.argv[1]), int(sys.argv[2]))
with run_nats_server() as server:
    done, told = os.pipe()
    if not os.fork():
        # What belongs to the parent can't be started, stopped or removed; servers of its own can.
        server.kill()
        server.close()
        try:
            server.start()
        except Exception as exc:
            print(type(exc).__name__, flush=True)
        with run_nats_server() as other:
            print(other.port, flush=True)
        os.write(told, b"-")
        os.read(0, 1)  # it lives on until the test ends
        os._exit(0)
    os.read(done, 1)
    print(server.is_running, server._folder.exists(), server.pid, server._folder, server.port, flush=True)
    if sys.argv[3] == "close":
        server.close()
        print(sorted(_ports.free_port() for _ in _ports._PORTS), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["close", "kill"])
def test_forked_child_leaves_the_servers_and_ports_of_its_parent_alone(
    small_range: Callable[[int], range], how: str
) -> None:
    block = small_range(2)
    with python(FORK, block.start, block.stop, how) as parent:
        assert line(parent) == UsageError.__name__
        childs = int(line(parent))
        running, exists, _, folder, port = line(parent).split()
        assert (running, exists) == ("True", "True")
        assert {childs, int(port)} == {*block}
        if how == "close":
            assert line(parent) == str(list(block))
        else:
            parent.kill()
            parent.wait()
            # The child lives on, and does not keep the server.
            wait_until(lambda: not Path(folder).exists())
            wait_until(lambda: all_are_free(2))
