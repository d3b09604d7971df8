"""Figures of gateways from Prometheus's text format."""

from __future__ import annotations

from liftenvelope.gateway._families import FAMILIES
from liftenvelope.monitor.gateways import METRICS, figures_of


def test_every_metric_that_is_read_exists() -> None:
    assert {family.name for family in FAMILIES} >= METRICS


def test_workers_of_a_program_are_told_apart() -> None:
    lines = []
    for worker, name in enumerate(("one", "two")):
        label = f'worker="{worker}"'
        lines += [
            f'liftenvelope_gateway_build_info{{{label},id="{name}"}} 1.0',
            f'liftenvelope_gateway_pending_acks{{{label},method="Publish"}} {worker + 1}.0',
            f'liftenvelope_gateway_pending_acks{{{label},method="PublishAsync"}} 10.0',
        ]
    found = figures_of(lines, 7.0)
    assert {name: (one.at, one.pending_acks) for name, one in found.items()} == {
        "one": (7.0, 11),
        "two": (7.0, 12),
    }


def test_lines_that_are_no_metric_are_skipped() -> None:
    lines = ["# HELP x", "", "liftenvelope_gateway_ready", "liftenvelope_gateway_ready x", "other 1"]
    assert figures_of(lines, 1.0) == {}
