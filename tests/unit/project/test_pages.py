"""The site has each page in its navigation, each public name in its reference, and each error on its page."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from liftenvelope.errors import LiftEnvelopeError
from tests.test_layers import ENTRIES, RANK

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
#: Links of the first cells of the tables in the index.
LISTED = re.findall(r"^\| \[[^\]]+\]\(([^)#]+)\)", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE)
REFERENCE = "\n".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.rst"))
DOCUMENTED = re.findall(r"^\.\. automodule:: (\S+)", REFERENCE, re.MULTILINE)
#: Packages without public names, or whose names users get from elsewhere.
INTERNAL = {"rpc", "consumers", "cli", "__init__", "__main__"}
#: Modules whose public names their packages export too, and the names that other packages of ours use.
EXPORTED: dict[str, tuple[str, set[str]]] = {
    "liftenvelope.bulk.errors": ("liftenvelope.bulk", set()),
    "liftenvelope.bulk.tables": ("liftenvelope.bulk", set()),
    "liftenvelope.payload.errors": ("liftenvelope.payload", set()),
    "liftenvelope.client.activity": ("liftenvelope.client", {"ACTIVITY_STREAM", "read_activity"}),
}


def test_every_page_is_listed_in_the_index() -> None:
    listed = {(DOCS / link).resolve() for link in LISTED}
    pages = {*DOCS.glob("*.md"), *DOCS.glob("*.rst"), *DOCS.rglob("*.ipynb"), *ROOT.glob("*.md")}
    assert sorted(page.name for page in pages - listed - {DOCS / "index.md"}) == []


def test_no_page_is_listed_twice() -> None:
    assert sorted({link for link in LISTED if LISTED.count(link) > 1}) == []


def test_every_public_module_is_in_the_reference() -> None:
    packages = {f"liftenvelope.{name}" for name in RANK if not name.startswith("_")}
    packages -= {f"liftenvelope.{name}" for name in INTERNAL}
    assert (packages | set(ENTRIES)) - set(DOCUMENTED) - set(EXPORTED) == set()


@pytest.mark.parametrize("module", EXPORTED)
def test_names_that_the_package_exports_too(module: str) -> None:
    package, ours = EXPORTED[module]
    assert set(import_module(module).__all__) - ours <= set(import_module(package).__all__)


def test_every_error_is_on_its_page() -> None:
    page = (DOCS / "errors.md").read_text("utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    modules = [import_module(name) for name in DOCUMENTED if not name.startswith("liftenvelope.spark.f")]
    errors = {
        name
        for module in modules
        for name in module.__all__
        if isinstance(value := getattr(module, name), type) and issubclass(value, LiftEnvelopeError)
    }
    assert len(errors) > 60
    assert errors - named == set()


def test_pictures_are_up_to_date() -> None:
    command = [sys.executable, str(DOCS / "flow_pictures.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
