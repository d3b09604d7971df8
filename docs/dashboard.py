"""Writes the dashboards for Grafana of this folder: ``python docs/dashboard.py``.

``gateway-dashboard.json`` is that of a gateway, and ``archive-dashboard.json`` that of an archive daemon.
With ``--check`` it writes nothing, and exits with 1 if a file is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

FOLDER = Path(__file__).resolve().parent
#: Grafana's grid has 24 columns.
WIDTH, HEIGHT, ACROSS = 8, 8, 3
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: Title, unit of Grafana, and expressions with legends. ``NAME{}`` gets the prefix and the chosen labels.
Panel: TypeAlias = tuple[str, str, tuple[tuple[str, str], ...]]
GATEWAY: tuple[Panel, ...] = (
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
ARCHIVE: tuple[Panel, ...] = (
    ("Failed runs in a row", "short", (("failures_in_a_row{}", "{{pipeline}}"),)),
    (
        "Time since the last good run",
        "s",
        (("time() - (last_success_timestamp_seconds{} > 0)", "{{pipeline}}"),),
    ),
    ("Pipelines at work", "short", (("sum by (instance) (running{})", "{{instance}}"),)),
    ("Rows written", "cps", (("rate(rows_total{}[$__rate_interval])", "{{pipeline}}"),)),
    ("Bytes written", "Bps", (("rate(bytes_total{}[$__rate_interval])", "{{pipeline}}"),)),
    ("Offsets left to the current run", "short", (("pending_offsets{}", "{{pipeline}}"),)),
    ("Good runs", "short", (("increase(runs_total{}[$__rate_interval])", "{{pipeline}}"),)),
    ("Failed runs", "short", (("increase(failures_total{}[$__rate_interval])", "{{pipeline}}"),)),
    ("Dead letters", "short", (("increase(dead_letters_total{}[$__rate_interval])", "{{pipeline}}"),)),
)


@dataclass(frozen=True)
class Board:
    """A dashboard.

    Attributes:
        program: Name of the program, as in the prefix of its metrics and the name of the file.
        title: Title of the dashboard.
        labels: Labels of the metrics to choose from.
        known_by: Metric whose labels are offered.
        panels: Panels, in rows from the left to the right.
    """

    program: str
    title: str
    labels: tuple[str, ...]
    known_by: str
    panels: tuple[Panel, ...]

    @property
    def path(self) -> Path:
        """Path of the file."""
        return FOLDER / f"{self.program}-dashboard.json"

    def expression(self, text: str) -> str:
        """Return an expression with the prefix of the metrics and the chosen labels."""
        only = ", ".join(f'{label}=~"${label}"' for label in self.labels)
        return re.sub(r"(\w+)\{\}", rf"liftenvelope_{self.program}_\1{{{only}}}", text)

    def panel(self, number: int) -> dict[str, Any]:
        """Return the panel with a number, from 0."""
        title, unit, targets = self.panels[number]
        return {
            "id": number + 1,
            "type": "timeseries",
            "title": title,
            "datasource": SOURCE,
            "gridPos": {
                "x": number % ACROSS * WIDTH,
                "y": number // ACROSS * HEIGHT,
                "w": WIDTH,
                "h": HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [
                {
                    "refId": chr(65 + row),
                    "datasource": SOURCE,
                    "expr": self.expression(text),
                    "legendFormat": legend,
                }
                for row, (text, legend) in enumerate(targets)
            ],
        }

    def variable(self, label: str) -> dict[str, Any]:
        """Return the variable with which a label is chosen."""
        query = f"label_values(liftenvelope_{self.program}_{self.known_by}, {label})"
        return {"name": label, "type": "query", "datasource": SOURCE, "query": query, "refresh": 2,
                "multi": True, "includeAll": True, "allValue": ".*"}  # fmt: skip

    def dump(self) -> str:
        """Return the dashboard as JSON."""
        source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
        found = {
            "uid": f"liftenvelope-{self.program}",
            "title": self.title,
            "schemaVersion": 39,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [source, *map(self.variable, self.labels)]},
            "panels": [self.panel(number) for number in range(len(self.panels))],
        }
        return json.dumps(found, indent=1) + "\n"


BOARDS = (
    Board("gateway", "liftenvelope gateway", ("instance",), "build_info", GATEWAY),
    Board("archive", "liftenvelope archive", ("instance", "pipeline"), "running", ARCHIVE),
)


def main() -> None:
    """Write the dashboards, or compare them with the files."""
    for board in BOARDS:
        made, path = board.dump(), board.path
        if "--check" not in sys.argv[1:]:
            path.write_text(made, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != made:
            sys.exit(f"{path.name} is out of date: run python docs/dashboard.py")


if __name__ == "__main__":
    main()
