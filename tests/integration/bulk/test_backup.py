"""Backups by snapshots of the server, and their restores, on real servers."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.js import JetStreamContext

from liftenvelope import bulk
from liftenvelope.bulk import Backup, BackupDamagedError, Progress, RestoredStream
from liftenvelope.errors import (
    JetStreamError,
    LiftEnvelopeError,
    PermissionDeniedError,
    StreamNameInUseError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.testing import NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port
from tests.integration.bulk_streams import (
    jetstream,
    make_stream,
    numbered,
    publish,
    wait_for,
    with_jetstream,
)
from tests.integration.jetstream_cluster import make_replicated, three_servers

#: Made by the ``nats`` command 0.5.1 of servers 2.14.6 and 2.15.1: ten messages, of which three were deleted.
MADE_BY_NATS = Path(__file__).parent / "backups"
#: So many messages of 10 KB are some 150 chunks of a snapshot.
MANY = 2_000


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        yield running


@pytest.fixture
def url(server: NatsServer) -> str:
    return server.url


def api(url: str, subject: str, payload: object = None, timeout: float = 20) -> dict[str, Any]:
    """Send a request to JetStream's API."""

    async def work(js: JetStreamContext) -> dict[str, Any]:
        body = b"" if payload is None else json.dumps(payload).encode()
        answer: dict[str, Any] = json.loads((await js._nc.request(f"$JS.API.{subject}", body, timeout)).data)
        return answer

    return with_jetstream(url, work)


def config_of(url: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api(url, f"STREAM.INFO.{name}")["config"]
    return found


def streams(url: str) -> list[str]:
    return api(url, "STREAM.NAMES")["streams"] or []


def delete(url: str, name: str) -> None:
    assert api(url, f"STREAM.DELETE.{name}")["success"]


def delete_messages(url: str, name: str, *sequences: int) -> None:
    for sequence in sequences:
        assert api(url, f"STREAM.MSG.DELETE.{name}", {"seq": sequence})["success"]


def rows(url: str, name: str) -> list[dict[str, Any]]:
    """Everything that a reader sees of a stream, message by message; digests of large values.

    So what a failed comparison prints can be read.
    """
    found: list[dict[str, Any]] = bulk.read(url, name).read_all().to_pylist()
    return [{**row, "value": short(row["value"])} for row in found]


def short(value: bytes) -> bytes | str:
    return value if len(value) < 100 else hashlib.sha256(value).hexdigest()


def consumer(url: str, stream: str, name: str) -> dict[str, Any]:
    """Config and state of a consumer, without the times."""
    info = api(url, f"CONSUMER.INFO.{stream}.{name}")
    places = {
        key: {part: info[key][part] for part in ("consumer_seq", "stream_seq")}
        for key in ("delivered", "ack_floor")
    }
    counts = {key: info[key] for key in ("num_ack_pending", "num_pending", "num_redelivered")}
    return {"config": info["config"], **places, **counts}


def fill(url: str, name: str, count: int = 300, **config: Any) -> None:
    """Make a stream with headers, an empty value and gaps: at the start, inside and at the end."""
    make_stream(url, name, **config)
    publish(url, numbered(name, count))
    odd = {"Nats-Msg-Id": "own", "color": "red", "Empty": ""}
    publish(
        url, [(f"{name}.odd", b"", odd), (f"{name}.odd", b"\xff\x00", None), (f"{name}.last", b"x", None)]
    )
    delete_messages(url, name, 1, 2, 50, 51, 52, 100, count + 3)


def fill_large(url: str, name: str, **config: Any) -> None:
    """Make a stream of which a snapshot has many chunks: values that no compression makes smaller."""
    make_stream(url, name, **config)
    with open("/dev/urandom", "rb") as random:
        publish(url, [(f"{name}.x", random.read(10_000), None) for _ in range(MANY)])


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_restored_stream_equals_the_original_message_by_message(
    url: str, name: str, tmp_path: Path, storage: str
) -> None:
    fill(url, name, storage=storage, metadata={"team": "orders"}, description="orders")
    before, config = rows(url, name), config_of(url, name)
    assert [row["offset"] for row in before] == [
        *range(2, 49),
        *range(52, 99),
        *range(100, 302),
    ]
    done = bulk.backup(url, name, tmp_path / "backup")
    size = (tmp_path / "backup" / "stream.arc.s2").stat().st_size
    assert done == Backup(name, tmp_path / "backup", size, len(before), 2, 303, 0)
    delete(url, name)
    assert bulk.restore_backup(tmp_path / "backup", url) == RestoredStream(name, len(before), 0, 2, 303, 0)
    assert rows(url, name) == before
    assert config_of(url, name) == config
    publish(url, [(f"{name}.next", b"next", None)])
    assert rows(url, name)[-1]["offset"] == 303


def test_consumers_are_restored_with_their_state_unless_left_out(url: str, name: str, tmp_path: Path) -> None:
    fill(url, name)

    async def work(js: JetStreamContext) -> None:
        subscription = await js.pull_subscribe(f"{name}.>", durable="worker")
        for number, msg in enumerate(await subscription.fetch(20, timeout=20)):
            if number not in (3, 7):
                await msg.ack_sync(timeout=20)

    with_jetstream(url, work)
    before = consumer(url, name, "worker")
    assert (before["ack_floor"]["stream_seq"], before["num_ack_pending"]) == (5, 2)
    assert bulk.backup(url, name, tmp_path / "with").consumers == 1
    assert bulk.backup(url, name, tmp_path / "without", consumers=False).consumers == 0
    delete(url, name)
    assert bulk.restore_backup(tmp_path / "with", url).consumers == 1
    assert consumer(url, name, "worker") == before
    delete(url, name)
    assert bulk.restore_backup(tmp_path / "without", url).consumers == 0
    assert api(url, f"CONSUMER.NAMES.{name}")["total"] == 0


@pytest.mark.parametrize("version", ["2.14", "2.15"])
def test_backup_of_the_nats_command_is_restored(url: str, tmp_path: Path, version: str) -> None:
    folder = tmp_path / "backup"
    shutil.copytree(MADE_BY_NATS / f"nats-{version}", folder)
    try:
        assert bulk.restore_backup(folder, url) == RestoredStream("ORDERS", 7, 0, 1, 10, 1)
        found = rows(url, "ORDERS")
        assert [row["offset"] for row in found] == [1, 2, 5, 6, 7, 8, 9]
        assert found[0]["value"] == b"1.........."
        assert dict(found[-1]["headers"]) == {"color": b"red"}
        assert {row["timestamp"].strftime("%Y-%m-%dT%H:%M") for row in found} == {"2026-11-26T18:37"}
        state = consumer(url, "ORDERS", "worker")
        assert (state["ack_floor"]["stream_seq"], state["num_ack_pending"]) == (5, 1)
        if version == "2.14":
            with pytest.raises(UsageError, match="other names need a backup of nats-server"):
                bulk.restore_backup(folder, url, "OTHER")
    finally:
        delete(url, "ORDERS")


def test_backup_is_restored_under_another_name_with_another_config(
    url: str, name: str, tmp_path: Path
) -> None:
    fill(url, name)
    before = rows(url, name)
    bulk.backup(url, name, tmp_path)
    other = f"{name}-copy"
    changes = {"subjects": [f"copy.{name}"], "max_msgs": 100, "metadata": {"copy": "yes"}}
    done = bulk.restore_backup(tmp_path, url, other, config=changes)
    assert done == RestoredStream(other, 100, 196, 202, 303, 0)
    assert rows(url, other) == before[-100:]
    config = config_of(url, other)
    assert config["metadata"]["copy"] == "yes"
    assert {key for key in config["metadata"] if not key.startswith("_nats.")} == {"copy"}
    assert rows(url, name) == before


@pytest.mark.parametrize(
    "settings",
    [
        {"sealed": True},
        {"retention": "workqueue", "discard": "new", "max_msgs": 1_000},
        {"allow_rollup_hdrs": True, "allow_direct": True, "max_msgs_per_subject": 1},
        {"allow_msg_ttl": True, "allow_atomic": True, "compression": "s2"},
        {"deny_delete": True, "deny_purge": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_streams_of_every_kind_are_restored(
    url: str, name: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    plain = {"name": name, "subjects": [f"{name}.>"]}
    late = {"sealed": True} if "sealed" in settings else {}
    wanted = {key: value for key, value in settings.items() if key not in late}
    assert "error" not in api(url, f"STREAM.CREATE.{name}", {**plain, **wanted})
    publish(url, [(f"{name}.{i}", b"%d" % i, None) for i in range(20)])
    if late:
        api(url, f"STREAM.UPDATE.{name}", {**config_of(url, name), **late})
    before, config = messages(url, name), config_of(url, name)
    bulk.backup(url, name, tmp_path)
    delete(url, name)
    assert bulk.restore_backup(tmp_path, url).messages == 20
    assert messages(url, name) == before
    assert config_of(url, name) == config


def test_restored_mirror_goes_on_where_it_was(url: str, name: str, tmp_path: Path) -> None:
    fill(url, name)
    mirror = f"{name}-mirror"
    config = {"name": mirror, "mirror": {"name": name}}
    assert "error" not in api(url, f"STREAM.CREATE.{mirror}", config)
    before = rows(url, name)
    wait_for("the mirror", lambda: len(rows(url, mirror)) == len(before))
    bulk.backup(url, mirror, tmp_path)
    delete(url, mirror)
    publish(url, numbered(name, 5))
    bulk.restore_backup(tmp_path, url)
    wait_for("the mirror", lambda: rows(url, mirror) == rows(url, name))
    assert rows(url, mirror)[: len(before)] == before


def test_restored_key_value_bucket_keeps_its_revisions(url: str, name: str, tmp_path: Path) -> None:
    async def make(js: JetStreamContext) -> None:
        bucket = await js.create_key_value(bucket=name, history=3)
        for number in range(5):
            await bucket.put("tea", b"%d" % number)
        await bucket.put("milk", b"1")
        await bucket.delete("milk")

    async def found(js: JetStreamContext) -> tuple[object, ...]:
        bucket = await js.key_value(name)
        history = [(one.revision, one.value) for one in await bucket.history("tea")]
        updated = await bucket.update("tea", b"new", last=5)
        return history, await bucket.keys(), updated

    with_jetstream(url, make)
    bulk.backup(url, f"KV_{name}", tmp_path)
    delete(url, f"KV_{name}")
    bulk.restore_backup(tmp_path, url)
    assert with_jetstream(url, found) == ([(3, b"2"), (4, b"3"), (5, b"4")], ["tea"], 8)


def messages(url: str, name: str) -> list[dict[str, Any]]:
    """Messages by single requests, which work for every kind of stream."""
    state = api(url, f"STREAM.INFO.{name}")["state"]
    sequences = range(state["first_seq"], state["last_seq"] + 1)
    return [api(url, f"STREAM.MSG.GET.{name}", {"seq": sequence})["message"] for sequence in sequences]


@pytest.mark.parametrize("purged", [False, True])
def test_stream_without_messages_keeps_its_next_offset(
    url: str, name: str, tmp_path: Path, purged: bool
) -> None:
    make_stream(url, name)
    if purged:
        publish(url, numbered(name, 5))
        api(url, f"STREAM.PURGE.{name}")
    bulk.backup(url, name, tmp_path)
    delete(url, name)
    end = 5 if purged else 0
    assert bulk.restore_backup(tmp_path, url) == RestoredStream(name, 0, 0, end, end, 0)
    publish(url, numbered(name, 1))
    assert rows(url, name)[0]["offset"] == end


def test_messages_older_than_max_age_are_reported_as_missing(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    bulk.backup(url, name, tmp_path)
    delete(url, name)
    bulk.restore_backup(tmp_path, url, config={"max_age": 100_000_000, "duplicate_window": 0})
    wait_for("the messages to expire", lambda: bulk.count(url, name) == 0)
    state = api(url, f"STREAM.INFO.{name}")["state"]
    assert (state["messages"], state["last_seq"]) == (0, 10)


def test_messages_published_during_a_backup_are_not_in_it(url: str, name: str, tmp_path: Path) -> None:
    fill_large(url, name)
    before = rows(url, name)
    seen: list[Progress] = []

    def publish_more(progress: Progress) -> None:
        if not seen:
            publish(url, numbered(name, 10))
        seen.append(progress)

    done = bulk.backup(url, name, tmp_path, progress=publish_more)
    assert (done.messages, done.end) == (MANY, MANY)
    assert len(seen) > 100
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert seen[-1].total is not None
    assert 0.95 < seen[-1].done / seen[-1].total <= 1
    assert seen[-1].bytes == done.size
    delete(url, name)
    seen.clear()
    bulk.restore_backup(tmp_path, url, progress=seen.append)
    assert rows(url, name) == before
    assert len(seen) > 100
    assert seen[-1] == Progress(0, done.size, done.size, done.size)


def test_existing_stream_is_left_as_it_is(url: str, name: str, tmp_path: Path) -> None:
    fill(url, name)
    bulk.backup(url, name, tmp_path)
    publish(url, numbered(name, 1))
    before = rows(url, name)
    for dry_run in (True, False):
        with pytest.raises(StreamNameInUseError, match="must not exist: delete it, or restore under another"):
            bulk.restore_backup(tmp_path, url, dry_run=dry_run)
    assert rows(url, name) == before


def test_dry_run_checks_the_backup_and_restores_nothing(url: str, name: str, tmp_path: Path) -> None:
    fill(url, name)
    done = bulk.backup(url, name, tmp_path)
    delete(url, name)
    seen: list[Progress] = []
    planned = bulk.restore_backup(tmp_path, url, dry_run=True, progress=seen.append)
    assert planned == RestoredStream(name, done.messages, 0, done.oldest, done.end, 0)
    assert seen[-1].done == done.size
    assert name not in streams(url)
    assert bulk.restore_backup(tmp_path, url) == planned


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda path: flip(path, 20_000), "must have the SHA-256"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "must have .* bytes, got"),
        (lambda path: path.unlink(), "must have one of stream.arc.s2 and stream.tar.s2, got none"),
        (lambda path: shutil.copy(path, path.with_name("stream.tar.s2")), "got both"),
        (lambda path: path.with_name("backup.json").write_text("{}"), "backup.json is damaged"),
        (lambda path: path.with_name("backup.json").write_text("{"), "backup.json is damaged"),
    ],
    ids=["changed", "cut", "missing", "two", "no config", "no JSON"],
)
def test_damaged_backup_is_refused_before_anything_is_sent(
    url: str, name: str, tmp_path: Path, damage: Callable[[Path], object], text: str
) -> None:
    fill(url, name, 2_000)
    bulk.backup(url, name, tmp_path)
    delete(url, name)
    damage(tmp_path / "stream.arc.s2")
    with pytest.raises(BackupDamagedError, match=text):
        bulk.restore_backup(tmp_path, url)
    assert name not in streams(url)


def forget_digest(folder: Path) -> None:
    """Make a backup one of another program: without a size and a digest."""
    meta = json.loads((folder / "backup.json").read_text())
    del meta["liftenvelope"]
    (folder / "backup.json").write_text(json.dumps(meta))


def test_damage_that_only_the_server_finds_leaves_no_stream(url: str, name: str, tmp_path: Path) -> None:
    fill_large(url, name)
    done = bulk.backup(url, name, tmp_path)
    delete(url, name)
    forget_digest(tmp_path)
    flip(tmp_path / "stream.arc.s2", done.size // 2)
    with pytest.raises(JetStreamError, match="restore failed"):
        bulk.restore_backup(tmp_path, url)
    assert name not in streams(url)


def test_backup_of_another_program_that_is_cut_is_refused(url: str, name: str, tmp_path: Path) -> None:
    fill_large(url, name)
    bulk.backup(url, name, tmp_path)
    delete(url, name)
    forget_digest(tmp_path)
    data = tmp_path / "stream.arc.s2"
    data.write_bytes(data.read_bytes()[:-1_000])
    with pytest.raises(BackupDamagedError, match="ends within a chunk"):
        bulk.restore_backup(tmp_path, url)
    assert name not in streams(url)


@pytest.mark.parametrize("error", [LiftEnvelopeError("enough"), KeyboardInterrupt()])
def test_interrupted_restore_leaves_no_stream(
    url: str, name: str, tmp_path: Path, error: BaseException
) -> None:
    fill_large(url, name)
    before = rows(url, name)
    bulk.backup(url, name, tmp_path)
    delete(url, name)

    def fail(progress: Progress) -> None:
        assert progress.total is not None
        if progress.done > progress.total // 2:
            assert name in streams(url)
            raise error

    with pytest.raises(type(error)):
        bulk.restore_backup(tmp_path, url, progress=fail)
    assert name not in streams(url)
    bulk.restore_backup(tmp_path, url)
    assert rows(url, name) == before


@pytest.mark.parametrize("error", [LiftEnvelopeError("enough"), KeyboardInterrupt()])
def test_interrupted_backup_leaves_no_backup(
    url: str, name: str, tmp_path: Path, error: BaseException
) -> None:
    fill_large(url, name)

    def fail(progress: Progress) -> None:
        raise error

    with pytest.raises(type(error)):
        bulk.backup(url, name, tmp_path, progress=fail)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="must have a complete backup"):
        bulk.restore_backup(tmp_path, url)
    assert bulk.backup(url, name, tmp_path).messages == MANY


KILLED = """
import os, signal, sys
from liftenvelope import bulk

def die(progress):
    if progress.done > progress.total // 2:
        os.kill(os.getpid(), signal.SIGKILL)

work, url, name, folder = sys.argv[1:]
if work == "backup":
    bulk.backup(url, name, folder, progress=die)
else:
    bulk.restore_backup(folder, url, progress=die)
"""


def be_killed(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert done.returncode == -signal.SIGKILL


def test_restore_after_a_killed_one_deletes_what_that_left(url: str, name: str, tmp_path: Path) -> None:
    fill_large(url, name)
    before, config = rows(url, name), config_of(url, name)
    bulk.backup(url, name, tmp_path)
    delete(url, name)
    be_killed("restore", url, name, str(tmp_path))
    assert "liftenvelope.unfinished-restore" in config_of(url, name)["metadata"]
    assert bulk.restore_backup(tmp_path, url, dry_run=True).messages == MANY
    assert bulk.restore_backup(tmp_path, url).messages == MANY
    assert rows(url, name) == before
    assert config_of(url, name) == config


def test_backup_after_a_killed_one_is_complete(url: str, name: str, tmp_path: Path) -> None:
    fill_large(url, name)
    be_killed("backup", url, name, str(tmp_path))
    assert (tmp_path / "stream.unfinished").exists()
    assert bulk.backup(url, name, tmp_path).messages == MANY
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.json", "stream.arc.s2"]


QUICK = bulk.Access(timeout=60.0, reconnect_wait=0.5)


def test_server_killed_during_a_backup(name: str, tmp_path: Path) -> None:
    with jetstream() as server:
        fill_large(server.url, name)

        def kill(_: Progress) -> None:
            if server.is_running:
                server.kill()

        with pytest.raises(TransportError):
            bulk.backup(server.url, name, tmp_path, progress=kill, access=QUICK)
        assert list(tmp_path.iterdir()) == []
        server.start()
        assert bulk.backup(server.url, name, tmp_path).messages == MANY


def test_server_killed_during_a_restore(name: str, tmp_path: Path) -> None:
    with jetstream() as server:
        fill_large(server.url, name)
        before = rows(server.url, name)
        done = bulk.backup(server.url, name, tmp_path)
        delete(server.url, name)

        def kill(progress: Progress) -> None:
            if progress.done > done.size // 2 and server.is_running:
                server.kill()

        with pytest.raises(bulk.RestoreUnfinishedError, match="is left") as caught:
            bulk.restore_backup(tmp_path, server.url, progress=kill, access=QUICK)
        assert isinstance(caught.value.__cause__, TransportError)
        server.start()
        assert bulk.restore_backup(tmp_path, server.url).messages == MANY
        assert rows(server.url, name) == before


def test_server_restarted_during_a_restore_has_no_stream_left(name: str, tmp_path: Path) -> None:
    with jetstream() as server:
        fill_large(server.url, name)
        done = bulk.backup(server.url, name, tmp_path)
        delete(server.url, name)
        killed: list[int | None] = []

        def restart(progress: Progress) -> None:
            if progress.done > done.size // 2 and not killed:
                killed.append(server.kill())
                server.start()

        with pytest.raises(TransportError):
            bulk.restore_backup(tmp_path, server.url, progress=restart)
        assert name not in streams(server.url)


BASE = ["$JS.API.STREAM.INFO.>", "$JS.API.STREAM.NAMES"]
BACKUP = [*BASE, "$JS.API.STREAM.SNAPSHOT.>", "$JS.SNAPSHOT.ACK.>"]
RESTORE = [
    *BASE,
    "$JS.API.STREAM.RESTORE.>",
    "$JS.SNAPSHOT.RESTORE.>",
    "$JS.API.STREAM.UPDATE.>",
    "$JS.API.STREAM.DELETE.>",
]


def user(name: str, allowed: list[str]) -> dict[str, object]:
    permissions = {"publish": {"allow": allowed}, "subscribe": {"allow": ["_INBOX.>"]}}
    return {"user": name, "password": "secret", "permissions": permissions}


@pytest.fixture(scope="module")
def guarded() -> Iterator[NatsServer]:
    users = [
        {"user": "admin", "password": "secret"},
        user("base", BASE),
        user("noack", BACKUP[:-1]),
        user("backup", BACKUP),
        user("noupdate", [one for one in RESTORE if "UPDATE" not in one]),
        user("nochunk", [one for one in RESTORE if "SNAPSHOT" not in one]),
        user("restore", RESTORE),
    ]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        yield server


def login(server: NatsServer, name: str) -> str:
    return server.url.replace("nats://", f"nats://{name}:secret@")


def test_user_with_the_documented_permissions_can_back_up_and_restore(
    guarded: NatsServer, name: str, tmp_path: Path
) -> None:
    admin = login(guarded, "admin")
    fill_large(admin, name)
    before = rows(admin, name)
    bulk.backup(login(guarded, "backup"), name, tmp_path)
    delete(admin, name)
    bulk.restore_backup(tmp_path, login(guarded, "restore"))
    assert rows(admin, name) == before


def test_missing_permissions_are_reported_and_leave_nothing(
    guarded: NatsServer, name: str, tmp_path: Path
) -> None:
    admin = login(guarded, "admin")
    fill_large(admin, name)
    for who in ("base", "noack"):
        with pytest.raises(PermissionDeniedError, match=r"\$JS.*SNAPSHOT"):
            bulk.backup(login(guarded, who), name, tmp_path, access=QUICK)
        assert list(tmp_path.iterdir()) == []
    bulk.backup(admin, name, tmp_path)
    delete(admin, name)
    for who, subject in (("base", "RESTORE"), ("noupdate", "UPDATE"), ("nochunk", "SNAPSHOT.RESTORE")):
        with pytest.raises(PermissionDeniedError, match=rf"\$JS.*{subject}"):
            bulk.restore_backup(tmp_path, login(guarded, who), access=QUICK)
        assert name not in streams(admin)


def test_replicated_stream_is_restored_and_a_failed_restore_leaves_nothing(tmp_path: Path, name: str) -> None:
    with three_servers() as servers:
        url = ",".join(server.url for server in servers.values())
        first = servers["n1"].url
        make_replicated(first, name)
        with open("/dev/urandom", "rb") as random:
            publish(first, [(f"{name}.x", random.read(10_000), None) for _ in range(MANY)])

        async def work(js: JetStreamContext) -> None:
            for durable, left_out in (("worker", 10), ("slow", 3)):
                subscription = await js.pull_subscribe(f"{name}.>", durable=durable)
                for number, msg in enumerate(await subscription.fetch(10, timeout=20)):
                    if number != left_out:
                        await msg.ack_sync(timeout=20)

        with_jetstream(first, work)
        before, state = rows(url, name), consumer(first, name, "worker")
        done = bulk.backup(url, name, tmp_path)
        assert (done.messages, done.consumers) == (MANY, 2)
        delete(first, name)

        def fail(progress: Progress) -> None:
            if progress.done > done.size // 2:
                raise LiftEnvelopeError("enough")

        with pytest.raises(LiftEnvelopeError, match="enough"):
            bulk.restore_backup(tmp_path, url, progress=fail)
        assert name not in streams(first)
        assert bulk.restore_backup(tmp_path, url).messages == MANY
        assert rows(url, name) == before
        # A consumer may be on a replica that is still being filled, and count what is there.
        wait_for("the consumer", lambda: consumer(first, name, "worker") == state)
        wait_for("the replicas", lambda: consumer(first, name, "slow")["num_pending"] == MANY - 3)
        slow = consumer(first, name, "slow")  # from its ack floor on, messages are delivered again
        assert (slow["ack_floor"]["stream_seq"], slow["num_ack_pending"]) == (3, 0)
        info = api(first, f"STREAM.INFO.{name}")
        assert info["config"]["num_replicas"] == 3
        assert len(info["cluster"]["replicas"]) == 2


def test_backup_and_restore_over_a_server_of_another_domain(tmp_path: Path, name: str) -> None:
    port, access = free_port(), bulk.Access(domain="leaf")

    def config(domain: str, **leafnodes: Any) -> dict[str, object]:
        own = {"domain": domain, "store_dir": str(tmp_path / domain)}
        return {"server_name": domain, "jetstream": own, "leafnodes": leafnodes}

    listening = config("hub", listen=f"127.0.0.1:{port}")
    remote = config("leaf", remotes=[{"url": f"nats://127.0.0.1:{port}"}])
    with (
        run_nats_server(jetstream=True, config=listening) as hub,
        run_nats_server(jetstream=True, config=remote) as leaf,
    ):
        fill_large(leaf.url, name)
        before = rows(leaf.url, name)
        wait_for("the leaf node", lambda: answers(hub.url, f"$JS.leaf.API.STREAM.INFO.{name}"))
        bulk.backup(hub.url, name, tmp_path / "backup", access=access)
        delete(leaf.url, name)
        bulk.restore_backup(tmp_path / "backup", hub.url, access=access)
        assert rows(leaf.url, name) == before


def answers(url: str, subject: str) -> bool:
    async def ask(js: JetStreamContext) -> bool:
        try:
            await js._nc.request(subject, b"", 2)
        except nats.errors.Error:
            return False
        return True

    return with_jetstream(url, ask)


def test_no_backup_of_a_stream_that_does_not_exist(url: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(StreamNotFoundError, match=name):
        bulk.backup(url, name, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_folder_with_a_backup_or_a_file_is_refused(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    bulk.backup(url, name, tmp_path / "backup")
    with pytest.raises(UsageError, match="must not have a backup yet"):
        bulk.backup(url, name, tmp_path / "backup")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="must be a folder"):
        bulk.backup(url, name, tmp_path / "file")
    with pytest.raises(UsageError, match="must have a complete backup"):
        bulk.restore_backup(tmp_path, url)
    with pytest.raises(UsageError, match="restore_backup"):
        bulk.restore(tmp_path / "backup", url, name)


def test_two_backups_into_one_folder_at_a_time_are_refused(url: str, name: str, tmp_path: Path) -> None:
    fill_large(url, name)

    def again(_: Progress) -> None:
        with pytest.raises(bulk.ArchiveBusyError):
            bulk.backup(url, name, tmp_path)

    assert bulk.backup(url, name, tmp_path, progress=again).messages == MANY


def test_arguments_are_checked_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="source must be a nats:// URL"):
        bulk.backup("liftbridge://127.0.0.1:1", "orders", tmp_path)
    with pytest.raises(UsageError, match="URLs are not supported"):
        bulk.backup("nats://127.0.0.1:1", "orders", "s3://bucket/orders")
    folder = MADE_BY_NATS / "nats-2.15"
    with pytest.raises(UsageError, match="use the argument stream"):
        bulk.restore_backup(folder, "nats://127.0.0.1:1", config={"name": "other"})
    with pytest.raises(UsageError, match="config must be a mapping"):
        bulk.restore_backup(folder, "nats://127.0.0.1:1", config=[1])  # type: ignore[arg-type]
