"""The blocking client against a real server: what the async one does, waited for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import doctest
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import liftenvelope
from liftenvelope import Ack, BlockingClient, Message
from liftenvelope.client._events import ClientEvent, MetadataRefreshed
from liftenvelope.client.activity import StreamCreated
from liftenvelope.client.blocking import BlockingActivityStream, BlockingConsumer, BlockingSubscription
from liftenvelope.errors import (
    IncorrectOffsetError,
    MessageTooLargeError,
    NoSuchStreamError,
    StreamExistsError,
    TransportError,
    UsageError,
)
from liftenvelope.testing import LiftbridgeCluster, run_liftbridge
from tests.integration.conftest import wait_until
from tests.unit.client.test_portal import interrupted_at_the_end

from . import test_groups as groups

#: A server that drops no group member because of a short pause.
liftbridge_server = groups.liftbridge_server

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def client(liftbridge_server: LiftbridgeCluster) -> Iterator[BlockingClient]:
    with liftenvelope.connect_blocking(liftbridge_server.addresses, ack_wait=60) as client:
        yield client


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "liftenvelope-client"}


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def arrow_value(rows: int) -> bytes:
    batch = pa.record_batch({"n": range(rows)}, pa.schema({"n": pa.int64()}))
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


class TestStreams:
    def test_create_look_delete(self, client: BlockingClient, name: str) -> None:
        client.create_stream(name, name, partitions=2)
        assert client.fetch_metadata().partition_count(name) == 2
        assert client.fetch_partition_metadata(name, 1).newest_offset == -1
        with pytest.raises(StreamExistsError):
            client.create_stream(name, name)
        client.delete_stream(name)
        with pytest.raises(NoSuchStreamError):
            client.delete_stream(name)

    def test_arguments_are_checked(self, client: BlockingClient) -> None:
        with pytest.raises(UsageError, match="wildcard"):
            client.create_stream("subject", "a.*")


class TestPublish:
    def test_one(self, client: BlockingClient, name: str) -> None:
        client.create_stream(name, name, optimistic_concurrency=True)
        ack = client.publish(name, b"one", expected_offset=0)
        assert ack is not None
        assert (ack.stream, ack.offset) == (name, 0)
        with pytest.raises(IncorrectOffsetError):
            client.publish(name, b"two", expected_offset=0)

    def test_many_with_an_invalid_message_and_one_in_flight(self, client: BlockingClient, name: str) -> None:
        client.create_stream(name, name)
        items = [b"a", b"x" * 4_200_000, b"b"]
        summary = client.publish_many(name, items, max_in_flight=1, on_error="collect")
        assert (summary.acked, list(summary.failures)) == (2, [1])
        assert isinstance(summary.failures[1], MessageTooLargeError)

    def test_futures(self, client: BlockingClient, name: str) -> None:
        client.create_stream(name, name)
        futures = [client.publish_async(name, value) for value in values(50)]
        assert all(isinstance(future, concurrent.futures.Future) for future in futures)
        acks = [future.result(60) for future in futures]
        assert [ack.offset for ack in acks if ack is not None] == list(range(50))
        client.flush()

    def test_many(self, client: BlockingClient, name: str) -> None:
        client.create_stream(name, name)
        assert client.publish_many(name, values(2000), max_in_flight=100).acked == 2000
        summary = client.publish_many(name, iter(values(3000)))
        assert (summary.acked, summary.failures) == (3000, {})
        assert summary.offsets == {0: (2000, 4999)}
        with client.subscribe(name, start="earliest", stop="latest") as messages:
            assert [message.value for message in messages] == values(2000) + values(3000)

    def test_acks_of_many(self, client: BlockingClient, name: str) -> None:
        client.create_stream(name, name)
        found: list[tuple[int, Ack]] = list(client.publish_acks(name, iter(values(300))))
        assert [(index, ack.offset) for index, ack in found] == [(n, n) for n in range(300)]
        for index, _ in client.publish_acks(name, iter(values(10_000)), max_in_flight=10):
            if index == 20:
                break
        assert client.publish(name, b"goes on") is not None

    def test_from_one_stream_to_another(self, client: BlockingClient, name: str) -> None:
        """The iterable runs in this thread, so it can use the client."""
        copy = f"{name}-copy"
        client.create_stream(name, name)
        client.create_stream(copy, copy)
        client.publish_many(name, values(1500))
        with client.subscribe(name, start="earliest", stop="latest") as messages:
            summary = client.publish_many(copy, (message.value for message in messages))
        assert summary.acked == 1500

    def test_an_error_of_the_iterable(self, client: BlockingClient, name: str) -> None:
        client.create_stream(name, name)

        def broken() -> Iterator[bytes]:
            yield b"0"
            yield b"1"
            raise KeyError("broken")

        with pytest.raises(KeyError, match="broken"):
            client.publish_many(name, broken())
        assert client.fetch_partition_metadata(name).newest_offset == 1

    def test_what_is_no_iterable(self, client: BlockingClient, name: str) -> None:
        client.create_stream(name, name)
        for wrong in (b"bytes", "text", 7):
            with pytest.raises(UsageError, match="must be an iterable"):
                client.publish_many(name, wrong)  # type: ignore[arg-type]


class TestSubscribe:
    @pytest.fixture
    def stream(self, client: BlockingClient, name: str) -> str:
        client.create_stream(name, name)
        client.publish_many(name, values(5000))
        return name

    def test_one_by_one(self, client: BlockingClient, stream: str) -> None:
        with client.subscribe(stream, start="earliest") as messages:
            for number, message in enumerate(messages):
                assert (message.offset, message.value) == (number, b"%d" % number)
                if number in (0, 1, 999, 4999):
                    # Not of what was fetched, but of what was handed out.
                    assert messages.position == number + 1
                if number == 4999:
                    break
            assert messages.next(timeout=0.05) is None
            client.publish(stream, b"late")
            late = messages.next(timeout=60)
            assert late is not None
            assert late.value == b"late"
        assert messages.closed
        assert list(messages) == []

    def test_position_after_the_block_is_the_next_message(self, client: BlockingClient, stream: str) -> None:
        with client.subscribe(stream, start="earliest") as messages:
            assert [next(messages).offset, next(messages).offset] == [0, 1]
        assert (messages.position, messages.positions) == (2, {(stream, 0): 2})
        with client.subscribe(stream, start=messages.position, stop="latest") as rest:
            assert [message.offset for message in rest] == list(range(2, 5000))

    def test_the_ways_go_on_where_the_others_left_off(self, client: BlockingClient, stream: str) -> None:
        with client.subscribe(stream, start="earliest", stop="latest") as messages:
            first = next(messages)
            second = messages.next()
            batch = next(messages.batches(100))
            table = next(messages.arrow_batches(50))
            rest = [message.offset for message in messages]
        assert second is not None
        offsets = [first.offset, second.offset, *(message.offset for message in batch)]
        offsets += [*table.column("offset").to_pylist(), *rest]
        assert offsets == list(range(5000))
        assert messages.finished

    def test_the_loop_is_visited_once_for_each_list(
        self, client: BlockingClient, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Messages are handed over in lists: one switch of threads per message costs too much."""
        visits: list[object] = []

        def count(work: Any) -> Any:
            visits.append(work)
            return call(work)

        with client.subscribe(stream, start="earliest", stop="latest") as messages:
            portal = messages._portal
            call = portal.call
            monkeypatch.setattr(portal, "call", count)
            assert sum(1 for _ in messages) == 5000
        assert 1 < len(visits) < 1000

    def test_batches(self, client: BlockingClient, stream: str) -> None:
        with client.subscribe(stream, start=4000, stop="latest") as messages:
            batches = list(messages.batches(300))
        assert [message.offset for batch in batches for message in batch] == list(range(4000, 5000))
        assert max(map(len, batches)) <= 300

    def test_threads_share_one(self, client: BlockingClient, stream: str) -> None:
        def take(messages: Iterator[Message]) -> list[int]:
            return [message.offset for message in messages]

        with (
            client.subscribe(stream, start="earliest", stop="latest") as messages,
            concurrent.futures.ThreadPoolExecutor(4) as pool,
        ):
            found = [future.result(60) for future in [pool.submit(take, messages) for _ in range(4)]]
        assert sorted(offset for part in found for offset in part) == list(range(5000))
        assert all(part == sorted(part) for part in found)

    def test_interrupt_when_messages_come_loses_none(
        self, client: BlockingClient, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with client.subscribe(stream, start="earliest", stop="latest") as subscription:
            with interrupted_at_the_end(monkeypatch), pytest.raises(KeyboardInterrupt):
                next(subscription)
            assert subscription.position == 0
            found = [next(subscription).offset]
            assert subscription.position == 1
            found += [message.offset for batch in subscription.batches() for message in batch]
        assert found == list(range(len(found)))
        assert len(found) > 1

    @pytest.mark.parametrize(
        "read",
        [
            lambda subscription: subscription.next(),
            lambda subscription: next(subscription.batches(7)),
            lambda subscription: next(subscription.arrow_batches(7)),
        ],
        ids=["next", "batches", "arrow_batches"],
    )
    def test_interrupted_call_loses_no_messages(
        self,
        client: BlockingClient,
        stream: str,
        monkeypatch: pytest.MonkeyPatch,
        read: Callable[[BlockingSubscription], object],
    ) -> None:
        with client.subscribe(stream, start="earliest", stop="latest") as subscription:
            for position in (0, 1):  # with nothing received, and with messages received before
                with interrupted_at_the_end(monkeypatch), pytest.raises(KeyboardInterrupt):
                    read(subscription)
                assert subscription.position == position
                assert next(subscription).offset == position
            assert [message.offset for message in subscription] == list(range(2, 5000))

    def test_interrupt_when_a_reader_has_opened_closes_the_reader(
        self, client: BlockingClient, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subscription, consumer = client.subscribe(stream), client.consumer(stream, stream)
        with interrupted_at_the_end(monkeypatch), pytest.raises(KeyboardInterrupt):
            subscription.open()
        assert subscription.closed
        with interrupted_at_the_end(monkeypatch), pytest.raises(KeyboardInterrupt), consumer:
            pass
        assert not client.fetch_metadata(streams=[], groups=[stream]).groups

    def test_batches_of_arrow_messages_have_each_row_once(
        self, client: BlockingClient, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Messages that are decoded together become batches of their own."""
        client.create_stream(name, name)
        client.publish_many(name, [arrow_value(rows) for rows in (2, 0, 3, 1, 0)])
        with client.subscribe(name, start="earliest", stop="latest") as messages:
            batches = messages.arrow_batches(payload="arrow")
            assert next(batches)["offset"].to_pylist() == [0, 0]
            assert messages.position == 1
            with interrupted_at_the_end(monkeypatch), pytest.raises(KeyboardInterrupt):
                next(batches)
            assert messages.position == 1
            left = messages.arrow_batches(payload="arrow")
            assert next(left)["offset"].to_pylist() == [2, 2, 2]
            assert [message.offset for message in messages] == [3, 4]

    @pytest.mark.parametrize(
        "read", [next, lambda consumer: next(consumer.batches(10))], ids=["iteration", "batches"]
    )
    def test_interrupted_read_of_a_group_is_not_committed(
        self,
        client: BlockingClient,
        stream: str,
        monkeypatch: pytest.MonkeyPatch,
        read: Callable[[BlockingConsumer], object],
    ) -> None:
        with client.consumer(stream, stream, auto_offset="earliest", auto_commit_interval=None) as consumer:
            with interrupted_at_the_end(monkeypatch), pytest.raises(KeyboardInterrupt):
                read(consumer)
            consumer.commit()
            assert client.fetch_cursor(f"__group:{stream}", stream, 0) is None
            assert consumer.position(stream, 0) == 0
            assert [message.offset for message in next(consumer.batches(10))] == list(range(10))

    def test_interrupt_when_messages_of_a_group_come_loses_none(
        self, client: BlockingClient, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            with interrupted_at_the_end(monkeypatch), pytest.raises(KeyboardInterrupt):
                next(consumer)
            assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]

    def test_all_partitions(self, client: BlockingClient, name: str) -> None:
        client.create_stream(name, name, partitions=3)
        client.publish_many(name, values(300), partitioner="round_robin")
        with client.subscribe(name, partitions="all", start="earliest", stop="latest") as messages:
            assert sorted(message.value for message in messages) == sorted(values(300))
        assert messages.positions == {(name, number): 100 for number in range(3)}

    def test_errors_come_from_opening(self, client: BlockingClient, name: str) -> None:
        with pytest.raises(NoSuchStreamError):
            client.subscribe(name).open()
        with pytest.raises(UsageError, match="start must be at least 0, got -1"):
            client.subscribe(name, start=-1)

    def test_closed_by_another_thread(self, client: BlockingClient, stream: str) -> None:
        with client.subscribe(stream) as messages, concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: list(messages))
            assert not concurrent.futures.wait([waiting], timeout=0.1).done
            messages.close()
            assert waiting.result(60) == []


def documented() -> list[doctest.DocTest]:
    """Examples in the docstrings of bound methods. doctest passes over them: their code is elsewhere."""
    parser, members = doctest.DocTestParser(), vars(BlockingClient).items()
    docs = {name: member.__doc__ for name, member in members if not name.startswith("_") and member.__doc__}
    found = [parser.get_doctest(textwrap.dedent(doc), {}, name, None, None) for name, doc in docs.items()]
    return [test for test in found if test.examples]


@pytest.mark.parametrize("example", documented(), ids=lambda example: example.name)
def test_example_in_a_docstring(example: doctest.DocTest) -> None:
    assert doctest.DocTestRunner().run(example).failed == 0


def test_examples_in_docstrings_are_found() -> None:
    assert {"create_stream", "subscribe", "activity"} <= {example.name for example in documented()}


def test_cursors_and_checkpoints(client: BlockingClient, name: str) -> None:
    client.create_stream(name, name)
    client.publish_many(name, values(10))
    assert client.fetch_cursor("reader", name, 0) is None
    with client.checkpointer("reader", name) as checkpoints:
        start = checkpoints.start(0)
        assert start == "earliest"
        with client.subscribe(name, start=start) as messages:
            for message in messages:
                checkpoints.processed(message)
                if message.offset == 6:
                    break
        assert checkpoints.lag(0) == 3
    assert client.fetch_cursor("reader", name, 0) == 6
    with pytest.raises(UsageError, match="not open"):
        checkpoints.processed(0, 7)


def test_groups(client: BlockingClient, name: str) -> None:
    client.create_stream(name, name, partitions=2)
    client.publish_many(name, values(100), partitioner="round_robin")
    assigned: list[tuple[str, int]] = []
    seen_from: list[int | None] = []

    def on_assigned(partitions: list[tuple[str, int]]) -> None:
        assigned.extend(partitions)
        consumer.seek(name, 0, 10)  # what does not wait can be used here
        seen_from.append(consumer.position(name, 0))

    consumer = client.consumer(
        f"g-{name}", name, auto_offset="earliest", auto_commit_interval=None, on_assigned=on_assigned
    )
    found: list[int] = []
    with consumer:
        assert consumer.assignment == {(name, 0), (name, 1)}
        for message in consumer:
            found.append(message.offset)
            if len(found) == 90:
                break
        consumer.commit()
        assert consumer.lag() == {(name, 0): 0, (name, 1): 0}
    assert sorted(assigned) == [(name, 0), (name, 1)]
    assert seen_from == [10]
    assert sorted(found) == sorted([*range(10, 50), *range(50)])


def test_activity(client: BlockingClient, name: str) -> None:
    with client.activity() as events:
        client.create_stream(name, name)
        # What was done before may be recorded only now.
        assert any(isinstance(event, StreamCreated) and event.stream == name for event in events)


@pytest.mark.parametrize("read", [next, lambda events: events.next()], ids=["iteration", "next"])
def test_interrupt_when_an_event_comes_loses_none(
    client: BlockingClient,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[BlockingActivityStream], object],
) -> None:
    client.create_stream(name, name)
    with client.activity(start="earliest") as events:
        first = next(events).offset
        with interrupted_at_the_end(monkeypatch), pytest.raises(KeyboardInterrupt):
            read(events)
        assert (events.position, events.finished) == (first + 1, False)
        event = events.next(60)
        assert event is not None
        assert event.offset == first + 1


class TestThreads:
    def test_a_client_for_many(self, client: BlockingClient, name: str) -> None:
        client.create_stream(name, name)

        def publish(number: int) -> int:
            ack = client.publish(name, b"%d" % number)
            assert ack is not None
            return ack.offset

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(publish, range(200))) == list(range(200))

    async def test_inside_a_running_loop(self, liftbridge_server: LiftbridgeCluster) -> None:
        """As in a notebook."""
        assert asyncio.get_running_loop().is_running()
        with liftenvelope.connect_blocking(liftbridge_server.addresses, ack_wait=60) as client:
            assert client.fetch_metadata().brokers

    def test_events_come_in_the_clients_thread(self, liftbridge_server: LiftbridgeCluster) -> None:
        events: list[ClientEvent] = []
        refused: list[str] = []

        def on_event(event: ClientEvent) -> None:
            events.append(event)
            assert threading.current_thread() in threads()
            if len(events) == 2:
                with pytest.raises(UsageError, match="would wait for itself") as caught:
                    mine.fetch_metadata()
                refused.append(str(caught.value))

        with liftenvelope.connect_blocking(liftbridge_server.addresses, on_event=on_event) as mine:
            mine.fetch_metadata()
        assert isinstance(events[0], MetadataRefreshed)
        assert len(refused) == 1


class TestClose:
    def test_close_leaves_no_thread(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        before = threads()
        client = liftenvelope.connect_blocking(liftbridge_server.addresses)
        assert len(threads() - before) == 1
        client.create_stream(name, name)
        subscription = client.subscribe(name).open()
        checkpoints = client.checkpointer("reader", name)
        checkpoints.__enter__()
        checkpoints.processed(0, 5)
        client.close()
        client.close()
        assert threads() <= before
        # What was open ended with it, in order; ending it once more is fine.
        subscription.close()
        checkpoints.close()
        with pytest.raises(TransportError, match="the client is closed"):
            client.fetch_metadata()
        with pytest.raises(TransportError, match="the client is closed"):
            client.subscribe(name)
        with liftenvelope.connect_blocking(liftbridge_server.addresses, ack_wait=60) as another:
            assert another.fetch_cursor("reader", name, 0) == 5

    def test_close_ends_the_iterations_of_other_threads(
        self, liftbridge_server: LiftbridgeCluster, name: str
    ) -> None:
        with liftenvelope.connect_blocking(liftbridge_server.addresses, ack_wait=60) as client:
            client.create_stream(name, name)
            readers = [client.subscribe(name).open(), client.subscribe(name, partition="all").open()]
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                waiting = [pool.submit(list, reader) for reader in readers]
                assert not concurrent.futures.wait(waiting, timeout=0.1).done
                client.close()
                assert [future.result(60) for future in waiting] == [[], []]
        assert [list(reader) for reader in readers] == [[], []]

    def test_nobody_listens(self) -> None:
        before = threads()
        with pytest.raises(TransportError):
            liftenvelope.connect_blocking("127.0.0.1:1", timeout=1)
        assert threads() <= before

    def test_arguments(self) -> None:
        before = threads()
        with pytest.raises(UsageError, match="ack_wait must be a positive number of seconds, got -1"):
            liftenvelope.connect_blocking("127.0.0.1:1", ack_wait=-1)
        assert threads() <= before

    def test_forgotten(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        """As long as anything of it is in use it lives; then it says so, and ends."""
        before = threads()
        client: BlockingClient | None = liftenvelope.connect_blocking(liftbridge_server.addresses)
        assert client is not None
        client.create_stream(name, name)
        client.publish_many(name, values(10))
        messages = client.subscribe(name, start="earliest", stop="latest").open()
        client = None
        assert [message.value for message in messages] == values(10)
        with pytest.warns(ResourceWarning, match="was not closed"):
            del messages
        wait_until(lambda: threads() <= before)

    def test_a_script_that_forgets_it_ends(self, liftbridge_server: LiftbridgeCluster) -> None:
        source = f"""
            import liftenvelope
            client = liftenvelope.connect_blocking({liftbridge_server.addresses!r})
            client.fetch_metadata()
            print("end")
        """
        done = subprocess.run(
            [sys.executable, "-W", "default", "-c", textwrap.dedent(source)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
        assert "Traceback" not in done.stderr


def test_control_c_while_it_waits(client: BlockingClient, name: str) -> None:
    client.create_stream(name, name)
    # What is run in the background of a shell is started with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with client.subscribe(name) as messages:
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))

        def wait() -> None:
            timer.start()
            next(messages)

        try:
            with pytest.raises(KeyboardInterrupt):
                wait()
        finally:
            signal.signal(signal.SIGINT, before)
        timer.join()
        client.publish(name, b"goes on")
        message = messages.next(timeout=60)
    assert message is not None
    assert message.value == b"goes on"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork(client: BlockingClient, name: str) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with client:
                try:
                    client.fetch_metadata()
                except UsageError as exc:
                    status = 0 if "forked off" in str(exc) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    client.create_stream(name, name)


def test_a_server_that_comes_back(name: str) -> None:
    """While the caller does something else, the loop makes the connection anew."""
    with run_liftbridge() as cluster, liftenvelope.connect_blocking(cluster.addresses, ack_wait=60) as client:
        client.create_stream(name, name)
        client.publish_many(name, values(5))
        with client.subscribe(name, start="earliest") as messages:
            assert [next(messages).value for _ in range(5)] == values(5)
            cluster.stop()
            cluster.start()
            client.publish(name, b"back", timeout=60)
            assert next(messages).value == b"back"
