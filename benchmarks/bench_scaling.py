"""The measurements of benchmarks/scaling.py, with few messages. ``python -m benchmarks.scaling`` measures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.scaling import TABLES, Servers
from liftenvelope.testing import LiftbridgeCluster, NatsServer

MEASUREMENTS = {
    what: (measure, table.steps) for table in TABLES for what, (measure, _) in table.measurements.items()
}


@pytest.mark.parametrize(("measure", "steps"), MEASUREMENTS.values(), ids=list(MEASUREMENTS))
def test_measurement(
    measure: Callable[[Servers, int], float],
    steps: tuple[int, ...],
    liftbridge: LiftbridgeCluster,
    jetstream: NatsServer,
) -> None:
    servers = Servers(liftbridge, jetstream, 0.001)
    assert all(measure(servers, step) > 0 for step in steps[:2])
