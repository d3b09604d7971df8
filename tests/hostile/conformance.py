"""Builds h2spec, the conformance tests of HTTP/2, from its pinned Go module, once for each user."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from liftenvelope.testing import find_go

__all__ = ["build_h2spec"]

_SOURCES: Final = Path(__file__).with_name("h2spec")
_PROGRAM: Final = "github.com/summerwind/h2spec/cmd/h2spec"
_TIMEOUT: Final = 600


def build_h2spec() -> Path:
    """Return the path of h2spec; build it unless it is in the user's cache directory.

    Raises:
        ServerStartError: There is no Go toolchain that is new enough.
        subprocess.CalledProcessError: The build failed.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = (Path(base) if base.startswith("/") else Path.home() / ".cache") / "liftenvelope"
    fingerprint = hashlib.sha256((_SOURCES / "go.sum").read_bytes()).hexdigest()[:12]
    target = cache / f"h2spec-{fingerprint}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as folder:
            _build(Path(folder))
            os.replace(Path(folder) / "h2spec-built", target)
    return target


def _build(folder: Path) -> None:
    needed = re.search(r"^go (\d[\d.]*)", (_SOURCES / "go.mod").read_text(), re.MULTILINE)
    assert needed is not None
    go, _ = find_go(needed[1])
    for name in ("go.mod", "go.sum", "tools.go"):
        shutil.copy(_SOURCES / name, folder)
    env = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "-mod=readonly",
    }
    command = [go, "build", "-trimpath", "-buildvcs=false", "-o", "h2spec-built", _PROGRAM]
    subprocess.run(command, cwd=folder, env=env, timeout=_TIMEOUT, check=True)
