"""Alert rules and dashboards: valid PromQL about series, labels and values that the programs expose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from nats.aio.client import Client
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from liftenvelope.archive._monitoring import ArchiveMonitor
from liftenvelope.archive._state import PipelineState
from liftenvelope.gateway import Gateway, Limits
from liftenvelope.gateway._workers.monitor import WorkersMonitor
from liftenvelope.gateway.metrics import exposed

DOCS = Path(__file__).resolve().parents[3] / "docs"
FILES = ("gateway-alerts.yml", "archive-alerts.yml")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
#: Labels that Prometheus adds, and that supervisors of several workers add.
ADDED = {"instance", "job", "worker"}
#: Prometheus's own metric of each target.
UP = {"up": {"instance", "job"}}


class Families:
    """Metrics as a registry of prometheus_client reads them."""

    def __init__(self, families: Any) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        return iter(self._families)


def read(families: Any) -> dict[str, Any]:
    """Series by name with their labels, from the text that a scrape gets."""
    text = generate_latest(Families(families)).decode()
    return {
        family.name + suffix: {label for sample in family.samples for label in sample.labels}
        for family in text_string_to_metric_families(text)
        for suffix in SUFFIXES.get(family.type, ("",))
    }


def exposed_series() -> dict[str, set[str]]:
    """Series of a gateway, of workers and of an archive daemon, with their labels."""
    metrics = Gateway(Client()).metrics()
    gateway = read(map(exposed, metrics))
    for metric in metrics:  # a gateway that is not started has no values for many labels
        name = metric.name.removesuffix("_total")
        for suffix in SUFFIXES.get(metric.kind, ("",)):
            gateway[name + suffix] = {*metric.labels, *({"le"} if suffix == "_bucket" else ())}
    archive = read(asyncio.run(ArchiveMonitor([PipelineState("orders")]).families()))
    workers = read(asyncio.run(WorkersMonitor([], Limits()).families()))
    return {**gateway, **archive, **workers, **UP}


SERIES = exposed_series()


def selectors(expression: promql_parser.Expr) -> list[promql_parser.VectorSelector]:
    """The selectors of series in an expression."""
    found: list[promql_parser.VectorSelector] = []

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, promql_parser.MatrixSelector):
            return
        if isinstance(part, promql_parser.VectorSelector):
            found.append(part)

    promql_parser.walk(expression, visit)
    return found


def labels_used(expression: promql_parser.Expr) -> set[str]:
    """The labels that an expression groups or joins by."""
    found: set[str] = set()

    def visit(part: promql_parser.Expr) -> None:
        modifier = getattr(part, "modifier", None)
        if isinstance(part, promql_parser.AggregateExpr) and modifier is not None:
            found.update(modifier.labels)
        elif isinstance(part, promql_parser.BinaryExpr) and modifier is not None:
            found.update(modifier.matching.labels if modifier.matching is not None else ())

    promql_parser.walk(expression, visit)
    return found


def faults(text: str) -> list[str]:
    """What is wrong with an expression: series and labels that nothing exposes."""
    expression = promql_parser.parse(text)
    found = selectors(expression)
    unknown = [one.name or "" for one in found if one.name not in SERIES]
    known: set[str] = ADDED.union(*(SERIES.get(one.name or "", set()) for one in found))
    for one in found:
        labels = SERIES.get(one.name or "", set()) | ADDED
        unknown += [f"{one.name}{{{each.name}}}" for each in one.matchers.matchers if each.name not in labels]
    return unknown + sorted(labels_used(expression) - known)


def rules(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((DOCS / name).read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALL = [pytest.param(rule, id=rule["alert"]) for name in FILES for rule in rules(name)]


@pytest.mark.parametrize("rule", ALL)
def test_rule_is_promql_about_series_that_exist(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert faults(rule["expr"]) == []
    assert selectors(promql_parser.parse(rule["expr"]))
    assert promql_parser.parse_duration(rule.get("for", "1s"))
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"]


def test_rules_have_names_of_their_own() -> None:
    names = [rule["alert"] for name in FILES for rule in rules(name)]
    assert len(set(names)) == len(names) > 15


def test_every_metric_of_an_archive_that_tells_of_trouble_has_a_rule() -> None:
    used = {
        one.name
        for rule in rules("archive-alerts.yml")
        for one in selectors(promql_parser.parse(rule["expr"]))
    }
    assert used == {
        "up",
        "liftenvelope_archive_dead_letters_total",
        "liftenvelope_archive_failures_in_a_row",
        "liftenvelope_archive_last_success_timestamp_seconds",
        "liftenvelope_archive_pending_offsets",
    }


@pytest.mark.parametrize(
    ("file", "labels"),
    [
        ("gateway-dashboard.json", '{instance=~"$instance"}'),
        ("archive-dashboard.json", '{instance=~"$instance", pipeline=~"$pipeline"}'),
    ],
)
def test_expressions_of_the_dashboards_name_series_that_exist(file: str, labels: str) -> None:
    panels = json.loads((DOCS / file).read_text("utf-8"))["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) >= 9
    for text in expressions:
        assert faults(text.replace("$__rate_interval", "5m")) == [], text
        assert labels in text


def test_dashboard_of_archives_has_all_their_metrics() -> None:
    panels = json.loads((DOCS / "archive-dashboard.json").read_text("utf-8"))["panels"]
    used = {
        one.name
        for panel in panels
        for target in panel["targets"]
        for one in selectors(promql_parser.parse(target["expr"].replace("$__rate_interval", "5m")))
    }
    assert used == {name for name in SERIES if name.startswith("liftenvelope_archive_")}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("liftenvelope_gateway_publishes > 0", ["liftenvelope_gateway_publishes"]),
        ('sum by (methud) (up{jab="x"})', ["up{jab}", "methud"]),
        ("rate(liftenvelope_gateway_ack_latency_seconds[5m])", ["liftenvelope_gateway_ack_latency_seconds"]),
        ("up > on (instance, shop) up", ["shop"]),
        ("up unless on (group) up", ["group"]),
    ],
)
def test_wrong_names_are_found(text: str, wrong: list[str]) -> None:
    assert faults(text) == wrong


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("rate(up)", "expected type matrix"),
        ("up >", "invalid promql query"),
        ("up[5m] > 1", "only scalar and instant vector types"),
        ("unknown(up)", "unknown function"),
    ],
)
def test_parser_refuses_what_is_no_promql(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        promql_parser.parse(text)
