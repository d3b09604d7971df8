"""The health service of a gateway: it says SERVING only while clients are served."""

from __future__ import annotations

import asyncio

import pytest

import liftenvelope
from liftenvelope.gateway import Gateway
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.integration.conftest import connect

SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


class Watch:
    """A Watch, whose statuses may arrive several at once."""

    def __init__(self, channel: Channel, request: bytes = b"") -> None:
        self.call = channel.server_stream(WATCH, request)
        self._statuses: list[bytes] = []

    async def status(self) -> bytes:
        """The next status."""
        async with asyncio.timeout(60):
            while not self._statuses:
                received = await self.call.receive()
                assert received is not None
                self._statuses += received
        return self._statuses.pop(0)


async def test_watch_tells_that_nats_is_gone_and_back() -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with Gateway(nc) as gateway, await Channel.connect(gateway.address) as channel:
            watch = Watch(channel)
            if (first := await watch.status()) == NOT_SERVING:  # its partitions are not bound yet
                first = await watch.status()
            assert first == SERVING
            server.kill()
            assert await watch.status() == NOT_SERVING
            assert await channel.unary(CHECK, b"", timeout=60) == NOT_SERVING
            await asyncio.to_thread(server.start)
            assert await watch.status() == SERVING
            assert await channel.unary(CHECK, b"", timeout=60) == SERVING
        await nc.close()


async def test_watch_tells_that_the_read_connection_is_gone_and_back(jetstream_server: NatsServer) -> None:
    with FaultProxy(jetstream_server.address) as proxy:
        nc, read_nc = await connect(jetstream_server.url), await connect(f"nats://{proxy.address}")
        async with (
            Gateway(nc, read_nc=read_nc, broker_ttl=60.0) as gateway,  # so that its lease does not end
            await Channel.connect(gateway.address) as channel,
        ):
            watch = Watch(channel)
            while await watch.status() != SERVING:
                pass
            proxy.refuse()
            proxy.cut()
            assert await watch.status() == NOT_SERVING
            proxy.accept()
            assert await watch.status() == SERVING
        await nc.close()
        await read_nc.close()


async def test_nats_that_hangs_is_noticed() -> None:
    with run_nats_server(jetstream=True) as server, FaultProxy(server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        async with Gateway(nc, broker_ttl=2.0) as gateway, await Channel.connect(gateway.address) as channel:
            watch = Watch(channel)
            while await watch.status() != SERVING:
                pass
            proxy.stall()
            assert await watch.status() == NOT_SERVING
            proxy.resume()
            assert await watch.status() == SERVING
        await nc.close()


async def test_not_serving_until_partitions_are_bound(jetstream_server: NatsServer, name: str) -> None:
    nc = await connect(jetstream_server.url)
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        # Enough that to bind them takes longer than to ask for the health.
        await client.create_stream(name, name, partitions=200)
    async with Gateway(nc) as gateway:
        async with await Channel.connect(gateway.address) as channel:
            watch = Watch(channel)
            assert [await watch.status(), await watch.status()] == [NOT_SERVING, SERVING]
        async with liftenvelope.connect([gateway.address]) as client:
            await client.delete_stream(name)
    await nc.close()


async def test_not_serving_while_draining(jetstream_server: NatsServer) -> None:
    nc = await connect(jetstream_server.url)
    gateway = await Gateway(nc).start()
    async with await Channel.connect(gateway.address) as channel:
        watch = Watch(channel)
        while await watch.status() != SERVING:
            pass
        closing = asyncio.create_task(gateway.close(grace=60.0))
        assert await watch.status() == NOT_SERVING
        with pytest.raises(RpcError) as info:
            await watch.call.receive()
        assert info.value.code == StatusCode.UNAVAILABLE
        await closing
    await nc.close()


async def test_watch_takes_one_request(jetstream_server: NatsServer) -> None:
    nc = await connect(jetstream_server.url)
    async with Gateway(nc) as gateway, await Channel.connect(gateway.address) as channel:
        call = channel.bidi(WATCH)
        await call.send([b"", b""])
        with pytest.raises(RpcError, match="one request"):
            await call.receive()
        assert await Watch(channel, b"\x0a\x02no").status() == SERVICE_UNKNOWN
    await nc.close()
