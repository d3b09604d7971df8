"""The sdist and the wheels of this machine's compiler, in fresh environments: the slice for CI."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.packaging.building import Workshop, build_sdist
from tests.packaging.interpreters import ROOT, Interpreter
from tests.packaging.trying import Bench

#: Every extension is compiled, on a machine that may have other work.
pytestmark = pytest.mark.timeout(1800)

HERE = Interpreter(version=f"{sys.version_info.major}.{sys.version_info.minor}", path=Path(sys.executable))


@dataclass(frozen=True, kw_only=True)
class Distributions:
    sdist: Path
    native: Path
    twins: Path


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The sdist, and the wheels that are built from it and not from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    sdist = build_sdist(folder).path
    workshop = Workshop(sdist, folder / "work", folder)
    return Distributions(sdist=sdist, native=workshop.native(HERE).path, twins=workshop.of_twins(HERE).path)


@pytest.fixture(scope="module")
def bench(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(HERE, distributions.sdist, tmp_path_factory.mktemp("bench"))


def test_sdist_has_sources_tests_and_docs_and_no_generated_c(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "src/_fastenv.pyx",
        "src/_cursor.pxd",
        "src/_columns.pxi",
        "src/crc32c.h",
        "setup.py",
        "Makefile",
        "README.md",
        "docs/index.md",
        "docs/images/monitor-stream.png",
        "examples/bulk_read.py",
        "tests/conftest.py",
        "tests/unit/data/go_corpus.jsonl.gz",
        "tests/fuzz/cover.c",
        "liftenvelope/testing/_servers/go.mod",
        "liftenvelope/testing/_servers/go.sum",
        "liftenvelope/testing/_servers/tools.go",
    }
    assert needed <= names
    assert not [name for name in names if name.startswith("src/") and name.endswith((".c", ".html"))]
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".so"))]


def test_wheel_has_types_extensions_and_data(distributions: Distributions) -> None:
    names = set(zipfile.ZipFile(distributions.native).namelist())
    needed = {
        "py.typed",
        "_native/_fastenv.pyi",
        "_native/_fastbatch.pyi",
        "monitor/page/icon.svg",
        "monitor/page/index.html",
        "monitor/page/uplot.js",
        "testing/_servers/go.mod",
        "testing/_servers/go.sum",
        "testing/_servers/tools.go",
    }
    assert {f"liftenvelope/{name}" for name in needed} <= names
    extensions = {name.split(".")[0] for name in names if name.endswith(".so")}
    assert extensions == {f"liftenvelope/_native/{source.stem}" for source in (ROOT / "src").glob("*.pyx")}
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "src/"))]
    assert [
        name for name in names if name.endswith(".dist-info/licenses/liftenvelope/monitor/page/uplot.LICENSE")
    ]


def test_wheels_have_what_package_indexes_expect(distributions: Distributions) -> None:
    wheels = (distributions.native, distributions.twins)
    command = (sys.executable, "-m", "check_wheel_contents", "--config", ROOT / "pyproject.toml", *wheels)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_wheel_of_twins_serves_every_machine(distributions: Distributions) -> None:
    assert distributions.twins.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(distributions.twins).namelist() if name.endswith(".so")]


def test_links_of_the_description_lead_from_the_package_index_to_files_that_exist(
    distributions: Distributions,
) -> None:
    archive = zipfile.ZipFile(distributions.twins)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(archive.read(name))
    urls = dict(value.split(", ") for value in metadata.get_all("Project-URL", []))
    links = [part.partition(")")[0] for part in str(metadata.get_payload()).split("](")[1:]]
    ours = [link for link in links if link.startswith(urls["Source"])]
    assert len(ours) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    paths = [link.removeprefix(urls["Source"]).split("/", 3)[3].partition("#")[0] for link in ours]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_extra_alone_imports_its_modules_from_the_native_wheel(
    distributions: Distributions, bench: Bench
) -> None:
    bench.extras(distributions.native, backend="cython", names=("", "client", "cli"))


def test_without_extras_the_wheel_of_twins_names_each_missing_one(
    distributions: Distributions, bench: Bench
) -> None:
    bench.extras(distributions.twins, backend="python", names=("",))


def test_programs_of_the_readme_run_with_the_native_wheel(distributions: Distributions, bench: Bench) -> None:
    assert bench.examples(distributions.native) == 2


def test_sdist_without_a_compiler_gives_the_twins_with_one_warning(bench: Bench) -> None:
    bench.sdist_without_compiler()
