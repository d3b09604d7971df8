"""Build the extensions with ASan, UBSan and coverage, apart from the normal build, and run things with them.

    python tests/fuzz/sanitized.py build             # into build/sanitized, never in place
    python tests/fuzz/sanitized.py test [ARGS]       # pytest with it; by default the unit and twin tests
    python tests/fuzz/sanitized.py run SCRIPT [ARGS]

Needs gcc, as the build itself does, and nothing more.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
BASE = ROOT / "build" / "sanitized" / f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
LIBRARY = BASE / "lib"
HERE = Path(__file__).parent
#: Counts edges. Preloaded: every sanitized extension calls it.
COVER = BASE / "libcover.so"
#: Built for the campaign alone: its loop, and two faults to find.
MODULES = ("engine", "planted")
#: What the sanitized build is tested with: all that is given to the codec.
TESTS = ("tests/unit", "tests/twin")
FLAGS = [
    "-O1",
    "-g1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
]


def sources() -> list[Path]:
    """All that the build is made of."""
    found = [
        *(ROOT / "src").glob("*.p[yx][xdi]"),
        *(ROOT / "src").glob("*.h"),
        *HERE.glob("*.[pch]*"),
    ]
    found += [
        *(ROOT / "liftenvelope").rglob("*.py"),
        *(ROOT / "liftenvelope").rglob("*.pyi"),
        ROOT / "setup.py",
    ]
    return sorted(path for path in found if path.is_file())


def digest() -> str:
    """Return a fingerprint of the sources."""
    state = hashlib.sha256(sys.version.encode())
    for path in sources():
        state.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return state.hexdigest()


def build() -> Path:
    """Build what is out of date; returns the directory to import from. Simultaneous builds take turns."""
    BASE.mkdir(parents=True, exist_ok=True)
    with (BASE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build_alone()


def build_alone() -> Path:
    """Build what is out of date, while no other process does."""
    stamp, wanted = BASE / "built", digest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return LIBRARY
    for path in LIBRARY.rglob("*.py"):  # no module that is gone may stay
        path.unlink()
    command = ["setup.py", "-q", "build", "--build-base", str(BASE), "--build-lib", str(LIBRARY)]
    env = os.environ | {"LIFTENVELOPE_BUILD_PROFILE": "sanitize", "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=env, check=True)
    build_cover()
    subprocess.run([sys.executable, __file__, "modules"], cwd=ROOT, check=True)
    stamp.write_text(wanted)
    return LIBRARY


def build_cover() -> None:
    """Compile the library that counts edges, without sanitizers."""
    flags = ["-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, str(HERE / "cover.c"), "-o", str(COVER)], check=True)


def build_modules() -> None:
    """Compile the modules of the campaign with the sanitizers; `planted` counts edges as well."""
    setuptools: Any = import_module("setuptools")  # these two have no types
    cythonize: Any = import_module("Cython.Build").cythonize
    extensions = [
        setuptools.Extension(
            f"liftenvelope_fuzz_{name}",
            [str((HERE / f"{name}.pyx").relative_to(ROOT))],
            include_dirs=["src", str(HERE)],
            depends=["src/crc32c.h", *(str(path) for path in HERE.glob("*.h"))],
            extra_compile_args=[*FLAGS, *(["-fsanitize-coverage=trace-pc"] if name == "planted" else [])],
            extra_link_args=["-fsanitize=address,undefined"],
        )
        for name in MODULES
    ]
    modules = cythonize(extensions, include_path=["src"], build_dir=str(BASE / "modules"), quiet=True)
    command = setuptools.Distribution({"name": "modules", "ext_modules": modules}).get_command_obj(
        "build_ext"
    )
    command.build_lib, command.build_temp = str(LIBRARY), str(BASE / "modules")
    command.parallel = len(MODULES)
    command.ensure_finalized()
    command.run()


def library(name: str) -> str:
    """Return the path of one of gcc's libraries."""
    asked = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    path = Path(asked.stdout.strip())
    if not path.is_absolute():
        raise SystemExit(f"gcc has no {name}: install its sanitizer libraries (libasan, libubsan)")
    return str(path)


def environment() -> dict[str, str]:
    """The environment in which Python imports the sanitized build."""
    return os.environ | {
        # The sanitizer's allocator has to be there first; libstdc++ for those who throw (pyarrow).
        "LD_PRELOAD": f"{library('libasan.so')} {COVER} {library('libstdc++.so.6')}",
        # CPython itself leaks at exit; to note who called for each block takes most of the time.
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:malloc_context_size=1:quarantine_size_mb=32",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONHASHSEED": "0",  # the same seed gives the same inputs
        "PYTHONPATH": os.pathsep.join([str(LIBRARY), str(ROOT)]),  # in this order
        "PYTHONSAFEPATH": "1",  # not the checkout's own liftenvelope
        "LIFTENVELOPE_REQUIRE_EXTENSIONS": "1",
    }


def run(*command: str) -> int:
    """Run Python with the sanitized build; returns its exit status."""
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment(), check=False).returncode


def main() -> int:
    """Do what the command line says."""
    what, *rest = sys.argv[1:] or ["build"]
    if what == "modules":
        build_modules()
        return 0
    build()
    if what == "test":
        return run("-m", "pytest", "-q", "-p", "no:cacheprovider", *(rest or TESTS))
    return run(*rest) if what == "run" else 0


if __name__ == "__main__":
    sys.exit(main())
