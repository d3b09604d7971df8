"""Observer of whole reads and writes, for telemetry. Without one, a call costs two comparisons more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Observation",
    "Observer",
    "RowObserver",
    "observation",
    "observed",
    "observed_call",
    "observed_rows",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Called instead of a function, with the name of the function, the stream, and what calls it.
Observer = Callable[[str, str, Callable[[], Any]], Any]
#: Called with rows that a write is about to publish and the size of the largest message, while the observer
#: calls the write. Returns the rows to publish: as many, with the same columns or one more for headers.
RowObserver = Callable[["pa.RecordBatch", int], "pa.RecordBatch"]


@dataclass(slots=True)
class Observation:
    """The observer of this process.

    Attributes:
        observer: The observer; None for none.
        row_observer: Observer of the rows of writes; None for none.
    """

    observer: Observer | None = None
    row_observer: RowObserver | None = None


observation = Observation()


def observed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function of a source and a stream that the observer sees."""

    @functools.wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _R:
        if observation.observer is None:
            return function(*args, **options)
        given = dict(zip(("source", "stream"), args, strict=False)) | options
        call_it = functools.partial(function, *args, **options)
        return observed_call(function.__name__, str(given.get("stream", "")), call_it)

    return call


def observed_call(name: str, stream: str, call: Callable[[], _R]) -> _R:
    """Call a function, by way of the observer if there is one.

    Args:
        name: ``read`` or ``write``.
        stream: Name of the stream; empty if there are several.
        call: What to call. The result of a write has a number ``acked``.
    """
    observer = observation.observer
    if observer is None:
        return call()
    result: _R = observer(name, stream, call)
    return result


def observed_rows(batches: Iterator[pa.RecordBatch], most: Callable[[], int]) -> Iterator[pa.RecordBatch]:
    """Return the batches of a write, by way of the observer of rows if there is one.

    Args:
        batches: Rows to publish.
        most: Returns the size of the largest message in bytes; called when a batch is taken.
    """
    change = observation.row_observer
    return batches if change is None else (change(batch, most()) for batch in batches)
