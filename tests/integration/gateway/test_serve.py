"""``liftenvelope serve``: as a program, with a nats-server of its own and on one that runs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway.embedded import EmbeddedNats
from liftenvelope.gateway.serving import Serving, data_folder, running_gateway
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.rpc.status import RpcError
from liftenvelope.testing import FaultProxy, LiftbridgeAdmin, NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port
from tests.integration.cli.commands import run
from tests.integration.conftest import until

from .program_log import unexpected

LINE = re.compile(r"serving the Liftbridge API on (\S+), with the streams of (nats://\S+)(?: in (.*))?\n")


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], re.Match[str]]]:
    """The program, and the line that it says when it is ready.

    It is not killed at the end: on a shared server, the lease of a killed coordinator would outlive the test.
    """
    command = [sys.executable, "-W", "error", "-m", "liftenvelope", "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            match = LINE.fullmatch(line)
            assert match is not None, line + (process.communicate(timeout=60)[1] if not line else "")
            yield process, match
        finally:
            process.terminate()


def publish(address: str, stream: str, value: bytes) -> int:
    """Publish, and return the offset."""
    request = api_pb2.PublishRequest(stream=stream, value=value)
    with BlockingChannel(address) as channel:
        channel.connect()
        answer = channel.unary("/proto.API/Publish", request.SerializeToString(), timeout=60)
    return api_pb2.PublishResponse.FromString(answer).ack.offset


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_with_a_server_of_its_own(tmp_path: Path, name: str, number: signal.Signals) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"), "--nats-listen", f"127.0.0.1:{free_port()}")
    with serving(*arguments) as (process, match):
        assert match[3] == str(tmp_path / "data" / "jetstream")
        admin = LiftbridgeAdmin([match[1]])
        admin.create_stream(name)
        assert publish(match[1], name, b"first") == 0
        process.send_signal(number)
        assert process.wait(60) == 0
        assert unexpected(process.communicate()[1]) == []
    # The streams are there again.
    with serving(*arguments) as (process, match):
        assert publish(match[1], name, b"second") == 1
        read = LiftbridgeAdmin([match[1]]).read(name, count=2)
        assert [message.value for message in read] == [b"first", b"second"]


def test_default_data_folder_of_a_user_without_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert data_folder() == Path("/data/liftenvelope")
    monkeypatch.delenv("XDG_DATA_HOME")
    with pytest.raises(UsageError, match="data_dir must be given: the default is in the home directory"):
        data_folder()


def test_data_folder_may_have_any_name_in_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / 'Müller "x" \\u 日本'
    with serving("--nats-listen", f"127.0.0.1:{free_port()}", "--data-dir", str(folder)) as (process, match):
        assert match[3] == f"{folder}/jetstream"
    assert process.wait(60) == 0


def test_embedded_server_ends_with_a_killed_gateway_and_comes_back(tmp_path: Path, name: str) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"), "--nats-listen", f"127.0.0.1:{free_port()}")
    with serving(*arguments) as (process, match):
        LiftbridgeAdmin([match[1]]).create_stream(name)
        assert publish(match[1], name, b"first") == 0
        process.kill()
        process.wait(60)
    with serving(*arguments) as (process, match):
        assert publish(match[1], name, b"second") == 1


def test_on_a_server_that_runs(jetstream_server: NatsServer, name: str) -> None:
    with serving("--nats", jetstream_server.url, "--id", name) as (_, match):
        assert (match[2], match[3]) == (jetstream_server.url, None)
        admin = LiftbridgeAdmin([match[1]])
        admin.create_stream(name)
        assert admin.partition_metadata(name).leader == name


def test_limits_are_options(jetstream_server: NatsServer, name: str) -> None:
    limits = ("--limit", "max_partitions_per_stream=2", "--limit", "max_name_chars=30")
    with serving("--nats", jetstream_server.url, *limits) as (_, match):
        admin = LiftbridgeAdmin([match[1]])
        with pytest.raises(RpcError, match="partitions must be from 1 to 2, got 3"):
            admin.create_stream(name, partitions=3)
        with pytest.raises(RpcError, match="must have at most 30 characters, got 31"):
            admin.create_stream("n" * 31)
        admin.create_stream(name, partitions=2)


def test_on_a_domain(tmp_path: Path, name: str) -> None:
    jetstream = {"domain": "hub", "store_dir": str(tmp_path)}
    with (
        run_nats_server(jetstream=True, config={"jetstream": jetstream}) as server,
        serving("--nats", server.url, "--nats-domain", "hub") as (_, match),
    ):
        LiftbridgeAdmin([match[1]]).create_stream(name)
        assert publish(match[1], name, b"first") == 0


def test_without_jetstream(nats_server: NatsServer) -> None:
    command = [sys.executable, "-m", "liftenvelope", "serve", "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, "--nats", nats_server.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Error: " in done.stderr


async def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftenvelope.gateway._program.nats_connection._PATIENCE", 3.0)
    before = asyncio.all_tasks()
    with pytest.raises(TransportError, match=r"no connection to .* within 3\.0 s: .*refused|failed"):
        async with running_gateway(Serving(nats_url=f"nats://127.0.0.1:{free_port()}")):
            raise AssertionError
    assert asyncio.all_tasks() == before


async def test_a_server_that_closes_connections_before_its_first_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fake: a refused login looks so if nats-server's error is lost with unread bytes of the client."""
    monkeypatch.setattr("liftenvelope.gateway._program.nats_connection._PATIENCE", 3.0)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id":"fake","version":"2.15.1","max_payload":1048576,"auth_required":true}\r\n'
        )
        with suppress(asyncio.IncompleteReadError, OSError):  # the client has given up meanwhile
            await reader.readuntil(b"PING\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TransportError, match=r"no connection to .* within 3\.0 s: .*EOF"):
            async with (
                asyncio.timeout(60),
                running_gateway(Serving(nats_url=f"nats://me:s3cret@127.0.0.1:{port}")),
            ):
                raise AssertionError
    assert caplog.text == ""


LOGIN = {"authorization": {"user": "gateway", "password": "right"}}


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for NATS without a limit that a test could reach."""
    monkeypatch.setattr("liftenvelope.gateway._program.nats_connection._PATIENCE", 10_000.0)


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("count", [1, 2])
async def test_wrong_password_is_reported_at_once(count: int) -> None:
    before = asyncio.all_tasks()
    with ExitStack() as stack:
        servers = [stack.enter_context(run_nats_server(config=LOGIN)) for _ in range(count)]
        urls = ",".join(server.url.replace("//", "//gateway:s3cret@") for server in servers)
        with pytest.raises(TransportError, match=r"refused the login: check the user") as caught:
            async with asyncio.timeout(240), running_gateway(Serving(nats_url=urls)):
                raise AssertionError
        assert "s3cret" not in str(caught.value)
        await until(lambda: asyncio.all_tasks() <= before)


@pytest.mark.usefixtures("endless")
async def test_wrong_password_for_one_server_does_not_exclude_the_others() -> None:
    with run_nats_server(config=LOGIN) as strict, run_nats_server(jetstream=True) as other:
        urls = f"nats://gateway:wrong@{strict.address},nats://{other.address}"
        options = {"dont_randomize": True}
        async with (
            asyncio.timeout(240),
            running_gateway(Serving(nats_url=urls, connect=options)) as (gateway, _),
        ):
            assert gateway.address


@pytest.mark.usefixtures("endless")
async def test_server_that_is_away_is_waited_for_though_another_refuses_the_login() -> None:
    port = free_port()
    with run_nats_server(config=LOGIN) as strict:
        urls = f"nats://gateway:wrong@{strict.address},nats://127.0.0.1:{port}"
        opening = running_gateway(Serving(nats_url=urls))
        starting = asyncio.create_task(opening.__aenter__())
        await until(lambda: strict.log().count("authentication error") >= 3)
        assert not starting.done()
        with run_nats_server(jetstream=True, port=port):
            async with asyncio.timeout(240):
                await starting
            await opening.__aexit__(None, None, None)


async def test_subscriptions_are_read_over_a_connection_of_their_own(
    monkeypatch: pytest.MonkeyPatch, jetstream_server: NatsServer, name: str
) -> None:
    connections: list[Client | None] = []
    new_gateway = Serving.new_gateway

    def recorded(settings: Serving, nc: Client, read_nc: Client | None) -> Gateway:
        connections[:] = nc, read_nc
        return new_gateway(settings, nc, read_nc)

    monkeypatch.setattr(Serving, "new_gateway", recorded)
    async with (
        running_gateway(Serving(nats_url=jetstream_server.url)) as (gateway, _),
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name)
        await client.publish(name, bytes(100_000))
        nc, read_nc = connections
        assert nc is not None
        assert read_nc is not None
        before, read_before = nc.stats["in_bytes"], read_nc.stats["in_bytes"]
        for _ in range(10):
            async with client.subscribe(name, start="earliest", stop="latest") as messages:
                assert [len(message.value) async for message in messages] == [100_000]
        assert read_nc.stats["in_bytes"] - read_before > 1_000_000
        assert nc.stats["in_bytes"] - before < 500_000
        await client.delete_stream(name)


async def test_cancelled_start_leaves_no_task() -> None:
    """While nats-py reconnects in the background: the fake server hangs up in place of an answer."""
    connections = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(b'INFO {"server_id":"fake","version":"2.15.1","max_payload":1048576}\r\n')
        with suppress(asyncio.IncompleteReadError, OSError):
            await reader.readuntil(b"PING\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        before = asyncio.all_tasks()
        port = server.sockets[0].getsockname()[1]
        opening = running_gateway(Serving(nats_url=f"nats://127.0.0.1:{port}"))
        starting = asyncio.create_task(opening.__aenter__())
        await until(lambda: connections >= 2)  # the first connection attempt has returned
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await until(lambda: asyncio.all_tasks() <= before)


async def test_error_before_the_first_connection_is_not_replaced() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        async with running_gateway(Serving(nats_url="nats://127.0.0.1:1", connect={"no_such_option": 1})):
            raise AssertionError


async def test_a_server_that_goes_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    with run_nats_server(jetstream=True) as server, FaultProxy(server.address) as proxy:
        async with running_gateway(Serving(nats_url=f"nats://{proxy.address}")):
            proxy.cut()
            await until(lambda: caplog.text.count("to NATS is back") == 2)  # both connections
            proxy.refuse()
            proxy.cut()
            await until(lambda: caplog.text.count("to NATS is lost") == 4)
        # It ends without an error while NATS is away.


def test_files_that_can_not_be_used(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="user_credentials must be a file that can be read"):
        Serving(nats_url="nats://127.0.0.1:1", connect={"user_credentials": str(tmp_path / "none")})
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"data_dir must be a folder that can be written: .*File exists"):
        asyncio.run(EmbeddedNats(tmp_path / "file").start())


def failed(*arguments: str) -> str:
    """Return the error output of a program that can't start."""
    command = [sys.executable, "-m", "liftenvelope", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    return done.stderr


def test_port_of_the_gateway_that_is_taken_is_one_line(tmp_path: Path, nats_server: NatsServer) -> None:
    port = nats_server.url.rpartition(":")[2]
    listens = ("--listen", f"127.0.0.1:{port}", "--nats-listen", f"127.0.0.1:{free_port()}")
    said = failed("--data-dir", str(tmp_path), *listens)
    *information, error = said.splitlines()
    assert error == f"Error: can't listen on 127.0.0.1:{port}: address already in use"
    assert unexpected("\n".join(information)) == []


async def test_reason_is_told_if_nats_has_ended_before_its_log_is_read(
    tmp_path: Path, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine the server has ended when the start of its process is reported."""
    start_process = asyncio.create_subprocess_exec

    async def start_slowly(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start_process(*command, **options)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    port = int(nats_server.url.rpartition(":")[2])
    with pytest.raises(TransportError, match="in use"):
        await EmbeddedNats(tmp_path, port=port).start()


def test_port_of_nats_that_is_taken_is_one_line(tmp_path: Path, nats_server: NatsServer) -> None:
    port = nats_server.url.rpartition(":")[2]
    listens = ("--listen", "127.0.0.1:0", "--nats-listen", f"127.0.0.1:{port}")
    said = failed("--data-dir", str(tmp_path), *listens)
    assert re.fullmatch(rf"Error: .*127\.0\.0\.1:{port}.* in use.*\n", said)


NATS = ("--nats", "nats://127.0.0.1:1")


@pytest.mark.usefixtures("kept_logging")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--policy", "file"), "--policy needs --tls-client-ca"),
        (("--tls-cert", "file"), "--tls-cert and --tls-key belong together"),
        (("--tls-cert", "a", "--tls-key", "b"), "--tls-cert must be a file that can be read, got 'a'"),
        (("--tls-client-ca", "a"), "--tls-client-ca needs --tls-cert and --tls-key"),
        (("--listen", "here"), "--listen: address must be host:port, got 'here'"),
        (("--nats-listen", "here"), "--nats-listen: address must be host:port, got 'here'"),
        (("--advertise", "here"), "--advertise: address must be host:port, got 'here'"),
        (("--replicas", "6"), "'--replicas': 6"),
        (("--drain", "-1"), "'--drain': -1"),
        (("--nats-log-level", "loud"), "'--nats-log-level': 'loud'"),
        ((*NATS, "--nats-domain", "a.b"), "--nats-domain must not have a '.', got 'a.b'"),
        ((*NATS, "--nats-inbox-prefix", "a.>"), "--nats-inbox-prefix must be a subject without wildcards"),
        ((*NATS, "--nats-creds", "/none"), "--nats-creds must be a file that can be read"),
        ((*NATS, "--nats-login"), "--nats-login is for the server that the gateway starts"),
        ((*NATS, "--nats-url-file", "/none"), "--nats and --nats-url-file exclude each other"),
        (("--nats-url-file", "/none"), "--nats-url-file must be a file that can be read, got '/none'"),
        (("--nats-url-file", "/dev/null"), "--nats-url-file must hold a URL such as nats://host:4222"),
        ((*NATS, "--nats-log", "/none"), "--nats-log must be a file that can be read"),
        # Only what the error says of its arguments is replaced, not what looks like one.
        (
            (*NATS, "--nats-log", "/none/tls_cert"),
            "--nats-log must be a file that can be read, got '/none/tls_cert'",
        ),
    ],
)
def test_errors_name_options(arguments: tuple[str, ...], error: str) -> None:
    done = run("serve", *arguments)
    assert error in done.stderr.splitlines()[-1]
    assert (done.exit_code != 0, done.stdout) == (True, "")
    assert "Traceback" not in done.stderr


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    with run_nats_server(
        jetstream=True, config={"authorization": {"user": "me", "password": "s3cret"}}
    ) as server:
        host = server.address
        with serving("--nats", f"nats://me:s3cret@{host}") as (process, match):
            assert match[2] == f"nats://{host}"
            process.terminate()
            assert "s3cret" not in process.communicate(timeout=60)[1]
        path = tmp_path / "nats.url"
        path.write_text(f"nats://me:s3cret@{host}\n")
        with serving("--nats-url-file", str(path)) as (_, match):
            assert match[2] == f"nats://{host}"
        for url in (f"nats://me:wr0ng@{host}", f"me:wr0ng@{host}"):
            said = failed("--listen", "127.0.0.1:0", "--nats", url)
            assert host in said
            assert "wr0ng" not in said
    assert "s3cret" not in repr(
        Serving(nats_url="nats://me:s3cret@localhost", connect={"password": "s3cret"})
    )


@pytest.mark.parametrize(("level", "is_shown"), [("off", False), ("warn", False), ("info", True)])
def test_log_of_its_nats_server_is_passed_on(tmp_path: Path, level: str, is_shown: bool) -> None:
    arguments = ("--data-dir", str(tmp_path), "--nats-listen", f"127.0.0.1:{free_port()}")
    with serving(*arguments, "--nats-log-level", level) as (process, _):
        process.terminate()
        said = process.communicate(timeout=60)[1]
    assert ("INFO Server is ready" in said) is is_shown
    assert is_shown or unexpected(said) == []


def test_first_publish_after_start_is_acked(tmp_path: Path, name: str) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"), "--nats-listen", f"127.0.0.1:{free_port()}")
    with serving(*arguments) as (_, match):
        LiftbridgeAdmin([match[1]]).create_stream(name)
        assert publish(match[1], name, b"first") == 0


#: Serves until it is ready, and prints the number of objects that the garbage collector skips then and later.
FROZEN = """
import asyncio, gc, os, signal, sys
from liftenvelope.gateway.serving import Serving, serve

def ready(gateway, url):
    print(gc.get_freeze_count())
    os.kill(os.getpid(), signal.SIGTERM)

asyncio.run(serve(Serving(data_dir=sys.argv[1], gateway={"id": "frozen", "port": 0}), ready))
print(gc.get_freeze_count())
"""


def test_garbage_collector_skips_the_modules_of_a_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FROZEN, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    serving, ended = map(int, done.stdout.split())
    assert serving > 10_000
    assert ended == 0
