"""Fresh environments with a distribution in them, without the checkout and without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.packaging.interpreters import ROOT, Interpreter, run

#: Programs that tests start.
_TOOLS = ("bash", "openssl")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Exit code of a program and all that it printed."""

    code: int
    printed: str
    errors: str


class Environment:
    """A virtual environment; its programs have only its own ``bin`` on PATH, so they find no compiler."""

    def __init__(self, interpreter: Interpreter, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        run(interpreter.path, "-m", "venv", "--without-pip", folder)
        self.folder = folder
        self.python = folder / "bin" / "python"
        for tool in _TOOLS:
            if path := shutil.which(tool):
                (folder / "bin" / tool).symlink_to(path)

    def install(self, *arguments: str, settings: Mapping[str, str] | None = None) -> Outcome:
        """Install with this process's pip, which builds without a compiler as well."""
        command = (sys.executable, "-m", "pip", "--python", str(self.python), "install", *arguments)
        return _outcome(command, self._settings(settings or {}), self.folder)

    def call(self, *arguments: str | Path, settings: Mapping[str, str] | None = None) -> Outcome:
        """Run the environment's Python, outside the checkout."""
        command = (str(self.python), *map(str, arguments))
        return _outcome(command, self._settings(settings or {}), self.folder)

    def _settings(self, more: Mapping[str, str]) -> dict[str, str]:
        foreign = ("PYTHON", "LIFTENVELOPE", "CC", "CFLAGS", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return {**kept, "PATH": str(self.folder / "bin"), **more}


def _outcome(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> Outcome:
    done = subprocess.run(command, env=dict(env), cwd=cwd, capture_output=True, text=True, check=False)
    return Outcome(code=done.returncode, printed=done.stdout, errors=done.stderr)


def requirement(distribution: Path, extras: Sequence[str] = ()) -> str:
    """Return what pip installs for a file and its extras."""
    return f"liftenvelope[{','.join(extras)}] @ {distribution.as_uri()}"


def test_group() -> tuple[str, ...]:
    """Return pip's options for what the unit tests need."""
    return ("--group", f"{ROOT / 'pyproject.toml'}:test")
