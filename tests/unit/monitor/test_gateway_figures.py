"""Figures of gateways from Prometheus's text format."""

from __future__ import annotations

import pytest

from liftenvelope.errors import UsageError
from liftenvelope.gateway._families import FAMILIES
from liftenvelope.monitor.gateways import METRICS, figures_of, metrics_url


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


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e999"])
def test_values_that_are_no_numbers_are_skipped(value: str) -> None:
    lines = ['liftenvelope_gateway_build_info{id="one"} 1.0', f"liftenvelope_gateway_open_reads {value}"]
    assert figures_of(lines, 1.0)["one"].reads == 0


@pytest.mark.parametrize("value", ["1e308", "-1"])
def test_values_that_are_no_counts_are_skipped(value: str) -> None:
    """Two of the first have an infinite sum."""
    lines = [f"liftenvelope_gateway_open_reads {value}"] * 2
    lines += ['liftenvelope_gateway_build_info{id="one"} 1.0', "liftenvelope_gateway_open_reads 4.0"]
    assert figures_of(lines, 1.0)["one"].reads == 4


@pytest.mark.timeout(60)
def test_labels_of_a_hostile_server_take_linear_time() -> None:
    """In linear time they take one second, in quadratic time more than a minute."""
    lines = [f'liftenvelope_gateway_build_info{{id="one",{"a" * 900}}} 1.0'] * 20_000
    assert list(figures_of(lines, 1.0)) == ["one"]


def test_labels_may_have_escaped_quotes() -> None:
    lines = [r'liftenvelope_gateway_build_info{x="\\",id="a\"b",y="}"} 1.0']
    assert list(figures_of(lines, 1.0)) == [r"a\"b"]


def test_line_of_any_length_is_read_at_once() -> None:
    """The labels of 16 MB would take hours to match."""
    lines = [
        'liftenvelope_gateway_build_info{id="one"} 1.0',
        "liftenvelope_gateway_ready{" + "a" * 2**24 + "} 1",
    ]
    assert not figures_of(lines, 1.0)["one"].ready


@pytest.mark.parametrize("text", ["http://[", "127.0.0.1:9293", "ftp://h/metrics", "http:///metrics", ""])
def test_url_of_metrics_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="gateway metrics must be a URL such as"):
        metrics_url(text)
