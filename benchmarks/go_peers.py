"""The Go programs of ``benchmarks/go``: built on demand, run, and their findings read."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from liftenvelope.testing import find_go

_SOURCES = Path(__file__).parent / "go"
_NEEDED = "1.25.3"


class GoPeers:
    """The programs, or one of them, in a folder of this run: Go's own cache makes building again quick."""

    def __init__(self, folder: Path, program: str = "...") -> None:
        go, self.version = find_go(_NEEDED)
        self._folder = folder
        command = [go, "build", "-mod=mod", "-buildvcs=false", "-o", f"{folder}/", f"./cmd/{program}"]
        env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
        run = subprocess.run(command, cwd=_SOURCES, env=env, capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout}{run.stderr}"

    def run(self, program: str, **flags: object) -> dict[str, Any]:
        """Run a program and return what it prints. It must have done all that it was to do."""
        given = [f"-{name.replace('_', '-')}={value}" for name, value in flags.items()]
        done = subprocess.run([self._folder / program, *given], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{program} {' '.join(given)}\n{done.stdout}{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found
