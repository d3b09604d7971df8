"""The archive daemon on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from aiohttp import ClientSession

from liftenvelope.archive import ArchiveDaemon, read_archive_config
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import jetstream, make_stream, numbered, publish


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        yield running


@pytest.fixture
def url(server: NatsServer) -> str:
    return server.url


def config_of(folder: Path, url: str, *streams: str, more: str = "", target: str = "") -> str:
    path = folder / "pipeline.toml"
    pipelines = (
        f'[[pipeline]]\nname = "{stream}"\nsource = "{url}"\nstream = "{stream}"\ninterval = 0.05\n'
        f'[pipeline.target]\npath = "{folder}/{stream}"\n{target}'
        for stream in streams
    )
    path.write_text(f'[archive]\nhttp = "127.0.0.1:0"\nretry_wait = 0.1\n{more}\n' + "\n".join(pipelines))
    return str(path)


def rows_of(folder: Path) -> list[int]:
    if not folder.exists():
        return []
    found: list[int] = ds.dataset(folder, format="parquet").to_table(["offset"])["offset"].to_pylist()
    return sorted(found)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_true():
            await asyncio.sleep(0.02)


async def fetch(address: str, path: str) -> tuple[int, str]:
    async with ClientSession() as session, session.get(f"http://{address}{path}") as answer:
        return answer.status, await answer.text()


async def test_failing_pipeline_is_reported_and_the_others_go_on(url: str, name: str, tmp_path: Path) -> None:
    await asyncio.to_thread(make_stream, url, name)
    await asyncio.to_thread(publish, url, numbered(name, 100))
    addresses: list[str] = []
    config = read_archive_config(config_of(tmp_path, url, name, "missing", more="max_active = 1"))
    daemon = ArchiveDaemon(config, addresses.append)
    good, bad = daemon.states
    task = asyncio.create_task(daemon.run())
    await until(lambda: good.rows == 100 and bad.failures >= 2)
    status, text = await fetch(addresses[0], "/readyz")
    assert status == 503
    assert text.startswith("pipeline missing: ")
    assert (await fetch(addresses[0], "/healthz"))[0] == 200
    metrics = (await fetch(addresses[0], "/metrics"))[1]
    assert f'liftenvelope_archive_rows_total{{pipeline="{name}"}} 100.0' in metrics
    await asyncio.to_thread(make_stream, url, "missing")
    await asyncio.to_thread(publish, url, numbered(name, 50))
    await until(lambda: good.rows == 150 and bad.failures_in_a_row == 0)
    assert (await fetch(addresses[0], "/readyz")) == (200, "ready\n")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task
    assert rows_of(tmp_path / name) == list(range(150))


async def test_stop_keeps_what_a_run_under_way_has_read(url: str, name: str, tmp_path: Path) -> None:
    await asyncio.to_thread(make_stream, url, name)
    await asyncio.to_thread(publish, url, numbered(name, 5_000))
    config = read_archive_config(config_of(tmp_path, url, name, target="rotate_rows = 100\n"))
    daemon = ArchiveDaemon(config)
    task = asyncio.create_task(daemon.run())
    await until((tmp_path / name).exists)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task
    found = rows_of(tmp_path / name)
    assert found == list(range(len(found)))
    assert all(path.suffix == ".parquet" for path in (tmp_path / name).iterdir())
    assert await ArchiveDaemon(config).run(once=True)
    assert rows_of(tmp_path / name) == list(range(5_000))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "liftenvelope", "archive", *arguments]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=300)


def test_command_runs_once_and_reports_failures(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    config = config_of(tmp_path, url, name, f"no-{name}")
    done = command("--config", config, "--once", "--log-format", "json")
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["pipeline"]: line["level"] for line in lines} == {name: "info", f"no-{name}": "warning"}
    assert rows_of(tmp_path / name) == list(range(10))


def test_command_checks_the_file(tmp_path: Path) -> None:
    done = command("--config", config_of(tmp_path, "nats://me:secret@h", "A"), "--check")
    assert (done.returncode, json.loads(done.stdout)["pipeline"][0]["source"]) == (0, "nats://h")
    wrong = command("--config", config_of(tmp_path, "nats://h", "A", more="max_active = 0"), "--check")
    assert wrong.returncode == 2
    assert "max_active must be at least 1, got 0" in " ".join(wrong.stderr.split())
