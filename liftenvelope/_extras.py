"""Import of optional dependencies, with an error that has the install command."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from liftenvelope.errors import MissingExtraError


def require(module: str, extra: str) -> Any:
    """Import a module of an optional dependency.

    Raises:
        MissingExtraError: The module is not installed; the text has the ``pip install`` to run.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or module.partition(".")[0] != exc.name.partition(".")[0]:
            raise
        text = f"this needs {exc.name}: run pip install 'liftenvelope[{extra}]'"
        raise MissingExtraError(text, name=exc.name) from exc
