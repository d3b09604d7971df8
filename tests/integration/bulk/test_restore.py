"""An archive back into a stream, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.js import JetStreamContext

from liftenvelope import bulk
from liftenvelope.bulk import Progress, RestoreError
from liftenvelope.errors import LiftEnvelopeError, UsageError
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import jetstream, make_stream, numbered, publish, with_jetstream


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        yield running


@pytest.fixture
def url(server: NatsServer) -> str:
    return server.url


def archive_and_empty(url: str, name: str, folder: Path, rows: int) -> None:
    """Archive a stream, and make it anew."""
    make_stream(url, name)
    publish(url, numbered(name, rows))
    publish(url, [(f"{name}.x", b"", {"Nats-Msg-Id": "own", "color": "red"}), (f"{name}.y", b"\xff", None)])
    bulk.to_parquet(url, name, folder, rotate_rows=70, partition_by=["dt"])
    empty(url, name)


def empty(url: str, name: str) -> None:
    async def delete(js: JetStreamContext) -> None:
        await js.delete_stream(name)

    with_jetstream(url, delete)
    make_stream(url, name)


def test_restored_stream_has_the_rows_and_offsets_of_the_archive(url: str, name: str, tmp_path: Path) -> None:
    archive_and_empty(url, name, tmp_path, 200)
    assert bulk.restore(tmp_path, url, name, verify=True) == bulk.Restored(202, 0, 202, True)
    rows = bulk.read(url, name, start=200).read_all().to_pylist()
    assert [dict(row["headers"]) for row in rows] == [
        {"color": b"red", "Nats-Msg-Id": f"restore-{name}-0-200".encode()},
        {"Nats-Msg-Id": f"restore-{name}-0-201".encode()},
    ]
    assert [row["value"] for row in rows] == [b"", b"\xff"]
    again = bulk.restore(tmp_path, url, name, verify=True)
    assert (again.rows, again.skipped, again.verified) == (0, 202, 202)


def test_restore_that_fails_half_way_and_is_repeated_stores_each_row_once(
    url: str, name: str, tmp_path: Path
) -> None:
    archive_and_empty(url, name, tmp_path, 20_000)

    def fail(_: Progress) -> None:
        raise LiftEnvelopeError("enough")

    with pytest.raises(LiftEnvelopeError):
        bulk.restore(tmp_path, url, name, progress=fail)
    done = bulk.restore(tmp_path, url, name, verify=True)
    assert done.rows + done.skipped == done.verified == 20_002
    assert done.keeps_offsets


def test_archive_with_a_gap_does_not_keep_offsets(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))

    async def delete(js: JetStreamContext) -> None:
        await js.delete_msg(name, 4)

    with_jetstream(url, delete)
    bulk.to_parquet(url, name, tmp_path)
    empty(url, name)
    assert bulk.restore(tmp_path, url, name, verify=True) == bulk.Restored(9, 0, 9, False)


def test_messages_of_others_are_refused_or_found_by_verify(url: str, name: str, tmp_path: Path) -> None:
    archive_and_empty(url, name, tmp_path, 5)
    publish(url, numbered(name, 1))
    with pytest.raises(UsageError, match="must be empty, or hold the beginning of this restore"):
        bulk.restore(tmp_path, url, name)
    publish(url, [(f"{name}.x", b"other", {"Nats-Msg-Id": f"restore-{name}-0-2"})])
    with pytest.raises(RestoreError, match="must be that of the archive"):
        bulk.restore(tmp_path, url, name, verify=True)


def test_arguments(url: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="source must be a nats:// URL"):
        bulk.restore(tmp_path, "liftbridge://127.0.0.1:1", name)
    with pytest.raises(
        UsageError, match="archive must have files of partition 0 of stream 'other', got none"
    ):
        bulk.restore(tmp_path, url, name, archived_stream="other")
