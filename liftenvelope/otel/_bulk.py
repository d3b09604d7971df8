"""Spans of whole reads and writes of ``liftenvelope.bulk``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanKind

from liftenvelope.otel import _conventions as names
from liftenvelope.otel._conventions import Operation

if TYPE_CHECKING:
    from liftenvelope.otel._telemetry import Started, Telemetry

__all__ = ["observe_bulk", "unobserve_bulk"]

_WRITE: Final = Operation("write", "send", SpanKind.PRODUCER)
_READ: Final = Operation("read", "receive", SpanKind.CLIENT)


class _RowWrite:
    """A write in progress: its span, and the context for rows that carry none.

    Args:
        telemetry: Telemetry.
        stream: Name of the stream; empty if there are several.
    """

    def __init__(self, telemetry: Telemetry, stream: str) -> None:
        self._telemetry = telemetry
        self._started = telemetry.start(telemetry.scene(_WRITE, stream), {})
        self._fields = telemetry.options.propagation.fields(self._started.context)
        self._links = telemetry.options.max_links

    def run(self, call: Callable[[], Any]) -> Any:
        """Call the write, and end the span."""
        token = _writing.set(self)
        try:
            result = call()
        except BaseException as exc:
            self._started.end(exc, count=getattr(exc, "acked", 0))
            raise
        finally:
            _writing.reset(token)
        self._started.span.set_attribute(names.BATCH_COUNT, result.acked)
        self._started.end(count=result.acked)
        return result

    def rows(self, batch: Any, most: int) -> Any:
        """Link the spans that created rows, and return the rows with the context of the write."""
        from liftenvelope.otel._rows import with_fields

        self._links -= _link(self._telemetry, self._started, batch, self._links)
        return with_fields(batch, self._fields, most)


#: The write that runs in this context. A task of Spark may write several streams in one.
_writing: Final[ContextVar[_RowWrite | None]] = ContextVar("liftenvelope-write", default=None)


def observe_bulk(telemetry: Telemetry) -> None:
    """Record the reads and writes of ``liftenvelope.bulk``.

    Raises:
        MissingExtraError: The extra of bulk is not installed.
    """
    from liftenvelope.bulk.observing import observation

    def observe(function: str, stream: str, call: Callable[[], Any]) -> Any:
        if not telemetry.applies or (function == "write" and _writing.get() is not None):
            return call()
        if function == "write":
            return _RowWrite(telemetry, stream).run(call)
        started = telemetry.start(telemetry.scene(_READ, stream), {})
        try:
            result = call()
        except BaseException as exc:
            started.end(exc, count=0)
            raise
        return _recorded(telemetry, started, result)

    observation.observer, observation.row_observer = observe, _observe_rows


def _observe_rows(batch: Any, most: int) -> Any:
    write = _writing.get()
    return batch if write is None else write.rows(batch, most)


def unobserve_bulk() -> None:
    """Take the observer away, if there is one."""
    module = sys.modules.get("liftenvelope.bulk.observing")
    if module is not None:
        module.observation.observer = module.observation.row_observer = None


def _recorded(telemetry: Telemetry, started: Started, reader: Any) -> Any:
    """Return a reader of the same batches that ends the span with its last one."""
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(reader.schema, _batches(telemetry, started, reader))


def _batches(telemetry: Telemetry, started: Started, reader: Any) -> Iterator[Any]:
    rows, links = 0, telemetry.options.max_links
    failure: BaseException | None = None
    try:
        for batch in reader:
            rows += batch.num_rows
            telemetry.count_consumed(started.scene, batch.num_rows)
            links -= _link(telemetry, started, batch, links)
            yield batch
    except GeneratorExit:  # the reader was dropped
        raise
    except BaseException as exc:
        failure = exc
        raise
    finally:
        started.span.set_attribute(names.BATCH_COUNT, rows)
        started.end(failure, count=0)


def _link(telemetry: Telemetry, started: Started, batch: Any, limit: int) -> int:
    """Add links to the spans that published the first rows of a batch, and return their number."""
    from liftenvelope.otel._rows import header_rows

    if limit <= 0 or not started.span.is_recording():
        return 0
    found = telemetry.options.propagation.links(header_rows(batch, limit), limit)
    for link in found:
        started.span.add_link(link.context)
    return len(found)
