"""The sinks in the fault campaign. ``python -m tests.faults --path spark-sink`` runs more seeds."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.faults.paths import run_any
from tests.faults.plan import make_plan
from tests.faults.report import command_of

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("scene", ["nats1", "liftbridge1"])
def test_rows_of_jobs_that_run_again(spark: SparkSession, scene: str) -> None:
    plan = make_plan(1, "spark-sink", scale=0.2, scene=scene)
    result = run_any(plan)
    assert result.violations == [], command_of(plan, 0.2)
    assert result.acked
