"""Spans of the Liftbridge client's publishes."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry import context as context_api

from liftenvelope.otel import _conventions as names
from liftenvelope.otel._batches import end_batch
from liftenvelope.otel._buffered import buffered
from liftenvelope.otel._outstanding import outstanding
from liftenvelope.otel._propagation import added
from liftenvelope.otel._publishing import Publish
from liftenvelope.otel._reconnects import reconnects

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from liftenvelope.client import OutgoingMessage
    from liftenvelope.otel._patches import Patches
    from liftenvelope.otel._telemetry import Started, Telemetry

__all__ = ["patch_client"]

#: Bytes of a request besides its stream, key, value and headers, and of a header besides its name and value:
#: upper bounds of tags, lengths, numbers and the correlation id.
_REQUEST_ROOM: Final = 256
_HEADER_ROOM: Final = 32


def patch_client(patches: Patches, telemetry: Telemetry) -> None:
    """Instrument publishing by the Liftbridge client.

    Raises:
        MissingExtraError: The extra of the client is not installed.
    """
    from liftenvelope.client import Client

    patches.replace(Client, "open", _opened)
    for name in ("subscribe", "consumer"):
        patches.replace(Client, name, _watched)
    patches.replace(Client, "publish", partial(_publish, telemetry))
    patches.replace(Client, "publish_to_subject", partial(_publish, telemetry))
    patches.replace(Client, "publish_async", partial(_publish_async, telemetry))
    patches.replace(Client, "publish_many", partial(_publish_many, telemetry))


def _opened(original: Callable[..., Any]) -> Callable[..., Any]:
    async def open(self: Any) -> Any:  # noqa: A001 - the name of the method
        reconnects.watch(self, "liftbridge")
        return await original(self)

    return open


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        reconnects.watch(self, "liftbridge")
        made = original(self, *args, **options)
        buffered.watch(made, "liftbridge")
        return made

    return call


def _publish(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def publish(self: Any, to: str, value: Any, *, headers: Any = None, **options: Any) -> Any:
        if not (telemetry.applies and isinstance(to, str)):
            return await original(self, to, value, headers=headers, **options)
        reconnects.watch(self, "liftbridge")
        one = Publish(telemetry, telemetry.scene(names.PUBLISH, to), value, headers, str.encode)
        ack = await one.call_async(partial(original, self, to, value, **options))
        one.end(ack)
        return ack

    return publish


def _publish_async(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def publish_async(self: Any, to: str, value: Any, *, headers: Any = None, **options: Any) -> Any:
        if not (telemetry.applies and isinstance(to, str)):
            return await original(self, to, value, headers=headers, **options)
        reconnects.watch(self, "liftbridge")
        outstanding.watch(self, "liftbridge")
        one = Publish(telemetry, telemetry.scene(names.PUBLISH, to), value, headers, str.encode)
        future = await one.call_async(partial(original, self, to, value, **options))
        one.end_with(future)
        return future

    return publish_async


def _publish_many(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    def publish_many(self: Any, stream: str, messages: Any, **options: Any) -> Any:
        is_source = isinstance(messages, Iterable | AsyncIterable)
        if not (telemetry.applies and is_source) or isinstance(messages, str | bytes | bytearray | Mapping):
            return original(self, stream, messages, **options)
        reconnects.watch(self, "liftbridge")
        outstanding.watch(self, "liftbridge")
        run = _ManyPublish(telemetry, stream, context_api.get_current())
        source = _AsyncItems(run, messages) if isinstance(messages, AsyncIterable) else _Items(run, messages)
        many = original(self, stream, source, **options)
        many.on_end, run.max_request_bytes = run.end, many.max_request_bytes
        # A loop over the acks that was left early never ends by itself.
        weakref.finalize(many, run.abandon).atexit = False
        return many

    return publish_many


class _ManyPublish:
    """Span of one ``publish_many``. It starts when the first message is taken."""

    def __init__(self, telemetry: Telemetry, stream: str, context: Context) -> None:
        #: Largest request of the client.
        self.max_request_bytes = 0
        self._telemetry = telemetry
        self._stream = stream
        self._context = context
        self._started: Started | None = None
        self._fields: dict[str, bytes] = {}
        self._taken = 0

    def start(self) -> Started:
        """Start the span, unless it has started."""
        if self._started is None:
            scene = self._telemetry.scene(names.PUBLISH, self._stream)
            self._started = self._telemetry.start(scene, {}, parent=self._context)
            fields = self._telemetry.options.propagation.fields(self._started.context)
            self._fields = {name: value.encode() for name, value in fields.items()}
        return self._started

    def item(self, item: Any) -> Any:
        """Return a message with the fields of the span, or as it is if it would be too large with them."""
        self._taken += 1
        if not self._fields:
            return item
        found = _with_fields(item, self._fields)
        if found is None or _most_bytes_of(self._stream, found) > self.max_request_bytes:
            return item
        return found

    def end(self, stored: int, failures: Mapping[int, BaseException], error: BaseException | None) -> None:
        """End the span with the outcome of the messages."""
        started = self.start()
        started.span.set_attribute(names.BATCH_COUNT, self._taken)
        if not started.is_over:
            end_batch(self._telemetry, started, stored, failures, error)

    def abandon(self) -> None:
        """End the span of a publish that nobody holds any more."""
        if self._started is not None:
            self._started.end(count=0)


def _with_fields(item: Any, fields: Mapping[str, bytes]) -> OutgoingMessage | None:
    """Return a message of ``publish_many`` with fields in its headers; None if it is none."""
    from liftenvelope.client import OutgoingMessage
    from liftenvelope.envelope import Message

    if isinstance(item, bytes | bytearray | memoryview):
        return OutgoingMessage(value=item, headers=fields)
    if type(item) is tuple and len(item) == 2:
        return OutgoingMessage(key=item[0], value=item[1], headers=fields)
    if isinstance(item, OutgoingMessage):
        return OutgoingMessage(
            value=item.value,
            key=item.key,
            headers=added(item.headers, fields),
            partition=item.partition,
            expected_offset=item.expected_offset,
        )
    if isinstance(item, Message):
        return OutgoingMessage(value=item.value, key=item.key, headers=added(item.headers, fields))
    return None  # the publish raises its own error


def _most_bytes_of(stream: str, message: OutgoingMessage) -> int:
    """Return an upper bound of the size of a message's request."""
    names = [stream, *map(str, message.headers or ())]  # the publish refuses other names
    parts = [message.key, message.value, *(message.headers or {}).values()]
    size = sum(len(name.encode("utf-8", "replace")) for name in names) + sum(map(_bytes_of, parts))
    return size + _REQUEST_ROOM + len(names) * _HEADER_ROOM


def _bytes_of(part: Any) -> int:
    try:
        return memoryview(part).nbytes
    except TypeError:  # None, or a value that the publish refuses
        return 0


class _Items:
    """Messages of an iterable, with the fields of a span."""

    def __init__(self, run: _ManyPublish, messages: Iterable[Any]) -> None:
        self._run = run
        self._messages = iter(messages)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._run.start()
        return self._run.item(next(self._messages))


class _AsyncItems:
    """Messages of an async iterable, with the fields of a span."""

    def __init__(self, run: _ManyPublish, messages: AsyncIterable[Any]) -> None:
        self._run = run
        self._messages: AsyncIterator[Any] = aiter(messages)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        self._run.start()
        return self._run.item(await anext(self._messages))
