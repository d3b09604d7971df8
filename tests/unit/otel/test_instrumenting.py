"""Switching the instrumentation on and off, without a server."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from liftenvelope import otel
from liftenvelope.client import Client, Subscription
from liftenvelope.client.blocking import BlockingSubscription
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.group import GroupConsumer
from liftenvelope.jetstream import Consumer, JetStream, Message, Messages, OrderedConsumer, Recorder
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.otel._patches import Patches

INSTRUMENTED = (
    AckInbox,
    BlockingSubscription,
    Client,
    Consumer,
    EnvelopePublisher,
    GroupConsumer,
    JetStream,
    Message,
    Messages,
    OrderedConsumer,
    Subscription,
)


def methods() -> dict[tuple[type, str], Any]:
    """Every attribute of the instrumented classes and of their bases."""
    kinds = {base for kind in INSTRUMENTED for base in kind.__mro__[:-1]}
    return {(kind, name): value for kind in kinds for name, value in vars(kind).items()}


def test_uninstrument_puts_back_what_was_there() -> None:
    before = methods()
    for _ in range(3):
        otel.instrument(settle_spans=True)
        otel.instrument(settle_spans=True)
        assert otel.is_instrumented()
        changed = {key for key, value in methods().items() if before.get(key) is not value}
        assert len(changed) > 20
        otel.uninstrument()
        otel.uninstrument()
        assert not otel.is_instrumented()
        assert methods() == before
        assert all(before[key] is value for key, value in methods().items())


def test_replaced_methods_keep_name_signature_and_kind() -> None:
    before = methods()
    otel.instrument(settle_spans=True)
    try:
        for key, value in methods().items():
            if before[key] is value or not inspect.isfunction(value):
                continue
            assert inspect.signature(value) == inspect.signature(before[key]), key
            assert value.__doc__ == before[key].__doc__
            for is_kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction):
                assert is_kind(value) == is_kind(before[key]), key
    finally:
        otel.uninstrument()


def test_method_that_somebody_else_replaced_since_stays() -> None:
    class Thing:
        def name(self) -> str:
            return "thing"

    patches = Patches()
    patches.replace(Thing, "name", lambda original: lambda self: f"({original(self)})")
    assert Thing().name() == "(thing)"
    ours = Thing.name
    Thing.name = lambda self: f"[{ours(self)}]"  # type: ignore[method-assign]
    patches.restore()
    assert Thing().name() == "[(thing)]"


def test_inherited_method_is_replaced_where_it_is_defined() -> None:
    class Base:
        def name(self) -> str:
            return "base"

    class Child(Base):
        pass

    patches = Patches()
    for kind in (Child, Base):
        patches.replace(kind, "name", lambda original: lambda self: f"({original(self)})")
    assert (Child().name(), "name" in vars(Child)) == ("(base)", False)
    patches.restore()
    assert (Child().name(), "name" in vars(Child)) == ("base", False)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"max_links": -1}, UsageError, "max_links must be at least 0, got -1"),
        ({"max_destinations": 0}, UsageError, "max_destinations must be at least 1, got 0"),
        ({"destination_template": "orders"}, UsageTypeError, "must be a function, got str"),
        ({"receive_spans": "no"}, UsageTypeError, "receive_spans must be True or False, got 'no'"),
        ({"tracer_provider": 7}, UsageTypeError, "tracer_provider must be a TracerProvider or None, got int"),
        ({"meter_provider": "x"}, UsageTypeError, "meter_provider must be a MeterProvider or None, got str"),
        ({"propagator": []}, UsageTypeError, "propagator must be a TextMapPropagator or None, got list"),
        ({"bulk": None}, UsageTypeError, "bulk must be True or False, got None"),
        ({"settle_spans": 1}, UsageTypeError, "settle_spans must be True or False, got 1"),
        ({"process_parent": None}, UsageTypeError, "process_parent must be True or False, got None"),
    ],
)
def test_invalid_option_is_refused_and_changes_nothing(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    before = methods()
    with pytest.raises(kind, match=text):
        otel.instrument(**options)
    assert methods() == before


def test_process_without_instrumentation_runs_its_block() -> None:
    message = Message("orders", "$JS.ACK.S.C.1.7.3.0.2", b"hello", {}, Recorder())
    with otel.process(message) as span:
        assert not span.is_recording()
    with pytest.raises(KeyError), otel.process(message):
        raise KeyError


def test_entry_point_loads_as_opentelemetry_instrument_loads_it() -> None:
    entry = EntryPoint(
        "liftenvelope", "liftenvelope.otel:LiftEnvelopeInstrumentor", "opentelemetry_instrumentor"
    )
    assert entry.value in Path("pyproject.toml").read_text("utf-8")
    distro: Any = import_module("opentelemetry.instrumentation.distro")
    distro.DefaultDistro().load_instrumentor(entry, skip_dep_check=True)
    try:
        instrumentor = otel.LiftEnvelopeInstrumentor()
        assert instrumentor.is_instrumented_by_opentelemetry
        assert list(instrumentor.instrumentation_dependencies()) == []
    finally:
        instrumentor.uninstrument()
    assert not otel.is_instrumented()


PROGRAM = """
import sys
sys.modules["opentelemetry"] = None
try:
    import liftenvelope.otel
except ImportError as error:
    print(type(error).__name__, error)
"""


def test_missing_extra_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingExtraError this needs opentelemetry")
    assert done.stdout.endswith(": run pip install 'liftenvelope[otel]'\n")


def test_instrument_needs_the_api_alone() -> None:
    program = (
        "import sys, liftenvelope.otel as otel; otel.instrument();"
        "others = ('opentelemetry.sdk', 'opentelemetry.instrumentation', 'pyarrow');"
        "print([name for name in sys.modules if name.startswith(others)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
