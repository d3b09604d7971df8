"""Replacement of methods, which can be taken back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["Patches"]


class Patches:
    """Methods that were replaced, with what was there before."""

    def __init__(self) -> None:
        self._done: list[tuple[type, str, Any, Any]] = []

    def replace(self, kind: type, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a method where it is defined: in the class, or in the base that the class has it from.

        Args:
            kind: The class.
            name: Name of the method.
            make: Returns the replacement of the function that it gets.
        """
        owner = next(each for each in kind.__mro__ if name in vars(each))
        if any((each, found) == (owner, name) for each, found, *_ in self._done):
            return  # two classes have the method from one base
        original = vars(owner)[name]
        replacement = functools.wraps(original)(make(original))
        setattr(owner, name, replacement)
        self._done.append((owner, name, original, replacement))

    def restore(self) -> None:
        """Put back what was there, unless somebody else has replaced the method since."""
        for owner, name, original, replacement in reversed(self._done):
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)
        self._done.clear()
