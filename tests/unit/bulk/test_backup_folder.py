"""Folders of backups, without a server."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftenvelope import bulk
from liftenvelope.bulk import BackupDamagedError, BackupTooLargeError
from liftenvelope.bulk._snapshots import taking
from liftenvelope.bulk._snapshots.folder import find_backup
from liftenvelope.errors import ServerProtocolError, UsageError
from tests.unit.hostile_nats import STREAM_INFO, FakeNats, msg, usual

BACKUP = Path(__file__).parents[2] / "integration" / "bulk" / "backups" / "nats-2.15"
#: State of the stream of the fake servers.
_STATE = {"messages": 5, "bytes": 100, "first_seq": 1, "last_seq": 5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(BACKUP, tmp_path / "backup")


def test_backup_of_the_nats_command_is_described(folder: Path) -> None:
    found = find_backup(folder)
    assert found.backup == bulk.Backup("ORDERS", folder, 698, 7, 1, 10, 1)
    assert (found.is_tar, found.digest) == (False, "")
    seen: list[int] = []
    found.check(seen.append)
    assert seen == [698]


@pytest.mark.parametrize(
    "changes",
    [
        {"config": None},
        {"config": []},
        {"config": {"name": 7}},
        {"config": {"name": "ORDERS", "metadata": "x"}},
        {"config": {"name": "ORDERS", "metadata": [["a", "b"]]}},
        {"config": {"name": "ORDERS", "description": "\ud800"}},
        {"state": {}},
        {"state": {"messages": -1, "first_seq": 1, "last_seq": 1}},
        {"state": {"messages": "1", "first_seq": 1, "last_seq": 1}},
        {"liftenvelope": "x"},
        {"liftenvelope": [["size", 1]]},
        {"liftenvelope": {"size": "698"}},
        {"liftenvelope": {"size": 699}},
        {"liftenvelope": {"sha256": 5}},
    ],
    ids=json.dumps,
)
def test_damaged_description_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    meta = json.loads((folder / "backup.json").read_text())
    (folder / "backup.json").write_text(json.dumps(meta | changes))
    with pytest.raises(BackupDamagedError):
        find_backup(folder)


def test_folder_without_a_description_is_no_backup(folder: Path, tmp_path: Path) -> None:
    assert bulk.is_backup(folder)
    assert bulk.is_backup(str(folder))
    (folder / "backup.json").write_text("")  # of a backup that did not end
    for path in (folder, tmp_path, tmp_path / "none", folder / "stream.arc.s2", "s3://bucket/orders"):
        assert not bulk.is_backup(path)
    with pytest.raises(UsageError, match="must have a complete backup"):
        find_backup(folder)


@pytest.mark.parametrize("metadata", ["x", 5, {"a": "\ud800"}, {"a": object()}])
def test_config_that_is_no_json_is_refused(folder: Path, metadata: Any) -> None:
    with pytest.raises(UsageError, match="config must have settings as JSON has them"):
        bulk.restore_backup(folder, "nats://127.0.0.1:1", config={"metadata": metadata})


@pytest.mark.parametrize("config", [{"metadata": "x"}, {"description": "\ud800"}])
def test_description_of_a_hostile_server_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        if b".STREAM.SNAPSHOT." not in subject:
            return usual(subject, reply, sid)
        return msg(reply, sid, json.dumps({**STREAM_INFO, "config": config}).encode())

    with (
        FakeNats(script=script).running() as server,
        pytest.raises(ServerProtocolError, match="can't be read"),
    ):
        bulk.backup(server.url, "S", tmp_path / "backup")
    assert not bulk.is_backup(tmp_path / "backup")


class EndlessSnapshot(FakeNats):
    """FAKE, NOT REAL: a server whose snapshot never ends, and that waits for no acknowledgement.

    A real one does neither. The subject of the acknowledgements is that of nats-server 2.15.1, and the chunks
    repeat the data of one of its backups: an S2 stream may begin anew.

    Attributes:
        sid: Number of the subscription of the chunks; 0 for the right one.
    """

    sid = 0

    def _talk(self, connection: socket.socket, data: bytearray) -> None:
        if data is self.received[0]:  # the connection for requests
            super()._talk(connection, data)
            return
        while (found := re.search(rb"SUB (\S+) (\d+)\r\nPING\r\n", data)) is None:
            piece = connection.recv(65_536)
            if not piece:
                return
            data += piece
            connection.sendall(b"PONG\r\n" * piece.count(b"PING\r\n"))
        chunk = (BACKUP / "stream.arc.s2").read_bytes() * 100
        for number in itertools.count(1):
            ack = b"$JS.SNAPSHOT.ACK.S.fake.%d.%d" % (len(chunk), number)
            head = b"MSG %b %d %b %d\r\n" % (found[1], self.sid or int(found[2]), ack, len(chunk))
            connection.sendall(head + chunk + b"\r\n")


@pytest.mark.parametrize(
    ("named", "max_bytes", "most"),
    [(100, None, 500_400), (2**62, None, 900_000), (2**62, 300_000, 300_000)],
    ids=["by the stream", "by the free disk", "by max_bytes"],
)
def test_snapshot_that_does_not_end_is_cut_off_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: int, max_bytes: int | None, most: int
) -> None:
    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        answer = {"config": {"name": "S"}, "state": {**_STATE, "bytes": named}}
        return (
            msg(reply, sid, json.dumps(answer).encode())
            if b".SNAPSHOT." in subject
            else usual(subject, reply, sid)
        )

    monkeypatch.setattr(taking, "_HEADROOM_BYTES", 500_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    seen: list[bulk.Progress] = []
    with (
        EndlessSnapshot(script=script).running() as server,
        pytest.raises(BackupTooLargeError, match=f"must have at most {most:,} bytes, got more, of a stream"),
    ):
        bulk.backup(server.url, "S", tmp_path / "backup", max_bytes=max_bytes, progress=seen.append)
    assert most - 69_800 < seen[-1].bytes <= most
    assert list((tmp_path / "backup").iterdir()) == []


def test_snapshot_for_another_subscription_ends_with_a_typed_error(tmp_path: Path) -> None:
    def script(subject: bytes, reply: bytes, sid: int) -> bytes:
        if b".SNAPSHOT." not in subject:
            return usual(subject, reply, sid)
        return msg(reply, sid, json.dumps({"config": {"name": "S"}, "state": _STATE}).encode())

    server = EndlessSnapshot(script=script)
    server.sid = 77
    with server.running(), pytest.raises(ServerProtocolError, match="sent a message for subscription 77"):
        bulk.backup(server.url, "S", tmp_path / "backup")
    assert list((tmp_path / "backup").iterdir()) == []
