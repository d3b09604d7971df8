"""Dashboards for Grafana, by the rules of its documentation: no public schema covers panels."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
FILES = sorted(DOCS.glob("*-dashboard.json"))


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.param.read_text("utf-8"))
    return found


def test_panels_have_ids_titles_units_and_queries_of_their_own(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    for part in ("id", "title"):
        values = [panel[part] for panel in panels]
        assert len(set(values)) == len(values)
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == ["A", "B"][: len(letters)]


def test_panels_lie_on_the_grid_side_by_side(dashboard: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (place["x"] + column, place["y"] + row)
        for place in places
        for column in range(place["w"])
        for row in range(place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24


def test_every_variable_is_defined(dashboard: dict[str, Any]) -> None:
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard)))
    assert used == defined


def test_dashboards_have_ids_of_their_own() -> None:
    ids = [json.loads(path.read_text("utf-8"))["uid"] for path in FILES]
    assert sorted(ids) == ["liftenvelope-archive", "liftenvelope-gateway"]


def test_dashboards_are_what_their_program_writes() -> None:
    command = [sys.executable, str(DOCS / "dashboard.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
