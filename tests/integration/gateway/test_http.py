"""Health by HTTP: /readyz tells what the health service tells, and no client keeps others from asking."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.errors import TransportError
from liftenvelope.gateway import Gateway, Limits
from liftenvelope.gateway._acks.reader import PartitionAckReader
from liftenvelope.gateway._program.http import GatewayMonitor, HttpServer
from liftenvelope.gateway.serving import Serving, running_gateway
from liftenvelope.jetstream import JetStream
from liftenvelope.jetstream.bucket import Bucket
from liftenvelope.rpc.aio import Channel
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from liftenvelope.testing._ports import free_port
from tests.integration.conftest import connect, until

from .http_client import exchange, get, samples_of
from .program_log import unexpected

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


@asynccontextmanager
async def served(url: str, **gateway: Any) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway with HTTP, as the command runs it, and the address of the HTTP server."""
    addresses: list[str] = []
    # The lease outlives a pause of the machine.
    serving = Serving(nats_url=url, http="127.0.0.1:0", gateway={"broker_ttl": 60.0, **gateway}, drain=60.0)
    async with running_gateway(serving, addresses.append) as (running, _):
        yield running, addresses[0]


async def ready(http: str) -> None:
    """Wait until the gateway is ready."""
    async with asyncio.timeout(120):
        while (await get(http, "/readyz")).status != 200:
            await asyncio.sleep(0.02)


async def unready(http: str, condition: str) -> str:
    """Wait until a condition of readiness is not met; return the reason."""
    async with asyncio.timeout(120):
        while True:
            answer = await get(http, "/readyz")
            lines = dict(line.split(": ", 1) for line in answer.body.splitlines() if ": " in line)
            if condition in lines:
                assert answer.status == 503
                return lines[condition]
            await asyncio.sleep(0.02)


async def health(channel: Channel) -> bytes:
    return await channel.unary("/grpc.health.v1.Health/Check", b"", timeout=60)


async def test_nats_lost_and_back() -> None:
    with run_nats_server(jetstream=True) as server:
        async with served(server.url) as (gateway, http), await Channel.connect(gateway.address) as channel:
            await ready(http)
            assert gateway.readiness().is_ready
            assert await health(channel) == SERVING
            server.kill()
            reason = await unready(http, "nats")
            assert "to NATS" in reason
            assert await health(channel) == NOT_SERVING
            alive = await get(http, "/healthz")
            assert (alive.status, alive.body) == (200, "ok\n")
            await asyncio.to_thread(server.start)
            await ready(http)
            assert await health(channel) == SERVING


async def test_read_connection_lost(jetstream_server: NatsServer) -> None:
    with FaultProxy(jetstream_server.address) as proxy:
        nc, read_nc = await connect(jetstream_server.url), await connect(f"nats://{proxy.address}")
        async with Gateway(nc, read_nc=read_nc, broker_ttl=60.0) as gateway:
            await until(lambda: gateway.readiness().is_ready)
            proxy.refuse()
            proxy.cut()
            await until(lambda: not gateway.readiness().is_ready)
            assert gateway.readiness().reasons == {"nats": "the second connection to NATS is not established"}
            proxy.accept()
            await until(lambda: gateway.readiness().is_ready)
        await nc.close()
        await read_nc.close()


async def test_nats_that_hangs_ends_the_lease() -> None:
    with run_nats_server(jetstream=True) as server, FaultProxy(server.address) as proxy:
        async with served(f"nats://{proxy.address}", broker_ttl=2.0) as (_, http):
            await ready(http)
            proxy.stall()
            assert "heartbeats" in await unready(http, "lease")
            proxy.resume()
            await ready(http)


async def test_records_that_can_not_be_read() -> None:
    with run_nats_server(jetstream=True) as server:
        async with served(server.url) as (gateway, http), await Channel.connect(gateway.address) as channel:
            await ready(http)
            nc = await connect(server.url)
            async with JetStream(nc) as js:
                await js.delete_stream("KV_lift_streams")
                assert "lift_streams" in await unready(http, "records")
                assert await health(channel) == NOT_SERVING
                await Bucket(js, "lift_streams").create()
                await ready(http)
                assert await health(channel) == SERVING
            await nc.close()


async def test_partition_without_acks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftenvelope.gateway._leader.bindings.GRACE", 0.0)
    with run_nats_server(jetstream=True) as server:
        async with (
            served(server.url) as (gateway, http),
            await Channel.connect(gateway.address) as channel,
            liftenvelope.connect([gateway.address]) as client,
        ):
            await client.create_stream(name, name, partitions=2)
            await ready(http)
            nc = await connect(server.url)
            async with JetStream(nc) as js:
                await js.delete_stream(f"lift_{name}_1")
            reason = await unready(http, "partitions")
            assert reason == f"1 of 2 partitions send no acks: {name!r} 1"
            assert await health(channel) == NOT_SERVING
            await client.delete_stream(name)
            await ready(http)
            assert await health(channel) == SERVING
            await nc.close()


async def test_partition_whose_consumer_is_lost_while_it_is_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftenvelope.gateway._leader.bindings.GRACE", 0.0)
    create = PartitionAckReader._create
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        js = JetStream(nc)

        async def create_and_lose(reader: PartitionAckReader, *arguments: Any) -> str:
            found = await create(reader, *arguments)
            if reader._jetstream_stream == f"lift_{name}_1":
                await js.delete_stream(reader._jetstream_stream)
                await until(lambda: reader._flow.broken)
            return found

        async with (
            served(server.url) as (gateway, http),
            liftenvelope.connect([gateway.address]) as client,
        ):
            await ready(http)
            monkeypatch.setattr(PartitionAckReader, "_create", create_and_lose)
            await client.create_stream(name, name, partitions=2)
            reason = await unready(http, "partitions")
            assert reason == f"1 of 2 partitions send no acks: {name!r} 1"
            await client.delete_stream(name)
            await ready(http)
        await nc.close()


async def test_partition_whose_storage_is_missing_at_the_start(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(name, name)
        async with JetStream(nc) as js:
            await js.delete_stream(f"lift_{name}_0")
        async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
            expected = {"partitions": f"1 of 1 partitions send no acks: {name!r} 0"}
            await until(lambda: gateway.readiness().reasons == expected)
            await client.delete_stream(name)
            await until(lambda: gateway.readiness().is_ready)
        await nc.close()


async def test_partitions_are_bound_again_before_it_is_ready(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        async with served(server.url) as (gateway, http):
            async with liftenvelope.connect([gateway.address]) as client:
                await client.create_stream(name, name, partitions=100)
            await until(lambda: _bound(gateway) == 100)
            await ready(http)
            server.kill()
            reason = await unready(http, "partitions")
            assert reason.startswith(f"100 of 100 partitions send no acks: {name!r} ")
            await asyncio.to_thread(server.start)
            await ready(http)
            assert _bound(gateway) == 100


def _bound(gateway: Gateway) -> float:
    """Number of bound partitions."""
    [metric] = [one for one in gateway.metrics() if one.name.endswith("_partitions_bound")]
    return metric.samples[0].value


async def test_draining(name: str) -> None:
    with run_nats_server(jetstream=True) as server, FaultProxy(server.address) as proxy:
        async with served(f"nats://{proxy.address}", ack_timeout=60.0) as (gateway, http):
            async with liftenvelope.connect([gateway.address]) as client:
                await client.create_stream(name, name)
            await ready(http)
            async with await Channel.connect(gateway.address) as channel:
                watch = channel.server_stream("/grpc.health.v1.Health/Watch", b"")
                assert await watch.receive() == [SERVING]
                proxy.stall("to_client")
                request = api_pb2.PublishRequest(stream=name, value=b"x").SerializeToString()
                call = asyncio.create_task(channel.unary("/proto.API/Publish", request, timeout=60))
                pending = "liftenvelope_gateway_pending_acks"
                await until(lambda: _sum(gateway, pending) == 1)
                closing = asyncio.create_task(gateway.close(grace=60.0))
                reason = await unready(http, "draining")
                assert "finishes its open calls" in reason
                assert await watch.receive() == [NOT_SERVING]
                assert samples_of((await get(http, "/metrics")).body)["unmet_condition", "draining"] == 1
                proxy.resume()
                assert api_pb2.PublishResponse.FromString(await call).ack.offset == 0
                await closing
            # The HTTP server ends last.
            assert (await get(http, "/healthz")).status == 200
            assert await unready(http, "running") == "the gateway is not started"
        with pytest.raises(OSError, match="Connect call failed"):
            await get(http, "/healthz")


def _sum(gateway: Gateway, name: str) -> float:
    [metric] = [one for one in gateway.metrics() if one.name == name]
    return sum(sample.value for sample in metric.samples)


async def test_tells_why_it_is_not_ready_before_it_is_connected(jetstream_server: NatsServer) -> None:
    addresses: list[str] = []
    with FaultProxy(jetstream_server.address) as proxy:
        proxy.stall()
        serving = Serving(nats_url=f"nats://{proxy.address}", http="127.0.0.1:0")
        async with asyncio.timeout(120):
            running = running_gateway(serving, addresses.append)
            starting = asyncio.create_task(running.__aenter__())
            await until(lambda: addresses)
            assert await unready(addresses[0], "nats")
            assert await unready(addresses[0], "running") == "the gateway is not started"
            assert (await get(addresses[0], "/healthz")).status == 200
            proxy.resume()
            await starting
            await ready(addresses[0])
            await running.__aexit__(None, None, None)


@asynccontextmanager
async def small_server(url: str, timeout: float) -> AsyncIterator[str]:
    """Run an HTTP server with small limits, for a gateway that is not started; yield its address."""
    limits = Limits(max_http_connections=3, max_http_request_bytes=1_024, http_timeout=timeout)
    nc = await connect(url)
    server = HttpServer(GatewayMonitor(Gateway(nc, limits=limits)))
    yield await server.start("127.0.0.1", 0)
    await server.close()


@pytest.fixture
async def http(jetstream_server: NatsServer) -> AsyncIterator[str]:
    """Address of a server that answers also on a busy machine."""
    async with small_server(jetstream_server.url, 60.0) as address:
        yield address


@pytest.fixture
async def impatient(jetstream_server: NatsServer) -> AsyncIterator[str]:
    """Address of a server that soon closes connections without a request."""
    async with small_server(jetstream_server.url, 0.5) as address:
        yield address


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_head_has_no_body(http: str, path: str) -> None:
    whole, head = await get(http, path), await get(http, path, "HEAD")
    assert (whole.status, whole.headers["content-type"]) == (head.status, head.headers["content-type"])
    assert whole.body
    assert not head.body


async def test_answers_name_no_versions_of_the_server(http: str) -> None:
    assert (await get(http, "/healthz")).headers["server"] == "liftenvelope"


async def status_for(http: str, path: str, host: bytes) -> bytes:
    """Return the status of an answer to a request with a header ``Host``, or none if it is empty."""
    head = b"Host: %b\r\n" % host if host else b""
    raw = await exchange(http, b"GET %b HTTP/1.%d\r\n%b\r\n" % (path.encode(), bool(host), head))
    return raw[9:12]


async def test_pages_of_other_names_can_not_read_metrics_on_loopback(http: str) -> None:
    for path in ("/metrics", "/readyz", "/%6Detrics"):
        known = b"503" if path == "/readyz" else b"200"  # this gateway is not started
        for host in (b"evil.example", b"evil.example:9293", b"127.0.0.1.evil.example", b"localhost.", b"x"):
            assert await status_for(http, path, host) == b"421"
        for host in (
            b"127.0.0.1",
            b"127.0.0.1:9293",
            b"localhost",
            b"LOCALHOST:1",
            b"[::1]:9293",
            b"10.0.0.1",
            b"",
        ):
            assert await status_for(http, path, host) == known


async def test_metrics_on_other_addresses_are_read_by_any_name(jetstream_server: NatsServer) -> None:
    serving = Serving(
        nats_url=jetstream_server.url, http="0.0.0.0:0", gateway={"broker_ttl": 60.0}, drain=60.0
    )
    addresses: list[str] = []
    async with running_gateway(serving, addresses.append):
        local = f"127.0.0.1:{addresses[0].rpartition(':')[2]}"
        await ready(local)
        assert await status_for(local, "/metrics", b"gateway.default.svc.cluster.local:9293") == b"200"


async def test_other_methods_and_paths_are_refused(http: str) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert (await get(http, "/metrics", method)).status == 405
    assert (await get(http, "/metrics/../readyz")).status == 404
    assert (await get(http, "/")).status == 404


async def test_connection_carries_one_request(http: str) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert (await exchange(http, one * 5)).count(b"200 OK") == 1


async def test_client_that_sends_no_request_is_closed(impatient: str) -> None:
    for request in (b"", b"GET /readyz HTTP/1.1\r\nHost:", b"\x16\x03\x01\x02\x00\x01\x00"):
        raw = b""
        with suppress(ConnectionResetError):
            raw = await exchange(impatient, request)
        assert b"200" not in raw


async def test_client_that_trickles_its_request_is_closed(impatient: str) -> None:
    host, _, port = impatient.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /readyz HTTP/1.1\r\n")
    reading = asyncio.create_task(reader.read())
    async with asyncio.timeout(60):
        while not reading.done():
            writer.write(b"X: y\r\n")
            await asyncio.wait([reading], timeout=0.05)
    with suppress(ConnectionResetError):
        assert b"200" not in await reading
    writer.close()


async def test_client_that_takes_no_answer_is_closed(jetstream_server: NatsServer) -> None:
    """The answer is larger than the sockets hold."""

    async def large(_: web.Request) -> web.Response:
        seen.append(len(server._connections))
        return web.Response(body=bytes(32 << 20))

    seen: list[int] = []
    page = web.Application()
    page.router.add_get("/", large)
    nc = await connect(jetstream_server.url)
    source = GatewayMonitor(Gateway(nc, limits=Limits(http_timeout=2.0)))
    server = HttpServer(source, {"/page": page})
    address = await server.start("127.0.0.1", 0)
    host, _, port = address.rpartition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, (host, int(port)))
        await loop.sock_sendall(client, b"GET /page/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await loop.sock_recv(client, 8) == b"HTTP/1.1"
        await until(lambda: not server._connections)
    assert seen == [1]
    await server.close()


async def test_large_request_is_closed(http: str) -> None:
    for request in (
        b"GET /readyz HTTP/1.1\r\nX: " + b"y" * 100_000,
        b"GET /" + b"a" * 100_000,
        b"GET /readyz HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
        b"POST /readyz HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n" + b"x" * 100_000,
    ):
        raw = b""
        with suppress(ConnectionError):
            raw = await exchange(http, request)
        assert b"200 OK" not in raw
        assert b"ready" not in raw


async def test_oldest_connection_makes_room(http: str) -> None:
    host, _, port = http.rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(10)]
    assert (await get(http, "/healthz")).status == 200
    async with asyncio.timeout(60):
        for reader, _ in silent[:8]:  # the request is the third connection
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
    for _, writer in silent:
        writer.close()


async def test_connections_of_one_address_do_not_close_those_of_another(http: str) -> None:
    host, _, port = http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
    writer.write(f"GET /healthz HTTP/1.1\r\nHost: {http}\r\n".encode())
    many = [await asyncio.open_connection(host, int(port)) for _ in range(10)]
    assert (await get(http, "/healthz")).status == 200
    writer.write(b"\r\n")
    async with asyncio.timeout(60):
        assert b"200 OK" in await reader.read()
    for _, other in (*many, (reader, writer)):
        other.close()


async def test_malformed_requests_are_not_logged(http: str, caplog: pytest.LogCaptureFixture) -> None:
    for request in (
        b"garbage\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n:\r\n\r\n",
    ):
        with suppress(ConnectionResetError):
            assert b"200 OK" not in await exchange(http, request)
    assert caplog.records == []


async def test_taken_port_is_an_error_of_one_line(jetstream_server: NatsServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        serving = Serving(nats_url=jetstream_server.url, http=f"127.0.0.1:{port}")
        with pytest.raises(TransportError) as caught:
            async with running_gateway(serving):
                pass
        assert str(caught.value) == f"can't listen on 127.0.0.1:{port}: address already in use"


def test_command(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-W", "error", "-m", "liftenvelope", "serve", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(tmp_path), "--nats-listen", f"127.0.0.1:{free_port()}"]
    command += ["--http", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("serving the Liftbridge API on ")
            asyncio.run(ready(f"127.0.0.1:{port}"))
            samples = samples_of(asyncio.run(get(f"127.0.0.1:{port}", "/metrics")).body)
            assert samples["ready",] == 1
            assert samples["process_open_fds",] > 5
            assert {("nats_connected", "main"), ("nats_connected", "read")} <= set(samples)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            log = process.communicate()[1]
            assert f"serving health and metrics on http://127.0.0.1:{port}\n" in log
            assert unexpected(log) == []
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("http", "text"),
    [("nowhere", "Error: --http: "), ("127.0.0.1:{taken}", "Error: can't listen on 127.0.0.1:{taken}: ")],
)
def test_command_with_an_address_that_it_can_not_use(tmp_path: Path, http: str, text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as socket_:
        taken = str(socket_.getsockname()[1])
        command = [sys.executable, "-m", "liftenvelope", "serve", "--data-dir", str(tmp_path)]
        done = subprocess.run(
            [*command, "--http", http.format(taken=taken)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode != 0
    assert text.format(taken=taken) in done.stderr
    assert "Traceback" not in done.stderr
