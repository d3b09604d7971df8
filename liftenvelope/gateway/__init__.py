"""Serves the Liftbridge API on JetStream, so that Liftbridge clients need only a NATS server."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from liftenvelope.gateway._families import Metric, MetricSample
    from liftenvelope.gateway._gateway import Gateway
    from liftenvelope.gateway._monitoring.readiness import Readiness
    from liftenvelope.gateway.limits import Limits

__all__ = ["Gateway", "Limits", "Metric", "MetricSample", "Readiness"]

# Loaded on first use: archives and tests use modules of this package without a gateway, which is slow to
# import.
_MODULES: Final = {
    "Gateway": "_gateway",
    "Limits": "limits",
    "Metric": "_families",
    "MetricSample": "_families",
    "Readiness": "_monitoring.readiness",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
