"""``liftenvelope restore``, on real servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import jetstream, make_stream, numbered, publish
from tests.integration.cli.commands import error_of, json_of, run
from tests.s3 import run_s3


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        yield running


@pytest.fixture
def url(server: NatsServer) -> str:
    return server.url


@pytest.fixture
def copy(url: str, name: str) -> str:
    """An empty stream for the messages of the stream of the test."""
    make_stream(url, name)
    made = f"{name}-copy"
    make_stream(url, made)
    return made


def values(url: str, stream: str) -> list[bytes]:
    found: list[bytes] = bulk.read(url, stream, columns=["value"]).read_all()["value"].to_pylist()
    return found


def facts(copy: str, rows: int, skipped: int, **others: Any) -> dict[str, Any]:
    """What ``--json`` prints."""
    default = {"dry_run": False, "verified": 0, "keeps_offsets": True}
    return {"stream": copy, "rows": rows, "skipped": skipped, **default, **others}


def test_dry_run_then_restore_then_nothing_left(url: str, name: str, copy: str, tmp_path: Path) -> None:
    publish(url, numbered(name, 100))
    bulk.to_parquet(url, name, tmp_path, rotate_rows=40)
    words = (
        "restore",
        str(tmp_path),
        copy,
        "--url",
        url,
        "--archived-stream",
        name,
        "--subject",
        f"{copy}.x",
    )
    assert json_of(*words, "--dry-run") == facts(copy, 100, 0, dry_run=True)
    assert bulk.count(url, copy) == 0
    assert json_of(*words, "--verify") == facts(copy, 100, 0, verified=100)
    assert values(url, copy) == values(url, name)
    done = run(*words, "--dry-run")
    assert done.stdout == "0 messages to publish, 100 stored before; each keeps its offset\n"
    done = run(*words)
    assert done.stdout == "0 messages published, 100 stored before; each keeps its offset\n"


def test_archive_on_s3(url: str, name: str, copy: str) -> None:
    publish(url, numbered(name, 50))
    with run_s3() as s3:
        bulk.to_parquet(url, name, s3.url(name), start=10)
        words = ("restore", s3.url(name), copy, "--archived-stream", name, "--url", url)
        done = run(*words, "--subject", f"{copy}.x")
    assert done.exit_code == 0, done.output
    assert done.stdout == "40 messages published, 0 stored before; offsets differ from the archive\n"
    assert values(url, copy) == values(url, name)[10:]


@pytest.mark.parametrize(
    "payload", ["json", {"format": "json", "schema": {"id": "int64"}}, {"format": "arrow"}]
)
def test_typed_rows_become_messages(url: str, name: str, copy: str, tmp_path: Path, payload: Any) -> None:
    bulk.write(url, name, pa.table({"id": [3, 1, 2]}), subject=f"{name}.x", payload=payload)
    bulk.to_parquet(url, name, tmp_path, payload=payload)
    text = payload if isinstance(payload, str) else json.dumps(payload)
    words = ("restore", str(tmp_path), copy, "--archived-stream", name, "--url", url, "--payload", text)
    messages = bulk.count(url, name)
    found = json_of(*words, "--subject", f"{copy}.x", "--verify")
    assert found == facts(copy, messages, 0, verified=messages)
    assert values(url, copy) == values(url, name)
    error = error_of("restore", str(tmp_path), copy, "--archived-stream", name, "--url", url, code=2)
    assert "--payload must be that of the archive" in error


def test_errors_say_what_to_change(url: str, name: str, copy: str, tmp_path: Path) -> None:
    words = ("restore", str(tmp_path), copy, "--url", url)
    empty = error_of(*words, code=2)
    assert empty.startswith("Error: FOLDER must have files of partition 0")
    assert empty.endswith("by --archived-stream, or give the folder of a backup")
    assert "--payload must be a name or a JSON object" in error_of(*words, "--payload", "{", code=2)
    assert "--verify must be left out with --dry-run" in error_of(*words, "--verify", "--dry-run", code=2)
    missing = error_of("restore", f"{tmp_path}/none", copy, "--url", url, code=2)
    assert missing == f"Error: FOLDER must be a folder that exists, or a URL, got '{tmp_path}/none'"
    publish(url, numbered(name, 10))
    bulk.to_parquet(url, name, tmp_path)
    mine = (*words, "--archived-stream", name)
    assert "--url must be a nats:// URL" in error_of(*mine[:3], "--url", "liftbridge://127.0.0.1:1", code=2)
    publish(url, [(f"{copy}.x", b"other", None)])
    assert "STREAM must be empty, or hold the beginning" in error_of(*mine, "--dry-run", code=2)
    (path,) = tmp_path.glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    assert "FOLDER must have Parquet files, got" in error_of(*mine, code=2)
