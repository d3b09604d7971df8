"""Trace context and baggage in the headers of messages.

A message's headers are the user's. Fields are added to a copy, and only if the user has not set them: a
message that is forwarded with its ``traceparent`` stays in the trace that it came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.trace import Link, SpanContext

from liftenvelope.envelope import is_envelope, unmarshal_message
from liftenvelope.errors import EnvelopeError
from liftenvelope.jetstream import Headers
from liftenvelope.jetstream import Message as JetStreamMessage

__all__ = ["BAGGAGE", "Carrier", "Propagation", "added"]

#: Headers of a message: text in NATS, bytes in envelopes.
Carrier = Mapping[str, Any]

#: Field of the baggage. It is independent of the trace, so it is added to a message that has a trace already.
BAGGAGE: Final = "baggage"
#: Names and values that NATS carries. A propagator that makes others must not fail a publish.
_NAME: Final = re.compile(r"[!-9;-~]{1,128}")
_VALUE: Final = re.compile(r"[\t -~]*")


class _Headers(Getter[Carrier]):
    """Reads fields from headers. Other clients may change the case of names, as Go's ``http.Header`` does."""

    def get(self, carrier: Carrier, key: str) -> list[str] | None:
        value = carrier.get(key)
        if value is None:
            wanted = key.lower()
            value = next((carrier[name] for name in carrier if str(name).lower() == wanted), None)
        if isinstance(value, list | tuple):
            value = value[0] if value else None
        if isinstance(value, bytes | bytearray | memoryview):
            return [bytes(value).decode("utf-8", "replace")]
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Carrier) -> list[str]:
        return list(carrier)


_GETTER: Final = _Headers()


class Propagation:
    """Injects the context of a span into headers, and extracts it from headers.

    Args:
        propagator: Reads and writes the fields.
    """

    def __init__(self, propagator: TextMapPropagator) -> None:
        self._propagator = propagator

    def fields(self, context: Context) -> dict[str, str]:
        """Return the fields of a context, by name; empty if there is nothing to propagate."""
        fields: dict[str, str] = {}
        self._propagator.inject(fields, context)
        return {
            name: value for name, value in fields.items() if _NAME.fullmatch(name) and _VALUE.fullmatch(value)
        }

    def extract(self, message: Any) -> Context:
        """Return the context that a message carries, and nothing of the current context."""
        found = Context()
        for headers in carriers_of(message):
            found = self._propagator.extract(headers, Context(), _GETTER)
            if _span_context(found).is_valid:
                break
        return found

    def creation(self, message: Any) -> SpanContext | None:
        """Return the context of the span that created a message; None if the message carries none."""
        found = _span_context(self.extract(message))
        return found if found.is_valid else None

    def links(self, messages: Iterable[Any], limit: int) -> list[Link]:
        """Return links to the spans that created messages, at most ``limit``, and one for each span."""
        found: dict[tuple[int, int], Link] = {}
        for message in messages:
            if len(found) >= limit:
                break
            context = self.creation(message)
            if context is not None:
                found.setdefault((context.trace_id, context.span_id), Link(context))
        return list(found.values())


def _span_context(context: Context) -> SpanContext:
    return trace.get_current_span(context).get_span_context()


def added(headers: Carrier | None, fields: Mapping[str, Any]) -> Carrier | None:
    """Return a copy of headers with the fields that the user has not set; ``headers`` if none is added.

    If the headers have any field of a trace context, only baggage is added: the fields of two contexts must
    not be mixed.
    """
    if not fields or not (headers is None or isinstance(headers, Mapping)):
        return headers  # the publish raises its own error
    if not headers:
        return fields
    names = {str(name).lower() for name in headers}
    given = names.intersection(name.lower() for name in fields)
    if given - {BAGGAGE}:
        fields = {name: value for name, value in fields.items() if name.lower() == BAGGAGE}
    more = {name: value for name, value in fields.items() if name.lower() not in given}
    if not more:
        return headers
    if isinstance(headers, Headers):  # keeps repeated names
        return Headers([*headers.pairs, *more.items()])
    return {**headers, **more}


def carriers_of(message: Any) -> Iterator[Carrier]:
    """Yield the headers of a message in which a context may be.

    They are the message itself if it is a mapping, or else its attribute ``headers``. For a message of
    JetStream, those of the envelope in its payload follow. A message of a group contains that of its topic.
    """
    if isinstance(message, Mapping):
        yield message
    elif isinstance(message, JetStreamMessage):
        if message.headers:
            yield message.headers
        if is_envelope(message.data):
            with suppress(EnvelopeError):  # the payload only starts like an envelope
                yield unmarshal_message(message.data).headers
    elif isinstance(headers := getattr(message, "headers", None), Mapping):
        yield headers
    elif (inner := getattr(message, "message", None)) is not None:
        yield from carriers_of(inner)
