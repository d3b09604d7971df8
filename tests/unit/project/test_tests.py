"""Rules for the tests themselves: folders mirror the package, and test names stand alone in a report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TREES = [ROOT / "tests" / "unit", ROOT / "tests" / "integration"]
SOURCES = sorted(
    path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")
)
#: Packages of liftenvelope, as the folders of their tests are called.
PACKAGES = {path.parent.name.strip("_") for path in (ROOT / "liftenvelope").glob("*/__init__.py")}
#: Folders that belong to no package: tests of the project as a whole, and test data.
OTHER_FOLDERS = {"project", "data"}
#: A test whose name begins with one of these words: it continues the name of the test above it.
CONTINUED = re.compile(r"^ *(?:async )?def (test_(?:and|or|but|of|then)(?:_\w*)?)\(", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("tree", TREES, ids=name_of)
def test_folders_are_named_after_packages(tree: Path) -> None:
    folders = {path.name for path in tree.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= PACKAGES | OTHER_FOLDERS


@pytest.mark.parametrize("tree", TREES, ids=name_of)
def test_tests_of_a_package_are_in_its_folder(tree: Path) -> None:
    prefixes = tuple(f"test_{package}_" for package in sorted(PACKAGES))
    assert [path.name for path in tree.glob("*.py") if path.name.startswith(prefixes)] == []


@pytest.mark.parametrize("tree", TREES, ids=name_of)
def test_folders_with_tests_are_packages(tree: Path) -> None:
    """Two files of one name in different folders collide otherwise."""
    folders = {path.parent for path in tree.rglob("test_*.py")}
    assert [name_of(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_test_names_stand_alone() -> None:
    assert len(SOURCES) > 300
    found = {name_of(path): CONTINUED.findall(path.read_text("utf-8")) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


def test_continued_name_is_found() -> None:
    source = "class TestX:\n    async def test_or_fail(self): ...\ndef test_of(): ...\ndef test_order(): ..."
    assert CONTINUED.findall(source) == ["test_or_fail", "test_of"]
