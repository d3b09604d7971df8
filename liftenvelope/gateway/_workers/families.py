"""Metrics about the workers of a supervisor. docs/operating.md has a row for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from liftenvelope.gateway._workers.slot import WorkerSlot

__all__ = ["WORKER_FAMILIES", "WorkerFamily"]


class WorkerFamily(NamedTuple):
    """Definition of a metric with one value for each worker.

    Attributes:
        name: Name without the prefix.
        kind: ``counter`` or ``gauge``.
        help: Meaning, in a sentence.
        value: Reads the value.
    """

    name: str
    kind: str
    help: str
    value: Callable[[WorkerSlot], float]


WORKER_FAMILIES: Final = (
    WorkerFamily("worker_up", "gauge", "1 if the worker serves clients.", lambda slot: bool(slot.address)),
    WorkerFamily(
        "worker_restarts_total",
        "counter",
        "Times that the worker has ended by itself.",
        lambda slot: slot.restarts,
    ),
)
