"""Acks of what JetStream has stored: each at least once, whatever is lost, stopped or killed meanwhile."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.envelope import Ack, Message, marshal_message, new_message, unmarshal_ack, unmarshal_message
from liftenvelope.errors import LiftEnvelopeError, ServerProtocolError, StreamNotFoundError, UsageError
from liftenvelope.gateway._acks import reader as ack_reader
from liftenvelope.gateway._acks.consumers import ACK_CONSUMER
from liftenvelope.gateway._acks.reader import PartitionAckReader
from liftenvelope.jetstream.context import JetStream
from liftenvelope.nats import AckInbox, EnvelopePublisher, accelerate
from liftenvelope.nats.receiving import DirectSubscription
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from liftenvelope.types import AckError, AckPolicy
from tests.conformance.actions import eventually
from tests.handled import handled
from tests.integration.conftest import connect, freeze, until

#: Of consumers that nothing happens to: longer than their server ever hangs, and than a test takes.
NEVER = 10_000.0


class Partition:
    """A JetStream stream of its own, on the subject of the same name, and the acks that come to its inbox."""

    def __init__(self, nc: Client, name: str) -> None:
        self.nc = nc
        self.js = JetStream(nc)
        self.api = self.js.api
        self.name = name
        self.inbox = nc.new_inbox()
        self.acks: list[Ack] = []

    async def listen(self) -> None:
        """Note the acks that come to the inbox."""
        await self.nc.subscribe(self.inbox, cb=self._note)

    async def create(self, **config: Any) -> Partition:
        await self.listen()
        return await self.store(**config)

    async def store(self, **config: Any) -> Partition:
        """Create the stream."""
        body = {"name": self.name, "subjects": [self.name], "storage": "file", **config}
        await self.api.request(f"STREAM.CREATE.{self.name}", body)
        return self

    async def _note(self, msg: Msg) -> None:
        self.acks.append(unmarshal_ack(msg.data))

    def reader(self, nc: Client | None = None, **options: Any) -> PartitionAckReader:
        return PartitionAckReader(
            nc or self.nc,
            jetstream_stream=self.name,
            stream="orders",
            partition_subject=self.name,
            **options,
        )

    async def publish(self, *ids: str, policy: AckPolicy = AckPolicy.LEADER, **options: Any) -> None:
        """Publish as an application does, which waits for nothing."""
        for ident in ids:
            envelope = new_message(
                b"value", ack_inbox=self.inbox, correlation_id=ident, ack_policy=policy, **options
            )
            await self.nc.publish(self.name, envelope)
        await handled(self.nc)

    async def state(self) -> dict[str, Any]:
        answer: dict[str, Any] = (await self.api.request(f"STREAM.INFO.{self.name}"))["state"]
        return answer

    async def stored(self, count: int) -> None:
        async with asyncio.timeout(60):
            while (await self.state())["last_seq"] < count:
                await asyncio.sleep(0.01)

    async def consumers(self) -> list[dict[str, Any]]:
        answer = await self.api.request(f"CONSUMER.LIST.{self.name}")
        return [info for info in answer["consumers"] or [] if info["name"].startswith(ACK_CONSUMER)]

    async def all_done(self) -> None:
        """Wait until JetStream has heard that every message is dealt with."""
        async with asyncio.timeout(60):
            while True:
                last = (await self.state())["last_seq"]
                if [info["ack_floor"]["stream_seq"] for info in await self.consumers()] == [last]:
                    return
                await asyncio.sleep(0.01)

    @property
    def ids(self) -> list[str]:
        return [ack.correlation_id for ack in self.acks]


@pytest.fixture(autouse=True)
def patient_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep readers from starting again while JetStream hangs for some seconds."""
    monkeypatch.setattr(ack_reader, "_ONE_REQUEST", 60.0)


@pytest.fixture(params=[True, False], ids=["accelerated", "plain"])
async def js_nc(jetstream_server: NatsServer, request: pytest.FixtureRequest) -> Client:
    """A connection to a server with JetStream."""
    client = await connect(jetstream_server.url)
    if request.param:
        assert accelerate(client).active
    return client


@pytest.fixture
async def partition(js_nc: Client, name: str) -> AsyncIterator[Partition]:
    """A partition of the test's own."""
    made = await Partition(js_nc, name).create()
    yield made
    await made.api.request(f"STREAM.DELETE.{name}")


async def acked(partition: Partition, count: int) -> None:
    await until(lambda: len(partition.acks) >= count)


async def test_what_an_ack_says(partition: Partition) -> None:
    async with partition.reader() as reader:
        await partition.publish("a")
        await partition.publish("b", policy=AckPolicy.ALL)
        await acked(partition, 2)
        first, second = partition.acks
        assert (first.stream, first.partition_subject, first.msg_subject) == (
            "orders",
            partition.name,
            partition.name,
        )
        assert (first.correlation_id, first.offset, first.ack_policy) == ("a", 0, AckPolicy.LEADER)
        assert (second.correlation_id, second.offset, second.ack_policy) == ("b", 1, AckPolicy.ALL)
        assert first.error is AckError.OK
        assert first.ack_inbox == partition.inbox
        assert 0 < first.reception_timestamp_ns <= first.commit_timestamp_ns
        await partition.all_done()
        assert (reader.acks_sent, reader.position) == (2, 2)


async def test_what_gets_no_ack_is_stored_all_the_same(partition: Partition) -> None:
    async with partition.reader():
        await partition.publish("none", policy=AckPolicy.NONE)
        odd = [
            b"",
            b"plain",
            new_message(b"no inbox"),
            b"\xb9\x0e\x43\xb4\x00\xff\x00\x00",
            new_message(b"v", ack_inbox=partition.inbox)[:-1],
            marshal_message(Message(b"v", ack_inbox=f"{partition.inbox}\r\nPUB x 0\r\n\r\n")),
            marshal_message(Message(b"v", ack_inbox=f"{partition.inbox}.*")),
            marshal_message(Message(b"v", ack_inbox="$JS.API.STREAM.DELETE." + partition.name)),
            marshal_message(Message(b"v", ack_inbox=partition.inbox, ack_policy=9)),
        ]
        for payload in odd:
            await partition.nc.publish(partition.name, payload)
        await partition.publish("last")
        await acked(partition, 1)
        assert [(ack.correlation_id, ack.offset) for ack in partition.acks] == [("last", len(odd) + 1)]
        assert (await partition.state())["messages"] == len(odd) + 2


async def test_an_ack_that_the_server_does_not_take_costs_nothing_else(partition: Partition) -> None:
    limit = partition.nc.max_payload
    async with partition.reader():
        around = len(new_message(b"value", ack_inbox=partition.inbox, correlation_id="i" * 70_000)) - 70_000
        await partition.publish("i" * (limit - around))
        await partition.publish("next")
        await acked(partition, 1)
        assert partition.ids == ["next"]
        assert partition.nc.stats["reconnects"] == 0


async def test_many_are_acked_in_order(partition: Partition) -> None:
    ids = [str(number) for number in range(5_000)]
    async with partition.reader() as reader:
        await partition.publish(*ids)
        await partition.stored(5_000)
        await acked(partition, 5_000)
        await partition.all_done()
        assert partition.ids == ids
        assert [ack.offset for ack in partition.acks] == list(range(5_000))
        assert reader.acks_sent == 5_000


async def test_the_publishers_of_this_package_get_theirs(partition: Partition) -> None:
    async with partition.reader(), AckInbox(partition.nc, max_outstanding=200) as inbox:
        publisher = EnvelopePublisher(partition.nc, partition.name, inbox=inbox, timeout=60)
        summary = await (await publisher.publish_batch([b"v"] * 2_000))
        assert summary.ok
        assert list(summary.offsets) == list(range(2_000))


async def test_what_was_stored_before_is_acked(partition: Partition) -> None:
    await partition.publish("a", "b", "c")
    await partition.stored(3)
    async with partition.reader():
        await acked(partition, 3)
    assert partition.ids == ["a", "b", "c"]


async def test_what_is_stored_while_nobody_reads_is_acked_later_and_once(partition: Partition) -> None:
    async with partition.reader():
        await partition.publish("a")
        await acked(partition, 1)
        await partition.all_done()
    await partition.publish("b")
    async with partition.reader():
        await partition.publish("c")
        await acked(partition, 3)
        await partition.all_done()
    assert partition.ids == ["a", "b", "c"]


async def test_reader_takes_up_the_consumer_of_the_last_one(partition: Partition) -> None:
    for ident in ("0", "1"):
        async with partition.reader():
            await partition.publish(ident)
            await acked(partition, int(ident) + 1)
            await partition.all_done()
    (consumer,) = await partition.consumers()
    assert consumer["delivered"]["consumer_seq"] == 2
    assert partition.ids == ["0", "1"]


@pytest.mark.parametrize("is_killed", [True, False])
async def test_reader_leaves_a_consumer_with_deliveries_of_which_acks_may_be_missing(
    partition: Partition, is_killed: bool
) -> None:
    """The reader of that consumer received a message, and was killed or hangs."""
    async with partition.reader():
        await partition.publish("0")
        await acked(partition, 1)
        await partition.all_done()
    (before,) = await partition.consumers()
    silent = await partition.nc.subscribe(before["config"]["deliver_subject"])
    await partition.publish("1")
    await silent.next_msg(60)
    if is_killed:
        await silent.unsubscribe()
    async with partition.reader():
        await acked(partition, 2)
        await partition.all_done()
        (now,) = await partition.consumers()
        assert now["name"] != before["name"]
    assert partition.ids == ["0", "1"]


async def test_messages_that_are_gone_are_passed_over(partition: Partition) -> None:
    await partition.publish("a", "b", "c", "d")
    await partition.stored(4)
    await partition.api.request(f"STREAM.MSG.DELETE.{partition.name}", {"seq": 2})
    await partition.api.request(f"STREAM.PURGE.{partition.name}", {"seq": 2})
    async with partition.reader():
        await acked(partition, 2)
        await partition.all_done()
    assert [(ack.correlation_id, ack.offset) for ack in partition.acks] == [("c", 2), ("d", 3)]


async def test_a_second_reader_takes_over(partition: Partition, jetstream_server: NatsServer) -> None:
    elsewhere = await connect(jetstream_server.url)
    first, second = partition.reader(), partition.reader(elsewhere)
    await first.start()
    await partition.publish("a")
    await acked(partition, 1)
    await second.start()
    await first.close()
    await partition.publish("b", "c")
    await acked(partition, 3)
    await second.close()
    await elsewhere.close()
    assert sorted(set(partition.ids)) == ["a", "b", "c"]


async def test_two_readers_that_both_believe_to_lead_miss_nothing(
    partition: Partition, jetstream_server: NatsServer
) -> None:
    elsewhere = await connect(jetstream_server.url)
    ids = [str(number) for number in range(2_000)]
    async with partition.reader(), partition.reader(elsewhere):
        for start in range(0, 2_000, 100):
            await partition.publish(*ids[start : start + 100])
            await asyncio.sleep(0.02)
        await until(lambda: set(ids) <= set(partition.ids))
    await elsewhere.close()
    assert {ack.correlation_id: ack.offset for ack in partition.acks} == {i: int(i) for i in ids}


async def test_reader_finds_its_ack_floor_among_hundreds_of_other_consumers(partition: Partition) -> None:
    """A page of the list has 256 consumers, and these names come first."""
    async with partition.reader():
        await partition.publish("a")
        await acked(partition, 1)
        await partition.all_done()
    config = {"mem_storage": True, "ack_policy": "none", "inactive_threshold": 3_600_000_000_000}
    for number in range(256):
        request = {"stream_name": partition.name, "config": {"name": f"a{number}", **config}}
        await partition.api.request(f"CONSUMER.CREATE.{partition.name}.a{number}", request)
    async with partition.reader():
        await partition.publish("b")
        await acked(partition, 2)
    assert partition.ids == ["a", "b"]
    names = (await partition.api.request(f"CONSUMER.NAMES.{partition.name}"))["consumers"]
    assert len([name for name in names if name.startswith(ACK_CONSUMER)]) == 1


async def test_reader_that_can_not_delete_the_other_consumer_tries_again(
    partition: Partition, jetstream_server: NatsServer
) -> None:
    """The connection is lost between the start and the deletion."""
    errors: list[LiftEnvelopeError] = []
    async with partition.reader():
        pass
    (old,) = await partition.consumers()
    with FaultProxy(jetstream_server.url) as proxy:
        gateway = await connect(f"nats://{proxy.address}")
        reader = partition.reader(gateway, heartbeat=NEVER, on_error=errors.append)
        await reader.start(take_over=False)
        assert len(await partition.consumers()) == 2
        sent = gateway.stats["out_msgs"]
        proxy.stall("to_server")
        taking_over = asyncio.create_task(reader.take_over())
        await until(lambda: gateway.stats["out_msgs"] > sent)
        proxy.cut()
        proxy.resume()
        await taking_over
        assert errors
        await partition.publish("a")
        await acked(partition, 1)
        await partition.all_done()
        (left,) = await partition.consumers()
        assert left["name"] != old["name"]
        await reader.close()
        await gateway.close()
    assert set(partition.ids) == {"a"}


async def test_a_reader_that_was_taken_over_takes_it_back(
    partition: Partition, jetstream_server: NatsServer
) -> None:
    """It is told: the heartbeat of this test would not tell it within hours."""
    elsewhere = await connect(jetstream_server.url)
    async with partition.reader(heartbeat=NEVER) as first:
        second = partition.reader(elsewhere, heartbeat=NEVER)
        await second.start()
        await second.close()
        await partition.publish(*"abc")
        await acked(partition, 3)
        await partition.all_done()
        assert (first.acks_sent, partition.ids) == (3, ["a", "b", "c"])
    await elsewhere.close()


async def test_a_consumer_that_was_deleted_is_made_again(partition: Partition) -> None:
    """JetStream publishes that it was: no heartbeat of this test would tell it within hours."""
    async with partition.reader(heartbeat=NEVER):
        await partition.publish("a")
        await acked(partition, 1)
        (consumer,) = await partition.consumers()
        await partition.api.request(f"CONSUMER.DELETE.{partition.name}.{consumer['name']}")
        await partition.publish("b")
        await acked(partition, 2)
        # What was dealt with before is not acked again.
        assert partition.ids == ["a", "b"]
        await partition.all_done()


@pytest.mark.parametrize("lost", ["a delivery", "the consumer"])
async def test_when_nothing_more_comes_it_asks_once(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Deliveries, or the word that the consumer was deleted, get lost between servers of a cluster."""
    monkeypatch.setattr(ack_reader, "_QUIET", NEVER)
    async with partition.reader(heartbeat=NEVER) as reader:
        await partition.publish("a")
        await acked(partition, 1)
        (consumer,) = await partition.consumers()
        # Mock: on one server nothing is lost but together with the connection.
        for subscription in (reader._subscription, reader._deletions._subscription):
            monkeypatch.setattr(subscription, "handler", lambda _: None)
        if lost == "the consumer":
            await partition.api.request(f"CONSUMER.DELETE.{partition.name}.{consumer['name']}")
        await partition.publish("b")
        async with asyncio.timeout(60):
            while lost == "a delivery" and (await partition.consumers())[0]["delivered"]["consumer_seq"] < 2:
                await asyncio.sleep(0.01)
        assert reader._quiet is not None
        reader._quiet.cancel()
        monkeypatch.setattr(ack_reader, "_QUIET", 0.05)
        reader._await_quiet()
        await acked(partition, 2)
        await partition.all_done()
        assert partition.ids == ["a", "b"]
        (another,) = await partition.consumers()
        assert another["name"] != consumer["name"]


async def test_answer_that_can_not_be_read_ends_no_acks(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAKE: the answer. No server is known to send it."""
    monkeypatch.setattr(ack_reader, "_QUIET", 0.05)
    errors: list[LiftEnvelopeError] = []
    async with partition.reader(on_error=errors.append) as reader:
        request = reader._api.request

        async def answer(subject: str, *arguments: Any, **options: Any) -> Any:
            found = await request(subject, *arguments, **options)
            return found if errors else {"delivered": None}

        monkeypatch.setattr(reader._api, "request", answer)
        await partition.publish("a")
        await until(lambda: errors)
        (consumer,) = await partition.consumers()
        await partition.api.request(f"CONSUMER.DELETE.{partition.name}.{consumer['name']}")
        await partition.publish("b")
        await acked(partition, 2)
    assert [type(error) for error in errors] == [ServerProtocolError]


def _at_least(found: list[str], count: int) -> bool:
    return len(found) >= count


async def test_a_reader_that_has_all_asks_no_more(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_reader, "_QUIET", 0.05)
    asked = []
    subject = f"$JS.API.CONSUMER.INFO.{partition.name}.*"

    async def note(msg: Msg) -> None:
        asked.append(msg.subject)

    async with partition.reader(heartbeat=NEVER) as reader:
        subscription = await partition.nc.subscribe(subject, cb=note)
        await handled(partition.nc)
        for number, ident in enumerate("ab", 1):
            await partition.publish(ident)
            await acked(partition, number)
            await until(partial(_at_least, asked, number))
            await until(lambda: reader._due == reader._flow.delivery)
            assert reader._quiet is None
        await subscription.unsubscribe()
    assert partition.ids == ["a", "b"]


async def test_from_a_message_on(partition: Partition) -> None:
    await partition.publish("a", "b")
    await partition.stored(2)
    async with partition.reader(start_sequence=3):
        pass
    # The next one, which is told nothing, begins there as well.
    await partition.publish("c")
    async with partition.reader():
        await acked(partition, 1)
        await partition.all_done()
    assert partition.ids == ["c"]


async def test_missing_stream_is_an_error(partition: Partition, name: str) -> None:
    reader = PartitionAckReader(partition.nc, jetstream_stream="none", stream="s", partition_subject="s")
    with pytest.raises(StreamNotFoundError):
        await reader.start()
    await reader.close()
    with pytest.raises(UsageError, match="heartbeat"):
        partition.reader(heartbeat=0)


async def test_a_reader_is_started_once_and_closed_twice(partition: Partition) -> None:
    reader = partition.reader()
    await reader.start()
    with pytest.raises(UsageError, match="started already"):
        await reader.start()
    await reader.close()
    await reader.close()


async def has_acked(partition: Partition, ident: str) -> bool:
    return ident in partition.ids


async def test_readers_of_a_connection_share_the_subscription_to_deletions(
    partition: Partition, name: str
) -> None:
    nc = await connect(partition.nc.connected_url.geturl())  # type: ignore[union-attr]
    other = await Partition(partition.nc, f"{name}-other").create()

    def shared() -> int:
        return sum("CONSUMER.DELETED" in subscription.subject for subscription in nc._subs.values())

    async with partition.reader(nc, heartbeat=NEVER):
        async with other.reader(nc, heartbeat=NEVER):
            assert shared() == 1
            for ident, one in (("a", other), ("b", partition), ("c", other)):
                (consumer,) = await one.consumers()
                await one.api.request(f"CONSUMER.DELETE.{one.name}.{consumer['name']}")
                await one.publish(ident)
                await eventually(partial(has_acked, one, ident))
        assert shared() == 1
    assert shared() == 0
    await other.api.request(f"STREAM.DELETE.{other.name}")
    await nc.close()


async def test_reader_that_ends_with_a_defect_logs_it_and_is_unbound(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Faked: there is no known defect."""
    reader = partition.reader()
    await reader.start()

    async def fail() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(reader, "_take_over", fail)
    reader.restored()
    task = reader._task
    assert task is not None
    await asyncio.wait([task])
    assert not reader.is_bound
    [record] = [one for one in caplog.records if "ended with a defect" in one.message]
    assert isinstance(reader._subscription, DirectSubscription)
    await reader.close()
    assert not isinstance(reader._subscription, DirectSubscription)
    assert [one for one in caplog.records if "ended with a defect" in one.message] == [record]
    assert record.exc_info is not None
    assert "a defect" in str(record.exc_info[1])


async def test_a_lost_connection(jetstream_server: NatsServer, name: str) -> None:
    """Messages in transit when the connection is lost are redelivered without waiting for JetStream."""
    nc = await connect(jetstream_server.url)
    partition = await Partition(nc, name).create()
    with FaultProxy(jetstream_server.url) as proxy:
        gateway = await connect(f"nats://{proxy.address}")
        accelerate(gateway)
        async with partition.reader(gateway):
            for round_ in range(4):
                await partition.publish(*(f"{round_}-{number}" for number in range(500)))
                proxy.cut()
                await partition.publish(f"{round_}-last")
            expected = {f"{round_}-{number}" for round_ in range(4) for number in [*range(500), "last"]}
            await until(lambda: expected <= set(partition.ids))
            await partition.all_done()
        await gateway.close()
    assert {ack.correlation_id: ack.offset for ack in partition.acks} == dict(
        zip(in_order(expected), range(len(expected)), strict=True)
    )
    await partition.api.request(f"STREAM.DELETE.{name}")
    await nc.close()


def in_order(ids: set[str]) -> list[str]:
    """As they were published: by round, and the last one last."""
    return sorted(ids, key=lambda ident: (int(ident[0]), ident.endswith("last"), len(ident), ident))


async def test_a_restart_of_the_server(name: str, tmp_path: Any) -> None:
    with run_nats_server(jetstream=True) as server:
        nc, gateway = await connect(server.url), await connect(server.url)
        accelerate(gateway)
        partition = await Partition(nc, name).create()
        async with partition.reader(gateway):
            await partition.publish("a")
            await acked(partition, 1)
            server.kill()
            server.start()
            await until(lambda: all(c.stats["reconnects"] and c.is_connected for c in (nc, gateway)))
            await partition.publish("b")
            await until(lambda: "b" in partition.ids)
            assert {ack.correlation_id: ack.offset for ack in partition.acks} == {"a": 0, "b": 1}
        await gateway.close()
        await nc.close()


# Kill -9 between storing and acking

GATEWAY = """
import asyncio, sys
import nats
from liftenvelope.gateway._acks.reader import PartitionAckReader
from liftenvelope.nats import accelerate

async def main(url, name):
    nc = await nats.connect(url)
    accelerate(nc)
    await PartitionAckReader(nc, jetstream_stream=name, stream="orders", partition_subject=name).start()
    print("reading", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def gateways(jetstream_server: NatsServer, name: str) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts processes that read, and ends them."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", GATEWAY, jetstream_server.url, name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def test_a_reader_that_is_killed(
    partition: Partition, gateways: Callable[[], subprocess.Popen[str]]
) -> None:
    loop = asyncio.get_running_loop()
    expected: set[str] = set()
    for round_ in range(3):
        process = await loop.run_in_executor(None, gateways)
        ids = [f"{round_}-{number}" for number in range(1_500)]
        expected.update(ids)
        await partition.publish(*ids[:500])
        await until(lambda: f"{round_}-0" in partition.ids)  # noqa: B023 - awaited within the round
        freeze(process.pid)  # what is delivered now is in its socket, and never acked by it
        await partition.publish(*ids[500:])
        await partition.stored(len(expected))
        process.kill()
    await loop.run_in_executor(None, gateways)
    await until(lambda: expected <= set(partition.ids))
    await partition.all_done()
    assert {ack.correlation_id for ack in partition.acks} == expected
    for ack in partition.acks:
        round_, number = map(int, ack.correlation_id.split("-"))
        assert ack.offset == 1_500 * round_ + number


# Limits of the server


async def test_server_that_limits_unacknowledged_messages_gets_acks_within_its_limit(name: str) -> None:
    config = {"jetstream": {"limits": {"max_ack_pending": 10}}}
    async with run_nats_server(jetstream=True, config=config) as server:
        nc = await connect(server.url)
        partition = await Partition(nc, name).create()
        async with partition.reader():
            [info] = await partition.consumers()
            assert info["config"]["max_ack_pending"] == 10
            await partition.publish(*map(str, range(50)))
            await acked(partition, 50)
        assert partition.ids == [str(number) for number in range(50)]
        await nc.close()


# Dropped by JetStream


async def test_what_jetstream_drops_gets_no_ack_and_never_a_wrong_one(name: str) -> None:
    """A server whose queue before a stream is short drops what comes too fast, without a word."""
    with run_nats_server(jetstream=True, config={"jetstream": {"max_buffered_msgs": 20}}) as server:
        nc, gateway = await connect(server.url), await connect(server.url)
        accelerate(nc)
        accelerate(gateway)
        partition = await Partition(nc, name).create()
        async with partition.reader(gateway):
            for start in range(0, 20_000, 5_000):
                await partition.publish(*map(str, range(start, start + 5_000)))
            await handled(partition.nc)
            await partition.all_done()
            # What waited in that queue may be stored a little later.
            async with asyncio.timeout(60):
                while (stored := (await partition.state())["messages"]) != len(partition.acks):
                    await asyncio.sleep(0.01)
            assert 0 < stored < 20_000
            for ack in partition.acks[:: max(1, stored // 50)]:
                answer = await partition.api.request(f"STREAM.MSG.GET.{name}", {"seq": ack.offset + 1})
                assert ack.correlation_id in envelope_text(answer)
        await gateway.close()
        await nc.close()


def envelope_text(answer: dict[str, Any]) -> str:
    """The correlation id of a stored message."""
    return unmarshal_message(base64.b64decode(answer["message"]["data"])).correlation_id


async def test_many_partitions_on_one_connection(jetstream_server: NatsServer, name: str) -> None:
    nc = await connect(jetstream_server.url)
    accelerate(nc)
    partitions = [await Partition(nc, f"{name}-{number}").create() for number in range(40)]
    readers = [partition.reader() for partition in partitions]
    await asyncio.gather(*(reader.start() for reader in readers))
    await asyncio.gather(*(partition.publish("a", "b") for partition in partitions))
    await until(lambda: all(partition.ids == ["a", "b"] for partition in partitions))
    await asyncio.gather(*(reader.close() for reader in readers))
    await asyncio.gather(*(p.api.request(f"STREAM.DELETE.{p.name}") for p in partitions))
    await nc.close()
