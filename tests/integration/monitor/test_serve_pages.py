"""The monitor's pages inside ``liftenvelope serve --http``: for a gateway, guarded, beside its metrics."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from liftenvelope.cli._root import root
from liftenvelope.cli._serving.serve_monitor import ServeMonitor
from liftenvelope.client import connect
from liftenvelope.errors import TransportError
from liftenvelope.gateway import Limits
from liftenvelope.gateway.serving import Serving, running_gateway
from liftenvelope.monitor import Snapshot
from liftenvelope.monitor import server as monitor_server
from liftenvelope.monitor.liftbridge import LiftbridgeSampler
from liftenvelope.monitor.server import MonitorAccess
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.certificates import Certificates
from tests.integration.monitor.test_changes import changed, key_of
from tests.integration.monitor.test_server import TOKEN


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with run_nats_server(jetstream=True) as running:
        yield running


@asynccontextmanager
async def served(
    server: NatsServer, monitor: ServeMonitor, more: dict[str, Any] | None = None, **limits: Any
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A gateway with the pages, a session that asks the HTTP server, and the gateway's address."""
    options = {"gateway": {"limits": Limits(**limits), "broker_ttl": 60.0}, **(more or {})}
    serving = Serving(nats_url=server.url, http="127.0.0.1:0", drain=60.0, **options)
    loop = asyncio.get_running_loop()
    started: asyncio.Future[Sequence[str]] = loop.create_future()
    http: asyncio.Future[str] = loop.create_future()
    async with (
        monitor.serving(started, http) as pages,
        running_gateway(serving, http.set_result, pages=pages) as (running, _),
        aiohttp.ClientSession(f"http://{await http}/", timeout=aiohttp.ClientTimeout(60)) as session,
    ):
        started.set_result([running.address])
        yield session, running.address


def settings(**given: Any) -> ServeMonitor:
    return ServeMonitor(**{"access": MonitorAccess(), "payloads": True, "changes": False, **given})


async def states(session: aiohttp.ClientSession, query: str) -> AsyncIterator[Any]:
    async with session.get(f"monitor/api/events?{query}") as answer:
        assert answer.status == 200
        async for line in answer.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


async def shown(session: aiohttp.ClientSession, stream: str, wanted: Any) -> None:
    """Wait until the page shows a stream as wanted."""
    async with asyncio.timeout(120):
        async for state in states(session, f"page=stream&name={stream}"):
            if wanted(state.get("stream")):
                return


async def test_pages_are_beside_the_metrics(server: NatsServer, name: str) -> None:
    async with served(server, settings()) as (session, address), connect(address) as client:
        await client.create_stream(name, name)
        await client.publish(name, b"<b>value</b>")
        async with session.get("monitor") as answer:
            assert (answer.status, answer.url.path) == (200, "/monitor/")
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert "static/app.js" in await answer.text()
        async with session.get("monitor/static/app.js") as answer:
            assert answer.content_type == "text/javascript"
        await shown(session, name, lambda found: found and found["end"] == 1)
        async with session.get("monitor/api/messages", params={"stream": name}) as answer:
            assert (await answer.json())["messages"][0]["value"]["text"] == "<b>value</b>"
        for path, status in (("metrics", 200), ("healthz", 200), ("readyz", 200), ("static/app.js", 404)):
            async with session.get(path) as answer:
                assert answer.status == status


async def test_pages_need_a_login_and_metrics_do_not(server: NatsServer) -> None:
    access = MonitorAccess(token=TOKEN)
    async with served(server, settings(access=access)) as (session, _):
        for path, headers, status in (
            ("metrics", {}, 200),
            ("monitor/", {"Host": "evil.example"}, 421),
            ("monitor/api/about", {}, 401),
            ("monitor/api/about", {"Authorization": "Bearer wrong"}, 401),
            ("monitor/api/about", {"Authorization": f"Bearer {TOKEN}"}, 200),
            ("monitor/api/about", {"Sec-Fetch-Site": "cross-site"}, 403),
        ):
            async with session.get(path, headers=headers) as answer:
                assert answer.status == status
        async with session.get("monitor/") as answer:
            assert answer.url.path == "/monitor/login"
        async with session.post("monitor/login", data={"token": TOKEN}, allow_redirects=False) as answer:
            cookie = answer.cookies["liftenvelope_monitor"]
            assert (cookie["path"], answer.headers["Location"]) == ("/monitor/", "./")


async def test_changes_of_a_gateways_stream(server: NatsServer, name: str) -> None:
    async with (
        served(server, settings(changes=True)) as (session, address),
        connect(address) as client,
    ):
        await client.create_stream(name, name)
        await shown(session, name, lambda found: found is not None)
        asked = {"action": "pause stream", "stream": name}
        async with session.post("monitor/api/changes", json=asked) as answer:
            assert answer.status == 403  # without the key
        change = partial(changed, session, below="monitor/", stream=name)
        assert await change(action="make read-only") == f"made {name} read-only"
        assert (await client.fetch_partition_metadata(name, 0)).readonly
        assert await change(action="make writable") == f"made {name} writable"
        assert await change(action="pause stream") == f"paused {name}"
        await shown(session, name, lambda found: found["partitions"][0]["paused"])
        assert await change(action="resume stream") == f"resumed {name}"
        assert not (await client.fetch_metadata(streams=[name])).streams[name].partitions[0].paused
        assert "purge stream" in await change(status=400, action="purge stream", confirm=name)


async def test_open_page_outlives_the_time_limit_and_makes_room_for_probes(server: NatsServer) -> None:
    async with served(server, settings(), http_timeout=1.0, max_http_connections=3) as (session, _):
        events = states(session, "page=streams")
        begun = (await anext(events))["head"]["at"]
        while (await anext(events))["head"]["at"] < begun + 3:
            pass
        # Connections that send nothing push out the page, which a browser opens again.
        host, port = session._base_url.host, session._base_url.port  # type: ignore[union-attr]
        silent = [await asyncio.open_connection(host, port) for _ in range(3)]
        with pytest.raises(aiohttp.ClientError):
            async for _ in events:
                pass
        for _, writer in silent:
            writer.close()
        async with session.get("readyz") as answer:
            assert answer.status == 200


async def test_certificate_of_the_page_is_needed_and_used(server: NatsServer, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    tls = certificates.gateway_config
    leaf = certificates.ca.issue_cert("monitor@example.org", common_name="monitor")
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "monitor.pem")
    own = str(tmp_path / "monitor.pem")
    monitor = settings(tls=(str(tls["tls_cert"]), own, own))
    async with served(server, monitor, tls) as (session, _):
        async with asyncio.timeout(120):
            async for state in states(session, "page=streams"):
                if state["head"] and state["head"]["brokers"]:
                    assert state["head"]["brokers"][0][1] == "serving"
                    break


WITH = ("--monitor", "--http", "[::1]:1")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--monitor",), "--monitor needs --http: the address to serve the pages on"),
        (("--monitor-allow-changes",), "--monitor-allow-changes needs --monitor"),
        (("--monitor-hosts", "a.example"), "--monitor-hosts needs --monitor"),
        (("--monitor", "--http", "0.0.0.0:1"), "without a token, got 0.0.0.0: set --monitor-token-file or"),
        ((*WITH, "--monitor-token-file", "/none"), "must be a file that can be read, got '/none'"),
        ((*WITH, "--monitor-token-file", "/dev/null"), "must hold a token"),
        ((*WITH, "--monitor-tls-ca", "/none"), "need --tls-cert: the gateway has no TLS"),
        ((*WITH, "--monitor-tls-key", "/none"), "belong together: give both or neither"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("kept_logging")
def test_wrong_settings(arguments: tuple[str, ...], text: str) -> None:
    command = ["serve", "--check", "--nats", "nats://127.0.0.1:1", *arguments]
    done = CliRunner().invoke(root, command, terminal_width=1_000)
    assert done.exit_code == 2
    assert text in done.output


async def test_command_with_workers_serves_the_pages(server: NatsServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    command = [sys.executable, "-W", "error", "-m", "liftenvelope", "serve", "--nats", server.url]
    command += ["--workers", "2", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--monitor"]
    command += ["--monitor-allow-changes", "--monitor-token-file", str(token)]
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stderr is not None
    try:
        line = ""
        while ", and the monitor on " not in line:
            line = (await process.stderr.readline()).decode()
            assert line, "the command has ended"
        url = line.partition(", and the monitor on ")[2].strip()
        known = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(url, headers=known) as session, asyncio.timeout(240):
            assert await key_of(session)
            async with session.get("api/events?page=gateways") as answer:
                async for part in answer.content:
                    state = json.loads(part[6:]) if part.startswith(b"data: ") else {}
                    rows = state.get("gateways", ())
                    if len(rows) == 2 and all(row["figures"] for row in rows):
                        break
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_defect_of_the_sampling_does_not_end_the_gateway(
    server: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # FAKE: no server is known to make a sample fail in an unexpected way.
    sample, defects = LiftbridgeSampler.sample, ["defect"]

    async def failing(self: LiftbridgeSampler, focus: Sequence[str] = ()) -> Snapshot:
        if defects:
            raise KeyError(*defects)
        return await sample(self, focus)

    monkeypatch.setattr(LiftbridgeSampler, "sample", failing)
    monkeypatch.setattr(monitor_server, "_PAUSE", 0.5)
    async with served(server, settings()) as (session, address), connect(address) as client:
        async with asyncio.timeout(120):
            async for state in states(session, "page=streams"):
                if "unexpected KeyError: 'defect'" in json.dumps(state):
                    break
        defects.clear()
        await client.create_stream(name, name)
        await shown(session, name, lambda found: found is not None)
    record = next(one for one in caplog.records if one.name == "liftenvelope.monitor")
    assert "begins again in 0.5 s: unexpected KeyError: 'defect'" in record.getMessage()
    assert record.exc_info is not None


async def test_error_of_the_gateway_is_not_wrapped(server: NatsServer) -> None:
    with pytest.raises(TransportError, match="can't listen on"):
        async with served(server, settings(), {"gateway": {"port": int(server.url.rpartition(":")[2])}}):
            pass
