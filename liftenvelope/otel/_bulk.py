"""Spans of whole reads and writes of ``liftenvelope.bulk``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanKind

from liftenvelope.otel import _conventions as names
from liftenvelope.otel._conventions import Operation

if TYPE_CHECKING:
    from liftenvelope.otel._telemetry import Started, Telemetry

__all__ = ["observe_bulk", "unobserve_bulk"]

#: Not PRODUCER: the rows carry the contexts in their own headers, and not that of the write.
_WRITE: Final = Operation("write", "send", SpanKind.CLIENT)
_READ: Final = Operation("read", "receive", SpanKind.CLIENT)


def observe_bulk(telemetry: Telemetry) -> None:
    """Record the reads and writes of ``liftenvelope.bulk``.

    Raises:
        MissingExtraError: The extra of bulk is not installed.
    """
    from liftenvelope.bulk.observing import observation

    def observe(function: str, stream: str, call: Callable[[], Any]) -> Any:
        if not telemetry.applies:
            return call()
        operation = _WRITE if function == "write" else _READ
        started = telemetry.start(telemetry.scene(operation, stream), {})
        try:
            result = call()
        except BaseException as exc:
            started.end(exc, count=getattr(exc, "acked", 0))
            raise
        if function == "write":
            started.span.set_attribute(names.BATCH_COUNT, result.acked)
            started.end(count=result.acked)
            return result
        return _recorded(telemetry, started, result)

    observation.observer = observe


def unobserve_bulk() -> None:
    """Take the observer away, if there is one."""
    module = sys.modules.get("liftenvelope.bulk.observing")
    if module is not None:
        module.observation.observer = None


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
            if links > 0 and started.span.is_recording():
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
    if "headers" not in batch.schema.names:
        return 0
    rows = batch.column("headers").slice(0, limit).to_pylist()
    found = telemetry.options.propagation.links((dict(row) for row in rows if row), limit)
    for link in found:
        started.span.add_link(link.context)
    return len(found)
