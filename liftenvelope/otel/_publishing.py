"""Spans of single publishes: JetStream, ack inbox, envelope publisher, Liftbridge client.

The span of a publish ends with its ack. Its context goes into the headers of the message. If the publish is
refused because the message is too large with these fields, it is published without them. A refusal that only
the ack tells is final: the caller has the future already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import Link

from liftenvelope.errors import EnvelopeError, MessageTooLargeError, UsageError
from liftenvelope.otel import _conventions as names
from liftenvelope.otel._outstanding import outstanding
from liftenvelope.otel._propagation import Carrier, added

if TYPE_CHECKING:
    from liftenvelope.otel._patches import Patches
    from liftenvelope.otel._telemetry import Scene, Started, Telemetry

__all__ = ["Publish", "patch_jetstream", "patch_nats"]

#: Errors of a message that may be valid without the added fields. Nothing was stored.
_INVALID: Final = (UsageError, EnvelopeError, MessageTooLargeError)
#: Subjects that are not the user's: JetStream's API, and key-value buckets.
_RESERVED: Final = "$"


class Publish:
    """One publish: starts its span, adds the fields, and ends the span.

    Args:
        telemetry: Telemetry.
        scene: The scene of the publish.
        body: Payload, to record its size.
        headers: Headers of the user.
        encode: Converts the value of a field to the type of the headers' values.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        scene: Scene,
        body: object,
        headers: Carrier | None,
        encode: Callable[[str], object] = str,
    ) -> None:
        propagation = telemetry.options.propagation
        given = propagation.creation(headers) if headers else None
        self.started: Started = telemetry.start(
            scene, _size_of(body), links=() if given is None else (Link(given),)
        )
        fields = propagation.fields(self.started.context)
        self._own = headers
        self.headers = added(headers, {name: encode(value) for name, value in fields.items()})

    @contextmanager
    def failing(self) -> Iterator[None]:
        """End the span if the block raises: nothing was sent then."""
        try:
            yield
        except BaseException as exc:
            self.started.end(exc, count=0)
            raise

    def call(self, publish: Callable[..., Any]) -> Any:
        """Call a plain function with the headers; the span goes on if it returns."""
        with self.failing():
            try:
                return publish(headers=self.headers)
            except _INVALID:
                if self.headers is self._own:
                    raise
                return publish(headers=self._own)

    async def call_async(self, publish: Callable[..., Awaitable[Any]]) -> Any:
        """Await a coroutine function with the headers; the span goes on if it returns."""
        with self.failing():
            try:
                return await publish(headers=self.headers)
            except _INVALID:
                if self.headers is self._own:
                    raise
                return await publish(headers=self._own)

    def end_with(self, future: asyncio.Future[Any]) -> None:
        """End the span with a future of the ack."""
        future.add_done_callback(partial(_end_with, self.started))

    def end(self, ack: object) -> None:
        """End the span with an ack; None for a publish without one."""
        _end_acked(self.started, ack)


def _end_with(started: Started, future: asyncio.Future[Any]) -> None:
    if future.cancelled():
        started.end(asyncio.CancelledError())
        return
    # Not exception(): asyncio would no longer report a failure that the user never retrieves.
    error: BaseException | None = getattr(future, "_exception", None)
    if error is None:
        _end_acked(started, future.result())
    else:
        started.end(error)


def _end_acked(started: Started, ack: Any) -> None:
    stream = getattr(ack, "stream", None)
    if stream is not None and started.span.is_recording():
        offset = ack.offset if hasattr(ack, "offset") else ack.sequence
        started.span.set_attributes({names.STREAM: stream, names.OFFSET: offset})
    started.end()


def _size_of(body: object) -> dict[str, int]:
    if isinstance(body, bytes | bytearray):
        return {names.BODY_SIZE: len(body)}
    try:
        return {names.BODY_SIZE: memoryview(body).nbytes}  # type: ignore[arg-type]
    except TypeError:  # the publish raises its own error
        return {}


def patch_nats(patches: Patches, telemetry: Telemetry) -> None:
    """Instrument the ack inbox and the single publishes of the envelope publisher."""
    from liftenvelope.nats import AckInbox, EnvelopePublisher

    patches.replace(AckInbox, "publish_nowait", partial(_publish_nowait, telemetry))
    patches.replace(EnvelopePublisher, "publish", partial(_publish_envelope, telemetry))


def patch_jetstream(patches: Patches, telemetry: Telemetry) -> None:
    """Instrument publishing to JetStream."""
    from liftenvelope.jetstream import JetStream

    patches.replace(JetStream, "publish_async", partial(_publish_jetstream, telemetry))


def _publish_nowait(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    def publish_nowait(
        self: Any, subject: str, value: Any, *, headers: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        if not (telemetry.applies and isinstance(subject, str)):
            return original(self, subject, value, headers=headers, **options)
        outstanding.watch(self, "ack_inbox")
        scene = telemetry.scene(names.PUBLISH, subject, nc=self.nc)
        publish = Publish(telemetry, scene, value, headers, str.encode)
        future = publish.call(partial(original, self, subject, value, **options))
        publish.end_with(future)
        return future

    return publish_nowait


def _publish_envelope(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def publish(
        self: Any, value: Any, *, headers: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        if self.inbox is not None or not telemetry.applies:  # with an inbox, the inbox makes the span
            return await original(self, value, headers=headers, **options)
        scene = telemetry.scene(names.PUBLISH, self.subject, nc=self.nc)
        one = Publish(telemetry, scene, value, headers, str.encode)
        await one.call_async(partial(original, self, value, **options))
        one.end(None)
        return None

    return publish


def _publish_jetstream(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def publish_async(
        self: Any, subject: str, payload: Any = b"", *, headers: Any = None, **options: Any
    ) -> Any:
        if not (telemetry.applies and isinstance(subject, str)) or subject.startswith(_RESERVED):
            return await original(self, subject, payload, headers=headers, **options)
        outstanding.watch(self, "jetstream")
        scene = telemetry.scene(names.PUBLISH, subject, nc=self.api.nc)
        publish = Publish(telemetry, scene, payload, headers)
        future = await publish.call_async(partial(original, self, subject, payload, **options))
        publish.end_with(future)
        return future

    return publish_async
