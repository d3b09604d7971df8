"""Optional dependencies: one sentence with the command to run where one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from liftenvelope.errors import MissingExtraError


def require(module: str, extra: str) -> Any:
    """Import a module of an optional dependency.

    Raises:
        MissingExtraError: It is not installed; the text is the ``pip install`` to run.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or module.partition(".")[0] != exc.name.partition(".")[0]:
            raise
        text = f"this needs {exc.name}: run pip install 'liftenvelope[{extra}]'"
        raise MissingExtraError(text, name=exc.name) from exc
