"""The examples in the docstrings do what they say, under whichever backend is active.

Those of liftenvelope.testing and .client start servers: tests/integration/project/test_examples.py runs them.
"""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import liftenvelope
from liftenvelope import _native

# Extension modules take their docstrings from their twins, and under NO_EXTENSIONS they are not to be loaded.
_WITH_SERVERS = ("liftenvelope.testing", "liftenvelope.client")
_EXTENSIONS = tuple(f"liftenvelope._native._fast{piece}" for piece in _native.PIECES)


# It subclasses what only Spark has, and has no examples.
_WITH_SPARK = ("liftenvelope.spark._sources",)


def _modules() -> list[str]:
    # Not walk_packages alone: it passes over a package that can't be imported, where an extra is missing.
    def fail(name: str) -> None:
        raise AssertionError(f"{name} can't be imported")

    found = pkgutil.walk_packages(liftenvelope.__path__, "liftenvelope.", onerror=fail)
    names = [module.name for module in found if not module.name.startswith(_WITH_SERVERS)]
    return ["liftenvelope", *(name for name in names if name not in (*_EXTENSIONS, *_WITH_SPARK))]


MODULES = _modules()


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_doctests_are_found() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    tested = {test.name for name in MODULES for test in finder.find(import_module(name)) if test.examples}
    assert {
        "liftenvelope.arrow.decode_batch",
        "liftenvelope.correlation.PendingAcks",
        "liftenvelope.envelope",
        "liftenvelope._native.env.new_message",
        "liftenvelope.partition.partition_subject",
    } <= tested
