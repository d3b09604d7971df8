"""Writes liftenvelope/client/blocking.pyi from the blocking classes: ``python protos/generate_blocking.py``.

The methods of those classes are made at run time, where type checkers do not see them. With ``--check`` the
program only tells whether the file is up to date.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import inspect
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any, get_overloads

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from liftenvelope.client import blocking  # noqa: E402 - the package of this checkout
from liftenvelope.client.binding import Blocking, blocking_annotation  # noqa: E402

TARGET = ROOT / "liftenvelope" / "client" / "blocking.pyi"
_HEAD = '"""Types of client/blocking.py. Made by protos/generate_blocking.py. Don\'t edit."""'
_SHOWN = ("__enter__", "__exit__", "__iter__", "__next__")


@cache
def imports_of(module: str) -> dict[str, str]:
    """Return the import statement for every name that a module imports or defines at its top level."""
    found: dict[str, str] = {}
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    while body:
        node = body.pop(0)
        if isinstance(node, ast.If):  # TYPE_CHECKING
            body = node.body + body
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name: f"from {node.module} import {alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            # `import pyarrow as pa` keeps its alias.
            found |= {(alias.asname or alias.name): ast.unparse(node) for alias in node.names}
        for name in _defined(node):
            found[name] = f"from {module} import {name}"
    return found


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return [target.id for target in targets if isinstance(target, ast.Name)]


class Stub:
    """Text of the stub, and the imports that it needs."""

    def __init__(self) -> None:
        self.imports = {"from typing import overload", "import concurrent.futures"}
        self._known = imports_of(blocking.__name__)

    def text(self) -> str:
        """Return the whole stub, not formatted yet."""
        parts = [self.class_(kind) for kind in vars(blocking).values() if _is_ours(kind)]
        parts.append(self.function("connect_blocking", blocking.connect_blocking))
        return "\n".join([_HEAD, *sorted(self.imports), f"__all__ = {blocking.__all__!r}", *parts])

    def class_(self, kind: type[Blocking]) -> str:
        """Return the declaration of a class with all public members."""
        self._known = imports_of(blocking.__name__) | imports_of(kind._async_type.__module__)
        (base,) = kind.__bases__
        self.imports.add(f"from {base.__module__} import {base.__name__}")
        lines = [f"class {kind.__name__}({base.__name__}):"]
        for name, member in vars(kind).items():
            if name.startswith("_") and name not in _SHOWN:
                continue
            if isinstance(member, property):
                lines += ["    @property", f"    {self.function(name, member.fget)}"]
                continue
            overloads = get_overloads(inspect.unwrap(member))
            for one in overloads:
                lines += ["    @overload", f"    {self.function(name, one)}"]
            if not overloads:
                lines.append(f"    {self.function(name, member)}")
        return "\n".join(lines)

    def function(self, name: str, function: Any) -> str:
        """Return the declaration of a function."""
        signature = inspect.signature(function)
        parameters = [self._parameter(one) for one in signature.parameters.values()]
        returns = blocking_annotation(signature.return_annotation)
        origin = inspect.unwrap(function).__module__
        annotations = [one.annotation for one in signature.parameters.values()]
        for annotation in (*annotations, returns):
            if annotation is not inspect.Parameter.empty:
                self._import(annotation, origin)
        shown = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
        return f"def {name}{shown} -> {returns}: {_body(function)}"

    def _parameter(self, parameter: inspect.Parameter) -> inspect.Parameter:
        """Return a parameter whose annotation and default are shown as source code."""
        default, annotation = parameter.default, parameter.annotation
        if default is not inspect.Parameter.empty:
            plain = default is None or type(default) in (bool, int, float, str)
            default = _Source(repr(default) if plain else "...")
        if annotation is not inspect.Parameter.empty:
            annotation = _Source(annotation)
        return parameter.replace(default=default, annotation=annotation)

    def _import(self, annotation: str, module: str) -> None:
        known = self._known | imports_of(module)
        known["Iterator"] = "from collections.abc import Iterator"
        for node in ast.walk(ast.parse(annotation, mode="eval")):
            name = node.id if isinstance(node, ast.Name) else ""
            if name in known and not hasattr(builtins, name) and name not in blocking.__all__:
                self.imports.add(known[name])


class _Source:
    """A piece of source code, which :class:`inspect.Signature` shows as it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _body(function: Any) -> str:
    """Return the docstring as the body of a declaration, for editors, which read the stub alone."""
    text = inspect.getdoc(function)
    if text is None:
        return "..."
    escaped = text.replace("\\", "\\\\")
    end = "\n" if "\n" in text else ""
    return textwrap.indent(f'\n"""{escaped}{end}"""', " " * 8)


def _is_ours(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Blocking) and kind.__module__ == blocking.__name__


def tidy(text: str) -> str:
    """Return the text as ruff formats it, with sorted imports."""
    for command in (("check", "--select", "I,F401", "--fix-only", "--quiet"), ("format", "--quiet")):
        text = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"],
            input=text,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
        ).stdout
    return text


def main() -> int:
    """Write the file, or with ``--check`` only compare it; return the exit status."""
    parser = argparse.ArgumentParser(description="Write liftenvelope/client/blocking.pyi.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if it is out of date")
    check = parser.parse_args().check
    text = tidy(Stub().text())
    if TARGET.is_file() and TARGET.read_text("utf-8") == text:
        return 0
    if not check:
        TARGET.write_text(text, "utf-8")
    print(f"{TARGET.name}: {'out of date' if check else 'written'}", file=sys.stderr)
    return 1 if check else 0


if __name__ == "__main__":
    sys.exit(main())
