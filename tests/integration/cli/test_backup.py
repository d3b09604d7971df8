"""``liftenvelope backup``, and ``restore`` of a backup, on a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.js import JetStreamContext

from liftenvelope import bulk
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import jetstream, make_stream, numbered, publish, with_jetstream
from tests.integration.cli.commands import error_of, json_of, run


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        yield running


@pytest.fixture
def url(server: NatsServer) -> str:
    return server.url


def delete(url: str, name: str) -> None:
    async def work(js: JetStreamContext) -> None:
        await js.delete_stream(name)

    with_jetstream(url, work)


def test_backup_then_restore_keeps_the_stream(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 100))
    before = bulk.read(url, name).read_all()
    folder = str(tmp_path / "backup")
    done = json_of("backup", name, folder, "--url", url)
    size = os.path.getsize(f"{folder}/stream.arc.s2")
    counts = {"messages": 100, "consumers": 0, "oldest": 0, "end": 100}
    assert done == {"stream": name, "folder": folder, **counts, "size": size}
    assert "must not have a backup yet" in error_of("backup", name, folder, "--url", url, code=2)
    assert "must not exist" in error_of("restore", folder, name, "--url", url)
    delete(url, name)
    words = ("restore", folder, name, "--url", url)
    assert run(*words, "--dry-run").stdout == "100 messages and 0 consumers to restore\n"
    facts = {"stream": name, "dry_run": False, "missing": 0, **counts}
    assert json_of(*words) == facts
    assert bulk.read(url, name).read_all().equals(before)


def test_restore_of_a_backup_takes_another_name_and_config(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    done = run("backup", name, str(tmp_path), "--url", url, "--no-consumers")
    assert done.stdout.startswith("10 messages and 0 consumers in ")
    config = f'{{"subjects": ["copy.{name}"], "max_msgs": 4}}'
    done = run("restore", str(tmp_path), f"{name}-copy", "--url", url, "--config", config)
    text = "4 messages and 0 consumers restored; 6 of the backup are missing: limits have removed them\n"
    assert done.stdout == text
    assert bulk.read(url, f"{name}-copy").read_all()["offset"].to_pylist() == [6, 7, 8, 9]


def test_errors_of_a_backup_say_what_to_change(url: str, name: str, tmp_path: Path) -> None:
    assert f"there is no stream '{name}'" in error_of("backup", name, str(tmp_path), "--url", url)
    make_stream(url, name)
    assert run("backup", name, str(tmp_path), "--url", url).exit_code == 0
    words = ("restore", str(tmp_path), name, "--url", url)
    for option in (["--subject", "x"], ["--verify"], ["--payload", "json"], ["--archived-stream", "x"]):
        error = error_of(*words, *option, code=2)
        assert f"{option[0]} must be left out with a backup" in error
    assert "--config must be a JSON object" in error_of(*words, "--config", "{", code=2)
    assert "--config must be a JSON object" in error_of(*words, "--config", "[]", code=2)
    (tmp_path / "archive").mkdir()
    other = ("restore", str(tmp_path / "archive"), name, "--url", url, "--config", "{}")
    assert "--config must be left out with an archive" in error_of(*other, code=2)
