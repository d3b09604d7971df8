"""docs/architecture.md and CONTRIBUTING.md name files, functions and layers that exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import FORBIDDEN, LAYERS, ROOMS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "architecture.md"
#: Packages whose row names what they may import, and not what they may not.
LISTED = {"testing"}
#: Links such as [`rpc/server.py::Server.start`](../liftenvelope/rpc/server.py).
STATION = re.compile(r"\[`([\w/.]+)::([\w.]+)`\]\(([^)]+)\)")
#: Paths in prose and in commands. Links are left to the test of links.
PATH = re.compile(r"(?<![\w./-])(?:src|tests|docs|benchmarks|protos|liftenvelope)/(?:[\w/.*-]*[\w/])?")
STATIONS = sorted({(link, file, name) for file, name, link in STATION.findall(PAGE.read_text("utf-8"))})
ROWS = re.findall(r"^\| (\[`.*?) \| .* \| (.*) \|$", PAGE.read_text("utf-8").split("\n## ")[1], re.MULTILINE)


def names_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Functions and classes of a module, and ``Class.method`` for each method and property of a class."""
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found |= names_in(node.body, f"{node.name}.")
    return found


@pytest.mark.parametrize(("link", "file", "name"), STATIONS, ids=[f"{one[1]}::{one[2]}" for one in STATIONS])
def test_station_exists(link: str, file: str, name: str) -> None:
    path = (PAGE.parent / link).resolve()
    assert path == ROOT / "liftenvelope" / file
    assert name in names_in(ast.parse(path.read_text("utf-8")).body)


@pytest.mark.parametrize("page", [PAGE, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_named_paths_exist(page: Path) -> None:
    paths = PATH.findall(page.read_text("utf-8"))
    assert len(paths) > 5
    # X stands for the name of any compiled piece.
    assert [path for path in paths if not any(ROOT.glob(path.replace("X", "*")))] == []


def test_table_of_packages_has_every_public_package_in_the_order_of_the_layers() -> None:
    named = [name.removesuffix(".py") for first, _ in ROWS for name in re.findall(r"`([\w.]+)`", first)]
    ranks = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
    public = {name for name in ranks if not name.startswith("_") or name in ("_native", "_pb", "__init__")}
    assert set(named) == public
    assert [ranks[name] for name in named] == sorted(ranks[name] for name in named)


def test_table_of_packages_names_every_forbidden_import() -> None:
    rows = {name: last for first, last in ROWS for name in re.findall(r"`(\w+)(?:\.py)?`", first)}
    for package in FORBIDDEN.keys() - LISTED:
        assert FORBIDDEN[package] <= set(re.findall(r"\w+", rows[package].partition("not")[2])), package


def test_table_of_packages_names_every_import_of_the_test_servers() -> None:
    [allowed] = [last for first, last in ROWS if "`testing`" in first]
    units = {name for layer in LAYERS for name in layer}
    assert set(re.findall(r"`(\w+)`", allowed)) == units - FORBIDDEN["testing"]


@pytest.mark.parametrize("package", ROOMS)
def test_table_of_rooms_has_the_order_of_the_rooms(package: str) -> None:
    section = PAGE.read_text("utf-8").partition(f"\n### `{package}`\n")[2].partition("\n#")[0]
    rows = [first for first, _ in re.findall(r"^\| (\[`.*?) \| (.*) \|$", section, re.MULTILINE)]
    named = [tuple(re.findall(r"`(\w+)(?:\.py)?`", first)) for first in rows]
    entries = [tuple(name for name in line if not name.startswith("__")) for line in ROOMS[package]]
    assert named == [line for line in entries if line]


def test_picture_shows_the_layers() -> None:
    command = [sys.executable, str(ROOT / "docs" / "architecture_picture.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
