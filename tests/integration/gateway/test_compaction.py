"""Compaction of a partition in JetStream: the newest of each key stays, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from liftenvelope.envelope import new_message, unmarshal_message
from liftenvelope.errors import (
    CallTimeoutError,
    EnvelopeError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.gateway._leader.compaction import Compaction, CompactionBudget, Compactor
from liftenvelope.gateway._partitions.feed import PartitionDelivery
from liftenvelope.jetstream.context import JetStream
from liftenvelope.jetstream.stream_config import StreamConfig
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect, until


@pytest.fixture
async def js(jetstream_server: NatsServer, name: str) -> AsyncIterator[JetStream]:
    """JetStream with a stream of the test's own."""
    client = await connect(jetstream_server.url)
    # Thousands of publishes at once, and 64 deletions: on a busy disk each may wait for all before it.
    async with JetStream(client, timeout=60) as context:
        await context.create_stream(StreamConfig(name=name, subjects=(name,)))
        yield context
        await context.delete_stream(name)
    await client.close()


async def fill(js: JetStream, name: str, keys: list[bytes]) -> None:
    """Store a message for each key."""
    futures = [await js.publish_async(name, new_message(b"value", key=key)) for key in keys]
    await asyncio.gather(*futures)


async def left(js: JetStream, name: str) -> list[tuple[int, bytes]]:
    """Sequence and key of what is there; the whole payload of what is no envelope."""
    found: list[tuple[int, bytes]] = []
    stream = await js.stream(name)
    waiting = stream.cached_info.state.messages
    if waiting:
        async with stream.ordered_consumer().messages() as messages:
            for _ in range(waiting):
                message = await messages.next(timeout=60)
                try:
                    key = unmarshal_message(message.data).key
                except EnvelopeError:
                    key = message.data
                found.append((message.metadata.stream_sequence, key))
    return found


async def test_the_newest_of_each_key_stays(js: JetStream, name: str) -> None:
    await fill(js, name, [b"a", b"b", b"", b"a", b"c", b"b", b""])
    await js.publish(name, b"plain")
    await js.publish(name, b"plain")
    result = await Compactor(js, name).compact()
    assert result == Compaction(readings=1, read=9, deleted=2)
    kept = [(3, b""), (4, b"a"), (5, b"c"), (6, b"b"), (7, b""), (8, b"plain"), (9, b"plain")]
    assert await left(js, name) == kept


async def test_stream_that_forbids_deletions_is_not_read(js: JetStream, name: str) -> None:
    await fill(js, name, [b"a", b"a"])
    stream = await js.stream(name)
    await js.update_stream(replace(stream.cached_info.config, deny_delete=True))
    with pytest.raises(UsageError, match="deny_delete"):
        await Compactor(js, name).compact()
    assert await left(js, name) == [(1, b"a"), (2, b"a")]


async def test_nothing_new_nothing_done(js: JetStream, name: str) -> None:
    compactor = Compactor(js, name)
    assert await compactor.compact() == Compaction()
    await fill(js, name, [b"a", b"a"])
    assert (await compactor.compact()).deleted == 1
    assert await compactor.compact() == Compaction()
    await fill(js, name, [b"a"])
    assert (await compactor.compact()).deleted == 1
    assert await left(js, name) == [(3, b"a")]


async def test_only_new_messages_are_read_again(js: JetStream, name: str) -> None:
    compactor = Compactor(js, name)
    await fill(js, name, [b"%d" % number for number in range(500)])
    assert await compactor.compact() == Compaction(readings=1, read=500)
    await fill(js, name, [b"7", b"new", b"8", b"7"])
    assert await compactor.compact() == Compaction(readings=1, read=4, deleted=3)
    await fill(js, name, [b"new"])
    assert await compactor.compact() == Compaction(readings=1, read=1, deleted=1)
    keys = [key for _, key in await left(js, name)]
    assert sorted(keys) == sorted([b"new", *(b"%d" % number for number in range(500))])


async def test_another_compactor_reads_everything_once(js: JetStream, name: str) -> None:
    await fill(js, name, [b"a", b"b", b"a"])
    first = Compactor(js, name)
    await first.compact()
    await first.close()  # the partition has another leader, or the gateway begins anew
    await fill(js, name, [b"b"])
    second = Compactor(js, name)
    assert await second.compact() == Compaction(readings=1, read=3, deleted=1)
    assert await first.compact() == Compaction(readings=1, read=2)
    assert await left(js, name) == [(3, b"a"), (4, b"b")]


async def test_many_keys_in_little_memory(js: JetStream, name: str) -> None:
    keys = [b"key-%d" % (number % 300) for number in range(600)]
    await fill(js, name, keys)
    compactor = Compactor(js, name, max_memory=9_000)
    result = await compactor.compact()
    assert result.deleted == 300
    assert result.readings > 1
    assert await left(js, name) == [(n, keys[n - 1]) for n in range(301, 601)]


async def test_partition_without_an_index_waits_until_it_is_dirty(js: JetStream, name: str) -> None:
    await fill(js, name, [b"%d" % number for number in range(100)])
    compactor = Compactor(js, name, budget=CompactionBudget(max_memory=1_000))
    assert (await compactor.compact()).read == 100
    await fill(js, name, [b"0"] * 49)
    assert await compactor.compact() == Compaction()
    await fill(js, name, [b"0"] * 100)
    result = await compactor.compact()
    assert (result.read, result.deleted) == (249, 149)
    assert await compactor.compact() == Compaction()


async def test_compactors_with_one_budget_take_turns(js: JetStream, name: str) -> None:
    budget = CompactionBudget()
    await fill(js, name, [b"a", b"a"])
    async with budget.turn:
        waiting = asyncio.create_task(Compactor(js, name, budget=budget).compact())
        others = Compactor(js, name)
        assert (await others.compact()).deleted == 1
        assert not waiting.done()
    assert await waiting == Compaction(readings=1, read=1)


async def test_stream_of_the_same_name_is_another_one(js: JetStream, name: str) -> None:
    compactor = Compactor(js, name)
    await fill(js, name, [b"a", b"b", b"c"])
    await compactor.compact()
    await js.delete_stream(name)
    await js.create_stream(StreamConfig(name=name, subjects=(name,)))
    await fill(js, name, [b"b", b"c", b"a", b"a"])
    assert await compactor.compact() == Compaction(readings=1, read=4, deleted=1)
    assert await left(js, name) == [(1, b"b"), (2, b"c"), (4, b"a")]


async def test_stream_made_anew_during_a_compaction_loses_nothing(js: JetStream, name: str) -> None:
    count = 3_000
    await fill(js, name, [b"%d" % (number % 1_000) for number in range(count)])
    stream = await js.stream(name)
    is_there = True
    compactor = Compactor(js, name, is_wanted=lambda: is_there)
    compacting = asyncio.create_task(compactor.compact())
    async with asyncio.timeout(60):
        while (await stream.info()).state.messages == count:
            await asyncio.sleep(0)
    is_there = False  # a gateway knows before DeleteStream returns
    await js.delete_stream(name)
    await js.create_stream(StreamConfig(name=name, subjects=(name,)))
    keys = [b"other-%d" % number for number in range(count)]
    await fill(js, name, keys)
    with pytest.raises((StreamNotFoundError, CallTimeoutError)):
        await compacting
    assert [key for _, key in await left(js, name)] == keys
    is_there = True
    assert (await compactor.compact()).deleted == 0


class Rewinding:
    """A stream on a server of its own that can go back to an older state, as after a crash of the machine.

    Args:
        server: The server.
        store: Folder of the server's streams.
        js: JetStream on the server.
        name: Name of the stream.
    """

    def __init__(self, server: NatsServer, store: Path, js: JetStream, name: str) -> None:
        self._server = server
        self._store = store
        self._copy = store.with_name("copy")
        self.js = js
        self.name = name

    async def remember(self) -> None:
        """Copy the state, for :meth:`rewind`."""
        await asyncio.to_thread(self._server.stop)
        shutil.copytree(self._store, self._copy)
        await self._start()

    async def rewind(self) -> None:
        """Go back to the state of :meth:`remember`."""
        await asyncio.to_thread(self._server.kill)
        shutil.rmtree(self._store)
        shutil.copytree(self._copy, self._store)
        await self._start()

    async def _start(self) -> None:
        nc = self.js.api.nc
        reconnects = nc.stats["reconnects"]
        await asyncio.to_thread(self._server.start)
        await until(lambda: nc.is_connected and nc.stats["reconnects"] > reconnects)

    async def fill(self, keys: list[bytes]) -> None:
        await fill(self.js, self.name, keys)

    async def left(self) -> list[tuple[int, bytes]]:
        return await left(self.js, self.name)


@pytest.fixture
async def rewinding(name: str, tmp_path: Path) -> AsyncIterator[Rewinding]:
    store = tmp_path / "store"
    with run_nats_server(jetstream=True, config={"jetstream": {"store_dir": str(store)}}) as server:
        client = await connect(server.url)
        async with JetStream(client, timeout=60) as js:
            await js.create_stream(StreamConfig(name=name, subjects=(name,)))
            yield Rewinding(server, store, js, name)
        await client.close()


async def test_stream_that_went_back_and_grew_again_loses_no_newest_message(rewinding: Rewinding) -> None:
    compactor = Compactor(rewinding.js, rewinding.name)
    await rewinding.fill([b"a", b"b"])
    await rewinding.remember()
    await rewinding.fill([b"c", b"d"])
    assert (await compactor.compact()).read == 4
    await rewinding.rewind()
    # Sequence 3 held key c before. Key e is its only message now.
    await rewinding.fill([b"e", b"c", b"a"])
    assert await compactor.compact() == Compaction(readings=1, read=5, deleted=1)
    assert await rewinding.left() == [(2, b"b"), (3, b"e"), (4, b"c"), (5, b"a")]


async def test_stream_that_went_back_behind_deleted_messages_loses_no_newest_message(
    rewinding: Rewinding,
) -> None:
    """The last message of the partition was deleted before the compaction could read it."""
    compactor = Compactor(rewinding.js, rewinding.name)
    await rewinding.fill([b"a", b"b"])
    await rewinding.remember()
    await rewinding.fill([b"c"])
    await (await rewinding.js.stream(rewinding.name)).delete_message(3)
    await compactor.compact()
    await rewinding.rewind()
    await rewinding.fill([b"a", b"b"])
    assert await compactor.compact() == Compaction(readings=1, read=2, deleted=2)
    assert await rewinding.left() == [(3, b"a"), (4, b"b")]


async def test_index_is_dropped_if_its_last_message_was_deleted(js: JetStream, name: str) -> None:
    compactor = Compactor(js, name)
    await fill(js, name, [b"a", b"b"])
    await compactor.compact()
    await (await js.stream(name)).delete_message(2)
    await fill(js, name, [b"a", b"b"])
    assert await compactor.compact() == Compaction(readings=1, read=3, deleted=1)
    assert await left(js, name) == [(3, b"a"), (4, b"b")]


class Interrupted(Compactor):
    """A compactor that awaits a function before it deletes messages."""

    meanwhile: Callable[[], Awaitable[None]]

    async def _delete(self) -> int:
        await self.meanwhile()
        return await super()._delete()


class Failing(Compactor):
    """A compactor that counts the messages it reads and can't delete any."""

    read = 0

    def _see(self, deliveries: list[PartitionDelivery], last: int) -> int:
        count = super()._see(deliveries, last)
        self.read += count
        return count

    async def _delete(self) -> int:
        raise TransportError("injected")


@pytest.mark.parametrize("more", [0, 2, 6])
async def test_stream_that_goes_back_during_a_compaction_loses_no_newest_message(
    rewinding: Rewinding, more: int
) -> None:
    """Afterwards it has fewer messages than before, as many or more."""
    compactor = Interrupted(rewinding.js, rewinding.name)
    await rewinding.fill([b"a", b"b"])
    await rewinding.remember()
    await rewinding.fill([b"c", b"c"])
    keys = [b"a", b"b", *(b"other-%d" % number for number in range(more))]

    async def go_back() -> None:
        await rewinding.rewind()
        await rewinding.fill(keys[2:])

    compactor.meanwhile = go_back
    with pytest.raises(TransportError, match="has gone back to an older state"):
        await compactor.compact()
    assert [key for _, key in await rewinding.left()] == keys
    again = Compactor(rewinding.js, rewinding.name)
    assert await again.compact() == Compaction(readings=1, read=len(keys))


@pytest.mark.parametrize(("max_memory", "read"), [(1_000, 101), (1 << 20, 0)])
async def test_compaction_that_can_not_delete_keeps_no_index_beyond_the_budget(
    js: JetStream, name: str, max_memory: int, read: int
) -> None:
    """FAKE: the error of the deletion."""
    await fill(js, name, [*(b"%d" % number for number in range(100)), b"0"])
    compactor = Failing(js, name, budget=CompactionBudget(max_memory))
    for _ in range(2):
        compactor.read = 0
        with pytest.raises(TransportError, match="injected"):
            await compactor.compact()
    # A compaction continues an index that was kept, and reads everything without one.
    assert compactor.read == read


async def test_cancelled_compaction_is_finished_by_the_next(js: JetStream, name: str) -> None:
    count = 3_000
    await fill(js, name, [b"%d" % (number % 1_000) for number in range(count)])
    stream = await js.stream(name)
    compactor = Compactor(js, name)
    compacting = asyncio.create_task(compactor.compact())
    async with asyncio.timeout(60):
        while (await stream.info()).state.messages == count:
            await asyncio.sleep(0)
    compacting.cancel()
    await asyncio.wait([compacting])
    await compactor.compact()
    assert (await stream.info()).state.messages == 1_000
    assert [key for _, key in await left(js, name)] == [b"%d" % number for number in range(1_000)]


async def test_what_is_purged_during_a_compaction_does_not_hold_it_up(js: JetStream, name: str) -> None:
    await fill(js, name, [b"%d" % (number % 10) for number in range(20_000)])
    stream = await js.stream(name)
    compacting = asyncio.create_task(Compactor(js, name).compact())
    async with asyncio.timeout(60):
        while (await stream.info()).state.messages == 20_000:
            await asyncio.sleep(0)
    await stream.purge()
    await compacting
    assert (await stream.info()).state.messages == 0


async def test_messages_that_come_and_go_meanwhile(js: JetStream, name: str) -> None:
    await fill(js, name, [b"%d" % (number % 50) for number in range(2_000)])
    stream = await js.stream(name)

    async def disturb() -> None:
        for number in range(20):
            await fill(js, name, [b"%d" % number])
            await stream.purge(sequence=number * 20 + 1)

    await asyncio.gather(Compactor(js, name).compact(), Compactor(js, name).compact(), disturb())
    await Compactor(js, name).compact()
    keys = [key for _, key in await left(js, name)]
    assert sorted(keys) == sorted(b"%d" % number for number in range(50))


async def test_a_partition_that_was_emptied(js: JetStream, name: str) -> None:
    await fill(js, name, [b"a", b"a"])
    await (await js.stream(name)).purge()
    assert (await Compactor(js, name).compact()).read == 0


async def test_the_newest_message_is_gone(js: JetStream, name: str) -> None:
    await fill(js, name, [b"a", b"a", b"b"])
    await (await js.stream(name)).delete_message(3)
    assert (await Compactor(js, name).compact()).deleted == 1
    assert await left(js, name) == [(2, b"a")]


async def test_in_the_background(js: JetStream, name: str) -> None:
    await fill(js, name, [b"a", b"a"])
    compactor = Compactor(js, name, interval=0.05)
    await compactor.start()
    async with asyncio.timeout(60):
        while (await js.stream(name)).cached_info.state.messages > 1:
            await asyncio.sleep(0.01)
    await compactor.close()
    await compactor.close()
    assert await left(js, name) == [(2, b"a")]


async def test_arguments_and_streams_that_are_not_there(js: JetStream, name: str) -> None:
    with pytest.raises(UsageError, match="interval"):
        Compactor(js, name, interval=0)
    with pytest.raises(StreamNotFoundError):
        await Compactor(js, "none").compact()
