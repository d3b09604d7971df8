"""Build the extensions with ASan and UBSan, beside the normal build, and run things with them.

    python tests/fuzz/sanitized.py build             # into build/sanitized, never in place
    python tests/fuzz/sanitized.py test [ARGS]       # pytest with it; by default the unit and twin tests
    python tests/fuzz/sanitized.py run SCRIPT [ARGS]

Needs gcc, as the build itself does, and nothing more.
"""

from __future__ import annotations

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
ENGINE = Path(__file__).parent / "engine.pyx"
#: What the sanitized build is tested with: all that is given to the codec.
TESTS = ("tests/unit", "tests/twin")
FLAGS = [
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
]


def sources() -> list[Path]:
    """All that the build is made of."""
    found = [
        *(ROOT / "src").glob("*.p[yx][xdi]"),
        *(ROOT / "src").glob("*.h"),
        *Path(__file__).parent.iterdir(),
    ]
    found += [
        *(ROOT / "liftenvelope").rglob("*.py"),
        *(ROOT / "liftenvelope").rglob("*.pyi"),
        ROOT / "setup.py",
    ]
    return sorted(path for path in found if path.is_file())


def digest() -> str:
    """What tells one state of the sources from another."""
    state = hashlib.sha256(sys.version.encode())
    for path in sources():
        state.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return state.hexdigest()


def build() -> Path:
    """Build what is out of date; returns the directory to import from."""
    stamp, wanted = BASE / "built", digest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return LIBRARY
    for path in LIBRARY.rglob("*.py"):  # no module that is gone may stay
        path.unlink()
    command = ["setup.py", "-q", "build", "--build-base", str(BASE), "--build-lib", str(LIBRARY)]
    env = os.environ | {"LIFTENVELOPE_BUILD_PROFILE": "sanitize", "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=env, check=True)
    subprocess.run([sys.executable, __file__, "engine"], cwd=ROOT, check=True)
    stamp.write_text(wanted)
    return LIBRARY


def build_engine() -> None:
    """Compile the fuzzer's engine: sanitized as well, and with gcc's calls at every block."""
    setuptools: Any = import_module("setuptools")  # these two have no types
    cythonize: Any = import_module("Cython.Build").cythonize
    extension = setuptools.Extension(
        "liftenvelope_fuzz_engine",
        [str(ENGINE.relative_to(ROOT))],
        include_dirs=["src", str(ENGINE.parent)],
        depends=["src/crc32c.h", "src/_cursor.pxd", str(ENGINE.with_name("mutate.h"))],
        extra_compile_args=[*FLAGS, "-fsanitize-coverage=trace-pc"],
        extra_link_args=["-fsanitize=address,undefined"],
    )
    modules = cythonize([extension], include_path=["src"], build_dir=str(BASE / "engine"), quiet=True)
    command = setuptools.Distribution({"name": "engine", "ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(LIBRARY), str(BASE / "engine")
    command.ensure_finalized()
    command.run()


def library(name: str) -> str:
    """Where gcc keeps one of its libraries."""
    asked = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    path = Path(asked.stdout.strip())
    if not path.is_absolute():
        raise SystemExit(f"gcc has no {name}: install its sanitizer libraries (libasan, libubsan)")
    return str(path)


def environment() -> dict[str, str]:
    """The environment in which Python imports the sanitized build."""
    return os.environ | {
        # The sanitizer's allocator has to be there first; libstdc++ for those who throw (pyarrow).
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so.6')}",
        # CPython itself leaks at exit; to note who called for each block takes most of the time.
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:malloc_context_size=1:quarantine_size_mb=32",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
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
    if what == "engine":
        build_engine()
        return 0
    build()
    if what == "test":
        return run("-m", "pytest", "-q", "-p", "no:cacheprovider", *(rest or TESTS))
    return run(*rest) if what == "run" else 0


if __name__ == "__main__":
    sys.exit(main())
