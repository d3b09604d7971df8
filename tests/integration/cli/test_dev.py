"""``liftenvelope dev``: everything runs, and stops at Ctrl-C."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

import liftenvelope
from tests.integration.cli.commands import error_of, run, started, text_of

FREE = ("--nats-port", "0", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json")
PATIENCE = 240.0


def facts_of(process: subprocess.Popen[bytes]) -> dict[str, str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr is not None else b""
    found: dict[str, str] = json.loads(line)
    return found


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> str:
    """Stop the command, and return what it wrote on standard error."""
    process.send_signal(number)
    _, complaints = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, complaints
    return complaints.decode()


def test_dev_publishes_reads_and_shows_its_traffic(tmp_path: Path) -> None:
    with started("dev", *FREE, "--rate", "200", "--data-dir", str(tmp_path)) as process:
        facts = facts_of(process)
        address = facts["gateway"].removeprefix("liftbridge://")
        with (
            liftenvelope.connect_blocking(address, timeout=PATIENCE) as client,
            client.subscribe("sensors", partition="all", start="earliest") as messages,
        ):
            first = next(messages)
        assert first.key in {b"kitchen", b"hall", b"cellar", b"attic"}
        assert first.headers["unit"] == b"C"
        with urllib.request.urlopen(facts["monitor"], timeout=PATIENCE) as page:
            assert b"<html" in page.read()
        assert "Traceback" not in stop(process)
    assert (tmp_path / "jetstream").is_dir()  # the streams are kept


def test_dev_leaves_the_folder_of_another_one_alone(tmp_path: Path) -> None:
    with started("dev", *FREE, "--rate", "0", "--data-dir", str(tmp_path)) as process:
        facts_of(process)
        with started("dev", *FREE, "--rate", "0", "--data-dir", str(tmp_path)) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b""
            _, complaints = other.communicate(timeout=PATIENCE)
        text = f"Error: --data-dir must be a folder that no other server uses, got {tmp_path}: stop the other"
        assert complaints.decode().startswith(text)
        assert other.returncode == 1
        stop(process)


def test_dev_names_the_option_of_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = error_of("dev", *FREE, "--data-dir", str(tmp_path / "file"), code=2)
    assert line == (
        f"Error: --data-dir must be a folder that can be written to, got {tmp_path}/file: File exists"
    )


def test_dev_stops_at_sigterm_and_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with started("dev", *FREE, "--rate", "0") as process:
        facts = facts_of(process)
        text_of("stream", "ls", "--url", facts["nats"])  # JetStream is open to the developer
        assert "Traceback" not in stop(process, signal.SIGTERM)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("liftenvelope-dev")] == []


def test_dev_refuses_a_page_that_others_could_open() -> None:
    line = error_of("dev", *FREE[:4], "--http", "0.0.0.0:0", code=2)
    assert line.startswith("Error: --http must be a loopback address such as 127.0.0.1:8040, got 0.0.0.0: ")
    assert "--token" not in line


@pytest.mark.parametrize("option", ["--nats-port", "--listen", "--http"])
def test_dev_names_the_option_of_a_taken_port_in_one_line(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        value = str(port) if option == "--nats-port" else f"127.0.0.1:{port}"
        done = run("dev", *FREE, option, value)
    assert done.exit_code == 1
    assert done.stderr == (
        f"Error: {option} must have a free port, got 127.0.0.1:{port}: address already in use; "
        "stop the program that listens there, or choose another port (0: any free one)\n"
    )
