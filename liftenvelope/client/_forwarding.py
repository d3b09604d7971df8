"""Methods that an object forwards to one of its parts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

__all__ = ["forward"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Part = TypeVar("_Part")

if TYPE_CHECKING:
    _Method = Callable[Concatenate[_Part, _P], _R]


def forward(part: str, method: _Method[_Part, _P, _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Return a method that calls a part's method, with the same name, signature, docstring and kind.

    Args:
        part: Name of the attribute that holds the part.
        method: Method of the part's class.

    Example:
        >>> class Counter:
        ...     def add(self, number: int = 1) -> int:
        ...         '''Return the number.'''
        ...         return number
        >>> class Owner:
        ...     add = forward("counter", Counter.add)
        ...     def __init__(self) -> None:
        ...         self.counter = Counter()
        >>> Owner().add(7), Owner.add.__doc__
        (7, 'Return the number.')
    """

    @functools.wraps(method)
    def call(self: object, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return method(getattr(self, part), *args, **kwargs)

    if not inspect.iscoroutinefunction(method):
        return call

    @functools.wraps(method)
    async def call_async(self: object, /, *args: _P.args, **kwargs: _P.kwargs) -> object:
        return await method(getattr(self, part), *args, **kwargs)

    return cast("Callable[Concatenate[Any, _P], _R]", call_async)
