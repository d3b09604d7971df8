"""Metrics: the page has each, and names follow the conventions of Prometheus."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from nats.aio.client import Client
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from liftenvelope.errors import UsageError
from liftenvelope.gateway import Gateway, Limits
from liftenvelope.gateway._families import FAMILIES
from liftenvelope.gateway._workers.families import WORKER_FAMILIES
from liftenvelope.gateway.http_endpoint import http_address
from liftenvelope.gateway.metrics import GatewayCollector
from liftenvelope.gateway.serving import Serving

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operating.md").read_text("utf-8")
ALERTS = ROOT / "docs" / "gateway-alerts.yml"
PREFIX = "liftenvelope_gateway_"
#: Name, type and labels of each metric of the gateway, as the page has them.
ROWS = re.findall(
    r"^\| `(\w+)` \| (gauge|counter|histogram) \|([^|]*)\| ([^|]+) \|[^|]*\|$",
    PAGE.partition("\n### Metrics\n")[2].partition("\n### ")[0],
    re.MULTILINE,
)
PROCESS_ROWS = re.findall(r"^\| `(process_\w+)` \| (gauge|counter) \| [^|]+ \|$", PAGE, re.MULTILINE)
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_page_has_a_row_for_each_metric() -> None:
    assert [row[0] for row in ROWS] == [family.name for family in FAMILIES]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_row_has_type_and_labels(row: tuple[str, str, str, str]) -> None:
    family = next(family for family in FAMILIES if family.name == row[0])
    assert (family.kind, family.labels) == (row[1], tuple(re.findall(r"`(\w+)`", row[2])))


def test_page_has_a_row_for_each_metric_of_the_process() -> None:
    metrics = {
        metric.name + "_total" * (metric.type == "counter"): metric.type
        for metric in ProcessCollector(registry=None).collect()
    }
    assert dict(PROCESS_ROWS) == metrics


def test_page_has_a_row_for_each_metric_of_workers() -> None:
    rows = re.findall(rf"^\| `{PREFIX}(worker_\w+)` \| (gauge|counter) \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert rows == [(family.name, family.kind) for family in WORKER_FAMILIES]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_name_follows_the_conventions(family: Any) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", family.name)
    assert family.name.endswith("_total") == (family.kind == "counter")
    assert family.help.endswith(".")
    assert (family.run is None) != (family.any is None)


def test_rule_on_the_page_is_one_of_the_file() -> None:
    [page] = [block for block in map(yaml.safe_load, BLOCKS) if "groups" in block]
    in_file = {
        rule["alert"]: rule for rule in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"][0]["rules"]
    }
    [rule] = page["groups"][0]["rules"]
    assert in_file[rule["alert"]] == rule
    [scrape] = [block for block in map(yaml.safe_load, BLOCKS) if "scrape_configs" in block]
    assert f'job="{scrape["scrape_configs"][0]["job_name"]}"' in ALERTS.read_text("utf-8")


def test_page_has_a_row_for_each_condition() -> None:
    section = PAGE.partition("\n### Readiness\n")[2].partition("\n### ")[0]
    metrics = {metric.name: metric for metric in Gateway(Client()).metrics()}
    conditions = [sample.labels[0] for sample in metrics[PREFIX + "unmet_condition"].samples]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == conditions


def test_gateway_that_is_not_started_has_metrics() -> None:
    gateway = Gateway(Client(), id="g", limits=Limits(max_connections=7))
    registry = CollectorRegistry()
    registry.register(GatewayCollector(gateway))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    samples = {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    assert samples["ready",] == 0
    assert samples["unmet_condition", "running"] == 1
    assert samples["nats_connected", "main"] == 0
    assert samples["limit", "max_connections"] == 7
    assert ("nats_connected", "read") not in samples
    assert len(families) == len(FAMILIES)


def test_readiness_of_a_gateway_that_is_not_started() -> None:
    readiness = Gateway(Client(), read_nc=Client()).readiness()
    assert not readiness.is_ready
    assert readiness.reasons == {
        "running": "the gateway is not started",
        "nats": "the connection and the second connection to NATS are not established",
    }


@pytest.mark.parametrize(
    ("http", "text"),
    [
        ("nowhere", "http: "),
        ("", "http must not be empty, got ''"),
        ("host:70000", "http: "),
        ("host:", "http: "),
    ],
)
def test_address_is_checked(http: str, text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        Serving(nats_url="nats://127.0.0.1", http=http)
    assert caught.value.arguments == ("http",)


@pytest.mark.parametrize(
    ("http", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9293", ("::1", 9293)), ("localhost:1", ("localhost", 1))],
)
def test_address_is_parsed(http: str, address: tuple[str, int]) -> None:
    assert Serving(nats_url="nats://127.0.0.1", http=http).http == http
    assert http_address(http) == address


@pytest.mark.parametrize("module", ["aiohttp", "prometheus_client"])
def test_missing_extra_is_one_sentence(module: str) -> None:
    """In a process of its own, because this one has loaded the modules."""
    program = f"""
import sys
sys.modules[{module!r}] = None
from liftenvelope.gateway.serving import Serving
Serving(nats_url="nats://127.0.0.1")
Serving(nats_url="nats://127.0.0.1", http="127.0.0.1:0")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"MissingExtraError: this needs {module}: run pip install 'liftenvelope[http]'")


def test_gateway_needs_no_extra() -> None:
    program = """
import sys
sys.modules["aiohttp"] = sys.modules["prometheus_client"] = None
from nats.aio.client import Client
from liftenvelope.gateway import Gateway
assert len(Gateway(Client()).metrics()) > 40
"""
    subprocess.run([sys.executable, "-c", program], check=True)
