"""The nats-server that the gateway starts: publishing needs no login, JetStream and the records need one."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope.gateway._gateway import Gateway
from liftenvelope.gateway.embedded import EmbeddedNats
from liftenvelope.gateway.serving import Serving, running_gateway
from liftenvelope.jetstream import JetStream
from liftenvelope.nats import AckInbox
from tests.conformance.actions import take
from tests.handled import handled
from tests.integration.certificates import Certificates
from tests.integration.conftest import connect, until

PATIENCE = 60.0


@pytest.fixture
def umask() -> Iterator[None]:
    """The umask of most systems, by which files are readable for everybody."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@asynccontextmanager
async def served(folder: Path, **options: object) -> AsyncIterator[tuple[Gateway, EmbeddedNats]]:
    serving = Serving(data_dir=str(folder / "data"), **options)  # type: ignore[arg-type]
    async with running_gateway(serving) as (gateway, own):
        assert own is not None
        yield gateway, own


def login(folder: Path, user: str) -> str:
    """Return the URL with a login that the server's data folder holds."""
    return (folder / "data" / f"{user}.url").read_text().strip()


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[NatsClient]:
    """A connection that is closed before the server stops."""
    nc = await connect(url)
    try:
        yield nc
    finally:
        await nc.close()


class Errors:
    """Errors that a connection is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def note(self, error: Exception) -> None:
        self.texts.append(str(error).lower())


async def refused_publish(url: str, subject: str, payload: bytes = b"x") -> str:
    """Publish, which the server must refuse; return its words."""
    errors = Errors()
    nc = await connect(url, error_cb=errors.note)
    await nc.publish(subject, payload)
    await until(lambda: errors.texts)
    await nc.close()
    return errors.texts[0]


async def refused_subscription(url: str, subject: str) -> str:
    """Subscribe, which the server must refuse; return its words."""
    errors = Errors()
    nc = await connect(url, error_cb=errors.note)
    await nc.subscribe(subject)
    await until(lambda: errors.texts)
    await nc.close()
    return errors.texts[0]


INTERNAL = (
    "$JS.API.INFO",
    "$JS.API.STREAM.PURGE.lift_orders_0",
    "$JS.ACK.lift_orders_0.x.1.1.1.1.0",
    "$KV.lift_streams.orders",
    "$O.bucket.M.x",
    "$SRV.PING",
    "_lift.checked.orders",
    "liftenvelope.groups.any.DeleteGroup",
    "_INBOX.gateway.0123456789",
)


@pytest.mark.parametrize("subject", INTERNAL)
async def test_internal_subject_is_refused_without_login(tmp_path: Path, subject: str) -> None:
    async with served(tmp_path) as (_, own):
        assert "permissions violation for publish" in await refused_publish(own.url, subject)
        first = subject.partition(".")[0]
        wide = subject if first in ("_INBOX", "liftenvelope") else f"{first}.>"
        assert "permissions violation for subscription" in await refused_subscription(own.url, wide)


async def test_all_that_clients_do_works_with_publishers_that_do_not_log_in(
    tmp_path: Path, name: str
) -> None:
    async with (
        served(tmp_path) as (gateway, own),
        liftenvelope.connect([gateway.address]) as client,
        raw(own.url) as nc,
        AckInbox(nc) as inbox,
    ):
        checked, copy = f"{name}-checked", f"{name}-copy"
        await client.create_stream(name, name)
        await client.create_stream(name, copy)
        await client.create_stream(checked, checked, optimistic_concurrency=True)
        assert [(await inbox.publish(name, b"by NATS")).offset for _ in range(3)] == [0, 1, 2]
        assert (await inbox.publish(checked, b"by NATS", expected_offset=0)).offset == 0
        ack = await client.publish(name, b"by gRPC")
        assert ack is not None
        assert ack.offset == 3
        assert (await client.publish_many(copy, [b"by gRPC"] * 5)).acked == 5
        async with client.consumer(name, [name], auto_offset="earliest") as consumer:
            found = await take(consumer, 9)
            await consumer.commit(found[-1])
        assert [message.offset for message in found] == list(range(9))
        await client.set_cursor("r", name, 0, 7)
        assert await client.fetch_cursor("r", name, 0) == 7


async def test_publishers_overhear_nothing_internal(tmp_path: Path, name: str) -> None:
    async with served(tmp_path) as (gateway, own), liftenvelope.connect([gateway.address]) as client:
        heard: list[str] = []
        async with raw(own.url) as nc:
            subscription = await nc.subscribe(">")
            await handled(nc)
            await client.create_stream(name, name)
            await client.publish(name, b"v")
            await client.set_cursor("r", name, 0, 0)
            await nc.publish("end", b"")
            async with asyncio.timeout(PATIENCE):
                while "end" not in heard:
                    heard.append((await subscription.next_msg(PATIENCE)).subject)
        assert name in heard
        assert [subject for subject in heard if subject not in (name, "end")] == []


async def test_login_of_the_data_folder_has_all_rights_also_after_a_restart(
    tmp_path: Path, name: str
) -> None:
    async with served(tmp_path) as (gateway, _):
        async with liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(name, name)
            await client.publish(name, b"v")
        before = login(tmp_path, "gateway").rpartition("@")[0]
        assert len(before) > 50
    async with served(tmp_path):
        assert login(tmp_path, "gateway").rpartition("@")[0] == before
        async with raw(login(tmp_path, "gateway")) as nc:
            js = JetStream(nc)
            assert (await (await js.stream(f"lift_{name}_0")).info()).state.messages == 1
            await js.close()


@pytest.mark.parametrize("url", ["nats://gateway:wrong@{}", "nats://admin:x@{}"])
async def test_wrong_login_is_refused(tmp_path: Path, url: str) -> None:
    async with served(tmp_path) as (_, own):
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await connected_once(url.format(own.url.partition("://")[2]))


async def connected_once(url: str) -> None:
    nc = NatsClient()
    try:
        await nc.connect(url, allow_reconnect=False, connect_timeout=60, error_cb=Errors().note)
    finally:
        await nc.close()


async def test_with_a_policy_publishers_log_in_as_well(tmp_path: Path, name: str) -> None:
    policy = tmp_path / "policy.csv"
    policy.write_text(f"p, app, {name}, CreateStream\np, app, *, FetchMetadata\n")
    certificates = Certificates(tmp_path)
    tls = certificates.gateway_config
    async with served(tmp_path, gateway={"policy_file": str(policy)}, **tls) as (gateway, own):
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await connected_once(own.url)
        async with liftenvelope.connect([gateway.address], tls=certificates.client("app")) as app:
            await app.create_stream(name, name)
        url = login(tmp_path, "publisher")
        async with raw(url) as nc, AckInbox(nc) as inbox:
            assert (await inbox.publish(name, b"v")).offset == 0
        assert "permissions violation" in await refused_publish(url, "$JS.API.INFO")


async def test_files_are_for_this_user_alone(umask: None, tmp_path: Path) -> None:
    async with served(tmp_path):
        folder = tmp_path / "data"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        files = {"nats-server.json", "gateway.url", "publisher.url", "lock"}
        assert {file.name for file in folder.iterdir() if file.is_file()} == files
        assert {name: oct(stat.S_IMODE((folder / name).stat().st_mode)) for name in files} == dict.fromkeys(
            files, "0o600"
        )
        folders = {
            path.name: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in folder.iterdir() if path.is_dir()
        }
        assert folders == {"jetstream": 0, "ports": 0}


async def test_files_of_an_older_release_become_private(umask: None, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    config = tmp_path / "data" / "nats-server.json"
    config.write_text("{}")
    async with served(tmp_path):
        assert stat.S_IMODE(config.stat().st_mode) == 0o600


async def test_passwords_are_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(tmp_path, nats_debug=True) as (gateway, own):
        async with raw(own.url), liftenvelope.connect([gateway.address]) as client:
            await client.fetch_metadata()
        words = [login(tmp_path, user).split(":")[2].partition("@")[0] for user in ("gateway", "publisher")]
        assert all(len(word) > 40 for word in words)
        shown = caplog.text + repr(own) + repr(gateway) + own.url
        assert [word for word in words if word in shown] == []
        assert "Plaintext passwords" not in caplog.text
        commands = b""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # a process that has ended meanwhile
                commands += path.read_bytes()
        assert [word for word in words if word.encode() in commands] == []


async def test_refusals_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as (_, own):
        errors = Errors()
        nc = await connect(own.url, error_cb=errors.note)
        for _ in range(50):
            await nc.publish("$JS.API.INFO", b"")
        await until(lambda: len(errors.texts) == 50)
        await nc.close()
    assert caplog.text.count("Publish Violation") == 1


async def test_second_gateway_logs_in_with_the_url_in_the_data_folder(tmp_path: Path, name: str) -> None:
    async with served(tmp_path) as (first, _):
        second = Serving(nats_url=login(tmp_path, "gateway"), connect={"inbox_prefix": "_INBOX.gateway"})
        async with running_gateway(second) as (other, _), liftenvelope.connect([other.address]) as client:
            await client.create_stream(name, name)
            ack = await client.publish(name, b"v")
            assert ack is not None
            assert {broker.id for broker in (await client.fetch_metadata()).brokers.values()} == {
                first.id,
                other.id,
            }


async def test_login_can_be_required_without_a_policy(tmp_path: Path, name: str) -> None:
    async with served(tmp_path, nats_login=True) as (gateway, own):
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await connected_once(own.url)
        async with liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(name, name)
        async with raw(login(tmp_path, "publisher")) as nc, AckInbox(nc) as inbox:
            assert (await inbox.publish(name, b"v")).offset == 0


async def test_long_lines_of_the_log_are_cut_and_the_next_ones_read(tmp_path: Path) -> None:
    """The trace has a line with the payload of each message."""
    own, lines = EmbeddedNats(tmp_path, config={"trace": True}), list[str]()
    await own.start()
    own.on_line = lines.append
    async with raw(own.url) as nc:
        for size in (60_000, 70_000, 1_000_000):
            await nc.publish("first", b"y" * size)
        await nc.publish("last", b"z")
        await until(lambda: any("[PUB last  1]" in line for line in lines))
    await own.stop()
    payloads = [line for line in lines if "MSG_PAYLOAD" in line]
    assert [line.count("y") > 50_000 for line in payloads] == [True, True, True, False]
    assert max(map(len, lines)) < 200_000
    assert all(line.startswith("[") for line in lines)
