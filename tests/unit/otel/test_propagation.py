"""Context in headers of messages, and labels of destinations, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import get_global_textmap
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from liftenvelope.envelope import Message, new_message
from liftenvelope.errors import UsageTypeError
from liftenvelope.jetstream import Headers, Recorder
from liftenvelope.jetstream import Message as JetStreamMessage
from liftenvelope.otel._destinations import Destinations, default_template
from liftenvelope.otel._propagation import Propagation, added

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203332-01"
W3C = Propagation(get_global_textmap())


class Hostile(TextMapPropagator):
    """A propagator that makes fields which no header can carry."""

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        carrier |= {"a b": "1", "colon:": "1", "line": "1\r\nX: 2", "ü": "1", "": "1", "good": "1"}

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Context:
        return Context()

    @property
    def fields(self) -> set[str]:
        return {"good"}


def delivered(data: bytes = b"", headers: Mapping[str, str] | None = None) -> JetStreamMessage:
    return JetStreamMessage("orders", "$JS.ACK.S.C.1.7.3.0.2", data, headers, Recorder())


def found(message: Any) -> str:
    context = W3C.creation(message)
    return "" if context is None else f"{context.trace_id:032x}"


@pytest.mark.parametrize(
    "message",
    [
        {"traceparent": PARENT},
        {"TraceParent": PARENT},
        {"traceparent": PARENT.encode()},
        {"traceparent": [PARENT, OTHER]},
        {"traceparent": bytearray(PARENT.encode())},
        Headers([("via", "x"), ("traceparent", PARENT)]),
        Message(b"", headers={"traceparent": PARENT.encode()}),
        delivered(headers={"Nats-Msg-Id": "1", "traceparent": PARENT}),
        delivered(new_message(b"", headers={"traceparent": PARENT.encode()})),
        delivered(new_message(b"", headers={"traceparent": PARENT.encode()}), {"Nats-Msg-Id": "1"}),
        delivered(new_message(b"", headers={"traceparent": OTHER.encode()}), {"traceparent": PARENT}),
    ],
)
def test_context_is_found_in_every_kind_of_message(message: Any) -> None:
    assert found(message) == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        "text",
        {"traceparent": 7},
        {"traceparent": []},
        {"traceparent": None},
        {7: PARENT},
        delivered(b"\xb9\x0e\x43\xb4"),
        delivered(b"\xb9\x0e\x43\xb4" + b"\xff" * 100),
    ],
)
def test_message_without_a_context_has_none(message: Any) -> None:
    assert found(message) == ""


@given(st.dictionaries(st.text(), st.text() | st.binary()) | st.binary().map(delivered))
def test_any_headers_and_payload_are_read_without_an_error(message: Any) -> None:
    W3C.extract(message)


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("traceparent", "tracestate", "baggage"), st.text() | st.binary())
    )
)
def test_malformed_fields_are_read_without_an_error(headers: Any) -> None:
    W3C.extract(headers)
    W3C.links([headers], 3)


def test_fields_that_no_header_can_carry_are_dropped() -> None:
    assert Propagation(Hostile()).fields(Context()) == {"good": "1"}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, {"traceparent": "t", "tracestate": "s", "baggage": "b"}),
        ({}, {"traceparent": "t", "tracestate": "s", "baggage": "b"}),
        ({"a": "1"}, {"a": "1", "traceparent": "t", "tracestate": "s", "baggage": "b"}),
        ({"traceparent": "own"}, {"traceparent": "own", "baggage": "b"}),
        ({"Traceparent": "own"}, {"Traceparent": "own", "baggage": "b"}),
        ({"tracestate": "own"}, {"tracestate": "own", "baggage": "b"}),
        ({"baggage": "own"}, {"baggage": "own", "traceparent": "t", "tracestate": "s"}),
    ],
)
def test_fields_of_the_user_stay(headers: dict[str, str] | None, expected: dict[str, str]) -> None:
    before = None if headers is None else dict(headers)
    assert added(headers, {"traceparent": "t", "tracestate": "s", "baggage": "b"}) == expected
    assert headers == before


def test_headers_are_returned_as_they_are_without_fields() -> None:
    headers = {"a": "1"}
    assert added(headers, {}) is headers
    assert added(headers | {"traceparent": "x"}, {"traceparent": "t"}) == headers | {"traceparent": "x"}
    odd: Any = ["a"]
    assert added(odd, {"traceparent": "t"}) is odd


def test_links_are_limited_and_differ() -> None:
    messages = [{"traceparent": PARENT}] * 5 + [{"traceparent": OTHER}] * 5 + [{}]
    assert [f"{link.context.trace_id:032x}"[-1] for link in W3C.links(messages, 10)] == ["c", "d"]
    assert len(W3C.links(messages, 1)) == 1
    assert W3C.links(messages, 0) == []


def test_extracted_context_has_nothing_of_the_current_one() -> None:
    span = NonRecordingSpan(SpanContext(1, 2, False, TraceFlags(1)))
    with trace.use_span(span):
        assert not trace.get_current_span(W3C.extract({})).get_span_context().is_valid


def test_labels_of_destinations_are_limited() -> None:
    destinations = Destinations(default_template, 2)
    labels = [destinations.find(name).label for name in ("a", "b", "c", "a", "_INBOX.x.1", "d")]
    assert labels == ["a", "b", "{other}", "a", "{other}", "{other}"]
    assert (destinations.find("c").name, destinations.find("c").template) == ("c", "{other}")
    assert destinations.find("a").template is None


def test_template_of_another_type_is_refused() -> None:
    odd: Any = lambda name: 7  # noqa: E731 - a function of the wrong type
    with pytest.raises(UsageTypeError, match="must return str or None, got 7 for 'orders'"):
        Destinations(odd, 10).find("orders")


def test_memory_of_destinations_is_bounded() -> None:
    calls: list[str] = []

    def template(name: str) -> str | None:
        calls.append(name)
        return "orders.{id}" if name.startswith("orders.") else None

    destinations = Destinations(template, 10)
    for number in range(5_000):
        assert destinations.find(f"orders.{number}").label == "orders.{id}"
    assert len(destinations._known) <= 1_024
    assert destinations.find("other").label == "other"
    destinations.find("other")
    assert calls.count("other") == 1
