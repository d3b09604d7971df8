"""Every piece has the same public names and signatures in its stub, its readable twin and its extension.

Stub and twin are compared as source. An extension tells the parameters of its functions and methods, but not
those of its constructors, which are read from ``src``. ``make types`` compares stubs and extensions as well.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from liftenvelope import _native

FOLDER = Path(_native.__path__[0])
SOURCES = Path(__file__).parents[2] / "src"
CONSTRUCTORS = ("__init__", "__new__", "__cinit__")
PIECES = pytest.mark.parametrize("piece", _native.PIECES)


class Signature(NamedTuple):
    """A function as source code."""

    parameters: tuple[str, ...]
    returns: str


def signature_of(function: ast.FunctionDef) -> Signature:
    """Parameters with annotations and defaults. In a stub ``...`` may stand for a default."""
    arguments = function.args
    positional = arguments.posonlyargs + arguments.args
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    shown = [
        *zip(positional, [*missing, *arguments.defaults], strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    words = [
        f"{argument.arg}: {ast.unparse(argument.annotation)}" + (" = ..." if default is not None else "")
        for argument, default in shown
        if argument.annotation is not None
    ]
    words.insert(len(words) - len(arguments.kwonlyargs), "*")
    returns = "" if function.name in CONSTRUCTORS else ast.unparse(function.returns or ast.Constant(None))
    return Signature(tuple(words), returns)


def functions(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    found = [node for node in body if isinstance(node, ast.FunctionDef)]
    return {"constructor" if node.name in CONSTRUCTORS else node.name: node for node in found}


def is_property(function: ast.FunctionDef) -> bool:
    return "property" in [ast.unparse(decorator) for decorator in function.decorator_list]


def definition(value: object) -> ast.stmt:
    """A class or function of a twin as source; its own methods before those that it inherits."""
    if isinstance(value, type):
        body: list[ast.stmt] = []
        for base in value.__mro__:
            if base is not object and base.__module__.startswith("liftenvelope."):
                [tree] = ast.parse(inspect.getsource(base)).body
                assert isinstance(tree, ast.ClassDef)
                body = tree.body + body
        return ast.ClassDef(value.__name__, [], [], body, [])
    return ast.parse(inspect.getsource(value)).body[0]  # type: ignore[arg-type]


def attributes(node: ast.ClassDef) -> set[str]:
    """Attributes of instances: properties, annotated fields, and those that methods assign."""
    found = {name for name, function in functions(node.body).items() if is_property(function)}
    found |= {ast.unparse(inner.target) for inner in node.body if isinstance(inner, ast.AnnAssign)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found.add(inner.attr)
    return public(found)


def methods(node: ast.ClassDef) -> dict[str, Signature]:
    found = {name: item for name, item in functions(node.body).items() if not is_property(item)}
    return {name: signature_of(found[name]) for name in public(set(found))}


def public(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def stub_of(piece: str) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in ast.parse((FOLDER / f"_fast{piece}.pyi").read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = node
    return {name: node for name, node in found.items() if not name.startswith("_")}


def twin_of(piece: str) -> ModuleType:
    return import_module(f"liftenvelope._native.{piece}")


def extension_of(piece: str) -> ModuleType:
    return import_module(f"liftenvelope._native._fast{piece}")


def test_every_extension_is_a_piece() -> None:
    assert {source.stem for source in SOURCES.glob("*.pyx")} == {f"_fast{piece}" for piece in _native.PIECES}


@PIECES
def test_stub_and_twin_have_the_same_names(piece: str) -> None:
    assert set(twin_of(piece).__all__) == set(stub_of(piece))


@PIECES
def test_stub_and_extension_have_the_same_names(piece: str) -> None:
    extension = extension_of(piece)
    own = {name for name, value in vars(extension).items() if belongs_to(value, extension)}
    stub = stub_of(piece)
    assert public(own) == {name for name, node in stub.items() if not isinstance(node, ast.AnnAssign)}
    assert [name for name in stub if not hasattr(extension, name)] == []


def belongs_to(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__ and callable(value)


@PIECES
def test_stub_and_twin_have_the_same_signatures(piece: str) -> None:
    for name, node in stub_of(piece).items():
        twin = getattr(twin_of(piece), name)
        if isinstance(node, ast.FunctionDef):
            function = definition(twin)
            assert isinstance(function, ast.FunctionDef)
            assert signature_of(node) == signature_of(function), name
        elif isinstance(node, ast.ClassDef):
            twin_class = definition(twin)
            assert isinstance(twin_class, ast.ClassDef)
            expected, found = methods(node), methods(twin_class)
            if "constructor" not in expected:  # the extension's instances come from its static methods
                found.pop("constructor", None)
            assert expected == found, name
            assert attributes(node) <= attributes(twin_class), name
        else:
            assert twin == getattr(extension_of(piece), name), name


@PIECES
def test_stub_and_extension_have_the_same_parameters(piece: str) -> None:
    constructors = constructors_of(SOURCES / f"_fast{piece}.pyx")
    for name, node in stub_of(piece).items():
        value = getattr(extension_of(piece), name)
        if isinstance(node, ast.FunctionDef):
            assert parameters(node) == list(inspect.signature(value).parameters), name
            assert parameters_of(value) == parameters_of(getattr(twin_of(piece), name)), name
        elif isinstance(node, ast.ClassDef):
            for method, function in functions(node.body).items():
                if method == "constructor":
                    assert parameters(function)[1:] == constructors[name], name
                elif not method.startswith("_") and not is_property(function):
                    shown = list(inspect.signature(getattr(value, method)).parameters)
                    assert parameters(function) == shown, f"{name}.{method}"


def parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [item.arg for item in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]


def parameters_of(function: Callable[..., object]) -> list[tuple[object, ...]]:
    """Parameters of a function at run time, without their annotations."""
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def constructors_of(source: Path) -> dict[str, list[str]]:
    """Parameter names of each class's constructor, behind ``self``. Other classes are inside their module."""
    found = {}
    text = source.read_text()
    for included in re.findall(r'^include "(\w+\.pxi)"$', text, re.MULTILINE):
        text += (SOURCES / included).read_text()
    for part in re.split(r"^(?:@cython\.\w+\n)*cdef class ", text, flags=re.MULTILINE)[1:]:
        name = re.match(r"\w+", part)
        head = re.search(r"^    def __c?init__\(([^)]*)\)", part, re.MULTILINE)
        assert name is not None
        if head is not None:
            words = (word.partition("=")[0].replace(" not None", "") for word in head[1].split(","))
            names = [word.split()[-1] for word in words if word.strip() not in ("", "*")]
            found[name[0]] = names[1:]
    return found


def test_a_difference_is_found() -> None:
    def read(text: str) -> Signature:
        [function] = ast.parse(text).body
        assert isinstance(function, ast.FunctionDef)
        return signature_of(function)

    signature = read("def f(a: int, *, b: str = '') -> bytes: ...")
    assert signature == read("def f(a: int, *, b: str = ...) -> bytes: ...")
    for other in (
        "def f(a: int, *, c: str = '') -> bytes: ...",
        "def f(a: str, *, b: str = '') -> bytes: ...",
        "def f(a: int, b: str = '') -> bytes: ...",
        "def f(a: int, *, b: str) -> bytes: ...",
        "def f(a: int, *, b: str = '') -> str: ...",
    ):
        assert signature != read(other)
