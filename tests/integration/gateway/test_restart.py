"""Requests that a gateway sends when it starts on a NATS server that has streams already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

import liftenvelope
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._acks.consumers import ACK_CONSUMER
from liftenvelope.gateway._cluster.records import StreamRecord
from liftenvelope.gateway._partitions.storage import Storage
from liftenvelope.jetstream import JetStream
from liftenvelope.jetstream.api import Api
from liftenvelope.testing import NatsServer, run_nats_server
from tests.conformance.actions import eventually
from tests.handled import handled
from tests.integration.conftest import connect, until

STREAMS = 60
NAMES = [f"restart-{number}" for number in range(STREAMS)]


async def are_read(api: Api) -> bool:
    """Return whether each stream has an ack consumer."""
    for name in NAMES:
        if not (await api.request(f"CONSUMER.NAMES.lift_{name}_0"))["consumers"]:
            return False
    return True


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    """A NATS server with streams that a gateway has served before."""
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with Gateway(nc, id="g") as gateway, liftenvelope.connect([gateway.address]) as client:
            await asyncio.gather(*(client.create_stream(name, name) for name in NAMES))
            await eventually(lambda: are_read(Api(nc)))
        await nc.close()
        yield server


@pytest.fixture
def nats_url(server: NatsServer) -> str:
    return server.url


class Acks:
    """Acks of raw envelopes, by the stream that was published to."""

    def __init__(self, nc: NatsClient) -> None:
        self.nc = nc
        self.inbox = nc.new_inbox()
        self.offsets: dict[str, list[int]] = {name: [] for name in NAMES}

    async def listen(self) -> None:
        await self.nc.subscribe(self.inbox, cb=self._note)

    async def _note(self, msg: Msg) -> None:
        ack = unmarshal_ack(msg.data)
        self.offsets[ack.stream].append(ack.offset)

    async def publish(self) -> None:
        """Publish an envelope to each stream."""
        for name in NAMES:
            await self.nc.publish(name, new_message(b"value", ack_inbox=self.inbox, correlation_id=name))
        await handled(self.nc)

    async def all_have(self, *offsets: int) -> None:
        """Wait until these offsets, and no others, have their acks in each stream."""
        await until(lambda: all(len(found) >= len(offsets) for found in self.offsets.values()))
        assert self.offsets == {name: list(offsets) for name in NAMES}


class Requests:
    """Requests to JetStream's API, in the order in which they were sent."""

    def __init__(self, nc: NatsClient) -> None:
        self.nc = nc
        self.subjects: list[str] = []

    async def listen(self) -> None:
        await self.nc.subscribe("$JS.API.>", cb=self._note)
        await handled(self.nc)

    async def _note(self, msg: Msg) -> None:
        self.subjects.append(msg.subject.removeprefix("$JS.API."))

    def at(self, start: str, part: str = "") -> list[int]:
        """Return the places of the requests that begin with ``start`` and contain ``part``."""
        found = enumerate(self.subjects)
        return [place for place, one in found if one.startswith(start) and part in one]


async def until_settled(gateway: Gateway, requests: Requests) -> None:
    """Wait until a gateway has done all leader work of its start: it leads a new stream only then."""
    async with liftenvelope.connect([gateway.address]) as client:
        await client.create_stream("settled", "settled")
    await until(lambda: requests.at("CONSUMER.CREATE.lift_settled_0."))


async def test_restart_sends_two_requests_for_each_stream(server: NatsServer, nc: NatsClient) -> None:
    """It asks for the consumers, and takes up that of the last gateway."""
    acks, requests = Acks(nc), Requests(nc)
    await acks.listen()
    await requests.listen()
    await acks.publish()
    gateway_nc = await connect(server.url)
    async with Gateway(gateway_nc, id="g") as gateway:
        await acks.all_have(0)
        await until_settled(gateway, requests)
        places = {
            kind: requests.at(f"CONSUMER.{kind}.lift_restart-", "" if kind == "LIST" else ACK_CONSUMER)
            for kind in ("NAMES", "LIST", "INFO", "CREATE", "DELETE")
        }
        counts = {kind: len(found) for kind, found in places.items()}
        assert counts == {"NAMES": 0, "LIST": STREAMS, "INFO": 0, "CREATE": STREAMS, "DELETE": 0}
        assert not requests.at("STREAM.INFO.lift_restart-")
        assert len(requests.subjects) <= 2 * STREAMS + 60
    await gateway_nc.close()


async def test_restart_repairs_the_subject_of_one_stream_of_many(server: NatsServer, nc: NatsClient) -> None:
    """Paused streams and copies are as their records say, and are not asked for one by one."""
    gateway_nc = await connect(server.url)
    async with Gateway(gateway_nc, id="g") as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.pause_stream(NAMES[1])
        await client.create_stream(NAMES[2], "copy")
    async with JetStream(nc) as js:
        storage = Storage(js)
        id_ = await storage.id_of(f"lift_{NAMES[0]}_0")
        assert id_
        await storage.detach(StreamRecord(name=NAMES[0], subject=NAMES[0], id=id_), 0)
    acks, requests = Acks(nc), Requests(nc)
    await requests.listen()
    async with Gateway(gateway_nc, id="g") as gateway:
        await until_settled(gateway, requests)
        await until(lambda: requests.at(f"STREAM.UPDATE.lift_{NAMES[0]}_0"))
        asked = {requests.subjects[place] for place in requests.at("STREAM.INFO.lift_")}
        assert {one for one in asked if "lift_settled" not in one} <= {
            f"STREAM.INFO.lift_{NAMES[0]}_0",
            "STREAM.INFO.lift___activity_0",
            "STREAM.INFO.lift___cursors_0",
        }
        await acks.listen()
        await nc.publish(NAMES[0], new_message(b"value", ack_inbox=acks.inbox, correlation_id="1"))
        await until(lambda: acks.offsets[NAMES[0]] == [0])
    await gateway_nc.close()
