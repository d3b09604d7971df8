"""Gateways in samples and on the pages: leaders, and metrics by HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from liftenvelope.client import connect
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.gateway.serving import Serving, running_gateway
from liftenvelope.monitor import GatewaySample, Sampler, Snapshot, alerts
from liftenvelope.monitor.gateways import GatewayMetrics, metrics_url, with_gateways
from liftenvelope.monitor.liftbridge import LiftbridgeSampler
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.monitor.test_serve_pages import served, settings, states


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with run_nats_server(jetstream=True) as running:
        yield running


class Empty:
    """A sampler that finds nothing."""

    async def sample(self, focus: object = ()) -> Snapshot:
        return Snapshot(at=1.0, kind="liftbridge")


async def found(sampler: Sampler, wanted: Callable[[Snapshot], bool]) -> Snapshot:
    """Take samples until one is as wanted."""
    async with asyncio.timeout(120):
        while not wanted(snapshot := await sampler.sample()):
            pass
    return snapshot


async def test_samples_have_leaders_and_metrics_of_gateways(server: NatsServer, name: str) -> None:
    http: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = Serving(nats_url=server.url, http="127.0.0.1:0", gateway={"id": "one", "broker_ttl": 60.0})
    async with (
        running_gateway(serving, http.set_result) as (running, _),
        connect(running.address) as client,
        with_gateways(LiftbridgeSampler(client), [f"http://{await http}"], every=0.001) as sampler,
    ):
        await client.create_stream(name, name, partitions=3)
        for _ in range(5):
            await client.publish(name, b"value")
        async with client.subscribe(name, start="earliest") as subscription:
            await anext(subscription)
            snapshot = await found(sampler, lambda one: (one.gateways["one"].leaders or 0) >= 3)
            gateway = snapshot.gateways["one"]
            assert (gateway.address, gateway.status) == (running.address, "serving")
            figures = gateway.figures
            assert figures is not None
            assert figures.ready
            assert (figures.publishes, figures.reads, figures.pending_acks) == (5, 1, 0)
            assert figures.led >= 3
            assert figures.acks >= 5
            assert figures.connections >= 1
            assert not snapshot.faults
        await found(sampler, lambda one: one.gateways["one"].figures.reads == 0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (web.Response(text="up 1\n"), "has no metrics of a gateway"),
        (web.Response(status=500), "500"),
        (
            web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
            "has no metrics of a gateway",
        ),
        (web.Response(body=b"x" * (17 * 2**20)), "are larger than 16777216 bytes"),
    ],
)
async def test_metrics_that_can_not_be_read_are_a_fault(answer: web.Response, text: str) -> None:
    async with answering(answer) as url, with_gateways(Empty(), [url]) as sampler:
        snapshot = await sampler.sample()
        assert snapshot.gateways == {}
        (fault,) = snapshot.faults
        assert fault.part == "gateways"
        assert text in fault.text


@asynccontextmanager
async def answering(answer: web.Response) -> AsyncIterator[str]:
    """Serve one answer by HTTP; yield the address with a login."""

    async def respond(_: web.BaseRequest) -> web.Response:
        return answer

    async with serving(respond) as url:
        yield url


@asynccontextmanager
async def serving(respond: Callable[[web.BaseRequest], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """Serve answers by HTTP; yield the address with a login."""
    runner = web.ServerRunner(web.Server(respond, handler_cancellation=True))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://user:secret@{host}:{port}/metrics"
    finally:
        await runner.cleanup()


class FailingOnce:
    """A sampler whose first sample fails once the gateway was asked for its metrics."""

    def __init__(self, asked: asyncio.Event) -> None:
        self._asked = asked

    async def sample(self, focus: object = ()) -> Snapshot:
        if not self._asked.is_set():
            await self._asked.wait()
            raise TransportError("the connection was lost")
        return Snapshot(at=1.0, kind="liftbridge")


async def test_failed_sample_ends_the_read_of_the_metrics() -> None:
    asked = asyncio.Event()

    async def respond(_: web.BaseRequest) -> web.Response:
        if asked.is_set():
            return web.Response(text='liftenvelope_gateway_build_info{id="one"} 1.0\n')
        asked.set()
        await asyncio.Event().wait()  # until the client closes the connection
        raise AssertionError("an event was set that nobody has")

    async with (
        asyncio.timeout(120),
        serving(respond) as url,
        with_gateways(FailingOnce(asked), [url], every=60.0) as sampler,
    ):
        with pytest.raises(TransportError, match="the connection was lost"):
            await sampler.sample()
        running = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
        assert GatewayMetrics.read.__qualname__ not in running
        assert list((await sampler.sample()).gateways) == ["one"]


async def test_unreachable_gateway_is_a_fault_without_its_login() -> None:
    async with with_gateways(Empty(), ["http://user:secret@127.0.0.1:1/"]) as sampler:
        (fault,) = (await sampler.sample()).faults
        assert "could not be read" in fault.text
        assert "secret" not in fault.text


@pytest.mark.parametrize("text", ["127.0.0.1:9293", "nats://127.0.0.1:4222", "http://", ""])
def test_metrics_url_must_be_http(text: str) -> None:
    with pytest.raises(UsageError, match="must be a URL such as http://"):
        metrics_url(text)


async def state_of(session: aiohttp.ClientSession, query: str, wanted: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(120):
        async for state in states(session, query):
            if state["head"] and wanted(state):
                return state
    raise AssertionError("the page ended")


async def test_pages_of_gateways(server: NatsServer, name: str) -> None:
    more = {"gateway": {"id": "two", "broker_ttl": 60.0}}
    async with served(server, settings(), more) as (session, address), connect(address) as client:
        await client.create_stream(name, name, partitions=2)
        await client.publish(name, b"value")
        state = await state_of(
            session,
            "page=gateways",
            lambda one: any(row["figures"] and row["leads"] >= 2 for row in one["gateways"]),
        )
        (row,) = state["gateways"]
        assert (row["id"], row["address"], row["status"]) == ("two", address, "serving")
        assert row["figures"]["ready"]
        assert [line["key"] for line in state["series"]] == [["gateway", "two", "pending_acks"]]
        state = await state_of(
            session,
            "page=gateway&name=two",
            lambda one: [part[1] for part in one["led"] if part[0] == name] == [0, 1],
        )
        assert [line["key"][2] for line in state["series"]] == ["publishes", "acks", "pending_acks", "reads"]
        assert (await state_of(session, "page=gateway&name=none", lambda _: True))["gone"]


async def test_lost_lease_of_a_gateway_is_an_alert() -> None:
    text = (
        'liftenvelope_gateway_build_info{id="one",python="3"} 1.0\nliftenvelope_gateway_ready 0.0\n'
        'liftenvelope_gateway_unmet_condition{condition="lease"} 1.0\n'
        'liftenvelope_gateway_unmet_condition{condition="nats"} 0.0\n'
    )
    async with answering(web.Response(text=text)) as url, with_gateways(Empty(), [url]) as sampler:
        snapshot = await sampler.sample()
        assert isinstance(snapshot.gateways["one"], GatewaySample)
        (alert,) = alerts(snapshot)
        assert (alert.severity, alert.name, alert.text) == ("error", "one", "gateway is not ready: lease")
