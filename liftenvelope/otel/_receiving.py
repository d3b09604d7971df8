"""Spans of receiving from JetStream: fetches, iterations, handlers, and acks on request."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from liftenvelope.otel import _conventions as names
from liftenvelope.otel._buffered import buffered
from liftenvelope.otel._conventions import Operation
from liftenvelope.otel._processing import traced_handler

if TYPE_CHECKING:
    from liftenvelope.otel._patches import Patches
    from liftenvelope.otel._telemetry import Scene, Telemetry

__all__ = ["patch_jetstream_receiving"]

_FETCHES = ("fetch", "fetch_bytes", "fetch_no_wait")


class _Origin(NamedTuple):
    """Consumer that messages come from."""

    stream: str
    group: str
    nc: Any

    def scene(self, telemetry: Telemetry, operation: Operation) -> Scene:
        return telemetry.scene(operation, self.stream, group=self.group, nc=self.nc)


def _origin_of(consumer: Any) -> _Origin:
    """Return the origin of a consumer. Only a durable consumer has a name that lasts."""
    info = getattr(consumer, "cached_info", None)  # an ordered consumer has none
    group = "" if info is None else info.config.durable_name or ""
    return _Origin(consumer.stream_name, group, consumer.api.nc)


def patch_jetstream_receiving(patches: Patches, telemetry: Telemetry) -> None:
    """Instrument the consumers of JetStream."""
    from liftenvelope.jetstream import Consumer, Message, Messages, OrderedConsumer

    origins: WeakKeyDictionary[Any, _Origin] = WeakKeyDictionary()
    for kind in (Consumer, OrderedConsumer):
        for name in _FETCHES:
            patches.replace(kind, name, partial(_fetch, telemetry))
        patches.replace(kind, "next", partial(_next, telemetry))
        patches.replace(kind, "messages", partial(_messages, origins))
        patches.replace(kind, "consume", partial(_consume, telemetry))
    patches.replace(Messages, "__aiter__", lambda _: lambda self: self)
    patches.replace(Messages, "__anext__", partial(_taken, telemetry, origins))
    patches.replace(Messages, "next", partial(_taken, telemetry, origins))
    if telemetry.options.settle_spans:
        for name, operation in (("ack", names.ACK), ("nak", names.NAK), ("term", names.TERM)):
            patches.replace(Message, name, partial(_settle, telemetry, operation))
        patches.replace(Message, "ack_sync", partial(_settle_sync, telemetry))


def _fetch(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def fetch(self: Any, *args: Any, **options: Any) -> Any:
        if not telemetry.applies:
            return await original(self, *args, **options)
        scene = _origin_of(self).scene(telemetry, names.FETCH)
        with telemetry.receiving(scene) as received:
            batch = await original(self, *args, **options)
            received(batch)
        return batch

    return fetch


def _next(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def next(self: Any, *args: Any, **options: Any) -> Any:  # noqa: A001 - the name of the method
        if not telemetry.applies:
            return await original(self, *args, **options)
        scene = _origin_of(self).scene(telemetry, names.RECEIVE)
        with telemetry.receiving(scene) as received:
            message = await original(self, *args, **options)
            received([message])
        return message

    return next


def _messages(origins: WeakKeyDictionary[Any, _Origin], original: Callable[..., Any]) -> Callable[..., Any]:
    def messages(self: Any, **options: Any) -> Any:
        made = original(self, **options)
        buffered.watch(made, "jetstream")
        origins[made] = _origin_of(self)
        return made

    return messages


def _taken(
    telemetry: Telemetry, origins: WeakKeyDictionary[Any, _Origin], original: Callable[..., Any]
) -> Callable[..., Any]:
    async def taken(self: Any, *args: Any, **options: Any) -> Any:
        message = await original(self, *args, **options)
        if telemetry.applies:
            # An iteration that was made before it was instrumented has no origin.
            origin = origins.get(self) or _Origin(message.subject, "", None)
            telemetry.received(origin.scene(telemetry, names.RECEIVE), [message], time.time_ns())
        return message

    return taken


def _consume(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def consume(self: Any, handler: Any, **options: Any) -> Any:
        if callable(handler) and telemetry.applies:
            origin = _origin_of(self)
            handler = traced_handler(telemetry, handler, origin.group, origin.nc)
        made = await original(self, handler, **options)
        buffered.watch(made, "jetstream")
        return made

    return consume


def _settle(telemetry: Telemetry, operation: Operation, original: Callable[..., Any]) -> Callable[..., Any]:
    def settle(self: Any, *args: Any, **options: Any) -> Any:
        if not telemetry.applies:
            return original(self, *args, **options)
        with telemetry.settling(operation, self):
            return original(self, *args, **options)

    return settle


def _settle_sync(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def ack_sync(self: Any, *args: Any, **options: Any) -> Any:
        if not telemetry.applies:
            return await original(self, *args, **options)
        with telemetry.settling(names.ACK, self):
            return await original(self, *args, **options)

    return ack_sync
