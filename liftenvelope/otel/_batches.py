"""Spans of batches that an envelope publisher publishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import EnvelopeError, TransportError, UsageError
from liftenvelope.otel import _conventions as names
from liftenvelope.otel._outstanding import outstanding
from liftenvelope.otel._propagation import added
from liftenvelope.otel._telemetry import type_of

if TYPE_CHECKING:
    from liftenvelope.otel._patches import Patches
    from liftenvelope.otel._telemetry import Started, Telemetry

__all__ = ["end_batch", "patch_batches"]

#: Columns of a table to publish -> arguments of ``publish_batch``.
_ARGUMENTS: Final = {
    "value": "values",
    "key": "keys",
    "headers": "headers",
    "partition": "partitions",
    "expected_offset": "expected_offsets",
    "correlation_id": "correlation_ids",
}


def patch_batches(patches: Patches, telemetry: Telemetry) -> None:
    """Instrument the batches of the envelope publisher."""
    from liftenvelope.nats import EnvelopePublisher

    patches.replace(EnvelopePublisher, "publish_batch", partial(_publish_batch, telemetry))


def _publish_batch(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def publish_batch(self: Any, values: Any, **columns: Any) -> Any:
        if not telemetry.applies:
            return await original(self, values, **columns)
        own = {name: _repeatable(column) for name, column in {"values": values, **columns}.items()}
        count = len(own["values"]) if hasattr(own["values"], "__len__") else 0
        if self.inbox is not None:
            outstanding.watch(self.inbox, "ack_inbox")
        scene = telemetry.scene(names.PUBLISH, self.subject, nc=self.nc)
        started = telemetry.start(scene, {names.BATCH_COUNT: count})
        fields = telemetry.options.propagation.fields(started.context)
        try:
            acks = await _attempt(partial(original, self), own, fields, count)
        except BaseException as exc:
            started.end(exc, count=exc.published if isinstance(exc, TransportError) else 0)
            raise
        if acks is None:
            started.end(count=count)
        else:
            acks.add_done_callback(
                lambda summary: end_batch(telemetry, started, summary.acked, summary.failures)
            )
        return acks

    return publish_batch


async def _attempt(
    publish: Callable[..., Any], own: Mapping[str, Any], fields: Mapping[str, str], count: int
) -> Any:
    """Publish with the fields; publish without them if the batch is invalid with them."""
    more = _with_fields(own, {name: value.encode() for name, value in fields.items()}, count)
    try:
        return await publish(**more)
    except (UsageError, EnvelopeError):  # nothing was sent
        if more is own:
            raise
        return await publish(**own)


def _with_fields(own: Mapping[str, Any], fields: Mapping[str, bytes], count: int) -> Mapping[str, Any]:
    """Return the columns of a batch with fields in the headers of each row; ``own`` if there are none."""
    if not fields or not count:
        return own
    columns = _columns_of(own)
    if columns is None:
        return own
    given = columns.get("headers")
    if given is None:
        return {**columns, "headers": [fields] * count}
    rows = given.to_pylist() if hasattr(given, "to_pylist") else given
    if not isinstance(rows, list | tuple):
        return own  # the publish raises its own error
    # A row of an Arrow map is a list of pairs.
    mappings = [dict(row) if isinstance(row, list) else row for row in rows]
    return {**columns, "headers": [added(row, fields) for row in mappings]}


def _columns_of(own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the columns of a batch by their arguments; None for a table that is invalid."""
    table = own["values"]
    if not hasattr(table, "column_names"):
        return dict(own)
    found = {_ARGUMENTS.get(name, ""): table[name] for name in table.column_names}
    others = [own[name] for name in _ARGUMENTS.values() if name in own and name != "values"]
    if "" in found or "values" not in found or any(column is not None for column in others):
        return None
    found["partitions"] = found["partitions"].to_pylist() if "partitions" in found else None
    return {**own, **found}


def _repeatable(column: Any) -> Any:
    """Return a column that can be read twice."""
    if isinstance(column, Iterable) and not hasattr(column, "__len__"):
        return list(column)
    return column


def end_batch(
    telemetry: Telemetry,
    started: Started,
    stored: int,
    failures: Mapping[int, BaseException],
    error: BaseException | None = None,
) -> None:
    """End the span of a batch, and count its messages by their outcomes.

    Args:
        telemetry: Telemetry.
        started: The batch.
        stored: Number of messages that are stored.
        failures: Errors of the others.
        error: Error of the whole batch. Default: the first failure.
    """
    outcomes: Counter[str | None] = Counter(map(type_of, failures.values()))
    if stored:
        outcomes[None] = stored
    telemetry.count_sent(started.scene, outcomes)
    if error is None and failures:
        error = failures[min(failures)]
    if failures:
        started.span.set_attribute("liftenvelope.failed_messages", len(failures))
    started.end(error, count=0)
