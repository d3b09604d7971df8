"""The page of guarantees names tests and paths that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.faults.plan import PATHS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "guarantees.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"\[(\w+\.py)::([\w:]+)\]\(([^)]+)\)", PAGE)))


def names_in(path: Path) -> set[str]:
    """The tests and classes of a file, as they stand behind its name in a node id."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {node.name, *(f"{node.name}::{name}" for name in functions_of(node))}
    return found | functions_of(ast.parse(path.read_text("utf-8")))


def functions_of(node: ast.Module | ast.ClassDef) -> set[str]:
    return {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("file", "name", "link"), NAMED, ids=[f"{file}::{name}" for file, name, _ in NAMED])
def test_a_named_test_exists(file: str, name: str, link: str) -> None:
    path = (DOCS / link).resolve()
    assert path.name == file
    assert name in names_in(path)


def test_every_path_of_the_campaign_shows_something() -> None:
    assert set(re.findall(r"`faults:([a-z-]+)`", PAGE)) == set(PATHS)


def test_every_promise_is_shown_by_something() -> None:
    tables = re.findall(r"\| promise .*\n\|[-|]+\n((?:\|.*\n)+)", PAGE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 25
    assert [
        row for row in rows if "::" not in row and "`faults:" not in row and " paths above" not in row
    ] == []
