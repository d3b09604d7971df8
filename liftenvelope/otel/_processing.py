"""Spans of processing messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span

from liftenvelope.envelope import Message as EnvelopeMessage
from liftenvelope.errors import UsageError
from liftenvelope.otel import _conventions as names
from liftenvelope.otel._telemetry import Started, Telemetry, active

__all__ = ["process", "traced_handler"]


@contextmanager
def process(message: Any, *, group: str = "") -> Iterator[Span]:
    """Record a span for the body of a ``with`` block, which processes a message.

    The span is current in the block, so spans that the block starts are its children. The span of one message
    is a child of the span that published it, and has a link to it. The span of a list of messages has links
    only. An exception that leaves the block is recorded. Without :func:`instrument`, nothing is recorded.

    Args:
        message: Message of JetStream, of a group or of the Liftbridge client, a mapping of headers, or a list
            or tuple of those.
        group: Name of the consumer group or durable consumer, for the attribute
            ``messaging.consumer.group.name``. Default: none.

    Yields:
        The span, to add attributes.

    Raises:
        UsageError: The list is empty.

    Example::

        async for message in messages:
            with otel.process(message):
                await handle(message)
            message.ack()
    """
    if isinstance(message, list | tuple) and not hasattr(message, "_fields"):  # GroupMessage is a named tuple
        if not message:
            raise UsageError("message must be a message or a list of at least one, got an empty list")
        messages: Sequence[Any] = message
    else:
        messages = (message,)
    telemetry = active.telemetry
    if telemetry is None or not telemetry.applies:
        yield INVALID_SPAN
        return
    started = _start(telemetry, messages, group)
    with _current(started):
        yield started.span
    started.end()


def _start(telemetry: Telemetry, messages: Sequence[Any], group: str, nc: Any = None) -> Started:
    destination, more = describe(messages[0])
    scene = telemetry.scene(names.PROCESS, destination, group=group, nc=nc)
    if len(messages) > 1:
        links = telemetry.options.propagation.links(messages, telemetry.options.max_links)
        return telemetry.start(scene, {names.BATCH_COUNT: len(messages)}, links=links)
    context = telemetry.options.propagation.extract(messages[0])
    creation = trace.get_current_span(context).get_span_context()
    links = [Link(creation)] if creation.is_valid else []
    is_child = telemetry.options.process_parent and (creation.is_valid or bool(context))
    return telemetry.start(scene, more, parent=_over_current(context) if is_child else None, links=links)


def _over_current(context: Context) -> Context:
    """Return the current context with the values of a message's context in place of its own."""
    return Context({**context_api.get_current(), **context})


@contextmanager
def _current(started: Started) -> Iterator[None]:
    """Make the span of an operation the current one, and end the operation if the block raises."""
    token = context_api.attach(started.context)
    try:
        yield
    except BaseException as exc:
        started.end(exc)
        raise
    finally:
        context_api.detach(token)


def describe(message: Any) -> tuple[str, dict[str, str | int]]:
    """Return the destination and the span attributes of processing one message."""
    inner = message
    while (below := getattr(inner, "message", None)) is not None:  # of a group
        inner = below
    if isinstance(inner, EnvelopeMessage):
        more: dict[str, str | int] = {
            names.BODY_SIZE: len(inner.value),
            names.PARTITION: str(inner.partition),
            names.OFFSET: inner.offset,
        }
        return inner.stream or inner.subject, more
    data, subject = getattr(inner, "data", None), str(getattr(inner, "subject", ""))
    more = {names.BODY_SIZE: len(data)} if isinstance(data, bytes) else {}
    if inner is not message:
        more |= {names.PARTITION: str(message.partition), names.OFFSET: message.offset}
        return str(message.topic), more
    return subject, more


def traced_handler(
    telemetry: Telemetry, handler: Callable[[Any], Awaitable[None] | None], group: str, nc: Any
) -> Callable[[Any], Awaitable[None] | None]:
    """Return a handler of ``consume`` that calls another one within a span.

    A plain function stays one: the consumption awaits nothing for it.
    """

    def call(message: Any) -> Awaitable[None] | None:
        if not telemetry.applies:
            return handler(message)
        started = _start(telemetry, (message,), group, nc)
        telemetry.count_consumed(started.scene)
        telemetry.note_deliveries(started.scene, (message,))
        with _current(started):
            work = handler(message)
        if work is not None:
            return _finish(started, work)
        started.end()
        return None

    return call


async def _finish(started: Started, work: Awaitable[None]) -> None:
    with _current(started):
        await work
    started.end()
