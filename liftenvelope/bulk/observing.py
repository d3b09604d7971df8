"""Observer of whole reads and writes, for telemetry. Without one, a call costs one comparison more."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

__all__ = ["Observation", "Observer", "observation", "observed"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Called instead of a function, with the name of the function, the stream, and what calls it.
Observer = Callable[[str, str, Callable[[], Any]], Any]


@dataclass(slots=True)
class Observation:
    """The observer of this process.

    Attributes:
        observer: The observer; None for none.
    """

    observer: Observer | None = None


observation = Observation()


def observed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function of a source and a stream that the observer sees."""

    @functools.wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _R:
        observer = observation.observer
        if observer is None:
            return function(*args, **options)
        given = dict(zip(("source", "stream"), args, strict=False)) | options
        call_it = functools.partial(function, *args, **options)
        result: _R = observer(function.__name__, str(given.get("stream", "")), call_it)
        return result

    return call
