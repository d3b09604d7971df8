"""Resolves types in signatures and roles in docstrings to the public name that the reference documents.

``liftenvelope.client.Subscription`` is defined in ``liftenvelope.client._reading.subscription``. Signatures
name the place of the definition. A type that is not documented here, such as one of another package, stays
plain text. A role in a docstring must lead somewhere, or the build fails.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter, _tuplegetter  # type: ignore[attr-defined]
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MemberDescriptorType
from typing import Generic, get_origin

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc import INSTANCEATTR, SLOTSATTR

import liftenvelope

API = Path(__file__).resolve().parents[1] / "api"


def documented_modules() -> list[str]:
    """Return the modules that have a page in ``docs/api``."""
    pages = "\n".join(page.read_text("utf-8") for page in sorted(API.glob("*.rst")))
    return re.findall(r"^\.\. automodule:: (\S+)", pages, re.MULTILINE)


def definition(value: object) -> str | None:
    """Return the dotted name under which a class or function is defined."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return None  # an alias of a type has the name of the class that makes it one
    return f"{value.__module__}.{value.__qualname__}"


@cache
def public_names() -> dict[str, str]:
    """Map the place of each definition to the documented name."""
    found: dict[str, str] = {}
    for module_name in documented_modules():
        module = import_module(module_name)
        for name in module.__all__:
            found.setdefault(definition(getattr(module, name)) or name, f"{module_name}.{name}")
    return found


@cache
def unique_names() -> dict[str, str]:
    """Map the last part of each documented name to the whole, where only one name ends with it."""
    names = sorted(set(public_names().values()))
    ends = Counter(name.rpartition(".")[2] for name in names)
    return {name.rpartition(".")[2]: name for name in names if ends[name.rpartition(".")[2]] == 1}


def documented(target: str, module: str | None) -> str | None:
    """Return the documented name of what a reference in a module calls ``target``."""
    target = target.removeprefix("liftenvelope.") if hasattr(liftenvelope, target[13:]) else target
    first, _, rest = target.partition(".")
    for place in (module, "liftenvelope"):
        value = getattr(sys.modules.get(place or ""), first, None)
        if (name := public_names().get(definition(value) or "")) is not None:
            return name + (rest and f".{rest}")
    for name in (target, target.rpartition(".")[0]):
        if name in public_names():
            return public_names()[name] + target[len(name) :]
    return unique_names()[first] + (rest and f".{rest}") if first in unique_names() else None


def owner(node: addnodes.pending_xref) -> str | None:
    """Return the documented class whose docstring describes the attribute that a role names."""
    path, _, name = str(node["reftarget"]).rpartition(".")
    place = documented(path or node.get("py:class") or "", node.get("py:module"))
    if place is None or node["reftype"] != "attr":
        return None
    module, _, class_name = place.rpartition(".")
    text = getattr(getattr(import_module(module), class_name, None), "__doc__", None) or ""
    return place if re.search(rf"\b{name}\b", text) else None


def is_annotation(node: addnodes.pending_xref) -> bool:
    """Return True for a type in a signature. Roles have a literal inside."""
    return node.get("refdomain") == "py" and not isinstance(node.next_node(), nodes.literal)


def _read(_: Sphinx, document: nodes.document) -> None:
    """Keep ``bytes`` in a signature from leading to any attribute called ``bytes``."""
    for node in document.findall(addnodes.pending_xref):
        if is_annotation(node):
            for guess in ("refspecific", "py:class"):
                node.attributes.pop(guess, None)


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.reference | nodes.TextElement | None:
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    domain = env.domains.python_domain
    for name in (documented(target, node.get("py:module")), owner(node)):
        if name is not None:
            found = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)
            if found is not None:
                return found
    foreign = target.partition(".")[0].lstrip("_") in sys.stdlib_module_names
    return content if foreign or is_annotation(node) else None


def _public_bases(_: Sphinx, _name: str, _value: object, _options: object, bases: list[object]) -> None:
    """Leave out bases that are private to the package, and those that only serve types."""
    bases[:] = [
        base
        for base in bases
        if get_origin(base) is not Generic
        and (not str(base.__module__).startswith("liftenvelope") or definition(base) in public_names())
    ] or [object]


def _whole_sentence(
    _: Sphinx, what: str, _name: str, _value: object, _options: object, lines: list[str]
) -> None:
    """Napoleon takes the words before a colon for the type of an attribute: give it an empty type instead."""
    if what in ("attribute", "property") and lines and ":" in lines[0]:
        lines[0] = f":{lines[0]}"


def _skip(_: Sphinx, what: str, _name: str, value: object, _skipped: bool, _options: object) -> bool | None:
    """Leave out fields without a docstring of their own: the docstring of their class describes them."""
    plain = isinstance(value, _tuplegetter | MemberDescriptorType) or value in (INSTANCEATTR, SLOTSATTR)
    return True if what == "class" and plain else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-read", _read)
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-process-docstring", _whole_sentence, priority=400)
    app.connect("autodoc-process-bases", _public_bases)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
