"""Advisories that nobody takes, or that were told while the connection was down."""

from __future__ import annotations

import asyncio
import json

import pytest
from nats.aio.client import Client

from liftenvelope.errors import TransportError, UsageError
from liftenvelope.jetstream import (
    Advisories,
    Advisory,
    JetStream,
    LostAdvisories,
    MaxDeliveriesAdvisory,
    read_advisory,
)
from liftenvelope.nats.link import Link
from liftenvelope.testing import FaultProxy, NatsServer
from tests.handled import handled
from tests.integration.conftest import connect, until


async def tell(nc: Client, stream: str, numbers: range) -> None:
    """Publish a fake advisory for each number: a message given up. Fields as nats-server 2.15 has them."""
    for number in numbers:
        body = {
            "type": "io.nats.jetstream.advisory.v1.max_deliver",
            "id": f"fake{number}",
            "timestamp": "2026-11-22T10:52:30.194251213Z",
            "stream": stream,
            "consumer": "worker",
            "stream_seq": number,
            "deliveries": 1,
        }
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.worker"
        await nc.publish(subject, json.dumps(body).encode())
    await handled(nc)


async def take(advisories: Advisories, count: int) -> list[Advisory]:
    async with asyncio.timeout(60):
        return [await anext(advisories) for _ in range(count)]


def sequences(advisories: list[Advisory]) -> list[int]:
    return [each.stream_sequence for each in advisories if isinstance(each, MaxDeliveriesAdvisory)]


async def test_the_oldest_are_dropped_and_counted(js_nc: Client, name: str) -> None:
    async with JetStream(js_nc).advisories(name, max_waiting=5) as advisories:
        await tell(js_nc, name, range(1, 4))
        assert sequences(await take(advisories, 3)) == [1, 2, 3]
        await tell(js_nc, name, range(4, 12))
        await until(lambda: advisories.dropped == 3)
        first, *rest = await take(advisories, 6)
        assert first == LostAdvisories(count=3)
        assert sequences(rest) == list(range(7, 12))
        await tell(js_nc, name, range(12, 13))
        assert sequences(await take(advisories, 1)) == [12]  # the loss is told once
    assert advisories.dropped == 3


async def test_while_the_connection_was_down(jetstream_server: NatsServer, js_nc: Client, name: str) -> None:
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        async with JetStream(nc).advisories(name) as advisories:
            proxy.refuse()
            proxy.cut()
            await until(lambda: not nc.is_connected)
            await tell(js_nc, name, range(1, 4))
            proxy.accept()
            assert await take(advisories, 1) == [LostAdvisories()]
            await tell(js_nc, name, range(4, 5))
            assert sequences(await take(advisories, 1)) == [4]
        await nc.close()


async def test_gap_is_told_once_and_before_an_advisory_that_is_received_before_the_loss_is_noticed(
    jetstream_server: NatsServer, js_nc: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        async with JetStream(nc).advisories(name) as advisories:
            noticed = asyncio.Event()
            with monkeypatch.context() as patch:
                patch.setattr(advisories, "restored", noticed.set)
                proxy.cut()
                await until(lambda: nc.stats["reconnects"] == 1 and nc.is_connected)
                await handled(nc)
                await tell(js_nc, name, range(1, 2))
                gap, *rest = await take(advisories, 2)
                async with asyncio.timeout(60):
                    await noticed.wait()  # a later notice would cancel the barrier that is awaited below
            assert gap == LostAdvisories()
            assert sequences(rest) == [1]
            advisories.restored()
            assert advisories._returning is not None
            await advisories._returning
            assert not advisories._waiting
        await nc.close()


@pytest.mark.parametrize("advisory_first", [False, True], ids=["barrier", "advisory"])
async def test_gap_is_told_once_the_server_has_the_subscription_again(
    jetstream_server: NatsServer,
    js_nc: Client,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    advisory_first: bool,
) -> None:
    """An advisory that comes between the two was lost after the gap had been told, so nobody knew."""
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        async with JetStream(nc).advisories(name) as advisories:
            waits, subscribed, barrier = asyncio.Event(), asyncio.Event(), Link.barrier

            async def late(link: Link, timeout: float) -> None:
                await barrier(link, timeout)
                waits.set()
                await subscribed.wait()

            with monkeypatch.context() as patch:
                patch.setattr(Link, "barrier", late)
                proxy.cut()
                async with asyncio.timeout(60):
                    await waits.wait()
                assert not advisories._waiting
                if advisory_first:
                    await tell(js_nc, name, range(1, 2))
                else:
                    subscribed.set()
                assert await take(advisories, 1) == [LostAdvisories()]
            if not advisory_first:
                await tell(js_nc, name, range(1, 2))
            subscribed.set()
            assert sequences(await take(advisories, 1)) == [1]
            assert not advisories._waiting
        await nc.close()


async def test_an_entry_that_fails_leaves_nothing(jetstream_server: NatsServer, name: str) -> None:
    """The server does not answer: no subscription is left, and the connection is as it was."""
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        before = len(nc._subs)
        proxy.stall()
        with pytest.raises(TransportError):
            await asyncio.wait_for(JetStream(nc).advisories(name).__aenter__(), 30)
        assert len(nc._subs) == before
        entering = asyncio.ensure_future(JetStream(nc).advisories(name).__aenter__())
        await until(lambda: len(nc._subs) > before)
        entering.cancel()
        await asyncio.wait({entering})
        assert entering.cancelled()
        assert len(nc._subs) == before
        proxy.resume()
        async with JetStream(nc).advisories(name) as advisories:
            await tell(nc, name, range(1, 2))
            assert sequences(await take(advisories, 1)) == [1]
        await nc.close()


@pytest.mark.parametrize("max_waiting", [0, -1, 1.5, True])
def test_max_waiting(js_nc: Client, max_waiting: int) -> None:
    with pytest.raises(UsageError, match="max_waiting"):
        Advisories(js_nc, max_waiting=max_waiting)


@pytest.mark.parametrize("value", ['"all"', "1e400", "null", "[]"])
def test_advisory_with_an_unexpected_field_type_is_kept(value: str) -> None:
    """A server that means something else by it is no reason to lose it."""
    text = f'{{"type":"io.nats.jetstream.advisory.v1.max_deliver","stream_seq":{value}}}'
    advisory = read_advisory(text.encode())
    assert type(advisory) is Advisory
    assert advisory.data["stream_seq"] == json.loads(value)
