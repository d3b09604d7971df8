"""A slice of the campaign: each path once, with few messages. ``make soak`` runs hundreds of seeds."""

from __future__ import annotations

from typing import Final

import pytest

from tests.faults.paths import run_any
from tests.faults.plan import PATHS, make_plan
from tests.faults.report import command_of

pytestmark = pytest.mark.timeout(400)

SCALE: Final = 0.03
#: Path, servers and seed: chosen so that together they have every kind of fault.
RUNS: Final = [
    ("ack-inbox", "liftbridge1", 1),
    ("envelope-publisher", "gateway2", 1),
    ("client-publish", "gateway1", 2),
    ("jetstream-publish", "nats3", 3),
    ("bulk-pipelined", "nats1", 4),
    ("bulk-ids", "nats1", 5),
    ("bulk-atomic", "nats1", 6),
    ("bulk-fast", "nats1", 7),
    ("bulk-liftbridge", "liftbridge1", 8),
    ("group", "nats1", 9),
    ("bulk-read", "gateway1", 10),
    ("archive", "nats1", 11),
]


def test_every_path_is_in_the_slice() -> None:
    assert [path for path, _, _ in RUNS] == list(PATHS)


@pytest.mark.parametrize(("path", "scene", "seed"), RUNS, ids=[path for path, _, _ in RUNS])
def test_nothing_that_was_acked_is_lost(path: str, scene: str, seed: int) -> None:
    plan = make_plan(seed, path, scale=SCALE, scene=scene)
    result = run_any(plan)
    assert result.violations == [], command_of(plan, SCALE)
    assert result.acked
