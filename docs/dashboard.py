"""Writes docs/gateway-dashboard.json, a Grafana dashboard of a gateway: ``python docs/dashboard.py``.

With ``--check`` it writes nothing, and exits with 1 if the file is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent / "gateway-dashboard.json"
#: Grafana's grid has 24 columns.
WIDTH, HEIGHT, ACROSS = 8, 8, 3
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
ONLY = 'instance=~"$instance"'
#: Title, unit of Grafana, and expressions with legends. ``NAME{}`` gets the prefix and the instances.
PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Ready", "bool_yes_no", (("ready{}", "{{instance}}"),)),
    (
        "Conditions not met",
        "short",
        (("sum by (instance, condition) (unmet_condition{})", "{{instance}} {{condition}}"),),
    ),
    ("Gateways", "short", (("max(brokers{})", "live gateways"),)),
    (
        "Partitions led and acked",
        "short",
        (
            ("partitions_led{}", "{{instance}} led"),
            ("partitions_bound{}", "{{instance}} with acks"),
        ),
    ),
    (
        "Publishes by gRPC",
        "mps",
        (
            ("sum by (instance) (rate(publishes_total{}[$__rate_interval]))", "{{instance}} received"),
            ("sum by (instance) (rate(publish_acks_total{}[$__rate_interval]))", "{{instance}} acked"),
        ),
    ),
    (
        "Publishes that failed",
        "mps",
        (
            (
                "sum by (instance, reason) (rate(publish_failures_total{}[$__rate_interval]))",
                "{{instance}} {{reason}}",
            ),
        ),
    ),
    (
        "Ack latency",
        "s",
        tuple(
            (
                f"histogram_quantile({part}, sum by (le) "
                "(rate(ack_latency_seconds_bucket{}[$__rate_interval])))",
                f"p{100 * part:g}",
            )
            for part in (0.5, 0.99)
        ),
    ),
    ("Acks of raw NATS publishers", "mps", (("rate(raw_acks_total{}[$__rate_interval])", "{{instance}}"),)),
    ("Messages without their raw ack", "short", (("raw_ack_lag_messages{}", "{{instance}}"),)),
    (
        "Streams with the largest ack lag",
        "short",
        (("topk(5, stream_raw_ack_lag_messages{})", "{{stream}}"),),
    ),
    (
        "Connections and calls",
        "short",
        (
            ("connections{}", "{{instance}} connections"),
            ("sum by (instance) (open_calls{})", "{{instance}} calls"),
        ),
    ),
    ("Calls by status", "reqps", (("sum by (code) (rate(calls_total{}[$__rate_interval]))", "{{code}}"),)),
    (
        "Refused",
        "short",
        (
            (
                "sum by (instance) (rate(refused_connections_total{}[$__rate_interval]))",
                "{{instance}} connections",
            ),
            ("sum by (instance) (rate(refused_calls_total{}[$__rate_interval]))", "{{instance}} calls"),
        ),
    ),
    ("Subscriptions", "short", (("open_reads{}", "{{instance}}"),)),
    (
        "Groups with the largest lag",
        "short",
        (("topk(5, sum by (group) (group_lag_messages{}))", "{{group}}"),),
    ),
    (
        "Buffered bytes",
        "bytes",
        (
            ("read_buffered_bytes{}", "{{instance}} to subscribers"),
            ("unread_request_bytes{}", "{{instance}} requests"),
        ),
    ),
)


def expression(text: str) -> str:
    """Return an expression with the prefix of the metrics and the chosen instances."""
    return re.sub(r"(\w+)\{\}", rf"liftenvelope_gateway_\1{{{ONLY}}}", text)


def panel(number: int) -> dict[str, Any]:
    """Return the panel with a number, from 0."""
    title, unit, targets = PANELS[number]
    place = {"x": number % ACROSS * WIDTH, "y": number // ACROSS * HEIGHT, "w": WIDTH, "h": HEIGHT}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + row), "datasource": SOURCE, "expr": expression(text), "legendFormat": legend}
            for row, (text, legend) in enumerate(targets)
        ],
    }


def dashboard() -> str:
    """Return the dashboard as JSON."""
    instances = "label_values(liftenvelope_gateway_build_info, instance)"
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {"name": "instance", "type": "query", "datasource": SOURCE, "query": instances, "refresh": 2,
         "multi": True, "includeAll": True, "allValue": ".*"},
    ]  # fmt: skip
    found = {
        "uid": "liftenvelope-gateway",
        "title": "liftenvelope gateway",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [panel(number) for number in range(len(PANELS))],
    }
    return json.dumps(found, indent=1) + "\n"


def main() -> None:
    """Write the dashboard, or compare it with the file."""
    made = dashboard()
    if "--check" not in sys.argv[1:]:
        FILE.write_text(made, "utf-8")
    elif not FILE.exists() or FILE.read_text("utf-8") != made:
        sys.exit(f"{FILE.name} is out of date: run python docs/dashboard.py")


if __name__ == "__main__":
    main()
