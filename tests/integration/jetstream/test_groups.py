"""Priority groups (ADR-42) on a real server: pinned clients, overflow, priorities."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import ConsumerNotFoundError, JetStreamError, UsageError
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._events import Pinned, PinNotReleased, PullEvent, Unpinned
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.message import Message
from liftenvelope.testing import FaultProxy, NatsServer
from tests.integration.conftest import connect, until

from .pulling import Bench, Wire, numbered, until_pulled


async def pinned_consumer(bench: Bench, timeout: float = 60, ack_wait: int = 30) -> Consumer:
    return await bench.consumer(
        priority_policy="pinned_client",
        priority_groups=["jobs"],
        priority_timeout=int(timeout * 1e9),
        ack_wait=ack_wait * 10**9,
    )


class Reader:
    """An iteration that runs by itself and counts what it gets."""

    def __init__(self, consumer: Consumer, **options: Any) -> None:
        self.seen: list[bytes] = []
        self.events: list[PullEvent] = []
        self.pins: list[str] = []
        self.unpins: list[str] = []
        self.messages = consumer.messages(
            group="jobs",
            on_event=self.events.append,
            on_pinned=self.pins.append,
            on_unpinned=self.unpins.append,
            **options,
        )

    async def __aenter__(self) -> Reader:
        await self.messages.__aenter__()
        self.task = asyncio.create_task(self.read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.messages.stop()
        await asyncio.wait_for(self.task, 20)

    async def read(self) -> None:
        async for message in self.messages:
            self.seen.append(message.data)
            message.ack()


@asynccontextmanager
async def pinned_reading(
    consumer: Consumer, ending: str, seen: list[bytes], unpins: list[str]
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A reading in the group, and a function that ends it in one of several ways."""
    if ending.startswith("consume"):
        failing: list[bool] = []

        def handle(message: Message) -> None:
            if failing:
                raise ZeroDivisionError
            seen.append(message.data)
            message.ack()

        async with await consumer.consume(
            handle, group="jobs", max_messages=4, on_unpinned=unpins.append
        ) as consumption:

            async def end() -> None:
                if ending == "consume drain":
                    await consumption.drain()
                    return
                failing.append(True)
                await consumer.api.request("STREAM.INFO." + consumer.stream_name)
                await consumer.api.nc.publish(f"{consumer.stream_name}.a", b"fatal")
                with pytest.raises(ZeroDivisionError):
                    await consumption.closed()

            yield end
        return
    messages = consumer.messages(group="jobs", max_messages=4, on_unpinned=unpins.append)
    await messages.__aenter__()

    async def read() -> None:
        async for message in messages:
            seen.append(message.data)
            message.ack()

    reading = asyncio.create_task(read())

    async def end_iteration() -> None:
        if ending == "stop":
            messages.stop()
        elif ending == "drain":
            await messages.drain()
        else:
            await messages.__aexit__(None, None, None)
        await asyncio.wait_for(reading, 60)

    yield end_iteration
    await messages.__aexit__(None, None, None)


class TestPinned:
    async def test_one_gets_everything(self, bench: Bench) -> None:
        """Defect 6: it became its own standby after the first batch."""
        consumer = await pinned_consumer(bench)
        async with Reader(consumer, max_messages=4) as first:
            await until_pulled(consumer)
            async with Reader(consumer, max_messages=4) as second:
                await bench.publish(numbered(100))
                await until(lambda: len(first.seen) + len(second.seen) == 100)
                assert sorted([len(first.seen), len(second.seen)]) == [0, 100]
                pinned = first if first.seen else second
                assert len(pinned.pins) == 1
                assert pinned.events.count(Pinned(pinned.pins[0])) == 1
                state = (await consumer.info()).priority_groups[0]
                assert (state.group, state.pinned_client_id) == ("jobs", pinned.pins[0])

    @pytest.mark.parametrize("ending", ["stop", "drain", "exit", "consume drain", "consume fails"])
    async def test_standby_takes_over_when_the_pinned_reader_ends(self, bench: Bench, ending: str) -> None:
        """The pin would time out after ten minutes."""
        consumer = await pinned_consumer(bench, timeout=600, ack_wait=1)
        await bench.publish(numbered(5))
        unpins: list[str] = []
        seen: list[bytes] = []
        async with pinned_reading(consumer, ending, seen, unpins) as end:
            await until(lambda: len(seen) >= 5)
            async with Reader(consumer, max_messages=4) as standby:
                await until_pulled(consumer, 2)
                (state,) = (await consumer.info()).priority_groups
                await end()
                await bench.publish(numbered(5, 5))
                await until(lambda: set(standby.seen) >= set(numbered(5, 5)))
                assert len(standby.pins) == 1
                await until(lambda: unpins == [state.pinned_client_id])
                assert unpins != standby.pins

    async def test_pin_is_kept_until_what_is_buffered_was_handled(self, bench: Bench) -> None:
        """The pinned reader is alone until its last message is done, also when it drains."""
        consumer = await pinned_consumer(bench, timeout=600, ack_wait=600)
        await bench.publish(numbered(4))
        async with consumer.messages(group="jobs", max_messages=4) as leaving:
            await until(lambda: leaving.buffered == 4)
            async with Reader(consumer, max_messages=4) as standby:
                await until_pulled(consumer)
                await leaving.drain()
                await bench.publish(numbered(4, 4))
                for number in range(4):
                    assert (await leaving.next(timeout=20)).data == b"%d" % number
                (state,) = (await consumer.info()).priority_groups
                assert state.pinned_client_id is not None
                assert standby.seen == []
                with pytest.raises(StopAsyncIteration):
                    await leaving.next()
                await until(lambda: standby.seen == numbered(4, 4))

    @pytest.mark.parametrize("ending", ["stop", "drain"])
    async def test_pin_is_kept_on_request(self, bench: Bench, ending: str) -> None:
        consumer = await pinned_consumer(bench, timeout=600)
        await bench.publish(numbered(1))
        async with consumer.messages(group="jobs") as messages:
            (await messages.next(timeout=20)).ack()
            (before,) = (await consumer.info()).priority_groups
            if ending == "stop":
                messages.stop(unpin=False)
            else:
                await messages.drain(unpin=False)
            assert [message async for message in messages] == []
        assert (await consumer.info()).priority_groups == (before,)

    async def test_newer_pin_of_another_reader_is_left_alone(self, bench: Bench) -> None:
        consumer = await pinned_consumer(bench, timeout=600, ack_wait=600)
        await bench.publish(numbered(4))
        async with consumer.messages(group="jobs", max_messages=4) as leaving:
            await until(lambda: leaving.buffered == 4)  # its pull is filled, so that no 423 tells it
            async with Reader(consumer, max_messages=4) as newer:
                await until_pulled(consumer)
                await consumer.unpin("jobs")
                await bench.publish(numbered(1, 4))
                await until(lambda: newer.seen == numbered(1, 4))
                leaving.stop()
                await leaving._feed.released()
                (state,) = (await consumer.info()).priority_groups
                assert [state.pinned_client_id] == newer.pins

    async def test_pin_that_can_not_be_given_back_is_reported(self, bench: Bench) -> None:
        consumer = await pinned_consumer(bench, timeout=600)
        await bench.publish(numbered(1))
        events: list[PullEvent] = []
        async with consumer.messages(group="jobs", on_event=events.append) as messages:
            (await messages.next(timeout=20)).ack()
            messages.stop(unpin=False)
            await consumer.delete()
            messages._feed.unpin = True
            messages._feed.release()
        await until(lambda: any(isinstance(event, PinNotReleased) for event in events))
        (event,) = (event for event in events if isinstance(event, PinNotReleased))
        assert isinstance(event.error, ConsumerNotFoundError)

    async def test_unpin_moves_the_pin_at_once(self, bench: Bench) -> None:
        consumer = await pinned_consumer(bench, ack_wait=1)
        await bench.publish(numbered(5))
        async with Reader(consumer, max_messages=4) as first:
            await until(lambda: len(first.seen) >= 5)
            async with Reader(consumer, max_messages=4) as second:
                await until_pulled(consumer, 2)
                await consumer.unpin("jobs")
                await bench.publish(numbered(20, 5))
                await until(lambda: len(set(first.seen) | set(second.seen)) == 25)
                await until(lambda: first.unpins == first.pins[:1])
                assert Unpinned(first.pins[0]) in first.events
                assert set(first.seen) | set(second.seen) == set(numbered(25))

    async def test_unpinned_reader_pulls_again_without_waiting_for_a_heartbeat(self, bench: Bench) -> None:
        """After a 423. A heartbeat would come after 30 s, and the pull expire after 60."""
        consumer = await pinned_consumer(bench, timeout=600)
        await bench.publish(numbered(1))
        async with Reader(consumer, max_messages=4, expires=300, idle_heartbeat=30) as reader:
            await until(lambda: len(reader.seen) == 1)
            await consumer.unpin("jobs")
            await bench.publish(numbered(1, 1))
            async with asyncio.timeout(25):  # before the first heartbeat
                await until(lambda: len(reader.seen) == 2)
            assert len(reader.pins) == 2
            assert reader.unpins == reader.pins[:1]

    async def test_a_steady_reader_keeps_its_pin(self, bench: Bench, js_nc: Client) -> None:
        """Servers count pulls, not deliveries: a pull of 100 that waits would lose the pin."""
        consumer = await pinned_consumer(bench, timeout=16)
        async with (
            Wire(js_nc, consumer.pull_subject) as wire,
            Reader(consumer, max_messages=100) as first,
            Reader(consumer, max_messages=100) as second,
        ):
            count = 0

            def all_seen() -> bool:
                return len(first.seen) + len(second.seen) == count

            # Two pulls that bear the pin are eight seconds apart: a pause as long as that loses nothing.
            while sum("id" in pull for pull in wire.pulls()) < 2:
                await bench.publish([b"%d" % count])
                count += 1
                await until(all_seen)
                await asyncio.sleep(0.6)  # the pace of the messages, which is what is tested
            assert sorted([len(first.seen), len(second.seen)]) == [0, count]
            pinned = first if first.seen else second
            assert (len(pinned.pins), pinned.unpins) == (1, [])
        pulls = wire.pulls()
        assert all(pull["expires"] <= 8_000_000_000 for pull in pulls)
        assert {pull["id"] for pull in pulls if "id" in pull} == {pinned.pins[0]}

    @pytest.mark.parametrize("fault", ["cut", "stall"])
    async def test_standby_takes_over_when_the_network_of_the_pinned_reader_fails(
        self, bench: Bench, jetstream_server: NatsServer, fault: str
    ) -> None:
        """The server sees the end of the connection, or nothing at all."""
        consumer = await pinned_consumer(bench, timeout=2, ack_wait=1)
        with FaultProxy(jetstream_server.address) as proxy:
            far_nc = await connect(f"nats://{proxy.address}")
            far = Consumer(Api(far_nc), consumer.cached_info)
            pinned = far.messages(group="jobs", max_messages=4)
            await pinned.__aenter__()
            await bench.publish(numbered(3))
            for _ in range(3):
                await (await pinned.next(timeout=20)).ack_sync(timeout=20)
            async with Reader(consumer, max_messages=4) as standby:
                await until_pulled(consumer, 2)
                if fault == "cut":
                    proxy.refuse()
                    await asyncio.to_thread(proxy.cut)
                else:
                    proxy.stall()
                await bench.publish(numbered(3, 3))
                await until(lambda: set(standby.seen) == set(numbered(3, 3)))
                # More than one pin, if the standby itself stands still for longer than the timeout.
                assert standby.pins
            pinned.stop(unpin=False)
            await far_nc.close()

    async def test_the_pinned_one_hangs(self, bench: Bench) -> None:
        """Its buffer is full and nobody reads from it: it pulls nothing, and so loses its pin."""
        consumer = await pinned_consumer(bench, timeout=1, ack_wait=1)
        pins: list[str] = []
        async with consumer.messages(group="jobs", max_messages=2, on_pinned=pins.append) as hanging:
            await bench.publish(numbered(10))
            await until(lambda: hanging.buffered == 2)
            async with Reader(consumer, max_messages=4) as standby:
                await until(lambda: set(standby.seen) == set(numbered(10)))
                assert len(pins) == 1
                # More than one pin, if the standby itself stands still for longer than the timeout.
                assert standby.pins
                assert pins[0] not in standby.pins

    async def test_fetch_and_next_keep_the_pin(self, bench: Bench, js_nc: Client) -> None:
        consumer = await pinned_consumer(bench)
        await bench.publish(numbered(4))
        async with Wire(js_nc, consumer.pull_subject) as wire:
            for number in range(4):
                message = await consumer.next(timeout=20, group="jobs")
                assert message.data == b"%d" % number
                message.ack()
            await consumer.unpin("jobs")
            await bench.publish(numbered(1, 4))
            assert (await consumer.next(timeout=20, group="jobs")).data == b"4"
            await until(lambda: len(wire.payloads) >= 6)
        ids = [json.loads(payload).get("id") for payload in wire.payloads]
        assert ids[0] is None
        assert ids[1] is not None
        assert ids[1] == ids[2] == ids[3] == ids[4]
        assert ids[5] is None  # pulled again at once, after the 423

    @pytest.mark.parametrize("lost", [False, True])
    async def test_messages_takes_over_the_pin_of_a_fetch(self, bench: Bench, lost: bool) -> None:
        consumer = await pinned_consumer(bench, timeout=600)
        await bench.publish(numbered(3))
        [message] = await consumer.fetch(1, expires=20, group="jobs")
        message.ack()
        pin = message.headers["Nats-Pin-Id"]
        if lost:
            await consumer.unpin("jobs")
        async with Reader(consumer) as reader:
            await until(lambda: reader.seen == numbered(2, 1))
            assert reader.pins[0] == pin
            assert len(reader.pins) == 1 + lost
            assert reader.unpins == [pin] * lost

    async def test_next_with_prefetch_takes_over_the_pin_of_one_without(self, bench: Bench) -> None:
        consumer = await pinned_consumer(bench, timeout=600)
        await bench.publish(numbered(3))
        read = [await consumer.next(timeout=20, group="jobs")]
        read += [await consumer.next(timeout=20, prefetch=2, group="jobs") for _ in range(2)]
        assert [message.data for message in read] == numbered(3)
        consumer.give_back()

    async def test_another_one_may_fetch_only_when_unpinned(self, bench: Bench) -> None:
        consumer = await pinned_consumer(bench)
        await bench.publish(numbered(2))
        (await consumer.next(timeout=20, group="jobs")).ack()
        other = Consumer(bench.api, consumer.cached_info)
        assert await other.fetch_no_wait(1, group="jobs") == []


class TestOverflow:
    async def test_overflow_delivers_only_above_the_threshold(self, bench: Bench) -> None:
        consumer = await bench.consumer(priority_policy="overflow", priority_groups=["jobs"])
        await bench.publish(numbered(10))
        batch = await consumer.fetch(10, expires=3, group="jobs", min_pending=8)
        assert len(batch) == 3
        assert await consumer.fetch_no_wait(10, group="jobs", min_pending=8) == []
        assert len(await consumer.fetch_no_wait(10, group="jobs", min_ack_pending=3)) == 7

    async def test_messages(self, bench: Bench) -> None:
        consumer = await bench.consumer(priority_policy="overflow", priority_groups=["jobs"])
        async with Reader(consumer, min_pending=5, max_messages=20) as reader:
            await bench.publish(numbered(4))
            await until_pulled(consumer)
            assert reader.seen == []
            await bench.publish(numbered(4, 4))
            await until(lambda: len(reader.seen) == 4)


class TestPrioritized:
    async def test_lower_ones_first(self, bench: Bench) -> None:
        consumer = await bench.consumer(priority_policy="prioritized", priority_groups=["jobs"])
        fetching = []
        for count, priority in enumerate((5, 1, 0), 1):
            fetching.append(
                asyncio.create_task(consumer.fetch(2, expires=20, group="jobs", priority=priority))
            )
            await until_pulled(consumer, count)
        await bench.publish(numbered(6))
        low, middle, high = [[message.data for message in batch] for batch in await asyncio.gather(*fetching)]
        assert (high, middle, low) == (numbered(2), numbered(2, 2), numbered(2, 4))


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        ("pinned_client", {}, "group must be one of the consumer's, .* got None"),
        ("pinned_client", {"group": "other"}, "'other'"),
        ("pinned_client", {"group": "jobs", "min_pending": 3}, "min_pending must be None .*, got 3"),
        ("pinned_client", {"group": "jobs", "priority": 3}, "priority must be None .*, got 3"),
        ("overflow", {"group": "jobs", "priority": 3}, "priority must be None .*, got 3"),
        ("overflow", {"group": "jobs", "min_pending": 0}, "min_pending must be"),
        ("prioritized", {"group": "jobs", "priority": 10}, "priority must be"),
        ("prioritized", {"group": "jobs", "min_ack_pending": 1}, "min_ack_pending must be None .*, got 1"),
    ],
)
async def test_checked_against_the_consumer(
    bench: Bench, js_nc: Client, policy: str, options: dict[str, Any], words: str
) -> None:
    consumer = await bench.consumer(priority_policy=policy, priority_groups=["jobs"])
    sent = js_nc.stats["out_msgs"]
    with pytest.raises(UsageError, match=words):
        consumer.messages(**options)
    with pytest.raises(UsageError, match=words):
        await consumer.fetch(1, **options)
    with pytest.raises(UsageError, match=words):
        await consumer.next(timeout=1, **options)
    assert js_nc.stats["out_msgs"] == sent


async def test_unpin_is_checked(bench: Bench) -> None:
    consumer = await pinned_consumer(bench)
    with pytest.raises(UsageError, match="'other'"):
        await consumer.unpin("other")
    overflow = await bench.consumer("other", priority_policy="overflow", priority_groups=["jobs"])
    with pytest.raises(UsageError, match="overflow"):
        await overflow.unpin("jobs")
    await consumer.delete()
    with pytest.raises(JetStreamError):
        await consumer.unpin("jobs")
