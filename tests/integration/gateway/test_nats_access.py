"""``liftenvelope serve`` on NATS servers with TLS and logins, and its settings from file and environment."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import nkeys
import pytest
from google.protobuf.message import Message
from nats.aio.msg import Msg

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.errors import (
    AckTimeoutError,
    LiftEnvelopeError,
    MessageTooLargeError,
    PermissionDeniedError,
    TransportError,
)
from liftenvelope.gateway._program.nats_connection import connection_to
from liftenvelope.gateway.serving import Serving, running_gateway
from liftenvelope.nats.program_client import new_client
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError
from liftenvelope.testing import LiftbridgeAdmin, NatsServer, run_nats_server
from tests.integration.certificates import Certificates
from tests.integration.conftest import reload_with, until
from tests.unit.hostile_nats import FakeNats

from .nats_tls import nats_tls


async def test_nats_without_tls_is_refused_if_tls_is_required(
    tmp_path: Path, jetstream_server: NatsServer
) -> None:
    files = Certificates(tmp_path).gateway_config
    serving = Serving(nats_url=jetstream_server.url, nats_tls_ca=str(files["tls_client_ca"]))
    with pytest.raises(TransportError, match=r"does not use TLS, which the URL or the options require$"):
        async with running_gateway(serving):
            raise AssertionError


async def test_login_is_not_sent_to_a_server_without_tls() -> None:
    """FAKE, NOT REAL: a server in between that claims that there is no TLS."""
    with FakeNats().running() as fake:
        serving = Serving(nats_url=f"tls://app:correct-horse@127.0.0.1:{fake.port}")
        with pytest.raises(TransportError, match="does not use TLS"):
            async with running_gateway(serving):
                raise AssertionError
        assert fake.received
        assert not any(b"correct-horse" in sent for sent in fake.received)


async def test_name_of_the_nats_server_is_checked(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    config = {
        "tls": {name: value for name, value in nats_tls(certificates)["tls"].items() if name != "verify"}
    }
    ca = str(certificates.gateway_config["tls_client_ca"])
    with run_nats_server(jetstream=True, config=config) as server:
        serving = Serving(nats_url=server.url, nats_tls_ca=ca, nats_tls_server_name="127.0.0.1")
        async with running_gateway(serving):
            pass
        wrong = Serving(nats_url=server.url, nats_tls_ca=ca, nats_tls_server_name="example.org")
        with pytest.raises(TransportError, match=r"(?i)certificate|hostname"):
            async with running_gateway(wrong):
                raise AssertionError


def new_seed(folder: Path) -> tuple[Path, str]:
    """Return the file of a new seed, and its public key."""
    path = folder / "seed"
    path.write_bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    return path, nkeys.from_seed(bytearray(path.read_bytes())).public_key.decode()


async def test_login_with_an_nkey(tmp_path: Path) -> None:
    seed, public = new_seed(tmp_path)
    with run_nats_server(jetstream=True, config={"authorization": {"users": [{"nkey": public}]}}) as server:
        async with running_gateway(Serving(nats_url=server.url, connect={"nkeys_seed": str(seed)})):
            pass
        other, _ = new_seed(tmp_path)
        with pytest.raises(TransportError, match=r"refused the login: check"):
            async with running_gateway(Serving(nats_url=server.url, connect={"nkeys_seed": str(other)})):
                raise AssertionError


async def test_publish_that_nats_does_not_allow_the_gateway_is_refused_and_logged(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    user = {"user": "gateway", "password": "s3cret", "permissions": {"publish": {"deny": [name]}}}
    with run_nats_server(jetstream=True, config={"authorization": {"users": [user]}}) as server:
        url = server.url.replace("//", "//gateway:s3cret@")
        async with (
            running_gateway(Serving(nats_url=url, drain=0.0, gateway={"ack_timeout": 10_000.0})) as (
                gateway,
                _,
            ),
            liftenvelope.connect([gateway.address], timeout=10_000) as client,
            asyncio.timeout(120),
        ):
            await client.create_stream(name, name)
            await client.create_stream(name, f"{name}-copy")
            for publish, target in (
                (client.publish, name),
                (client.publish, f"{name}-copy"),
                (client.publish_to_subject, name),
            ):
                with pytest.raises(PermissionDeniedError, match=r"the message is not stored \(") as caught:
                    await publish(target, b"x")
                assert not caught.value.sent
            line = f'NATS refuses the gateway: permissions violation for publish to "{name}"'
            await until(lambda: line in caplog.messages)
        assert "s3cret" not in caplog.text


async def test_message_that_the_gateway_can_not_read_is_logged(
    own_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client of NATS may send one."""
    parts = urlsplit(own_nats.url)
    async with running_gateway(Serving(nats_url=own_nats.url)), asyncio.timeout(120):
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b'CONNECT {"verbose":false}\r\nPUB $SRV.PING \xff 0\r\n\r\n')
        line = "lost a message from NATS: malformed message: UnicodeDecodeError"
        await until(lambda: line in caplog.messages)
        writer.close()


async def test_message_that_is_dropped_or_fails_to_be_processed_is_logged(
    own_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    got, go = asyncio.Event(), asyncio.Event()

    async def wait(_: Msg) -> None:
        got.set()
        await go.wait()
        raise ZeroDivisionError

    nc = new_client([own_nats.url])
    async with connection_to(nc, own_nats.url, {}, "the connection", "nothing"), asyncio.timeout(120):
        await nc.subscribe("slow", cb=wait, pending_msgs_limit=1)
        await nc.publish("slow")
        await got.wait()
        for _ in range(2):  # one is kept
            await nc.publish("slow")
        start = "lost a message from NATS: slow consumer, messages dropped subject: slow"
        await until(lambda: any(text.startswith(start) for text in caplog.messages))
        go.set()
        await until(lambda: "failed to process a message from NATS: " in caplog.text)
        assert "ZeroDivisionError" in caplog.text


async def test_write_or_request_of_the_gateway_that_nats_refuses_is_an_error_of_the_gateway(
    name: str,
) -> None:
    """The client lacks no permission."""
    users = "[{user: u, password: p, permissions: {publish: {deny: [none]}}}]"
    with run_nats_server(jetstream=True, config_text=f"authorization {{ users: {users} }}") as server:
        url = server.url.replace("//", "//u:p@")
        async with (
            running_gateway(Serving(nats_url=url, drain=0.0)) as (gateway, _),
            await Channel.connect(gateway.address) as channel,
            asyncio.timeout(120),
        ):
            create = api_pb2.CreateStreamRequest(name=name, subject=name, partitions=1)
            cursor = api_pb2.SetCursorRequest(stream=name, cursorId="c", offset=7)
            requests: dict[str, Message] = {"CreateStream": create, "SetCursor": cursor}
            for method, request in requests.items():
                await channel.unary(f"/proto.API/{method}", request.SerializeToString(), timeout=60)
            denied = '"$KV.lift_streams.>", "$KV.lift_cursors.>", "$JS.API.STREAM.UPDATE.>"'
            reload_with(server, "none", denied)
            await until(lambda: "Reloaded server configuration" in server.log())
            create.name = create.subject = f"{name}.other"
            for method, request in requests.items():
                with pytest.raises(RpcError, match=r"^INTERNAL: NATS refuses the gateway: .*\$KV\.lift_"):
                    await channel.unary(f"/proto.API/{method}", request.SerializeToString(), timeout=60)
            readonly = api_pb2.SetStreamReadonlyRequest(name=name, readonly=True).SerializeToString()
            update = r"^INTERNAL: NATS refuses the gateway: no answer on '\$JS\.API\.STREAM\.UPDATE\."
            with pytest.raises(RpcError, match=update):
                await channel.unary("/proto.API/SetStreamReadonly", readonly, timeout=60)


async def test_message_above_the_account_limit_is_refused_at_once(name: str) -> None:
    """nats-server disconnects a client that sends such a message."""
    users = [{"user": "gateway", "password": "s3cret"}]
    account = {"jetstream": "enabled", "users": users, "limits": {"max_payload": 64 << 10}}
    with run_nats_server(jetstream=True, config={"accounts": {"A": account}}) as server:
        url = server.url.replace("//", "//gateway:s3cret@")
        async with (
            running_gateway(Serving(nats_url=url)) as (gateway, _),
            liftenvelope.connect([gateway.address]) as client,
        ):
            await client.create_stream(name, name)
            for publish in (client.publish, client.publish_to_subject):
                with pytest.raises(MessageTooLargeError):
                    await publish(name, bytes(64 << 10))
            ack = await client.publish(name, b"next")
            assert ack is not None
            assert ack.offset == 0


def connections_with(caplog: pytest.LogCaptureFixture, text: str) -> set[object]:
    """Return the connections to NATS with a line of that text. One may be lost more than once."""
    return {record.__dict__["connection"] for record in caplog.records if f"to NATS {text}" in record.message}


async def test_gateway_reconnects_after_a_message_above_a_lowered_limit(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """nats-server tells a lowered limit to new connections only."""
    with run_nats_server(jetstream=True, max_payload=1 << 20) as server:
        async with (
            running_gateway(Serving(nats_url=server.url)) as (gateway, _),
            liftenvelope.connect([gateway.address]) as client,
        ):
            await client.create_stream(name, name)
            reload_with(server, f"max_payload: {1 << 20}", "max_payload: 8192")
            await until(lambda: "Reloaded server configuration" in server.log())
            # Small enough to be sent at once: the server's error is then read before the end.
            with pytest.raises(LiftEnvelopeError):
                await client.publish(name, bytes(9_000))
            await until(lambda: "the connection to NATS is back" in caplog.messages)
            with pytest.raises(MessageTooLargeError):
                await client.publish(name, bytes(9_000))
            ack = await client.publish(name, b"next")
            assert ack is not None
            assert ack.offset == 0


async def test_connection_outlives_a_subscription_too_many(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """nats-server goes on with the connection."""
    with run_nats_server(jetstream=True, config={"max_subscriptions": 40}) as server:
        async with (
            running_gateway(Serving(nats_url=server.url)) as (gateway, _),
            liftenvelope.connect([gateway.address]) as client,
        ):
            await client.create_stream(name, name)
            assert gateway._running is not None
            nc = gateway._running.core.nc
            subscriptions = [await nc.subscribe(name) for _ in range(50)]
            await nc.flush()
            refusal = "NATS refuses the gateway: maximum subscriptions exceeded"
            await until(lambda: refusal in caplog.messages)  # nats-py reports it later
            for subscription in subscriptions:
                await subscription.unsubscribe()
            ack = await client.publish(name, b"x")
            assert ack is not None
            assert "to NATS is lost" not in caplog.text


async def test_gateway_reconnects_when_its_user_is_back(name: str, caplog: pytest.LogCaptureFixture) -> None:
    users = "authorization { users: [{user: gateway, password: s3cret}] }"
    with run_nats_server(jetstream=True, config_text=users) as server:
        url = server.url.replace("//", "//gateway:s3cret@")
        async with (
            running_gateway(Serving(nats_url=url)) as (gateway, _),
            liftenvelope.connect([gateway.address]) as client,
        ):
            await client.create_stream(name, name)
            reload_with(server, "user: gateway", "user: other")
            await until(lambda: len(connections_with(caplog, "is lost")) == 2)
            reload_with(server, "user: other", "user: gateway")
            await until(lambda: len(connections_with(caplog, "is back")) == 2)
            ack = await client.publish(name, b"next")
            assert ack is not None
            assert ack.offset == 0


async def test_publishes_are_refused_once_nats_no_longer_allows_them(name: str) -> None:
    """The first one has an unknown outcome: the report of NATS does not say which message it refused."""
    users = f'[{{user: u, password: p, permissions: {{publish: {{deny: ["{name}.old"]}}}}}}]'
    with run_nats_server(jetstream=True, config_text=f"authorization {{ users: {users} }}") as server:
        url = server.url.replace("//", "//u:p@")
        async with (
            running_gateway(Serving(nats_url=url, drain=0.0, gateway={"ack_timeout": 5.0})) as (gateway, _),
            liftenvelope.connect([gateway.address], timeout=10_000) as client,
            asyncio.timeout(120),
        ):
            await client.create_stream(f"{name}.new", name)
            await client.create_stream(f"{name}.other", f"{name}.other")
            for _ in range(2):  # the second one takes the fast path
                await client.publish(name, b"x")
            reload_with(server, f"{name}.old", f"{name}.new")
            await until(lambda: "Reloaded server configuration" in server.log())
            with pytest.raises(AckTimeoutError):
                await client.publish(name, b"x")
            with pytest.raises(PermissionDeniedError):
                await client.publish(name, b"x")
            await client.publish(f"{name}.other", b"x")


def test_settings_of_the_file_and_the_environment_reach_the_gateway(tmp_path: Path, name: str) -> None:
    certificates = Certificates(tmp_path)
    mine = tmp_path / "client.pem"
    certificates.ca.issue_cert("gateway@example.org").private_key_and_cert_chain_pem.write_to_path(mine)
    with run_nats_server(jetstream=True, config=nats_tls(certificates)) as server:
        (tmp_path / "nats.url").write_text(server.url)
        config = tmp_path / "liftenvelope.toml"
        config.write_text(
            f"""
            [nats]
            url_file = "{tmp_path / "nats.url"}"
            tls_cert = "{mine}"
            tls_key = "{mine}"
            [gateway]
            id = "of-the-file"
            listen = "127.0.0.1:1"
            [limits]
            max_partitions_per_stream = 2
            """
        )
        variables = {
            "LIFTENVELOPE_SERVE_CONFIG": str(config),
            "LIFTENVELOPE_SERVE_ID": name,
            "LIFTENVELOPE_SERVE_NATS_TLS_CA": str(tmp_path / "ca.pem"),
        }
        command = [sys.executable, "-W", "error", "-m", "liftenvelope", "serve", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                match = re.match(r"serving the Liftbridge API on (\S+),", line)
                assert match is not None, line
                admin = LiftbridgeAdmin([match[1]])
                admin.create_stream(name, partitions=2)
                assert admin.partition_metadata(name).leader == name
                with pytest.raises(Exception, match="partitions must be from 1 to 2, got 3"):
                    admin.create_stream(f"{name}.more", partitions=3)
            finally:
                process.terminate()
