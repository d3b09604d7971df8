"""Types of the codec and the clients, as mypy sees them in users' code, and stubs, checked by stubtest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CODEC_USE = Path(__file__).parent / "codec_use.py"
CLIENT_USE = Path(__file__).parent / "client_use.py"
PUBLISHER_USE = Path(__file__).parent / "publisher_use.py"
OVERLOADED = Path(__file__).parent / "overloaded.txt"


def run(*command: str) -> str:
    """Return the output of a Python command; a failing command fails the test with its output."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_users_code_type_checks() -> None:
    files = [str(CODEC_USE), str(CLIENT_USE), str(PUBLISHER_USE)]
    assert "Success" in run("-m", "mypy", "--strict", "--config-file", "pyproject.toml", *files)


def test_users_code_runs() -> None:
    assert run("-W", "error", str(CODEC_USE)) == ""


def test_stubs_of_the_extension_and_of_the_blocking_client() -> None:
    """Both in one run: stubtest analyses all that they import, without a cache.

    Overloads of three methods leave out the None that stands for an argument that was not given.
    """
    stubs = ("liftenvelope._native._fastenv", "liftenvelope.client.blocking")
    config = ("--mypy-config-file", "pyproject.toml", "--allowlist", str(OVERLOADED))
    assert "Success" in run("-m", "mypy.stubtest", *stubs, *config)


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "liftenvelope" / "py.typed").is_file()
