"""Errors of missing packages name an extra that exists."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def extras() -> Iterator[tuple[str, str]]:
    """Yield the files of the package, and the extras that they name."""
    for path in sorted((ROOT / "liftenvelope").rglob("*.py")):
        source = path.read_text("utf-8")
        for node in ast.walk(ast.parse(source)) if "require(" in source else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
                extra = node.args[1]
                assert isinstance(extra, ast.Constant), path
                if isinstance(extra.value, str):
                    yield path.name, extra.value


def test_missing_package_names_an_extra_that_exists() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    found = list(extras())
    assert found
    assert [(file, extra) for file, extra in found if extra not in known] == []
