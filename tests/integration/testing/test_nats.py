"""run_nats_server, with real servers."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import nats
import pytest

from liftenvelope.errors import UsageError
from liftenvelope.testing import NatsServer, ServerStartError, run_nats_server
from tests.integration.conftest import wait_until


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    # Killed, but nobody has asked yet how it ended: as good as gone.
    return state not in "XZ"


def info(server: NatsServer) -> dict[str, object]:
    with (
        socket.create_connection(("127.0.0.1", server.port)) as connection,
        connection.makefile("rb") as file,
    ):
        return dict(json.loads(file.readline()[5:]))


def test_nats_server_serves_and_ends() -> None:
    with run_nats_server(max_payload=12_345, config={"max_control_line": 2048}) as server:
        said = info(server)
        assert said["max_payload"] == 12_345
        assert said["version"] == server.version
        assert not said.get("jetstream")
        pid = server.pid
        assert pid is not None
        folder = server._folder
    assert not is_alive(pid)
    assert not folder.exists()
    assert not server.is_running
    assert "Server is ready" in server.log()
    server.close()


def test_lines_of_configuration_in_the_syntax_of_the_server() -> None:
    text = (
        'LIMIT = 4321\nmax_payload: $LIMIT  # bytes\nauthorization { users = [{user: "a", password: "b"}] }'
    )
    with run_nats_server(config={"max_control_line": 2048}, config_text=text) as server:
        said = info(server)
        assert said["max_payload"] == 4321
        assert said["auth_required"] is True
    with pytest.raises(ServerStartError, match="Parse error"), run_nats_server(config_text="max_payload: {"):
        pass


def test_configuration_and_folder_may_have_any_text_in_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b é"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with run_nats_server(jetstream=True, config={"server_name": "é"}) as server:
        assert info(server)["server_name"] == "é"


def test_restart_keeps_the_port() -> None:
    with run_nats_server() as server:
        port = server.port
        assert server.kill() == -signal.SIGKILL
        server.start()
        assert server.port == port
        assert server.stop() == 0
        assert server.stop() == 0
        server.start()
        assert info(server)["port"] == port
        with pytest.raises(UsageError, match="already running"):
            server.start()


def test_each_jetstream_has_a_folder_of_its_own_whatever_it_is_configured_with() -> None:
    config = {"jetstream": {"domain": "hub"}}
    with (
        run_nats_server(jetstream=True, config=config) as one,
        run_nats_server(jetstream=True, config=config) as other,
    ):
        assert info(one)["domain"] == info(other)["domain"] == "hub"
        folders = {
            next(line for line in server.log().splitlines() if "Store Directory" in line).split()[-1]
            for server in (one, other)
        }
        assert len(folders) == 2


async def test_jetstream_keeps_its_data() -> None:
    sequences = []
    async with run_nats_server(jetstream=True) as server:
        for end in (server.stop, server.kill):
            nc = await nats.connect(server.url, allow_reconnect=False, connect_timeout=60)
            js = nc.jetstream()
            await js.add_stream(name="orders", subjects=["orders"])
            sequences.append((await js.publish("orders", b"x")).seq)
            await nc.close()
            await asyncio.to_thread(end)
            await asyncio.to_thread(server.start)
    assert sequences == [1, 2]


async def test_cancelled_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real, cancelled = sys.modules["liftenvelope.testing._nats"]._read_info, threading.Event()

    def read_info(port: int) -> dict[str, object]:
        """Not before: a start that is complete can't be cancelled."""
        cancelled.wait(60)
        return dict(real(port))

    monkeypatch.setattr("liftenvelope.testing._nats._read_info", read_info)
    server = run_nats_server()
    task = asyncio.create_task(server.__aenter__())
    await asyncio.to_thread(wait_until, lambda: server.is_running)
    task.cancel()
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not server.is_running
    assert not server._folder.exists()


async def test_failure_of_a_cancelled_start_is_not_reported_to_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looking, cancelled = threading.Event(), threading.Event()

    def find_nats_server() -> Path:
        looking.set()
        cancelled.wait(60)
        raise ServerStartError("no nats-server")

    monkeypatch.setattr("liftenvelope.testing._nats.find_nats_server", find_nats_server)
    server = run_nats_server()
    task = asyncio.create_task(server.__aenter__())
    await asyncio.to_thread(looking.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    gc.collect()
    assert not server._folder.exists()


def test_failed_start_shows_the_log() -> None:
    server = run_nats_server(config={"no_such_option": True})
    with pytest.raises(ServerStartError, match="no_such_option"), server:
        pass
    assert not server.is_running


def test_program_of_another_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nats-server"
    program.write_bytes(b"MZ for another system")
    program.chmod(0o755)
    monkeypatch.setenv("LIFTENVELOPE_NATS_SERVER", str(program))
    with (
        pytest.raises(ServerStartError, match=f"{program} can't be run: Exec format error"),
        run_nats_server(),
    ):
        pass


def test_port_in_use() -> None:
    with run_nats_server() as server:
        other = run_nats_server(port=server.port)
        with pytest.raises(ServerStartError, match="address already in use"), other:
            pass


def test_taken_port_is_not_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_nats_server() as server:
        ports = iter([server.port, server.port])
        real = sys.modules["liftenvelope.testing._nats"].free_port
        monkeypatch.setattr("liftenvelope.testing._nats.free_port", lambda: next(ports, None) or real())
        with run_nats_server() as other:
            assert other.port != server.port


def test_silent_stranger_on_the_port_is_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = run_nats_server(port=port, start_timeout=5.0)
        with pytest.raises(ServerStartError), server:
            pass


def test_server_dies_with_a_killed_python() -> None:
    code = (
        "from liftenvelope.testing import run_nats_server\n"
        "import time\n"
        "with run_nats_server() as s: print(s.pid, s._folder, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as python:
        assert python.stdout is not None
        text, folder = python.stdout.readline().split()
        pid = int(text)
        assert is_alive(pid)
        python.kill()
    wait_until(lambda: not is_alive(pid))
    wait_until(lambda: not os.path.exists(folder))


def test_server_that_is_never_closed_dies_at_exit() -> None:
    code = (
        "from liftenvelope.testing import run_nats_server\n"
        "s = run_nats_server(); s.start(); print(s.pid, s._folder)"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", code], capture_output=True, text=True, check=True
    )
    pid, folder = run.stdout.split()
    assert not is_alive(int(pid))
    assert not os.path.exists(folder)
    assert run.stderr == ""


def test_fixtures(nats_server: NatsServer, jetstream_server: NatsServer) -> None:
    assert info(nats_server)["port"] == nats_server.port
    assert info(jetstream_server)["jetstream"]


KILLS_ITS_SERVER = """
def test_fails(nats_server):
    nats_server.kill()
    raise AssertionError("on purpose")
"""


def test_report_of_a_failed_test_shows_the_log_of_a_shared_server_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "test_fails.py").write_text(KILLS_ITS_SERVER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "nats_server has ended, its log" in done.stdout
    assert "Server is ready" in done.stdout


@pytest.mark.parametrize("module", ["google.protobuf", "h2"])
def test_report_of_a_failed_test_needs_no_extra(module: str, tmp_path: Path) -> None:
    (tmp_path / "test_fails.py").write_text(KILLS_ITS_SERVER)
    (tmp_path / "conftest.py").write_text(f"import sys; sys.modules[{module!r}] = None")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "nats_server has ended, its log" in done.stdout


def kill_a_server_from_outside() -> None:
    with run_nats_server() as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.is_running)
        raise RuntimeError("on purpose")


def test_error_of_the_block_says_how_the_server_ended() -> None:
    with pytest.raises(RuntimeError, match="on purpose") as info:
        kill_a_server_from_outside()
    (note,) = info.value.__notes__
    assert note.startswith(f"nats-server ended with status {-signal.SIGKILL}. Its log:")
    assert "Server is ready" in note
