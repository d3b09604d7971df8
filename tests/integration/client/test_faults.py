"""One node that dies and a network that fails: subscriptions lose nothing and hand out nothing twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.client._events import (
    ClientEvent,
    StoppedAtHighWatermark,
    SubscriptionLost,
    SubscriptionResumed,
)
from liftenvelope.client._reading.message_reader import MessageReader
from liftenvelope.envelope import Message
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    StreamDeletedError,
    SubscriptionLostError,
    TransportError,
)
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, run_liftbridge
from tests.cleaner_clock import CleanerClock
from tests.conformance.actions import take
from tests.integration.conftest import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiftbridgeCluster]:
    """A node that tests kill and start again; each leaves it running."""
    with run_liftbridge() as cluster:
        yield cluster


@pytest.fixture
def events() -> list[ClientEvent]:
    return []


@pytest.fixture
async def client(cluster: LiftbridgeCluster, events: list[ClientEvent]) -> AsyncIterator[Client]:
    """A client on a sound connection."""
    before = asyncio.all_tasks()
    async with liftenvelope.connect(
        cluster.addresses, timeout=60, ack_wait=60, on_event=events.append
    ) as client:
        yield client
    assert not asyncio.all_tasks() - before - {asyncio.current_task()}


@pytest.fixture
def proxy(cluster: LiftbridgeCluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.addresses[0]) as proxy:
        yield proxy


@asynccontextmanager
async def through(proxy: FaultProxy, **options: object) -> AsyncIterator[Client]:
    """A client whose connections go through a proxy."""
    options = {"on_event": lambda _: None, "address_map": {proxy.target: proxy.address}, **options}
    async with liftenvelope.connect([proxy.target], **options) as client:  # type: ignore[arg-type]
        yield client


async def fill(client: Client, stream: str, count: int) -> None:
    values = (b"m%d" % number for number in range(count))
    summary = await client.publish_many(stream, values, partition=0)
    assert summary.acked == count


async def publish_numbers(client: Client, stream: str, stop: asyncio.Event) -> dict[int, bytes]:
    """Publish one number after the other, none twice; return what was acked, by its offset."""
    acked: dict[int, bytes] = {}
    number = 0
    while not stop.is_set():
        value = b"%d" % number
        number += 1
        try:
            ack = await client.publish(stream, value, timeout=2)
        except (AckTimeoutError, CallTimeoutError, TransportError):
            await asyncio.sleep(0.05)
        else:
            assert ack is not None
            assert ack.offset not in acked, "two messages were given one offset"
            acked[ack.offset] = value
    return acked


async def read_to(messages: MessageReader, into: list[Message], last: Callable[[], int | None]) -> None:
    """Read until the offset that ``last`` says, once it says one, has come."""
    while True:
        end = last()
        if end is not None and into and into[-1].offset >= end:
            return
        message = await messages.next(0.1)
        if message is not None:
            into.append(message)


def assert_complete(found: list[Message], acked: dict[int, bytes], *, killed: bool = False) -> None:
    """Every offset once, in order, and what was acked where its ack said.

    A killed server may have stored what it has not numbered for good: these offsets come twice then.
    """
    breaks = [(one, other) for one, other in pairwise(m.offset for m in found) if other != one + 1]
    assert len(breaks) <= killed
    assert all(other <= one for one, other in breaks)
    by_offset = {message.offset: message.value for message in found}
    assert {offset: by_offset.get(offset) for offset in acked} == acked


def kill(cluster: LiftbridgeCluster) -> None:
    cluster.nodes[0].kill()


def interrupt(cluster: LiftbridgeCluster) -> None:
    """Stop it in its own way. It ends subscriptions with status OK, as if they had been fenced."""
    assert cluster.nodes[0].stop() == 0


@pytest.mark.parametrize("end", [kill, interrupt])
async def test_a_server_that_ends_and_comes_back(
    cluster: LiftbridgeCluster,
    client: Client,
    events: list[ClientEvent],
    name: str,
    end: Callable[[LiftbridgeCluster], None],
) -> None:
    await client.create_stream(name, name)
    found: list[Message] = []
    stop, last = asyncio.Event(), list[int]()
    async with client.subscribe(name) as messages:
        reading = asyncio.create_task(read_to(messages, found, lambda: last[0] if last else None))
        publishing = asyncio.create_task(publish_numbers(client, name, stop))
        await until(lambda: len(found) > 50)
        await asyncio.to_thread(end, cluster)
        seen = len(found)
        await asyncio.to_thread(cluster.start)
        await until(lambda: len(found) > seen + 50)
        stop.set()
        acked = await publishing
        last.append(max(acked))
        async with asyncio.timeout(60):
            await reading
        assert messages.position == found[-1].offset + 1
    assert found[0].offset == 0
    assert_complete(found, acked, killed=end is kill)
    lost = [event for event in events if isinstance(event, SubscriptionLost)]
    resumed = [event for event in events if isinstance(event, SubscriptionResumed)]
    # On a machine that pauses, the connection to the new process may be lost as well.
    assert resumed
    assert [event.position for event in lost] == [event.position for event in resumed]
    assert {event.position for event in resumed} <= {message.offset for message in found}


async def hidden(cluster: LiftbridgeCluster, client: Client, name: str) -> str:
    """Kill the server; return a stream of twenty messages of which it shows some no more.

    It writes the high watermarks down every few seconds. Should that be at once after the last message, then
    all are shown, and it is tried again with another stream.
    """
    async with asyncio.timeout(100):
        for attempt in itertools.count():
            stream = f"{name}-{attempt}"
            await client.create_stream(stream, stream)
            await fill(client, stream, 20)
            await asyncio.to_thread(kill, cluster)
            await asyncio.to_thread(cluster.start)
            if (await client.fetch_partition_metadata(stream)).high_watermark < 19:
                return stream
    raise AssertionError("there is always another attempt")


async def test_messages_that_a_killed_server_hides(
    cluster: LiftbridgeCluster, client: Client, events: list[ClientEvent], name: str
) -> None:
    # After a kill the high watermark is that of some seconds ago. What was acked since then is in the log,
    # and no reader sees it, until one more message is published. The server lets a read to the latest
    # message hang; ours ends at the high watermark, and says so.
    stream = await hidden(cluster, client, name)
    async with asyncio.timeout(60), client.subscribe(stream, start="earliest", stop="latest") as messages:
        visible = [message.offset async for message in messages]
    (event,) = [event for event in events if isinstance(event, StoppedAtHighWatermark)]
    assert (event.stream, event.partition, event.newest_offset) == (stream, 0, 19)
    assert visible == list(range(event.high_watermark + 1))
    async with client.subscribe(stream, start="earliest") as messages:
        ack = await client.publish(stream, b"one more")
        assert ack is not None
        assert ack.offset == 20
        found = await take(messages, 21)
    assert [message.value for message in found] == [*(b"m%d" % number for number in range(20)), b"one more"]
    assert [message.offset for message in found] == list(range(21))


async def test_beginning_in_the_hidden_part(cluster: LiftbridgeCluster, client: Client, name: str) -> None:
    # Beyond the high watermark the server begins at the high watermark, whatever offset was asked for.
    await client.create_stream(name, name)
    await fill(client, name, 20)
    await asyncio.to_thread(kill, cluster)
    await asyncio.to_thread(cluster.start)
    async with (
        client.subscribe(name, start=15) as some,
        client.subscribe(name) as new,
        client.subscribe(name, start="latest") as latest,
    ):
        assert (new.position, latest.position) == (20, 19)
        await client.publish(name, b"one more")
        assert [message.offset for message in await take(some, 6)] == [15, 16, 17, 18, 19, 20]
        assert [message.offset for message in await take(latest, 2)] == [19, 20]
        assert [message.offset for message in await take(new, 1)] == [20]


@pytest.mark.parametrize("end", [kill, interrupt])
async def test_idle_subscriptions_are_made_again(
    cluster: LiftbridgeCluster, client: Client, name: str, end: Callable[[LiftbridgeCluster], None]
) -> None:
    await client.create_stream(name, name, partitions=2)
    await fill(client, name, 3)
    async with (
        client.subscribe(name) as new,
        client.subscribe(name, partition="all", start="earliest") as merged,
    ):
        await take(merged, 3)
        waiting = [asyncio.create_task(take(new, 1)), asyncio.create_task(take(merged, 2))]
        await asyncio.to_thread(end, cluster)
        await asyncio.to_thread(cluster.start)
        await client.publish(name, b"zero", partition=0)
        await client.publish(name, b"one", partition=1)
        first, both = await asyncio.gather(*waiting)
    assert [(message.offset, message.value) for message in first] == [(3, b"zero")]
    assert {(m.partition, m.offset, m.value) for m in both} == {(0, 3, b"zero"), (1, 0, b"one")}


async def test_calls_wait_for_a_server_that_is_starting(
    cluster: LiftbridgeCluster, client: Client, name: str
) -> None:
    await asyncio.to_thread(kill, cluster)
    calls = asyncio.create_task(client.create_stream(name, name))
    subscription = client.subscribe(name)
    await asyncio.to_thread(cluster.start)
    await calls
    await client.set_cursor("reader", name, 0, 3)
    assert await client.fetch_cursor("reader", name, 0) == 3
    async with subscription:
        assert subscription.position == 0


async def test_cut_again_and_again(client: Client, proxy: FaultProxy, name: str) -> None:
    await client.create_stream(name, name)
    found: list[Message] = []
    stop, last = asyncio.Event(), list[int]()
    async with through(proxy) as reader, reader.subscribe(name) as messages:
        reading = asyncio.create_task(read_to(messages, found, lambda: last[0] if last else None))
        publishing = asyncio.create_task(publish_numbers(client, name, stop))
        for _ in range(6):
            seen = len(found)
            await until(lambda seen=seen: len(found) > seen + 20)  # type: ignore[misc]
            proxy.cut()
        stop.set()
        acked = await publishing
        last.append(max(acked))
        async with asyncio.timeout(60):
            await reading
    assert found[0].offset == 0
    assert_complete(found, acked)


@pytest.mark.parametrize("after", [1, 8, 9, 13, 500, 10_007, 100_000])
async def test_truncated_anywhere(client: Client, proxy: FaultProxy, name: str, after: int) -> None:
    await client.create_stream(name, name)
    await fill(client, name, 3000)
    async with through(proxy) as reader, reader.subscribe(name, start="earliest", stop=2999) as messages:
        proxy.truncate(after)
        found = [message.offset for message in await take(messages, 100)]
        proxy.truncate(after)
        found += [message.offset async for message in messages]
    assert found == list(range(3000))


async def test_truncated_in_the_handshake(client: Client, proxy: FaultProxy, name: str) -> None:
    await client.create_stream(name, name)
    await fill(client, name, 10)
    async with through(proxy) as reader:
        for after in (0, 20, 60, 100):
            proxy.truncate(after)
            async with reader.subscribe(name, start="earliest", stop=9) as messages:
                assert [message.offset async for message in messages] == list(range(10))


async def test_a_new_only_subscription_that_is_lost_before_its_first_message(
    client: Client, proxy: FaultProxy, name: str
) -> None:
    await client.create_stream(name, name)
    await fill(client, name, 5)
    async with through(proxy) as reader, reader.subscribe(name) as messages:
        waiting = asyncio.create_task(take(messages, 3))
        proxy.refuse()
        proxy.cut()
        # Nobody is subscribed while these are stored.
        await fill(client, name, 3)
        proxy.accept()
        assert [message.offset for message in await waiting] == [5, 6, 7]


async def test_a_short_stall_is_no_loss(client: Client, proxy: FaultProxy, name: str) -> None:
    events: list[ClientEvent] = []
    await client.create_stream(name, name)
    async with (
        through(proxy, ping_interval=0.1, on_event=events.append) as reader,
        reader.subscribe(name) as messages,
    ):
        proxy.stall()
        await fill(client, name, 100)
        assert await messages.next(0.5) is None
        proxy.resume()
        assert [message.offset for message in await take(messages, 100)] == list(range(100))
    assert not [event for event in events if isinstance(event, SubscriptionLost)]


async def test_a_long_stall_is_noticed(client: Client, proxy: FaultProxy, name: str) -> None:
    """Nothing tells that the way to the server is lost but a ping that is not answered in 20 s.

    After a ping, the next one is sent only once data has come, or minutes later: servers want no more.
    """
    events: list[ClientEvent] = []
    await client.create_stream(name, name)
    async with (
        through(proxy, ping_interval=0.1, on_event=events.append) as reader,
        reader.subscribe(name) as messages,
    ):
        await fill(client, name, 5)
        assert len(await take(messages, 5)) == 5
        proxy.stall("to_server")
        await fill(client, name, 5)
        assert [message.offset for message in await take(messages, 5)] == [5, 6, 7, 8, 9]
        reading = asyncio.create_task(take(messages, 5))
        await until(lambda: any(isinstance(event, SubscriptionLost) for event in events))
        await fill(client, name, 5)
        proxy.cut()
        proxy.resume()
        assert [message.offset for message in await reading] == [10, 11, 12, 13, 14]


async def test_connection_that_is_not_regained_in_time_is_an_error(
    client: Client, proxy: FaultProxy, name: str
) -> None:
    await client.create_stream(name, name)
    await fill(client, name, 5)
    async with (
        through(proxy, resubscribe_wait=0.5) as reader,
        reader.subscribe(name, start="earliest") as messages,
    ):
        await take(messages, 5)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(SubscriptionLostError, match=name) as info:
            async with asyncio.timeout(60):
                await anext(messages)
        assert info.value.retriable
        position = messages.position
        assert position == 5
        proxy.accept()
        await fill(client, name, 2)
        async with reader.subscribe(name, start=position) as again:
            assert [message.offset for message in await take(again, 2)] == [5, 6]


async def test_subscription_without_resume_is_not_made_again(
    client: Client, proxy: FaultProxy, name: str
) -> None:
    await client.create_stream(name, name)
    async with through(proxy, resubscribe_wait=0) as reader, reader.subscribe(name) as messages:
        proxy.cut()
        with pytest.raises(SubscriptionLostError, match=name):
            async with asyncio.timeout(60):
                await anext(messages)


async def test_deleted_in_the_meantime(client: Client, proxy: FaultProxy, name: str) -> None:
    await client.create_stream(name, name)
    await fill(client, name, 5)
    async with through(proxy) as reader, reader.subscribe(name, start="earliest") as messages:
        await take(messages, 5)
        proxy.refuse()
        proxy.cut()
        await client.delete_stream(name)
        proxy.accept()
        with pytest.raises(StreamDeletedError, match=name):
            async with asyncio.timeout(60):
                await anext(messages)


@pytest.mark.parametrize("count", [0, 2, 30])
async def test_stream_that_was_made_anew_during_a_loss_is_not_read_on(
    client: Client, proxy: FaultProxy, name: str, count: int
) -> None:
    # Offsets begin at 0 again: what is there now is not what comes after what was read.
    await client.create_stream(name, name)
    await fill(client, name, 5)
    async with through(proxy) as reader, reader.subscribe(name, start="earliest") as messages:
        await take(messages, 5)
        proxy.refuse()
        proxy.cut()
        await client.delete_stream(name)
        await client.create_stream(name, name)
        await fill(client, name, count)
        proxy.accept()
        with pytest.raises(StreamDeletedError, match="another one of that name"):
            await take(messages, 1)


async def test_a_slow_reader_whose_messages_are_removed(client: Client, name: str) -> None:
    # Retention takes away the segment that the server is reading for us, and ends the call with "segment has
    # been closed", as if the partition were paused. The read goes on with the oldest message there is.
    cleaner = await CleanerClock.create_stream(
        client, name, segment_max_bytes=16_384, retention_max_messages=100
    )
    async with (
        liftenvelope.connect(client._context.options.seeds, prefetch_bytes=65_536) as reader,
        reader.subscribe(name, start="earliest") as messages,
    ):
        for number in range(300):
            await cleaner.wait_async()
            await client.publish(name, b"%d" % number + bytes(2000))

        async def oldest() -> int:
            async with client.subscribe(name, start="earliest") as found:
                return (await take(found, 1))[0].offset

        async with asyncio.timeout(60):
            while await oldest() < 150:
                await asyncio.sleep(0.1)
        await cleaner.wait_async()
        await client.publish(name, b"last")
        offsets: list[int] = []
        async with asyncio.timeout(60):
            while not offsets or offsets[-1] < 300:
                offsets.append((await anext(messages)).offset)
    assert offsets[0] == 0
    assert offsets == sorted(set(offsets))
    assert len(offsets) < 301
    assert offsets[-50:] == list(range(251, 301))


@pytest.mark.parametrize("change", ["pause", "readonly", "restart"])
async def test_creation_time_of_a_stream_is_kept(
    cluster: LiftbridgeCluster, client: Client, name: str, change: str
) -> None:
    await client.create_stream(name, name)
    await fill(client, name, 3)
    before = (await client.fetch_metadata(streams=[name])).streams[name].created_ns
    if change == "pause":
        await client.pause_stream(name)
        await client.publish(name, b"wakes it")
    elif change == "readonly":
        await client.set_stream_readonly(name)
        await client.set_stream_readonly(name, readonly=False)
    else:
        interrupt(cluster)
        cluster.start()
    assert before > 0
    async with client.subscribe(name, start=0) as messages:  # the server has read its log
        assert len(await take(messages, 3)) == 3
    assert (await client.fetch_metadata(streams=[name])).streams[name].created_ns == before
