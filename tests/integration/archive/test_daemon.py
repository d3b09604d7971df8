"""The archive daemon on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow.dataset as ds
import pytest
import trustme
from aiohttp import ClientSession
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from liftenvelope import bulk
from liftenvelope.archive import ArchiveDaemon, read_archive_config
from liftenvelope.bulk import TableError
from liftenvelope.bulk.tables import _iceberg
from liftenvelope.errors import UsageError
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import jetstream, make_stream, numbered, publish
from tests.integration.certificates import Certificates
from tests.integration.conftest import connect, until
from tests.integration.project.test_examples import ROOT


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


async def fetch(address: str, path: str) -> tuple[int, str]:
    async with ClientSession() as session, session.get(f"http://{address}{path}") as answer:
        return answer.status, await answer.text()


def held_after_writing(patch: pytest.MonkeyPatch, writer: str) -> tuple[threading.Event, threading.Event]:
    """Hold a writer of ``bulk`` once it has written; return the events of that and of leave to go on."""
    has_written, may_end = threading.Event(), threading.Event()
    write = getattr(bulk, writer)

    def slow(*args: Any, **options: Any) -> Any:
        done = write(*args, **options)
        has_written.set()
        assert may_end.wait(120)
        return done

    patch.setattr(bulk, writer, slow)
    return has_written, may_end


def paused_run(patch: pytest.MonkeyPatch, name: str, daemon: ArchiveDaemon) -> threading.Event:
    """Make runs wait for the daemon to stop after each batch. Returns an event, set after the first."""
    write, has_read = getattr(bulk, name), threading.Event()

    def paused(*args: Any, progress: Callable[[bulk.Progress], None], **options: Any) -> Any:
        def note(seen: bulk.Progress) -> None:
            progress(seen)
            has_read.set()
            assert daemon._stopping.wait(240)

        return write(*args, progress=note, **options)

    patch.setattr(bulk, name, paused)
    return has_read


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


async def test_unexpected_error_ends_no_other_pipeline(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{name}-other"
    for stream in (name, other):
        await asyncio.to_thread(make_stream, url, stream)
        await asyncio.to_thread(publish, url, numbered(stream, 20))
    write = bulk.to_parquet

    # A fake: no input is known that has a library raise an error that is not ours.
    def broken(source: object, stream: object, *args: object, **options: object) -> object:
        if stream == name and daemon.states[0].failures < 2:
            raise LookupError("no such codec")
        return write(source, stream, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(bulk, "to_parquet", broken)
    daemon = ArchiveDaemon(read_archive_config(config_of(tmp_path, url, name, other)))
    task = asyncio.create_task(daemon.run())
    await until(lambda: bool(daemon.states[0].error) and daemon.states[1].rows == 20)
    assert daemon.states[0].error.startswith("unexpected LookupError: no such codec (")
    assert daemon.states[0].error.endswith(", in broken)")
    await asyncio.to_thread(publish, url, numbered(other, 10))
    await until(lambda: daemon.states[0].rows == 20 and daemon.states[1].rows == 30)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task


async def test_dead_letters_are_counted(url: str, name: str, tmp_path: Path) -> None:
    for stream in (name, f"{name}-BAD", f"{name}-GOOD"):
        await asyncio.to_thread(make_stream, url, stream)
    values = [b"oops" if at in (3, 7) else b'{"id": %d}' % at for at in range(10)]
    await asyncio.to_thread(publish, url, [(f"{name}.a", value, None) for value in values])
    path = Path(config_of(tmp_path, url, name, f"{name}-GOOD"))
    letters = f'on_bad = {{ stream = "{name}-BAD", subject = "{name}-BAD.a" }}\n'
    path.write_text(path.read_text().replace("interval", f'payload = "json"\n{letters}interval'))
    addresses: list[str] = []
    daemon = ArchiveDaemon(read_archive_config(str(path)), addresses.append)
    task = asyncio.create_task(daemon.run())
    await until(lambda: all(state.runs for state in daemon.states))
    await asyncio.to_thread(publish, url, [(f"{name}.a", b"again", None)])
    await until(lambda: daemon.states[0].dead_letters == 3)
    metrics = (await fetch(addresses[0], "/metrics"))[1]
    assert f'liftenvelope_archive_dead_letters_total{{pipeline="{name}"}} 3.0' in metrics
    assert f'liftenvelope_archive_dead_letters_total{{pipeline="{name}-GOOD"}} 0.0' in metrics
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task
    assert bulk.read(url, f"{name}-BAD").read_all().num_rows == 3


async def test_dead_letters_go_to_servers_with_a_login_of_their_own(
    url: str, name: str, tmp_path: Path
) -> None:
    await asyncio.to_thread(make_stream, url, name)
    await asyncio.to_thread(publish, url, [(f"{name}.a", b"oops", None)])
    with jetstream(config={"authorization": {"user": "letters", "password": "s3cr3t"}}) as other:
        bad = f"nats://letters:s3cr3t@{other.address}"
        await asyncio.to_thread(make_stream, bad, f"{name}-BAD")
        path = Path(config_of(tmp_path, url, name))
        letters = (
            f'[pipeline.on_bad]\nstream = "{name}-BAD"\nsubject = "{name}-BAD.a"\n'
            f'source = "nats://{other.address}"\n'
            '[pipeline.on_bad.access]\nuser = "letters"\npassword = "s3cr3t"\n'
        )
        text = path.read_text().replace("interval", 'payload = "json"\ninterval')
        path.write_text(text.replace("[pipeline.target]", f"{letters}[pipeline.target]"))
        config = read_archive_config(str(path))
        assert "s3cr3t" not in repr(config.shown())
        assert await ArchiveDaemon(config).run(once=True)
        assert bulk.read(bad, f"{name}-BAD").read_all()["value"].to_pylist() == [b"oops"]


async def test_stop_keeps_what_a_run_under_way_has_read(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(make_stream, url, name)
    await asyncio.to_thread(publish, url, numbered(name, 5_000))
    path = Path(config_of(tmp_path, url, name, target="rotate_rows = 100\n"))
    path.write_text(path.read_text().replace("interval", "batch_rows = 70\ninterval"))
    config = read_archive_config(str(path))
    daemon = ArchiveDaemon(config)
    with monkeypatch.context() as patch:
        has_read = paused_run(patch, "to_parquet", daemon)
        task = asyncio.create_task(daemon.run())
        await until(has_read.is_set)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await task
    found = rows_of(tmp_path / name)
    assert 0 < len(found) < 5_000
    assert found == list(range(len(found)))
    assert all(path.suffix == ".parquet" for path in (tmp_path / name).iterdir())
    assert await ArchiveDaemon(config).run(once=True)
    assert rows_of(tmp_path / name) == list(range(5_000))


@pytest.mark.parametrize(
    ("others", "most", "succeeded", "outcomes"),
    [
        ([], 1, True, [(1, 0)]),
        (["missing-stream"], 2, False, [(1, 0), (0, 1)]),
        (["later-stream"], 1, False, [(1, 0), (0, 0)]),
    ],
    ids=["all have run", "one failed", "one did not begin"],
)
async def test_once_that_is_stopped_succeeds_if_all_have_run(
    others: list[str],
    most: int,
    succeeded: bool,
    outcomes: list[tuple[int, int]],
    url: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await asyncio.to_thread(make_stream, url, name)
    await asyncio.to_thread(publish, url, numbered(name, 100))
    has_written, may_end = held_after_writing(monkeypatch, "to_parquet")
    config = read_archive_config(config_of(tmp_path, url, name, *others, more=f"max_active = {most}"))
    daemon = ArchiveDaemon(config)
    task = asyncio.create_task(daemon.run(once=True))
    await until(lambda: has_written.is_set() and (most == 1 or daemon.states[1].failures > 0))
    os.kill(os.getpid(), signal.SIGTERM)
    await until(daemon._stopping.is_set)
    may_end.set()
    assert await task is succeeded
    assert [(one.runs, one.failures) for one in daemon.states] == outcomes


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "liftenvelope", "archive", *arguments]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=300)


def test_command_runs_once_and_reports_failures(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    config = config_of(tmp_path, url, name, f"no-{name}")
    done = command("--config", config, "--once", "--log-format", "json", "--json")
    assert done.returncode == 1
    first, *lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert first["message"].startswith("serving health and metrics on http://127.0.0.1:")
    good, bad = [json.loads(line) for line in done.stdout.splitlines()]
    assert (good["pipeline"], good["rows"], good["dead_letters"], good["error"]) == (name, 10, 0, None)
    assert (bad["pipeline"], bad["failures"]) == (f"no-{name}", 1)
    assert bad["error"]
    assert [line["message"] for line in lines if line["level"] == "warning"] == [
        f"pipeline no-{name} failed: {bad['error']}"
    ]
    assert {line["pipeline"]: line["level"] for line in lines} == {name: "info", f"no-{name}": "warning"}
    assert rows_of(tmp_path / name) == list(range(10))


async def test_certificates_are_read_again_for_each_run(name: str, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    files = {"key_file": "key.pem", "cert_file": "cert.pem", "ca_file": "ca.pem"}
    tls = {key: str(tmp_path / file) for key, file in files.items()}

    def renew(authority: trustme.CA) -> None:
        leaf = authority.issue_cert("client@example.org")
        leaf.private_key_pem.write_to_path(tmp_path / "client-key.pem")
        leaf.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")

    renew(certificates.ca)
    with jetstream(config={"tls": {**tls, "verify": True}}) as server:
        path = Path(config_of(tmp_path, server.url, name))
        access = (
            f'[pipeline.access]\ntls_ca = "{tmp_path}/ca.pem"\ntls_cert = "{tmp_path}/client.pem"\n'
            f'tls_key = "{tmp_path}/client-key.pem"\nreconnect_wait = 0\n'
        )
        path.write_text(path.read_text().replace("[pipeline.target]", f"{access}[pipeline.target]"))
        daemon = ArchiveDaemon(read_archive_config(str(path)))
        async with (
            await connect(server.url, tls=certificates.client("admin")) as nc,
            JetStream(nc) as js,
        ):
            await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))
            await js.publish(f"{name}.a", b"one")
            assert await daemon.run(once=True)
            renew(trustme.CA())
            await js.publish(f"{name}.a", b"two")
            assert not await daemon.run(once=True)
            renew(certificates.ca)
            await daemon.run(once=True)
            assert (daemon.states[0].runs, daemon.states[0].failures) == (2, 1)
    assert rows_of(tmp_path / name) == [0, 1]


def test_command_checks_the_file(tmp_path: Path) -> None:
    done = command("--config", config_of(tmp_path, "nats://me:secret@h", "A"), "--check")
    assert (done.returncode, json.loads(done.stdout)["pipeline"][0]["source"]) == (0, "nats://h")
    wrong = command("--config", config_of(tmp_path, "nats://h", "A", more="max_active = 0"), "--check")
    assert wrong.returncode == 2
    assert "max_active must be at least 1, got 0" in " ".join(wrong.stderr.split())


TABLES = """
[archive]
retry_wait = 0.1

[[pipeline]]
name = "iceberg"
source = "{url}"
stream = "{stream}"
interval = 0.05
payload = {{ format = "json", schema = {{ id = "int64" }} }}
on_bad = "column"
batch_rows = 20
[pipeline.target]
kind = "iceberg"
table = "db.t"
warehouse = "{folder}/lake"
commit_rows = 50

[[pipeline]]
name = "delta"
source = "{url}"
stream = "{stream}"
interval = 0.05
payload = "json"
on_bad = {{ stream = "{stream}-DEAD", subject = "{stream}-DEAD.a" }}
batch_rows = 20
[pipeline.target]
kind = "delta"
path = "{folder}/delta"
commit_rows = 50
[pipeline.maintenance]
interval = 0.01
compact = true
expire_hours = 24
"""


def test_tables_have_each_message_once_after_daemons_are_killed(url: str, name: str, tmp_path: Path) -> None:
    for stream in (name, f"{name}-DEAD"):
        make_stream(url, stream)
    config = tmp_path / "pipeline.toml"
    config.write_text(TABLES.format(url=url, stream=name, folder=tmp_path))
    count, bad = 0, 0
    for _ in range(2):
        line = [sys.executable, "-m", "liftenvelope", "archive", "--config", str(config)]
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as daemon:
            assert daemon.stderr is not None
            items = [b'{"id": %d}' % i if i % 10 else b"bad" for i in range(count, count + 200)]
            publish(url, [(f"{name}.a", item, None) for item in items])
            count += len(items)
            bad += items.count(b"bad")
            # The daemon is killed while it writes more than it has reported.
            text = daemon.stderr.readline()
            publish(url, [(f"{name}.a", b'{"id": %d}' % i, None) for i in range(count, count + 200)])
            count += 200
            daemon.kill()
            assert "wrote" in text, text + daemon.stderr.read()
    done = command("--config", str(config), "--once")
    assert done.returncode == 0, done.stderr
    assert "pipeline delta maintained its table" in done.stderr
    lake = SqlCatalog("liftenvelope", uri=f"sqlite:///{tmp_path}/lake/catalog.db")
    iceberg = lake.load_table("db.t").scan().to_arrow().sort_by("offset")
    assert iceberg["offset"].to_pylist() == list(range(count))
    assert iceberg["id"].null_count == bad
    delta = DeltaTable(tmp_path / "delta")
    found = delta.to_pyarrow_table().sort_by("offset")
    good = [row["offset"] for row in iceberg.to_pylist() if row["id"] is not None]
    assert found["offset"].to_pylist() == good
    assert found["id"].to_pylist() == found["offset"].to_pylist()
    letters = bulk.read(url, f"{name}-DEAD", columns=["headers"]).read_all()["headers"].to_pylist()
    assert len({dict(row)["Liftenvelope-Bad-Offset"] for row in letters}) == bad


def documented(language: str) -> str:
    """The block of a language in the section of the page on dead letters."""
    page = (ROOT / "docs" / "archiving.md").read_text()
    section = page.partition("### Dead letters as a table")[2]
    return section.partition(f"```{language}\n")[2].partition("```")[0]


async def test_documented_dead_letters_are_in_a_table_of_their_own(
    url: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(make_stream, url, name)
    await asyncio.to_thread(make_stream, url, f"{name}-BAD")
    values = [b"oops" if at in (3, 7) else b'{"id": %d, "price": 0.5}' % at for at in range(10)]
    await asyncio.to_thread(publish, url, [(f"{name}.a", value, None) for value in values])
    text = documented("toml")
    for written, meant in (
        ("nats://nats.example:4222", url),
        ("ORDERS", name),
        ("bad.orders", f"{name}-BAD.orders"),
        ("lake/", f"{tmp_path}/"),
    ):
        text = text.replace(written, meant)
    config = tmp_path / "pipeline.toml"
    config.write_text(text)
    caplog.set_level("INFO", "liftenvelope")
    for _ in range(2):  # the pipelines run at the same time
        assert await ArchiveDaemon(read_archive_config(str(config))).run(once=True), caplog.text
    assert "pipeline orders wrote 8 rows in 1 commits, in " in caplog.text
    good = DeltaTable(tmp_path / "orders").to_pyarrow_table()
    assert sorted(good["id"].to_pylist()) == [at for at in range(10) if at not in (3, 7)]
    with duckdb.connect() as connection:
        connection.register("orders_bad", DeltaTable(tmp_path / "orders_bad").to_pyarrow_table())
        rows = connection.execute(documented("sql")).fetchall()
    assert rows == [(3, "no JSON object", b"oops"), (7, "no JSON object", b"oops")]


async def test_stop_commits_what_a_run_into_a_table_has_read(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(make_stream, url, name)
    await asyncio.to_thread(publish, url, numbered(name, 2_000))
    text = config_of(tmp_path, url, name, target='kind = "delta"\n')
    Path(text).write_text(Path(text).read_text().replace("interval", "batch_rows = 10\ninterval"))
    daemon = ArchiveDaemon(read_archive_config(text))
    has_read = paused_run(monkeypatch, "to_delta", daemon)
    task = asyncio.create_task(daemon.run())
    await until(has_read.is_set)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task
    found = sorted(DeltaTable(tmp_path / name).to_pyarrow_table()["offset"].to_pylist())
    assert 0 < len(found) < 2_000
    assert found == list(range(len(found)))


MAINTAINED = 'kind = "delta"\n[pipeline.maintenance]\ninterval = 0.01\n'


async def test_upkeep_that_fails_again_and_again_is_a_failing_pipeline(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAKE is the error of the upkeep."""
    await asyncio.to_thread(make_stream, url, name)
    await asyncio.to_thread(publish, url, numbered(name, 100))
    may_work = threading.Event()
    maintain = bulk.TableWriter.maintain

    def failing(writer: bulk.TableWriter, **options: Any) -> None:
        if not may_work.is_set():
            raise TableError("the object store refuses deletions")
        maintain(writer, **options)

    monkeypatch.setattr(bulk.TableWriter, "maintain", failing)
    addresses: list[str] = []
    config = read_archive_config(config_of(tmp_path, url, name, target=MAINTAINED))
    daemon = ArchiveDaemon(config, addresses.append)
    (state,) = daemon.states
    task = asyncio.create_task(daemon.run())
    await until(lambda: state.failures_in_a_row >= 3)
    assert (state.runs, state.succeeded_at, state.rows) == (0, 0.0, 100)
    assert (await fetch(addresses[0], "/readyz"))[0] == 503
    may_work.set()
    await until(lambda: state.runs > 0)
    assert (state.failures_in_a_row, state.error) == (0, "")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task


async def test_no_upkeep_begins_once_the_daemon_stops(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(make_stream, url, name)
    await asyncio.to_thread(publish, url, numbered(name, 100))
    maintained = []
    monkeypatch.setattr(bulk.TableWriter, "maintain", lambda *_, **__: maintained.append(1))
    has_written, may_end = held_after_writing(monkeypatch, "to_delta")
    daemon = ArchiveDaemon(read_archive_config(config_of(tmp_path, url, name, target=MAINTAINED)))
    task = asyncio.create_task(daemon.run())
    await until(has_written.is_set)
    os.kill(os.getpid(), signal.SIGTERM)
    await until(daemon._stopping.is_set)
    may_end.set()
    assert await task
    assert daemon.states[0].rows == 100
    assert not maintained


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
async def test_upkeep_of_runs_with_once_keeps_its_interval(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = f'path = "{tmp_path}/t"' if kind == "delta" else 'table = "db.t"\nwarehouse = "{tmp_path}"'
    path = tmp_path / "pipeline.toml"
    path.write_text(
        f'[[pipeline]]\nname = "{name}"\nsource = "{url}"\nstream = "{name}"\n'
        f'[pipeline.target]\nkind = "{kind}"\n{place.format(tmp_path=tmp_path)}\n'
        "[pipeline.maintenance]\ninterval = 3600\nexpire_hours = 200\n"
    )
    config = read_archive_config(str(path))
    maintained: list[float] = []
    maintain = bulk.TableWriter.maintain

    def noted(writer: bulk.TableWriter, **options: Any) -> None:
        maintain(writer, **options)
        maintained.append(time.time())

    monkeypatch.setattr(bulk.TableWriter, "maintain", noted)
    await asyncio.to_thread(make_stream, url, name)
    for _ in range(3):
        await asyncio.to_thread(publish, url, numbered(name, 10))
        assert await ArchiveDaemon(config).run(once=True)
    assert len(maintained) == 1
    with patch("liftenvelope.archive.config.time.time", lambda: maintained[0] + 3_700):
        await asyncio.to_thread(publish, url, numbered(name, 10))
        assert await ArchiveDaemon(config).run(once=True)
    assert len(maintained) == 2


def test_iceberg_snapshots_expire_and_writers_go_on(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    with bulk.iceberg_writer(url, name, "db.t", warehouse=tmp_path) as writer:
        with pytest.raises(UsageError, match="must exist: write into it first"):
            writer.maintain(expire_hours=1)
        with pytest.raises(UsageError, match="pyiceberg has no call for it"):
            writer.maintain(compact=True)
        for _ in range(3):
            publish(url, numbered(name, 5))
            writer.catch_up()
        table = SqlCatalog("liftenvelope", uri=f"sqlite:///{tmp_path}/catalog.db").load_table("db.t")
        writer.maintain(expire_hours=1)
        assert len(table.refresh().snapshots()) == 3
        with patch.object(_iceberg, "datetime") as clock:
            clock.now.return_value = datetime.now(UTC) + timedelta(hours=2)
            writer.maintain(expire_hours=1)
        assert len(table.refresh().snapshots()) == 1
        publish(url, numbered(name, 5))
        assert writer.catch_up().rows == 5
    assert sorted(table.refresh().scan().to_arrow()["offset"].to_pylist()) == list(range(20))
