"""Changes of streams that fail half-way: the caller gets the error, and the gateway repairs the rest.

NATS refuses single requests of the gateway by the permissions of its user, and they fail at once. A subject
mapping of the server takes requests that get no answer to a subscriber that keeps them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.errors import NoJetStreamError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._acks import reader as ack_reader
from liftenvelope.gateway._cluster.records import StreamPhase, StreamRecord
from liftenvelope.gateway._partitions.recordings import nothing
from liftenvelope.gateway._partitions.storage import Storage
from liftenvelope.gateway._protocol.names import encode_name, partition_stream
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.jetstream.bucket import Bucket
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError
from liftenvelope.testing import FaultProxy, run_nats_server
from tests.conformance.actions import eventually, fill
from tests.handled import handled
from tests.integration.conftest import connect, until


class Held:
    """Requests to JetStream that get no answer from :meth:`hold` on, until :meth:`release`.

    The server maps their subjects to ``held.``. Subjects with the JetStream domain are not mapped, so the
    requests reach JetStream there while they are not held.
    """

    def __init__(self, nc: NatsClient) -> None:
        self._nc = nc
        self._is_holding = False
        #: Subjects of the requests that were held.
        self.subjects: list[str] = []

    @staticmethod
    def config(*subjects: str) -> dict[str, Any]:
        """Return the server configuration that lets requests with these subjects be held."""
        mappings = {subject: f"held.{subject}" for subject in subjects}
        return {"mappings": mappings, "jetstream": {"domain": "hub"}}

    async def start(self) -> Held:
        """Pass requests on from now on."""
        await self._nc.subscribe("held.>", cb=self._take)
        await handled(self._nc)
        return self

    def hold(self) -> None:
        """Answer no further request."""
        self._is_holding = True

    def release(self) -> None:
        """Let further requests reach JetStream. Those that were held stay without an answer."""
        self._is_holding = False

    async def _take(self, msg: Msg) -> None:
        subject = msg.subject.removeprefix("held.")
        if self._is_holding:
            self.subjects.append(subject)
        else:
            await self._nc.publish(subject.replace("$JS.", "$JS.hub.", 1), msg.data, reply=msg.reply)


class Refused:
    """A gateway whose requests NATS can refuse or hold, a client of it, and a connection that may do all."""

    def __init__(
        self, proxy: FaultProxy, nc: NatsClient, gateway: Gateway, client: Client, js: JetStream, held: Held
    ) -> None:
        self.proxy, self.nc, self.gateway, self.client, self.js = proxy, nc, gateway, client, js
        self.held = held

    async def use(self, user: str) -> None:
        """Connect the gateway to NATS as another user."""
        if user == "limited":
            # A message that is lost with the connection would be taken for one that is refused.
            running = self.gateway._running
            assert running is not None
            await until(lambda: not running.core.activity._waiting)
        before = self.nc.stats["reconnects"]
        self.nc.options["user"] = user
        self.proxy.cut()
        await until(lambda: self.nc.stats["reconnects"] > before and self.nc.is_connected)

    async def call(self, method: str, request: Message) -> None:
        """Make a call once: clients would try it again."""
        async with await Channel.connect(self.gateway.address) as channel:
            await channel.unary(f"/proto.API/{method}", request.SerializeToString(), timeout=60)

    async def is_detached(self, name: str, partition: int = 0) -> bool:
        """Return True if JetStream records nothing for a partition."""
        stream = partition_stream(name, partition)
        return (await self.js.stream(stream)).cached_info.config.subjects == (nothing(stream),)

    async def stores(self, name: str, subject: str) -> bool:
        """Return True if a raw message is stored in partition 0."""
        stream = await self.js.stream(partition_stream(name, 0))
        before = stream.cached_info.state.messages
        await self.js.api.nc.publish(subject, b"raw")
        await handled(self.js.api.nc)
        return (await stream.info()).state.messages > before


def two_users(*refused: str) -> dict[str, Any]:
    """Return the configuration of a server that refuses requests with these subjects to ``limited``."""
    users = [
        {"user": "limited", "password": "s3cret", "permissions": {"publish": {"deny": list(refused)}}},
        {"user": "free", "password": "s3cret"},
    ]
    return {"authorization": {"users": users}}


@asynccontextmanager
async def running(
    *refused: str, held: tuple[str, ...] = (), ack_timeout: float = 4.0
) -> AsyncIterator[Refused]:
    """Run a gateway; while it is connected as ``limited``, NATS refuses requests with these subjects.

    Requests with the subjects ``held`` can be held.
    """
    config = {**two_users(*refused), **Held.config(*held)}
    with run_nats_server(jetstream=True, config=config) as server, FaultProxy(server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}", user="free", password="s3cret")
        other = await connect(server.url, user="free", password="s3cret")
        holding = await Held(other).start()
        async with (
            JetStream(other) as js,
            Gateway(nc, ack_timeout=ack_timeout, broker_ttl=60.0) as gateway,
            liftenvelope.connect([gateway.address]) as client,
        ):
            yield Refused(proxy, nc, gateway, client, js, holding)
        await nc.close()
        await other.close()


async def test_pause_that_failed_at_a_partition_is_repaired(name: str) -> None:
    request = api_pb2.PauseStreamRequest(name=name)
    async with running(f"$JS.API.STREAM.UPDATE.{partition_stream(name, 0)}") as refused:
        await refused.client.create_stream(name, name, partitions=2)
        await refused.use("limited")
        for _ in range(2):  # the record says paused already when the call is repeated
            with pytest.raises(RpcError, match="INTERNAL: NATS refuses the gateway"):
                await refused.call("PauseStream", request)
        await eventually(lambda: refused.is_detached(name, 1))
        await refused.use("free")
        await eventually(lambda: refused.is_detached(name, 0))
        # JetStream refuses the subject to this one while another stream records it.
        await refused.js.create_stream(StreamConfig(name=f"{name}-other", subjects=(name,)))


async def test_repeated_pause_does_what_the_failed_one_left(name: str) -> None:
    request = api_pb2.PauseStreamRequest(name=name)
    async with running(f"$JS.API.STREAM.UPDATE.{partition_stream(name, 0)}") as refused:
        await refused.client.create_stream(name, name)
        await refused.use("limited")
        with pytest.raises(RpcError, match="INTERNAL: NATS refuses the gateway"):
            await refused.call("PauseStream", request)
        await refused.use("free")
        await refused.call("PauseStream", request)
        assert await refused.is_detached(name)


@pytest.mark.parametrize("change", ["PauseStream", "SetStreamReadonly"])
async def test_copy_takes_over_after_it_could_not_be_attached(name: str, change: str) -> None:
    copy = f"{name}-copy"
    async with running(f"$JS.API.STREAM.UPDATE.{partition_stream(copy, 0)}") as refused:
        await refused.client.create_stream(name, name)
        await refused.client.create_stream(name, copy)
        await refused.use("limited")
        request: Message = api_pb2.PauseStreamRequest(name=name)
        if change == "SetStreamReadonly":
            request = api_pb2.SetStreamReadonlyRequest(name=name, readonly=True)
        with pytest.raises(RpcError, match="INTERNAL: NATS refuses the gateway"):
            await refused.call(change, request)
        await refused.use("free")
        await eventually(lambda: refused.stores(copy, name))
        if change == "PauseStream":
            assert await refused.is_detached(name)
        else:  # the record was not changed
            await eventually(lambda: refused.stores(name, name))


async def test_stream_whose_readonly_flag_could_not_be_stored_stays_writable(name: str) -> None:
    async with running(f"$KV.lift_streams.{encode_name(name)}") as refused:
        await refused.client.create_stream(name, name)
        await refused.use("limited")
        request = api_pb2.SetStreamReadonlyRequest(name=name, readonly=True)
        with pytest.raises(RpcError, match="INTERNAL: NATS refuses the gateway"):
            await refused.call("SetStreamReadonly", request)
        await eventually(lambda: refused.stores(name, name))
        assert len(await fill(refused.client, name, 1)) == 1


async def test_paused_copy_is_not_attached_when_its_source_is_paused(name: str) -> None:
    """After a pause that failed, the record of the copy still names the source."""
    copy = f"{name}-copy"
    async with running(f"$JS.API.STREAM.UPDATE.{partition_stream(copy, 0)}") as refused:
        await refused.client.create_stream(name, name)
        await refused.client.create_stream(name, copy)
        await refused.use("limited")
        with pytest.raises(RpcError, match="INTERNAL: NATS refuses the gateway"):
            await refused.call("PauseStream", api_pb2.PauseStreamRequest(name=copy))
        await refused.call("PauseStream", api_pb2.PauseStreamRequest(name=name))
        await refused.use("free")
        await eventually(lambda: refused.is_detached(copy))
        assert await refused.is_detached(name)


@pytest.mark.parametrize("change", ["PauseStream", "DeleteStream"])
async def test_copy_takes_over_although_the_storage_of_another_copy_was_removed(
    name: str, change: str
) -> None:
    removed, copy = f"{name}-removed", f"{name}-copy"
    async with running() as gateway:
        for stream in (name, removed, copy):
            await gateway.client.create_stream(name, stream)
        await gateway.js.delete_stream(partition_stream(removed, 0))
        request = api_pb2.PauseStreamRequest if change == "PauseStream" else api_pb2.DeleteStreamRequest
        await gateway.call(change, request(name=name))
        assert await gateway.stores(copy, name)


async def test_copy_takes_over_although_another_copy_could_not_be_attached(name: str) -> None:
    refusing, copy = f"{name}-a", f"{name}-b"
    async with running(f"$JS.API.STREAM.UPDATE.{partition_stream(refusing, 0)}") as refused:
        for stream in (name, refusing, copy):
            await refused.client.create_stream(name, stream)
        await refused.use("limited")
        with pytest.raises(RpcError, match="INTERNAL: NATS refuses the gateway"):
            await refused.call("PauseStream", api_pb2.PauseStreamRequest(name=name))
        assert await refused.stores(copy, name)


@pytest.mark.parametrize("state", [StreamPhase.READY, StreamPhase.DELETING])
async def test_partition_that_does_not_answer_delays_no_other_stream(name: str, state: StreamPhase) -> None:
    stuck, other = f"{name}-stuck", f"{name}-other"
    question = f"$JS.API.STREAM.INFO.{partition_stream(stuck, 0)}"
    with run_nats_server(jetstream=True, config=Held.config(question)) as server:
        free = await connect(server.url)
        held = await Held(free).start()
        async with Gateway(free) as gateway, liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(stuck, stuck)
        async with JetStream(free) as js:
            bucket = Bucket(js, "lift_streams")
            entry = await bucket.get(encode_name(stuck))
            record = StreamRecord.from_json(entry.value or b"")
            await bucket.put(entry.key, replace(record, state=state, maker="dead").to_json())
        held.hold()
        nc = await connect(server.url)
        async with (
            # It checks all subjects, and removes what the dead did not. It waits for the answer for hours.
            Gateway(nc, ack_timeout=10_000.0, broker_ttl=60.0) as gateway,
            liftenvelope.connect([gateway.address], timeout=240) as client,
        ):
            await until(lambda: question in held.subjects)
            await client.create_stream(other, other)
            inbox = free.new_inbox()
            acks = await free.subscribe(inbox)
            await free.publish(other, new_message(b"x", ack_inbox=inbox))
            assert unmarshal_ack((await acks.next_msg(240)).data).stream == other
        await nc.close()
        await free.close()


async def test_creation_between_two_leaders_of_jetstream_may_be_tried_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: a cluster refuses requests so only for the moment in which it elects its leader."""
    create, attempts = Storage.create, 0

    async def refuse_first(storage: Storage, record: StreamRecord, partition: int) -> str | None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise NoJetStreamError(503, "JetStream system temporarily unavailable", 10008)
        return await create(storage, record, partition)

    async with running("unused") as refused:
        monkeypatch.setattr(Storage, "create", refuse_first)
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await refused.call("CreateStream", api_pb2.CreateStreamRequest(name=name, subject=name))
        attempts = 0
        await refused.client.create_stream(name, name)  # tries again by itself
        assert attempts == 2


async def test_change_that_gets_no_answer_does_not_hold_up_changes_of_other_streams(name: str) -> None:
    slow, other = f"{name}-slow", f"{name}-other"
    update = f"$JS.API.STREAM.UPDATE.{partition_stream(slow, 0)}"
    async with running(held=(update,), ack_timeout=10_000.0) as refused:
        await refused.client.create_stream(slow, slow)
        refused.held.hold()
        call = asyncio.create_task(refused.call("PauseStream", api_pb2.PauseStreamRequest(name=slow)))
        await until(lambda: update in refused.held.subjects)
        await refused.client.create_stream(other, other)
        await refused.client.pause_stream(other)
        ack = await refused.client.publish(other, b"resumes it")
        assert ack is not None
        await refused.client.set_stream_readonly(other)
        await refused.client.delete_stream(other)
        assert refused.gateway._running is not None
        assert ("", slow) in refused.gateway._running.core.changing._latest
        refused.held.release()
        await refused.use("free")  # the connection of the request is lost, so its change ends
        with pytest.raises(RpcError, match="outcome of the request is unknown"):
            await call


async def test_partition_whose_consumers_are_not_listed_does_not_hold_up_the_acks_of_new_streams(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_reader, "_ONE_REQUEST", 10_000.0)
    slow, other = f"{name}-slow", f"{name}-other"
    question = f"$JS.API.CONSUMER.LIST.{partition_stream(slow, 0)}"
    async with running(held=(question,)) as refused:
        refused.held.hold()
        await refused.client.create_stream(slow, slow)
        await until(lambda: question in refused.held.subjects)
        await refused.client.create_stream(other, other)
        nc = refused.js.api.nc
        inbox = nc.new_inbox()
        acks = await nc.subscribe(inbox)
        await nc.publish(other, new_message(b"x", ack_inbox=inbox))
        assert unmarshal_ack((await acks.next_msg(120)).data).stream == other


async def test_deletion_that_gets_no_answer_is_repeated_outside_the_lock(name: str) -> None:
    question = f"$JS.API.STREAM.INFO.{partition_stream(name, 0)}"
    async with running(held=(question,)) as refused:
        await refused.client.create_stream(name, name)
        refused.held.hold()
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await refused.call("DeleteStream", api_pb2.DeleteStreamRequest(name=name))
        assert refused.gateway._running is not None
        asked = len(refused.held.subjects)
        await until(lambda: len(refused.held.subjects) > asked)
        assert ("", name) not in refused.gateway._running.core.changing._latest
        refused.held.release()
        await refused.client.create_stream(name, name)
