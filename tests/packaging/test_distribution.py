"""An sdist, a wheel built from it, and an installation without extras in an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

#: Every extension is compiled, on a machine that may have other work.
pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[2]

#: Without PYTHONPATH and the like: a checkout that the caller names would hide what is installed.
#: The tests are about the contents of the distributions: the extensions are compiled quickly, not optimized.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
    "LIFTENVELOPE_BUILD_PROFILE": "quick",
}

PROGRAM = """
import sys
import liftenvelope
from liftenvelope.nats import AckInbox
assert liftenvelope.BACKEND == "cython", liftenvelope.BACKEND
assert liftenvelope.new_message(b"hello").hex() == "b90e43b40008000008ffffffffffffffffff011a0568656c6c6f"
try:
    import liftenvelope.arrow
except liftenvelope.errors.MissingExtraError as error:
    assert "pip install 'liftenvelope[arrow]'" in str(error), error
else:
    sys.exit("pyarrow is here: the environment is not empty")
for name in ("connect", "connect_blocking"):
    try:
        getattr(liftenvelope, name)
    except liftenvelope.errors.MissingExtraError as error:
        assert "pip install 'liftenvelope[client]'" in str(error), error
    else:
        sys.exit("protobuf is here: the environment is not empty")
"""


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it and not from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


def test_the_sdist_has_what_a_build_needs(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "src/_fastenv.pyx",
        "src/_fastbatch.pyx",
        "src/_cursor.pxd",
        "src/_columns.pxi",
        "src/crc32c.h",
        "setup.py",
        "README.md",
        "liftenvelope/testing/_servers/go.mod",
        "liftenvelope/testing/_servers/go.sum",
        "liftenvelope/testing/_servers/tools.go",
    }
    assert needed <= names


def test_the_wheel_has_the_types_the_extensions_and_the_server_module(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    needed = {
        "py.typed",
        "_native/_fastenv.pyi",
        "_native/_fastbatch.pyi",
        "monitor/page/index.html",
        "monitor/page/uplot.LICENSE",
        "monitor/page/uplot.js",
        "testing/_servers/go.mod",
        "testing/_servers/go.sum",
        "testing/_servers/tools.go",
    }
    assert {f"liftenvelope/{name}" for name in needed} <= names
    extensions = {name.split(".")[0] for name in names if name.endswith(".so")}
    assert extensions == {f"liftenvelope/_native/{source.stem}" for source in (ROOT / "src").glob("*.pyx")}
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "src/"))]


def test_an_empty_environment_encodes(distributions: Path, tmp_path: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel)
    run(python, "-c", PROGRAM, cwd=tmp_path)
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "liftenvelope"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert done.returncode == 1
    assert "pip install 'liftenvelope[cli]'" in done.stderr
