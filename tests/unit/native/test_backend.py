"""The choice between the twins, made once when the package is imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import liftenvelope
from liftenvelope import _native

PACKAGE = Path(liftenvelope.__path__[0])
SHOW = "from liftenvelope import _native as n; print(n.BACKEND, n.env.__name__, n.batch.__name__)"
CYTHON = "cython liftenvelope._native._fastenv liftenvelope._native._fastbatch"
EXTENSIONS = [f"_fast{piece}" for piece in _native.PIECES]
PYTHON = "python liftenvelope._native.env liftenvelope._native.batch"


def run(
    where: Path, program: str = SHOW, warnings: str = "error", **env: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LIFTENVELOPE_")}
    kept["PYTHONPATH"] = os.pathsep.join([str(where), *sys.path])
    # Without site: an editable install's finder would find the checkout's extensions behind a copy's back.
    command = [sys.executable, "-S", "-W", warnings, "-c", program]
    return subprocess.run(
        command, env=kept | env, cwd=where, check=False, capture_output=True, text=True, timeout=150
    )


def copy_of_the_package(where: Path, *, extensions: bool) -> Path:
    """The package with its compiled parts, or as it is where they were never built."""
    ignored = ["__pycache__"] if extensions else ["__pycache__", "*.so", "*.pyd"]
    shutil.copytree(PACKAGE, where / "liftenvelope", ignore=shutil.ignore_patterns(*ignored))
    return where


def spoil(where: Path, name: str) -> None:
    """Put something in the place of an extension that does not load."""
    for path in (where / "liftenvelope" / "_native").glob(f"{name}.*.so"):
        path.unlink()
    (where / "liftenvelope" / "_native" / f"{name}{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")


class TestBuilt:
    def test_importing_a_twin_keeps_the_loaded_pieces(self) -> None:
        program = (
            "from importlib import import_module; from liftenvelope import _native as n\n"
            "twins = [import_module(f'liftenvelope._native.{piece}').__name__ for piece in n.PIECES]\n"
            "assert twins == [f'liftenvelope._native.{piece}' for piece in n.PIECES]\n"
            "print(*(getattr(n, piece).__name__ for piece in n.PIECES))"
        )
        expected = [f"liftenvelope._native.{name}" for name in EXTENSIONS]
        assert run(PACKAGE.parent, program).stdout.split() == expected

    def test_cython_is_taken(self) -> None:
        assert run(PACKAGE.parent).stdout.strip() == CYTHON

    def test_no_extensions(self) -> None:
        assert run(PACKAGE.parent, LIFTENVELOPE_NO_EXTENSIONS="1").stdout.strip() == PYTHON
        assert run(PACKAGE.parent, LIFTENVELOPE_NO_EXTENSIONS="0").stdout.strip() == CYTHON
        assert run(PACKAGE.parent, LIFTENVELOPE_NO_EXTENSIONS="").stdout.strip() == CYTHON

    def test_require_extensions(self) -> None:
        assert run(PACKAGE.parent, LIFTENVELOPE_REQUIRE_EXTENSIONS="1").stdout.strip() == CYTHON

    def test_both_are_a_contradiction(self) -> None:
        done = run(PACKAGE.parent, LIFTENVELOPE_REQUIRE_EXTENSIONS="1", LIFTENVELOPE_NO_EXTENSIONS="1")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            "ImportError: LIFTENVELOPE_REQUIRE_EXTENSIONS is set, but "
            "LIFTENVELOPE_NO_EXTENSIONS is set as well: run pip install . again"
        )

    def test_the_public_codec_is_the_chosen_one(self) -> None:
        program = "from liftenvelope import envelope as e; print(e.new_message.__module__, e.Ack.__module__)"
        assert run(PACKAGE.parent, program).stdout.split() == ["liftenvelope._native._fastenv"] * 2
        forced = run(PACKAGE.parent, program, LIFTENVELOPE_NO_EXTENSIONS="1").stdout.split()
        assert forced == ["liftenvelope._native.env", "liftenvelope._native.values"]


class TestNeverBuilt:
    def test_python_is_taken_silently(self, tmp_path: Path) -> None:
        done = run(copy_of_the_package(tmp_path, extensions=False))
        assert (done.stdout.strip(), done.stderr) == (PYTHON, "")

    def test_require_extensions_says_which_are_missing(self, tmp_path: Path) -> None:
        done = run(copy_of_the_package(tmp_path, extensions=False), LIFTENVELOPE_REQUIRE_EXTENSIONS="1")
        assert done.returncode == 1
        assert f"{', '.join(EXTENSIONS)} not built: run pip install . again" in done.stderr

    def test_one_alone_is_not_used(self, tmp_path: Path) -> None:
        where = copy_of_the_package(tmp_path, extensions=True)
        for path in (where / "liftenvelope" / "_native").glob("_fastbatch.*.so"):
            path.unlink()
        assert run(where).stdout.strip() == PYTHON


class TestBroken:
    def test_a_broken_build_warns(self, tmp_path: Path) -> None:
        where = copy_of_the_package(tmp_path, extensions=True)
        spoil(where, "_fastenv")
        done = run(where, warnings="default")
        assert done.stdout.strip() == PYTHON
        assert "RuntimeWarning: liftenvelope's compiled codec does not load (" in done.stderr
        assert "using the slower Python one" in done.stderr

    def test_a_broken_build_is_an_error_where_it_is_required(self, tmp_path: Path) -> None:
        where = copy_of_the_package(tmp_path, extensions=True)
        spoil(where, "_fastbatch")
        done = run(where, LIFTENVELOPE_REQUIRE_EXTENSIONS="1")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("ImportError: ")
        assert "_fastbatch" in done.stderr.splitlines()[-1]
