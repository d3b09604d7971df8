"""Pages that promise something name tests and paths that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.faults.plan import PATHS

ROOT = Path(__file__).resolve().parents[2]
GUARANTEES = ROOT / "docs" / "guarantees.md"
PAGES = (GUARANTEES, ROOT / "SECURITY.md")
NAMED = sorted(
    {
        (page.parent / link, file, name)
        for page in PAGES
        for file, name, link in re.findall(r"\[([\w/]+\.py)::([\w:]+)\]\(([^)]+)\)", page.read_text("utf-8"))
    }
)


def names_in(path: Path) -> set[str]:
    """The tests and classes of a file, as they stand behind its name in a node id."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {node.name, *(f"{node.name}::{name}" for name in functions_of(node))}
    return found | functions_of(ast.parse(path.read_text("utf-8")))


def functions_of(node: ast.Module | ast.ClassDef) -> set[str]:
    return {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("path", "file", "name"), NAMED, ids=[f"{file}::{name}" for _, file, name in NAMED])
def test_a_named_test_exists(path: Path, file: str, name: str) -> None:
    assert path.as_posix().endswith(f"/{file}")
    assert name in names_in(path)


def test_every_path_of_the_campaign_shows_something() -> None:
    assert set(re.findall(r"`faults:([a-z0-9-]+)`", GUARANTEES.read_text("utf-8"))) == set(PATHS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_promise_is_shown_by_something(page: Path) -> None:
    tables = re.findall(r"\| promise .*\n\|[-|]+\n((?:\|.*\n)+)", page.read_text("utf-8"))
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 25
    assert [
        row for row in rows if "::" not in row and "`faults:" not in row and " paths above" not in row
    ] == []
