"""``messages`` and ``consume`` on a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import (
    BadRequestError,
    ConnectionClosedError,
    ConsumerDeletedError,
    PushConsumerError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.jetstream._events import LimitExceeded, MessageTooLarge, PullEvent
from liftenvelope.jetstream.message import Message
from tests.integration.conftest import until

from .pulling import (
    Bench,
    Wire,
    feed_of,
    numbered,
    read_all,
    until_acked,
    until_no_pulls,
    until_pulled,
)


class TestMessages:
    async def test_delivers_all_in_order(self, bench: Bench) -> None:
        await bench.publish(numbered(2000))
        consumer = await bench.consumer()
        seen: list[bytes] = []
        async with consumer.messages(max_messages=100) as messages:
            async for message in messages:
                seen.append(message.data)
                message.ack()
                assert messages.buffered < 100
                if len(seen) == 2000:
                    break
        assert seen == numbered(2000)
        await until_no_pulls(consumer)
        await until_acked(consumer)
        assert consumer.cached_info.num_pending == 0

    @pytest.mark.parametrize("max_messages", [1, 2, 3])
    async def test_small_limits_do_not_stall(self, bench: Bench, max_messages: int) -> None:
        """Defect 1: a threshold of half of 1 is 0, and nothing was below it."""
        await bench.publish(numbered(50))
        consumer = await bench.consumer()
        async with asyncio.timeout(20), consumer.messages(max_messages=max_messages) as messages:
            assert [(await messages.next()).data for _ in range(50)] == numbered(50)

    async def test_read_before_the_start_is_refused(self, bench: Bench) -> None:
        messages = (await bench.consumer()).messages()
        with pytest.raises(UsageError, match="use async with"):
            await messages.next(timeout=20)

    async def test_messages_published_later(self, bench: Bench) -> None:
        consumer = await bench.consumer()
        async with consumer.messages() as messages:
            for number in range(20):
                await bench.publish([b"%d" % number])
                assert (await messages.next(timeout=20)).data == b"%d" % number

    async def test_bytes(self, bench: Bench) -> None:
        """Defect 7: sizes are those of the server; batches that are filled exactly end without a word."""
        await bench.publish([b"x" * 100] * 300, headers={"A": "1", "B": "ö"})
        consumer = await bench.consumer(ack_policy="none")
        async with asyncio.timeout(60), consumer.messages(max_bytes=1000) as messages:
            feed = feed_of(messages)
            for _ in range(300):
                await messages.next()
                assert feed._core.buffered == feed.buffer.buffered <= 1000
            assert feed._core.buffered == 0

    async def test_a_message_of_exactly_max_bytes(self, bench: Bench) -> None:
        await bench.publish([b"x" * 200] * 20)
        consumer = await bench.consumer(ack_policy="none")
        probe = await (await bench.consumer("probe")).next(timeout=20)
        # Consumer names differ in length by one; sequences and counts have the same digits up to nine.
        exact = len(probe.subject) + len(probe.reply.replace("probe", "worker")) + 200
        async with asyncio.timeout(20), consumer.messages(max_bytes=exact + 3) as messages:
            for _ in range(20):
                await messages.next()

    async def test_too_large_a_message_is_reported_and_not_spun_on(self, bench: Bench, js_nc: Client) -> None:
        """Defect 8: 645 pulls in two seconds."""
        await bench.publish([b"x" * 5000])
        consumer = await bench.consumer()
        events: list[PullEvent] = []
        async with Wire(js_nc, consumer.pull_subject) as wire:
            async with consumer.messages(max_bytes=1000, on_event=events.append) as messages:
                with pytest.raises(TimeoutError):
                    await messages.next(timeout=1)
                await until(lambda: MessageTooLarge(1000) in events)
            assert len(wire.payloads) < 10

    async def test_refusals_back_off(self, bench: Bench, js_nc: Client) -> None:
        """Defect 8: 623 pulls in two seconds. Pulls go on as soon as the limit allows."""
        consumer = await bench.consumer()
        await bench.consumer(max_batch=5)
        events: list[PullEvent] = []
        async with (
            Wire(js_nc, consumer.pull_subject) as wire,
            consumer.messages(max_messages=10, on_event=events.append) as messages,
        ):
            with pytest.raises(TimeoutError):
                await messages.next(timeout=1)
            await until(lambda: len(wire.payloads) >= 2)
            assert len(wire.payloads) < 10
            assert any(
                isinstance(event, LimitExceeded) and "MaxRequestBatch" in str(event) for event in events
            )
            await bench.consumer()
            await bench.publish(numbered(1))
            assert (await messages.next(timeout=20)).data == b"0"

    @pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1"])
    async def test_wrong_timeout_is_refused_and_the_iteration_goes_on(
        self, bench: Bench, timeout: Any
    ) -> None:
        await bench.publish(numbered(1))
        consumer = await bench.consumer()
        async with consumer.messages() as messages:
            await until(lambda: messages.buffered == 1)
            with pytest.raises((UsageError, UsageTypeError), match="timeout must be"):
                await messages.next(timeout=timeout)
            assert (await messages.next(timeout=0)).data == b"0"
            with pytest.raises(TimeoutError):
                await messages.next(timeout=0)

    async def test_forged_statuses_are_messages(self, bench: Bench) -> None:
        """Defect 21: by their headers alone these could not be told from the server's own."""
        forged = {"Status": "409", "Description": "Consumer Deleted"}
        await bench.publish([b"", b""], headers=forged)
        await bench.publish(numbered(1))
        consumer = await bench.consumer()
        async with asyncio.timeout(20), consumer.messages() as messages:
            assert [(await messages.next()).data for _ in range(3)] == [b"", b"", b"0"]

    async def test_consumer_deleted(self, bench: Bench) -> None:
        """Defects 11 and 22: the end was silent, or a full time-out."""
        await bench.publish(numbered(3))
        consumer = await bench.consumer()
        async with consumer.messages() as messages:
            await until(lambda: messages.buffered == 3)
            await consumer.delete()
            got: list[bytes] = []
            with pytest.raises(ConsumerDeletedError) as caught:
                await read_all(messages, got)
            assert got == numbered(3)  # what had come was delivered first
            assert caught.value.code == 409
            with pytest.raises(ConsumerDeletedError):
                await messages.closed()

    async def test_consumer_deleted_between_pulls(self, bench: Bench) -> None:
        """No pull waits, so that no status tells: the next one is answered by nobody."""
        await bench.publish(numbered(10))
        consumer = await bench.consumer()
        async with asyncio.timeout(20), consumer.messages(max_messages=2) as messages:
            await messages.next()
            await until(lambda: messages.buffered == 2 or feed_of(messages)._core.asked == 0)
            await consumer.delete()
            with pytest.raises(ConsumerDeletedError):
                await read_all(messages, [])

    async def test_stream_deleted(self, bench: Bench) -> None:
        consumer = await bench.consumer()
        async with asyncio.timeout(20), consumer.messages() as messages:
            await until_pulled(consumer)
            await bench.delete()
            with pytest.raises(ConsumerDeletedError):
                await messages.next()
        await bench.create()

    async def test_bad_request_ends_it(self, bench: Bench) -> None:
        """Defect 14: the consumer was given a policy since its info was cached."""
        consumer = await bench.consumer()
        await bench.consumer(priority_policy="overflow", priority_groups=["jobs"])
        async with consumer.messages() as messages:
            with pytest.raises(BadRequestError, match="Priority Group"):
                await messages.next(timeout=20)

    async def test_push_consumer_is_refused_before_pulling(self, bench: Bench) -> None:
        consumer = await bench.consumer(deliver_subject="somewhere")
        with pytest.raises(PushConsumerError, match="somewhere"):
            consumer.messages()
        with pytest.raises(PushConsumerError):
            await consumer.fetch(1)

    async def test_stop_discards_and_leaves_no_pull(self, bench: Bench, js_nc: Client) -> None:
        await bench.publish(numbered(10))
        consumer = await bench.consumer()
        subscriptions = len(js_nc._subs)
        async with consumer.messages() as messages:
            await until(lambda: messages.buffered == 10)
            messages.stop()
            messages.stop()
            assert [message async for message in messages] == []
            await messages.closed()
        assert len(js_nc._subs) == subscriptions
        await until_no_pulls(consumer)

    async def test_connection_closed_by_its_owner(self, bench: Bench, js_nc: Client) -> None:
        await bench.publish(numbered(3))
        consumer = await bench.consumer()
        async with consumer.messages() as messages:
            await until(lambda: messages.buffered == 3)
            await js_nc.close()
            got: list[bytes] = []
            with pytest.raises(ConnectionClosedError):
                await read_all(messages, got)
        assert got == numbered(3)

    async def test_connection_drained_by_its_owner(self, bench: Bench, js_nc: Client) -> None:
        consumer = await bench.consumer()
        async with consumer.messages() as messages:
            await until_pulled(consumer)
            draining = asyncio.create_task(js_nc.drain())
            with pytest.raises(ConnectionClosedError):
                await messages.next(timeout=20)
            await draining

    async def test_cancelled_while_waiting(self, bench: Bench, js_nc: Client) -> None:
        consumer = await bench.consumer()
        subscriptions = len(js_nc._subs)

        async def read() -> None:
            async with consumer.messages() as messages:
                await messages.next()

        reading = asyncio.create_task(read())
        await until_pulled(consumer)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert len(js_nc._subs) == subscriptions
        await until_no_pulls(consumer)

    async def test_two_readers_share(self, bench: Bench) -> None:
        consumer = await bench.consumer()
        seen: list[bytes] = []

        async def read(count: int) -> None:
            async with consumer.messages(max_messages=4) as messages:
                while len(seen) < count:
                    message = await messages.next(timeout=20)
                    message.ack()
                    seen.append(message.data)
                    await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(stops_quietly(read(200)))
            await bench.publish(numbered(208))
        assert len(seen) == len(set(seen)) >= 200

    async def test_one_waits_at_a_time(self, bench: Bench) -> None:
        consumer = await bench.consumer()
        async with consumer.messages() as messages:
            waiting = asyncio.ensure_future(messages.next())
            await asyncio.sleep(0)
            with pytest.raises(UsageError, match="read in one task at a time"):
                await messages.next()
            waiting.cancel()
            await asyncio.wait({waiting})

    @pytest.mark.parametrize(
        "options",
        [
            {"max_messages": 0},
            {"max_messages": -1},
            {"max_messages": 10, "max_bytes": 10},
            {"max_bytes": 0},
            {"max_messages": 10, "threshold_messages": 50},
            {"max_messages": 10, "threshold_messages": 0},
            {"max_messages": 10, "threshold_bytes": 5},
            {"max_bytes": 10, "threshold_messages": 5},
            {"expires": 0.5},
            {"expires": 0},
            {"idle_heartbeat": 20},
            {"idle_heartbeat": 0.1},
            {"on_reconnect": "pray"},
            {"group": "jobs"},
            {"priority": 3},
            {"max_messages": True},
        ],
    )
    async def test_options_are_checked_before_anything_is_sent(
        self, bench: Bench, js_nc: Client, options: dict[str, int]
    ) -> None:
        """Defect 14."""
        consumer = await bench.consumer()
        sent = js_nc.stats["out_msgs"]
        with pytest.raises(UsageError):
            consumer.messages(**options)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            await consumer.consume(lambda _: None, **options)  # type: ignore[arg-type]
        assert js_nc.stats["out_msgs"] == sent


class TestConsume:
    async def test_plain_function(self, bench: Bench) -> None:
        await bench.publish(numbered(1000))
        consumer = await bench.consumer()
        seen: list[bytes] = []

        def handle(message: Message) -> None:
            seen.append(message.data)
            message.ack()

        async with await consumer.consume(handle):
            await until(lambda: len(seen) == 1000)
        assert seen == numbered(1000)
        await until_acked(consumer)

    async def test_coroutine_function(self, bench: Bench) -> None:
        await bench.publish(numbered(100))
        consumer = await bench.consumer()
        seen: list[bytes] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            seen.append(message.data)
            message.ack()

        async with await consumer.consume(handle, max_messages=10) as consumption:
            await until(lambda: len(seen) >= 50)
            await consumption.drain()
        assert seen == numbered(len(seen))

    @pytest.mark.parametrize("auto_ack_progress", [False, True])
    async def test_handler_that_raises_a_cancellation_fails_the_consumption(
        self, bench: Bench, auto_ack_progress: bool
    ) -> None:
        """``closed()`` raised CancelledError in a task that nobody had cancelled."""
        await bench.publish(numbered(2))
        consumer = await bench.consumer(ack_wait=1)

        async def handle(message: Message) -> None:
            work = asyncio.create_task(asyncio.sleep(600))
            work.cancel()
            await work

        consumption = await consumer.consume(handle, auto_ack_progress=auto_ack_progress)
        with pytest.raises(UsageError, match="handler must not raise CancelledError"):
            await consumption.closed()
        redelivered = [await consumer.next(timeout=60) for _ in range(2)]
        assert sorted(message.data for message in redelivered) == numbered(2)

    async def test_cancelled_consumption_stays_cancelled(self, bench: Bench) -> None:
        await bench.publish(numbered(1))
        consumer = await bench.consumer()
        called = asyncio.Event()

        async def handle(message: Message) -> None:
            called.set()
            await asyncio.sleep(600)

        before = asyncio.all_tasks()
        consumption = await consumer.consume(handle)
        await asyncio.wait_for(called.wait(), 60)
        for task in asyncio.all_tasks() - before:  # as asyncio.run() does at its end
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumption.closed()

    async def test_what_the_handler_raises_ends_it(self, bench: Bench) -> None:
        await bench.publish(numbered(3))
        consumer = await bench.consumer()

        def handle(message: Message) -> None:
            raise ZeroDivisionError(message.data)

        consumption = await consumer.consume(handle)
        with pytest.raises(ZeroDivisionError, match="0"):
            await consumption.closed()
        await until_no_pulls(consumer)

    async def test_consumer_deleted(self, bench: Bench) -> None:
        consumer = await bench.consumer()
        consumption = await consumer.consume(lambda _: None)
        await until_pulled(consumer)
        await consumer.delete()
        with pytest.raises(ConsumerDeletedError):
            await consumption.closed()

    @pytest.mark.parametrize(
        "config", [{"ack_wait": 30_000_000_000}, {"backoff": [600_000_000_000, 30_000_000_000]}]
    )
    async def test_auto_ack_progress_keeps_a_message(self, bench: Bench, config: dict[str, Any]) -> None:
        await bench.publish(numbered(1))
        consumer = await bench.consumer(**config)  # one progress ack every 10 s
        seen: list[bytes] = []
        done = asyncio.Event()

        async with Wire(bench.nc, f"$JS.ACK.{bench.name}.>") as wire:

            async def handle(message: Message) -> None:
                seen.append(message.data)
                await until(lambda: wire.payloads)  # sent while the handler works
                assert wire.payloads == [b"+WPI"]
                message.ack()
                done.set()

            async with await consumer.consume(handle, auto_ack_progress=True):
                await asyncio.wait_for(done.wait(), 60)
        assert seen == [b"0"]
        assert (await consumer.info()).num_redelivered == 0

    async def test_stop_lets_a_running_handler_finish(self, bench: Bench) -> None:
        await bench.publish(numbered(5))
        consumer = await bench.consumer()
        started, go_on = asyncio.Event(), asyncio.Event()
        seen: list[bytes] = []

        async def handle(message: Message) -> None:
            started.set()
            await go_on.wait()
            seen.append(message.data)

        consumption = await consumer.consume(handle)
        await started.wait()
        consumption.stop()
        go_on.set()
        await consumption.closed()
        assert seen == [b"0"]


async def stops_quietly(reading: object) -> None:
    """A reader that finds nothing more to read after the other one has had its share."""
    try:
        await reading  # type: ignore[misc]
    except TimeoutError:
        return
