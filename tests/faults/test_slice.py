"""A slice of the campaign: each path once, with few messages. ``make soak`` runs hundreds of seeds."""

from __future__ import annotations

from typing import Final

import pytest

from tests.faults.paths import run_any
from tests.faults.plan import KINDS, PATHS, make_plan
from tests.faults.report import command_of

pytestmark = pytest.mark.timeout(400)

SCALE: Final = 0.03
#: Path, servers and seed: short ones, which together have every kind of fault.
RUNS: Final = [
    ("ack-inbox", "liftbridge1", 152),
    ("envelope-publisher", "gateway2", 9),
    ("client-publish", "gateway1", 83),
    ("jetstream-publish", "nats3", 712),
    ("bulk-pipelined", "nats1", 127),
    ("bulk-ids", "nats1", 2),
    ("bulk-atomic", "nats1", 77),
    ("bulk-fast", "nats1", 329),
    ("bulk-liftbridge", "liftbridge1", 23),
    ("group", "nats1", 33),
    ("bulk-read", "gateway1", 10),
    ("archive", "nats1", 2),
    ("archive-daemon", "nats1", 1),
    ("archive-s3", "nats1", 1),
    ("table-iceberg", "gateway1", 1),
    ("table-delta", "nats1", 2),
]


def test_every_path_and_kind_of_fault_is_in_the_slice() -> None:
    assert [path for path, _, _ in RUNS] == list(PATHS)
    plans = [make_plan(seed, path, scene=scene) for path, scene, seed in RUNS]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(KINDS)


@pytest.mark.parametrize(("path", "scene", "seed"), RUNS, ids=[path for path, _, _ in RUNS])
def test_nothing_that_was_acked_is_lost(path: str, scene: str, seed: int) -> None:
    plan = make_plan(seed, path, scale=SCALE, scene=scene)
    result = run_any(plan)
    assert result.violations == [], command_of(plan, SCALE)
    assert result.acked
