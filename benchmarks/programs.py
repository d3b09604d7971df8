"""Peers that are programs of their own: they are run, and print what they found as one JSON object."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Command = Sequence[str | Path]


class Programs:
    """Programs that measure one client.

    Args:
        command: Returns the command of a program by its name.
        client: Name of the client in the table.
    """

    def __init__(self, command: Callable[[str], Command], client: str) -> None:
        self.client = client
        self._command = command

    def run(self, program: str, **flags: object) -> dict[str, Any]:
        """Run a program and return what it printed. A program that has not done all of its work fails."""
        given = [f"-{name.replace('_', '-')}={_shown(value)}" for name, value in flags.items()]
        found: dict[str, Any] = json.loads(output([*self._command(program), *given]))
        return found


def _shown(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def output(command: Command, folder: Path | None = None, **env: str) -> str:
    """Run a command that must succeed, and return its output.

    Args:
        command: Program and arguments.
        folder: Folder to run the command in. Default: the current one.
        env: Variables to set.
    """
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout
