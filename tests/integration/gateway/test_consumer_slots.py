"""Readers that must all replace their consumers: how many of them ask JetStream at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._acks import reader as ack_reader
from liftenvelope.gateway._partitions import consumer_slots
from liftenvelope.gateway._protocol.names import partition_stream
from liftenvelope.rpc.aio import Channel
from liftenvelope.testing import FaultProxy, run_nats_server
from tests.integration.conftest import connect, until
from tests.integration.gateway.test_half_changes import Held

READERS = 20
#: The time for which a slot is kept, and the readers that ask at once, of so many.
CASES = pytest.mark.parametrize(("longest", "asking"), [(10_000.0, 16), (0.0, READERS)])


class Cut:
    """A gateway that may lose its connection to NATS, and requests that get no answer then."""

    def __init__(self, proxy: FaultProxy, other: NatsClient, held: Held, gateway: Gateway, client: Client):
        self.proxy, self.other, self.held, self.gateway, self.client = proxy, other, held, gateway, client

    async def ask(self, name: str, asking: int) -> None:
        """Cut the connection; check how many readers ask while none gets an answer."""
        self.held.hold()
        self.proxy.cut()
        await until(lambda: len(self.held.subjects) >= asking)
        # New streams do not wait for the slots.
        await self.client.create_stream(name, name)
        inbox = self.other.new_inbox()
        acks = await self.other.subscribe(inbox)
        await self.other.publish(name, new_message(b"x", ack_inbox=inbox))
        assert unmarshal_ack((await acks.next_msg(240)).data).stream == name
        assert len(set(self.held.subjects)) == len(self.held.subjects) == asking


@asynccontextmanager
async def running(mappings: dict[str, str]) -> AsyncIterator[Cut]:
    config = {"mappings": mappings, "jetstream": {"domain": "hub"}}
    with run_nats_server(jetstream=True, config=config) as server, FaultProxy(server.address) as proxy:
        other, nc = await connect(server.url), await connect(f"nats://{proxy.address}")
        held = await Held(other).start()
        async with (
            Gateway(nc, broker_ttl=60.0, ack_timeout=10_000.0) as gateway,
            liftenvelope.connect([gateway.address], timeout=240) as client,
        ):
            yield Cut(proxy, other, held, gateway, client)
        await nc.close()
        await other.close()


@pytest.fixture(autouse=True)
def slots(monkeypatch: pytest.MonkeyPatch, longest: float) -> None:
    """Set the time for which a slot is kept; requests that get no answer are not repeated."""
    monkeypatch.setattr(consumer_slots, "_LONGEST", longest)
    monkeypatch.setattr(ack_reader, "_ONE_REQUEST", 10_000.0)


@CASES
async def test_ack_readers_replace_their_consumers_in_turns(name: str, asking: int) -> None:
    names = "$JS.API.CONSUMER.NAMES."
    async with running({f"{names}*": f"held.{names}$1"}) as gateway:
        assert gateway.gateway._running is not None
        leading = gateway.gateway._running.leading
        for number in range(READERS):
            await gateway.client.create_stream(f"{name}.{number}", f"{name}-{number}")
        await until(lambda: sum(reader.is_bound for *_, reader in leading.readers()) == READERS)
        await gateway.ask(name, asking)


@CASES
async def test_subscriptions_replace_their_consumers_in_turns(name: str, asking: int) -> None:
    stream = f"{name}-read"
    create = f"$JS.API.CONSUMER.CREATE.{partition_stream(stream, 0)}."
    async with running({f"{create}*": f"held.{create}$1"}) as gateway:
        await gateway.client.create_stream(stream, stream)
        # With the reader of the acks, as many as there are READERS.
        request = api_pb2.SubscribeRequest(stream=stream).SerializeToString()
        async with await Channel.connect(gateway.gateway.address) as channel:
            calls = [channel.server_stream("/proto.API/Subscribe", request) for _ in range(READERS - 1)]
            await asyncio.gather(*(call.receive() for call in calls))
            await gateway.ask(name, asking)
