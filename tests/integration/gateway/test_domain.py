"""A gateway at a leaf node, with its streams in the JetStream domain of the hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.errors import IncorrectOffsetError, NoJetStreamError, UsageError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._publishing.session import PublishSession
from liftenvelope.jetstream import JetStream
from liftenvelope.testing import NatsServer
from tests.conformance.actions import eventually, fill, read, take
from tests.handled import handled
from tests.integration.conftest import connect
from tests.integration.domains import hub_and_leaf


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, NatsServer]]:
    """A hub, and a leaf node of it."""
    with hub_and_leaf(tmp_path_factory.mktemp("domains")) as both:
        yield both


@pytest.fixture
async def hub_nc(servers: tuple[NatsServer, NatsServer]) -> NatsClient:
    return await connect(servers[0].url)


@pytest.fixture
async def leaf_nc(servers: tuple[NatsServer, NatsServer]) -> AsyncIterator[NatsClient]:
    """A connection to the leaf node, once that is connected to the hub."""
    client = await connect(servers[1].url)
    async with JetStream(client, domain="hub") as js:

        async def is_there() -> bool:
            try:
                await js.account_info()
            except NoJetStreamError:
                return False
            return True

        await eventually(is_there)
    yield client
    await client.close()


@pytest.fixture
async def client(leaf_nc: NatsClient) -> AsyncIterator[Client]:
    async with (
        Gateway(leaf_nc, domain="hub", broker_ttl=60.0) as gateway,
        liftenvelope.connect([gateway.address]) as client,
    ):
        yield client


async def test_streams_are_in_the_hub(
    client: Client, hub_nc: NatsClient, leaf_nc: NatsClient, name: str
) -> None:
    await client.create_stream(name, name, partitions=2)
    assert await fill(client, name, [b"0"]) == [0]
    futures = [await client.publish_async(name, b"%d" % number) for number in range(1, 50)]
    assert [ack.offset for ack in await asyncio.gather(*futures) if ack is not None] == list(range(1, 50))
    await hub_nc.publish(name, b"50")
    await handled(hub_nc)

    async def all_there() -> bool:
        return (await client.fetch_partition_metadata(name, 0)).newest_offset == 50

    await eventually(all_there)
    values = [message.value for message in await read(client, name, start="earliest", stop="latest")]
    assert values == [b"%d" % number for number in range(51)]
    async with JetStream(leaf_nc) as leaf, JetStream(leaf_nc, domain="hub") as hub:
        assert [info.config.name async for info in leaf.streams()] == []
        assert f"lift_{name}_1" in [info.config.name async for info in hub.streams()]
    await client.delete_stream(name)


async def test_only_the_first_acks_of_a_call_are_read_apart(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart: list[str] = []
    read_apart = PublishSession._on_other

    def note(session: PublishSession, message: Any, *rest: Any) -> None:
        apart.append(message[3])
        read_apart(session, message, *rest)

    monkeypatch.setattr(PublishSession, "_on_other", note)
    await client.create_stream(name, name)
    for number in range(200):
        future = await client.publish_async(name, b"%d" % number)
        ack = await future
        assert ack is not None
        assert ack.offset == number
    assert len(apart) == 1


async def test_envelopes_from_both_sides_are_acked(
    client: Client, hub_nc: NatsClient, leaf_nc: NatsClient, name: str
) -> None:
    # So many that JetStream's flow control has its part in it.
    count = 5_000
    await client.create_stream(name, name)
    for first, nc in enumerate([hub_nc, leaf_nc]):
        inbox = await nc.subscribe(f"_INBOX.{name}.{first}", pending_msgs_limit=0, pending_bytes_limit=0)
        # The other server hears of the inbox, and this one of the stream, a moment later.
        await client.publish(name, b"before")
        for number in range(count):
            await nc.publish(name, new_message(b"x", ack_inbox=inbox.subject, correlation_id=str(number)))
        # Each is acked at least once, so what counts is the first ack of each.
        found: dict[int, tuple[str, int]] = {}
        while len(found) < count:
            ack = unmarshal_ack((await inbox.next_msg(timeout=60)).data)
            found.setdefault(int(ack.correlation_id), (ack.stream, ack.offset))
        offset = first * (count + 1) + 1
        assert list(found.items()) == [(number, (name, offset + number)) for number in range(count)]


async def test_the_rest_of_the_api(client: Client, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    await client.publish(name, b"0", expected_offset=0)
    with pytest.raises(IncorrectOffsetError):
        await client.publish(name, b"0", expected_offset=0)
    await client.pause_stream(name)
    await client.publish(name, b"1")
    await client.set_cursor("reader", name, 0, 1)
    assert await client.fetch_cursor("reader", name, 0) == 1
    async with client.consumer(name, [name], auto_offset="earliest") as consumer:
        assert [message.value for message in await take(consumer, 2)] == [b"0", b"1"]


async def test_a_domain_that_is_none(leaf_nc: NatsClient) -> None:
    with pytest.raises(UsageError, match=r"'a\.b'"):
        Gateway(leaf_nc, domain="a.b")
    with pytest.raises(NoJetStreamError, match=r"\$JS.nowhere.API"):
        await Gateway(leaf_nc, domain="nowhere").start()


async def test_acks_in_flight_outlive_the_change_of_another_stream(client: Client) -> None:
    """A call drops its routes when a stream of it changes; acks with a domain are read apart from others."""
    for stream in ("busy", "other"):
        await client.create_stream(stream, stream)
    is_done = asyncio.Event()

    async def change() -> None:
        while not is_done.is_set():
            for readonly in (True, False):
                await client.set_stream_readonly("other", readonly=readonly)

    changing = asyncio.create_task(change())
    futures = []
    for number in range(4_000):
        futures.append(await client.publish_async("busy", b"%d" % number))
        if number % 20 == 0:  # refused now and then
            (await client.publish_async("other", b"x")).add_done_callback(lambda done: done.exception())
            await asyncio.sleep(0)
    acks = await asyncio.gather(*futures)
    is_done.set()
    await changing
    assert [ack.offset for ack in acks if ack is not None] == list(range(4_000))
