"""Peers whose tool chains may be absent: async-nats, in Rust, and natsio, which needs Python 3.13.

They are built or installed when they are first measured, not in the quick run of the tests. If a tool chain
is absent, the results say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cached_property
from pathlib import Path

from benchmarks.programs import Programs, output
from benchmarks.report import Report

_HERE = Path(__file__).parent
_NATSIO = "1.0.1"


class OtherPeers:
    """Programs that read from and publish to JetStream, with the flags of the Go programs.

    Args:
        folder: Folder for what is built and installed.
        report: Notes the versions of the clients, and the absent ones.
    """

    def __init__(self, folder: Path, report: Report) -> None:
        self._folder = folder
        self._report = report

    @cached_property
    def found(self) -> list[Programs]:
        """The clients that can be measured here."""
        return [peer for peer in (self._async_nats(), self._natsio()) if peer is not None]

    def _async_nats(self) -> Programs | None:
        cargo = shutil.which("cargo")
        if cargo is None:
            self._report.absent["async-nats (Rust)"] = "cargo was not found"
            return None
        sources = _HERE / "rust"
        output([cargo, "build", "--release", "--locked"], sources)
        return Programs(lambda name: [sources / "target" / "release" / name], "async-nats")

    def _natsio(self) -> Programs | None:
        python = _python_3_13()
        if python is None:
            self._report.absent["natsio"] = "no Python 3.13 was found on PATH or in pyenv"
            return None
        own = self._folder / "natsio"
        output([python, "-m", "venv", own])
        output([own / "bin" / "pip", "install", "--quiet", f"natsio=={_NATSIO}"])
        return Programs(lambda name: [own / "bin" / "python", _HERE / "natsio_peer.py", name], "natsio")


def _python_3_13() -> str | None:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = ["python3.13", *map(str, sorted(root.glob("versions/3.13*/bin/python3.13")))]
    for name in candidates:
        path = shutil.which(name)
        # The shims of pyenv are found and fail for versions that are not selected.
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None
