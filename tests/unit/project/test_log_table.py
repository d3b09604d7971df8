"""The table of log lines in docs/operating.md has every line that the package logs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "liftenvelope"
METHODS = {"debug", "info", "warning", "error", "exception", "log"}
LOGGERS = {"_log", "log"}
#: A field of a line: ``%s``, ``%d`` or ``%(name)s``.
FIELD = re.compile(r"%(?:\(\w+\))?[\d.]*[sdrf]")
PAGE = (ROOT / "docs" / "operating.md").read_text("utf-8")
TABLE = PAGE.partition("\n## Logs\n")[2].partition("\n## ")[0]


def is_log_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in LOGGERS
        and node.func.attr in METHODS
    )


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of the log calls in a module. A variable stands for what its function assigns to it."""
    source = path.read_text("utf-8")
    if not any(f"{logger}." in source for logger in LOGGERS):
        return
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        nodes = list(ast.walk(function))
        assigned = {
            node.targets[0].id: node.value
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in filter(is_log_call, nodes):
            assert isinstance(node, ast.Call)
            assert isinstance(node.func, ast.Attribute)
            text: ast.expr = node.args[1] if node.func.attr == "log" else node.args[0]
            if isinstance(text, ast.Name):
                text = assigned.get(text.id, text)
            if isinstance(text, ast.Constant):
                yield str(text.value)


def event_texts() -> Iterator[str]:
    for part in ("archive", "client", "group", "jetstream"):
        lines = import_module(f"liftenvelope.{part}._event_log")._LINES
        for _, text in lines.values():
            yield text


def phrase(text: str) -> str:
    """Return the beginning of the first part of a line that has two words or more, without fields."""
    parts = [part.strip(" ,:") for part in FIELD.split(text)]
    return " ".join(next((part for part in parts if " " in part), max(parts, key=len)).split()[:3])


def test_table_has_every_line() -> None:
    found = {text for path in PACKAGE.rglob("*.py") for text in texts_of(path)} | set(event_texts())
    assert len(found) > 60
    assert "gateway %s has its lease" in found
    # Lines that pass on a text of another program, or end with a reason that is listed by itself.
    found -= {"%s", "gateway %s %s"}
    assert [text for text in sorted(found) if phrase(text) not in TABLE] == []
