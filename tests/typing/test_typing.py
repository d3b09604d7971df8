"""The types of the public codec, as mypy sees them, and the stub of the extension, held to it by stubtest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CODEC_USE = Path(__file__).parent / "codec_use.py"


def run(*command: str) -> str:
    """What a Python command prints; the test fails with it where the command does."""
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
    assert "Success" in run("-m", "mypy", "--strict", "--config-file", "pyproject.toml", str(CODEC_USE))


def test_users_code_runs() -> None:
    assert run("-W", "error", str(CODEC_USE)) == ""


def test_stub_of_the_extension() -> None:
    said = run("-m", "mypy.stubtest", "liftenvelope._native._fastenv", "--mypy-config-file", "pyproject.toml")
    assert "Success" in said


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "liftenvelope" / "py.typed").is_file()
