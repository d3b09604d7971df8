"""Every refusal is an error of its own, that names what it is about and survives a process boundary."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import pytest

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    IncorrectOffsetError,
    LiftEnvelopeError,
    MessageTooLargeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    PartitionPausedError,
    ReadonlyPartitionError,
    ServerError,
    StreamDeletedError,
    StreamExistsError,
    TransportError,
    UsageError,
)
from liftenvelope.testing import FaultProxy
from tests.conformance.actions import SOON, fill, new_stream, read, take
from tests.conformance.conftest import Server

Provoke: TypeAlias = Callable[[Client, str], Awaitable[object]]


async def open_only(client: Client, name: str, **options: object) -> None:
    async with client.subscribe(name, **options):  # type: ignore[call-overload]
        pass


async def exists(client: Client, name: str) -> None:
    await client.create_stream(name, name)


async def readonly_publish(client: Client, name: str) -> None:
    await client.set_stream_readonly(name)
    await client.publish(name, b"x")


async def readonly_read(client: Client, name: str) -> None:
    await client.set_stream_readonly(name)
    await read(client, name, start="earliest")


async def paused(client: Client, name: str) -> None:
    await client.pause_stream(name)
    await open_only(client, name)


async def deleted(client: Client, name: str) -> None:
    async with client.subscribe(name, start="earliest") as messages:
        await take(messages, 1)
        await client.delete_stream(name)
        await take(messages, 1)


async def wrong_offset(client: Client, name: str) -> None:
    other = f"{name}-o"
    await client.create_stream(other, other, optimistic_concurrency=True)
    await client.publish(other, b"x", expected_offset=3)


REFUSALS: dict[str, tuple[type[LiftEnvelopeError], Provoke]] = {
    "create": (StreamExistsError, exists),
    "delete": (NoSuchStreamError, lambda client, name: client.delete_stream(f"{name}-no")),
    "pause": (NoSuchStreamError, lambda client, name: client.pause_stream(f"{name}-no")),
    "pause partition": (NoSuchPartitionError, lambda client, name: client.pause_stream(name, partitions=[5])),
    "readonly": (NoSuchStreamError, lambda client, name: client.set_stream_readonly(f"{name}-no")),
    "readonly partition": (
        NoSuchPartitionError,
        lambda client, name: client.set_stream_readonly(name, partitions=[5]),
    ),
    "metadata": (NoSuchStreamError, lambda client, name: client.fetch_partition_metadata(f"{name}-no")),
    "metadata partition": (
        NoSuchPartitionError,
        lambda client, name: client.fetch_partition_metadata(name, 5),
    ),
    "subscribe": (NoSuchStreamError, lambda client, name: open_only(client, f"{name}-no")),
    "subscribe partition": (NoSuchPartitionError, lambda client, name: open_only(client, name, partition=5)),
    "subscribe all": (
        NoSuchStreamError,
        lambda client, name: open_only(client, f"{name}-no", partition="all"),
    ),
    "subscribe paused": (PartitionPausedError, paused),
    "subscribe readonly": (ReadonlyPartitionError, readonly_read),
    "read deleted": (StreamDeletedError, deleted),
    "publish": (NoSuchStreamError, lambda client, name: client.publish(f"{name}-no", b"x")),
    "publish partition": (NoSuchPartitionError, lambda client, name: client.publish(name, b"x", partition=5)),
    "publish readonly": (ReadonlyPartitionError, readonly_publish),
    "publish offset": (IncorrectOffsetError, wrong_offset),
    "publish large": (MessageTooLargeError, lambda client, name: client.publish(name, bytes(2 << 20))),
}


@pytest.mark.parametrize("what", REFUSALS)
async def test_refusals(client: Client, name: str, what: str) -> None:
    kind, provoke = REFUSALS[what]
    await new_stream(client, name, 1)
    with pytest.raises(kind, match=name) as info:
        await provoke(client, name)
    assert type(info.value) is kind
    assert isinstance(info.value, ServerError)
    assert not info.value.retriable
    copy = pickle.loads(pickle.dumps(info.value))
    assert (type(copy), str(copy)) == (kind, str(info.value))


async def test_no_ack_in_time(server: Server, client: Client, name: str) -> None:
    await client.create_stream(name, name)
    (address,) = server.addresses[:1]
    with FaultProxy(address) as proxy:
        mapped = {address: proxy.address}
        async with liftenvelope.connect([address], address_map=mapped) as delayed:
            await delayed.publish(name, b"first")
            proxy.stall("to_client")
            with pytest.raises(AckTimeoutError, match=name) as info:
                await delayed.publish(name, b"second", timeout=SOON)
            assert info.value.sent
            assert info.value.retriable
            with pytest.raises(CallTimeoutError, match=name) as lost:
                await delayed.delete_stream(f"{name}-other", timeout=0.3)
            assert lost.value.retriable
            proxy.resume()


async def test_nobody_there(name: str, server: Server) -> None:
    with FaultProxy(server.addresses[0]) as proxy:
        proxy.refuse()
        with pytest.raises(TransportError, match=proxy.address) as info:
            async with liftenvelope.connect([proxy.address], timeout=0.5):
                pass
        assert info.value.retriable


async def test_after_closing(server: Server, name: str) -> None:
    client = await liftenvelope.connect(server.addresses)
    await client.close()
    await client.close()
    calls: list[Awaitable[object]] = [
        client.fetch_metadata(),
        client.create_stream(name, name),
        client.publish(name, b"x"),
        client.fetch_cursor("a", name, 0),
        client.subscribe(name).open(),
    ]
    for call in calls:
        with pytest.raises(TransportError, match="closed"):
            await call


async def test_in_another_loop(client: Client, name: str) -> None:
    await new_stream(client, name, 1)
    reader = client.subscribe(name, start="earliest")
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        client.fetch_metadata,
        lambda: client.publish(name, b"x"),
        client.flush,
        reader.open,
        client.close,
    ]
    for call in calls:
        with pytest.raises(UsageError, match="loop"):
            await asyncio.to_thread(asyncio.run, call())
    assert await fill(client, name, 1) == [1]


@pytest.mark.parametrize("addresses", [[], [""], ["host"], ["host:0x1"], ["host:x:1"], [7]], ids=str)
def test_addresses_that_are_none(addresses: object) -> None:
    with pytest.raises(UsageError):
        liftenvelope.connect(addresses)  # type: ignore[arg-type]
