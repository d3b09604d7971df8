"""Runs commands in the process of the test, for tests on real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import CliRunner, Result

from liftenvelope.cli._root import root


def patient(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command with a timeout of a minute, because a loaded machine may need more than seconds."""
    asks = {"--url", "--context"} & set(words) and words[0] not in ("backup", "read", "restore", "write")
    return (*words, "--timeout", "60") if asks and "--timeout" not in words else words


def run(*arguments: str, given: str | bytes | None = None, **env: str) -> Result:
    """Run a command, patiently."""
    # Without COLUMNS, which pytest-xdist sets: it would fold the cells of tables.
    own: dict[str, str | None] = {"XDG_CONFIG_HOME": "/nowhere", "COLUMNS": None}
    return CliRunner().invoke(root, patient(arguments), input=given, env={**own, **env})


def text_of(*arguments: str, given: str | bytes | None = None) -> str:
    """Run a command that must succeed, and return what it printed."""
    done = run(*arguments, given=given)
    assert done.exit_code == 0, done.output
    return done.stdout


def json_of(*arguments: str, given: str | bytes | None = None) -> Any:
    """Run a command with ``--json`` that prints one document."""
    return json.loads(text_of(*arguments, "--json", given=given))


def lines_of(*arguments: str) -> list[Any]:
    """Run a command with ``--json`` that prints one object per line."""
    return [json.loads(line) for line in text_of(*arguments, "--json").splitlines()]


def error_of(*arguments: str, code: int = 1) -> str:
    """Run a command that must fail, and return its last line."""
    done = run(*arguments)
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@contextmanager
def started(*arguments: str, stdin: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, patiently, as a process of its own, with pipes for its output."""
    command = [sys.executable, "-W", "error", "-m", "liftenvelope", *patient(arguments)]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
