"""Cursors and checkpointers on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import liftenvelope
from liftenvelope.client._consuming.checkpointer import Checkpointer
from liftenvelope.client._cursors import CURSORS_STREAM, cursor_partition
from liftenvelope.client._events import CheckpointFailed, ClientEvent, LiftEnvelopeWarning
from liftenvelope.client.cursor_names import cursor_key
from liftenvelope.errors import CursorsUnavailableError, LiftEnvelopeError, UsageError
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, run_liftbridge


@pytest.fixture
async def client(liftbridge_server: LiftbridgeCluster) -> AsyncIterator[liftenvelope.Client]:
    async with liftenvelope.connect(liftbridge_server.addresses, ack_wait=60) as client:
        yield client


class TestCursors:
    async def test_none_at_first(self, client: liftenvelope.Client, name: str) -> None:
        assert await client.fetch_cursor(name, "no-such-stream", 0) is None

    async def test_set_and_fetched(self, client: liftenvelope.Client, name: str) -> None:
        for offset in (0, 5, 2**63 - 1, 3):
            await client.set_cursor(name, "s", 0, offset)
            assert await client.fetch_cursor(name, "s", 0) == offset

    async def test_each_partition_and_stream_has_its_own(
        self, client: liftenvelope.Client, name: str
    ) -> None:
        places = [("s", 0), ("s", 1), ("t", 0)]
        for number, place in enumerate(places):
            await client.set_cursor(name, *place, number)
        assert [await client.fetch_cursor(name, *place) for place in places] == [0, 1, 2]

    async def test_reset(self, client: liftenvelope.Client, name: str) -> None:
        await client.reset_cursor(name, "s", 0)
        await client.set_cursor(name, "s", 0, 7)
        await client.reset_cursor(name, "s", 0)
        assert await client.fetch_cursor(name, "s", 0) is None

    async def test_names_that_are_not_ascii(self, client: liftenvelope.Client, name: str) -> None:
        await client.set_cursor(f"lütt {name}", "größe", 0, 7)
        assert await client.fetch_cursor(f"lütt {name}", "größe", 0) == 7

    async def test_commas(self, client: liftenvelope.Client) -> None:
        with pytest.raises(UsageError, match="comma"):
            await client.fetch_cursor("a,b", "s", 0)
        with pytest.raises(UsageError, match="comma"):
            await client.set_cursor("a", "s,0", 0, 1)

    async def test_many_at_once(self, client: liftenvelope.Client, name: str) -> None:
        await asyncio.gather(*(client.set_cursor(name, "s", number, number) for number in range(50)))
        found = await asyncio.gather(*(client.fetch_cursor(name, "s", number) for number in range(50)))
        assert found == list(range(50))


class TestServers:
    async def test_several_partitions_and_a_restart(self, name: str) -> None:
        with run_liftbridge(config={"cursors": {"stream.partitions": 5}}) as cluster:
            async with liftenvelope.connect(cluster.addresses, ack_wait=60) as client:
                places = {cursor_partition(cursor_key(name, "s", number), 5) for number in range(20)}
                assert len(places) > 2
                for number in range(20):
                    await client.set_cursor(name, "s", number, 100 + number)
                metadata = await client.fetch_metadata(streams=[CURSORS_STREAM])
                assert metadata.partition_count(CURSORS_STREAM) == 5
                cluster.stop()
                cluster.nodes[0].start(wait=False)
                # Right after the start the cursors' stream may not be there yet.
                found = [await client.fetch_cursor(name, "s", number, timeout=60) for number in range(20)]
                assert found == [100 + number for number in range(20)]

    async def test_no_cursors_configured(self, name: str) -> None:
        with run_liftbridge(config={"cursors": {"stream.partitions": 0}}) as cluster:
            async with liftenvelope.connect(cluster.addresses, ack_wait=60) as client:
                with pytest.raises(CursorsUnavailableError, match="keeps no cursors"):
                    await client.fetch_cursor(name, "s", 0, timeout=5)
                with pytest.raises(CursorsUnavailableError, match="keeps no cursors"):
                    await client.set_cursor(name, "s", 0, 1, timeout=5)


def allow(checkpoints: Checkpointer, seconds: float) -> None:
    """From now on it gives up after so many seconds, while its client is as patient as ever."""
    assert checkpoints._writer is not None
    checkpoints._writer._timeout = seconds


async def stored(client: liftenvelope.Client, name: str, offset: int) -> None:
    """Poll until the cursor of partition 0 is there."""
    async with asyncio.timeout(60):
        while await client.fetch_cursor(name, name, 0) != offset:
            await asyncio.sleep(0.02)


class TestCheckpointer:
    async def test_stored_at_the_end(self, client: liftenvelope.Client, name: str) -> None:
        async with client.checkpointer(name, name) as checkpoints:
            assert await checkpoints.start(0) == "earliest"
            assert await checkpoints.start(0, default="new") == "new"
            checkpoints.processed(0, 41)
            checkpoints.processed(1, 5)
        assert await client.fetch_cursor(name, name, 0) == 41
        async with client.checkpointer(name, name) as checkpoints:
            assert await checkpoints.start(0) == 42
            assert await checkpoints.start(1) == 6

    async def test_after_messages_and_after_seconds(self, client: liftenvelope.Client, name: str) -> None:
        async with client.checkpointer(name, name, every_messages=10, every_seconds=3600) as checkpoints:
            for offset in range(9):
                checkpoints.processed(0, offset)
            assert await client.fetch_cursor(name, name, 0) is None
            checkpoints.processed(0, 9)
            await stored(client, name, 9)
        async with client.checkpointer(name, name, every_messages=10, every_seconds=0.3) as checkpoints:
            checkpoints.processed(0, 10)
            await stored(client, name, 10)

    async def test_few_calls(self, client: liftenvelope.Client, name: str) -> None:
        async with client.checkpointer(name, name, every_messages=500, every_seconds=3600) as checkpoints:
            before = (await client.fetch_partition_metadata(CURSORS_STREAM, 0)).newest_offset
            for offset in range(5_000):
                checkpoints.processed(0, offset)
                if offset % 100 == 0:
                    await asyncio.sleep(0)
            await checkpoints.flush()
        after = (await client.fetch_partition_metadata(CURSORS_STREAM, 0)).newest_offset
        assert 1 <= after - before <= 11

    async def test_two_at_once_never_go_back(self, client: liftenvelope.Client, name: str) -> None:
        async with client.checkpointer(name, name) as ahead, client.checkpointer(name, name) as behind:
            ahead.processed(0, 100)
            behind.processed(0, 50)
            await ahead.flush()
            await behind.flush()
            assert await client.fetch_cursor(name, name, 0) == 100
            behind.processed(0, 101)
        assert await client.fetch_cursor(name, name, 0) == 101

    async def test_with_a_subscription(self, client: liftenvelope.Client, name: str) -> None:
        await client.create_stream(name, name)
        for number in range(10):
            await client.publish(name, b"%d" % number)
        seen: list[bytes] = []
        for _ in range(2):
            async with client.checkpointer(name, name) as checkpoints:
                start = await checkpoints.start(0)
                async with client.subscribe(name, start=start, stop="latest") as messages:
                    async for message in messages:
                        seen.append(message.value)
                        checkpoints.processed(message)
                        if len(seen) == 4:
                            break
        assert seen == [b"%d" % number for number in range(10)]

    async def test_lag_and_reset(self, client: liftenvelope.Client, name: str) -> None:
        await client.create_stream(name, name)
        for number in range(10):
            await client.publish(name, b"%d" % number)
        async with client.checkpointer(name, name) as checkpoints:
            assert await checkpoints.lag(0) == 10
            checkpoints.processed(0, 3)
            assert await checkpoints.lag(0) == 6
            await checkpoints.flush()
            await checkpoints.reset(0)
            assert await client.fetch_cursor(name, name, 0) is None
            assert await checkpoints.lag(0) == 10
            checkpoints.processed(0, 1)
        assert await client.fetch_cursor(name, name, 0) == 1

    async def test_unordered_work(self, client: liftenvelope.Client, name: str) -> None:
        async with client.checkpointer(name, name) as checkpoints:
            for offset in range(5):
                checkpoints.delivered(0, offset)
            for offset in (4, 2, 0, 1):
                checkpoints.processed(0, offset)
        assert await client.fetch_cursor(name, name, 0) == 2

    async def test_cancelled(self, client: liftenvelope.Client, name: str) -> None:
        begun = asyncio.Event()

        async def read() -> None:
            async with client.checkpointer(name, name) as checkpoints:
                checkpoints.processed(0, 7)
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.fetch_cursor(name, name, 0) == 7

    async def test_other_streams_messages(self, client: liftenvelope.Client, name: str) -> None:
        async with client.checkpointer(name, name) as checkpoints:
            with pytest.raises(UsageError, match="other"):
                checkpoints.processed(liftenvelope.Message(b"", stream="other"))

    async def test_closed_with_its_client(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        client = await liftenvelope.connect(liftbridge_server.addresses)
        checkpoints = client.checkpointer(name, name)
        await checkpoints.__aenter__()
        checkpoints.processed(0, 3)
        await client.close()
        assert len(asyncio.all_tasks()) == 1
        with pytest.raises(UsageError, match="not open"):
            checkpoints.processed(0, 4)
        async with liftenvelope.connect(liftbridge_server.addresses, ack_wait=60) as another:
            assert await another.fetch_cursor(name, name, 0) == 3

    async def test_server_gone_and_back(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        events: list[ClientEvent] = []
        address = liftbridge_server.addresses[0]
        with FaultProxy(address) as proxy:
            async with liftenvelope.connect(
                proxy.address, address_map={address: proxy.address}, timeout=10.0, on_event=events.append
            ) as client:
                async with client.checkpointer(name, name, every_messages=1) as checkpoints:
                    checkpoints.processed(0, 1)
                    await checkpoints.flush()
                    allow(checkpoints, 0.5)
                    proxy.refuse()
                    proxy.cut()
                    checkpoints.processed(0, 2)
                    async with asyncio.timeout(60):
                        while sum(isinstance(event, CheckpointFailed) for event in events) < 2:
                            await asyncio.sleep(0.02)
                    with pytest.raises(LiftEnvelopeError):
                        await checkpoints.flush()
                    proxy.accept()
                    await stored(client, name, 2)
                failure = next(event for event in events if isinstance(event, CheckpointFailed))
                assert (failure.cursor_id, failure.stream, failure.offset) == (name, name, 2)

    async def test_a_warning_that_is_an_error_is_raised_at_the_end(
        self, liftbridge_server: LiftbridgeCluster, name: str
    ) -> None:
        address = liftbridge_server.addresses[0]
        with FaultProxy(address) as proxy:
            async with liftenvelope.connect(
                proxy.address, address_map={address: proxy.address}, timeout=10.0
            ) as client:
                checkpoints = client.checkpointer(name, name, every_messages=1)
                await checkpoints.__aenter__()
                allow(checkpoints, 0.2)
                proxy.refuse()
                proxy.cut()
                checkpoints.processed(0, 1)
                async with asyncio.timeout(60):
                    while checkpoints._writer is not None and checkpoints._writer.is_running:
                        await asyncio.sleep(0.02)
                with pytest.raises(LiftEnvelopeWarning, match="could not be set to 1"):
                    await checkpoints.close()

    async def test_server_gone_at_the_end(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        address = liftbridge_server.addresses[0]
        with FaultProxy(address) as proxy:
            async with liftenvelope.connect(
                proxy.address, address_map={address: proxy.address}, timeout=10.0
            ) as client:
                checkpoints = client.checkpointer(name, name)

                async def one(error: Exception | None) -> None:
                    async with checkpoints:
                        allow(checkpoints, 0.5)
                        checkpoints.processed(0, 1)
                        proxy.refuse()
                        proxy.cut()
                        if error is not None:
                            raise error

                with pytest.raises(LiftEnvelopeError):
                    await one(None)
                await checkpoints.close()
                checkpoints = client.checkpointer(name, name)
                with pytest.raises(KeyError) as caught:
                    await one(KeyError("the user's own"))
                assert any("could not be stored" in note for note in caught.value.__notes__)
