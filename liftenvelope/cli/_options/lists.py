"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["with_options"]

_F = TypeVar("_F", bound=Callable[..., Any])


def with_options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return a decorator that adds options to a command, in the order of the help.

    Args:
        options: Decorators, such as those of ``click.option``.
    """

    def add(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return add
