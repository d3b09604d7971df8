"""Our names beside those of the package that OpenTelemetry generates from its conventions."""

from __future__ import annotations

from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes

from liftenvelope.otel import _conventions


def names_in(module: object) -> set[str]:
    return {value for value in vars(module).values() if isinstance(value, str)}


def test_attributes_are_those_of_the_conventions() -> None:
    ours = {name for name in names_in(_conventions) if name.startswith(("messaging.", "server.", "error."))}
    assert "messaging.destination.name" in ours
    assert ours <= names_in(messaging_attributes) | names_in(server_attributes) | names_in(error_attributes)


def test_operation_types_are_those_of_the_conventions() -> None:
    known = {kind.value for kind in messaging_attributes.MessagingOperationTypeValues}
    ours = {found.type for found in vars(_conventions).values() if isinstance(found, _conventions.Operation)}
    assert ours == {"send", "receive", "process", "settle"}
    assert ours <= known - {"publish", "deliver"}  # these two are deprecated
