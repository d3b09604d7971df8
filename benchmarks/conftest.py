"""Fixtures of the benchmarks: servers, connections, peers, and the table at the end.

``pytest benchmarks`` runs each once, small, and checks that it does what it says. ``--benchmark-enable``
measures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import picture
from benchmarks.go_peers import GoPeers
from benchmarks.other_peers import OtherPeers
from benchmarks.report import Report
from benchmarks.rounds import Comparison
from liftenvelope._native import BACKEND
from liftenvelope.testing import (
    GatewayCluster,
    LiftbridgeCluster,
    NatsServer,
    run_gateway,
    run_liftbridge,
    run_nats_server,
)

_REPORT = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="write the table of results to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORT] = Report()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = (item for item in items if item.path.is_relative_to(Path(__file__).parent))
    for item in mine:
        if not item.get_closest_marker("timeout"):
            # Whoever comes first waits until the Go peers are built, which takes minutes on a slow machine.
            item.add_marker(pytest.mark.timeout(900))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    wanted = file_path.match("bench_*.py") and not parent.session.isinitpath(file_path)
    return pytest.Module.from_parent(parent, path=file_path) if wanted else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Show what each benchmark found when it ends: all of them take most of an hour."""
    rows = item.config.stash[_REPORT].rows
    before = len(rows)
    result = yield
    terminal: Any = item.config.pluginmanager.get_plugin("terminalreporter")
    for row in rows[before:]:
        terminal.ensure_newline()
        terminal.write_line(row.line())
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report = config.stash[_REPORT]
    if not report.rows and not report.bounds:
        return
    terminalreporter.write_sep("=", "results")
    terminalreporter.write_line("\n".join([report.table(), *(bound.line() for bound in report.bounds)]))
    path: Path | None = config.getoption("results")
    if (
        path is not None
        and not terminalreporter.stats.get("failed")
        and not terminalreporter.stats.get("error")
    ):
        path.write_text(report.markdown(), "utf-8")
        picture.write(path)


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    return pytestconfig.stash[_REPORT]


@pytest.fixture
def compare(benchmark: BenchmarkFixture, report: Report) -> Comparison:
    comparison = Comparison(benchmark, report)
    assert comparison.quick or BACKEND == "cython", (
        "figures of the Python twins mean nothing: build the extensions"
    )
    return comparison


@pytest.fixture(scope="session")
def go(tmp_path_factory: pytest.TempPathFactory, report: Report) -> GoPeers:
    peers = GoPeers(tmp_path_factory.mktemp("go"))
    report.versions["Go"] = peers.version.removeprefix("go")
    return peers


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory, report: Report) -> OtherPeers:
    return OtherPeers(tmp_path_factory.mktemp("others"), report)


@pytest.fixture(scope="session")
def plain_nats(report: Report) -> Iterator[NatsServer]:
    # Room for every ack of a round, and time to send them: they are all there before the client reads one.
    with run_nats_server(config={"max_pending": 2**30, "write_deadline": "60s"}) as server:
        report.versions["nats-server"] = server.version
        yield server


@pytest.fixture(scope="module")
def jetstream(report: Report) -> Iterator[NatsServer]:
    with run_nats_server(jetstream=True) as server:
        report.versions["nats-server"] = server.version
        yield server


@pytest.fixture(scope="session")
def liftbridge(report: Report) -> Iterator[LiftbridgeCluster]:
    with run_liftbridge() as cluster:
        report.versions["Liftbridge"] = cluster.version
        yield cluster


@pytest.fixture(scope="module")
def gateway(report: Report) -> Iterator[GatewayCluster]:
    with run_gateway() as cluster:
        assert cluster.nats is not None
        report.versions["nats-server below the gateway"] = cluster.nats.version
        yield cluster


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """Runs the coroutines of a benchmark, all on one event loop."""
    with asyncio.Runner() as runner:
        yield runner
