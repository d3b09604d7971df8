"""Log lines of the library, each provoked on real servers."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from contextlib import AsyncExitStack, suppress

import pyarrow as pa
import pytest
from nats.aio.client import Client

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import Access
from liftenvelope.client import ClientEvent
from liftenvelope.errors import TransportError
from liftenvelope.gateway import Gateway
from liftenvelope.group import Coordinator, GroupConsumer, JetStreamTopic
from liftenvelope.jetstream import ConsumerConfig, JetStream, StreamConfig
from liftenvelope.nats import AckInbox
from liftenvelope.testing import FaultProxy, NatsServer
from tests.integration.conftest import connect, until


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Log information too."""
    caplog.set_level(logging.INFO, "liftenvelope")


def records(caplog: pytest.LogCaptureFixture, logger: str, event: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.name == logger and getattr(one, "event", "") == event]


async def test_lost_and_resumed_subscription(
    jetstream_server: NatsServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    nc = await connect(jetstream_server.url)
    events: list[ClientEvent] = []
    async with Gateway(nc, broker_ttl=60.0) as gateway:
        with FaultProxy(gateway.address) as proxy:
            options = {"address_map": {gateway.address: proxy.address}, "on_event": events.append}
            async with liftenvelope.connect([proxy.address], **options) as client:  # type: ignore[arg-type]
                await client.create_stream(name, name)
                async with client.subscribe(name, start="earliest") as messages:
                    await client.publish(name, b"first")
                    assert (await anext(messages)).value == b"first"
                    waiting = asyncio.ensure_future(anext(messages))
                    proxy.cut()
                    await until(lambda: records(caplog, "liftenvelope.client", "SubscriptionResumed"))
                    await client.publish(name, b"second")
                    assert (await waiting).value == b"second"
                await client.delete_stream(name)
    [lost] = records(caplog, "liftenvelope.client", "SubscriptionLost")
    [back] = records(caplog, "liftenvelope.client", "SubscriptionResumed")
    assert lost.message.startswith(f"{name}[0]: the subscription is lost, resubscribing at 1: ")
    assert back.message.startswith(f"{name}[0]: the subscription is back at 1, from ")
    assert (lost.levelname, lost.stream, lost.partition) == ("WARNING", name, 0)  # type: ignore[attr-defined]
    assert len(events) >= 2
    await nc.close()


async def test_connection_of_a_consumer_that_is_lost_and_back(
    jetstream_server: NatsServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        async with JetStream(nc, timeout=60.0) as js:
            stream = await js.create_stream(StreamConfig(name=name, subjects=(name,)))
            consumer = stream.ordered_consumer()
            async with consumer.messages() as messages:
                await js.publish(name, b"first")
                await anext(messages)
                waiting = asyncio.ensure_future(anext(messages))
                proxy.cut()
                await until(lambda: records(caplog, "liftenvelope.jetstream", "OrderedReset"))
                waiting.cancel()
                await asyncio.wait([waiting])
            await js.delete_stream(name)
        await nc.close()
    # A connection that is back at once was never seen without.
    for event, level in (("Reconnected", "WARNING"), ("OrderedReset", "INFO")):
        [one] = records(caplog, "liftenvelope.jetstream", event)
        assert one.message.startswith(f"{name}/ordered: ")
        assert one.levelname == level


async def test_generations_and_leases_of_groups(
    jetstream_server: NatsServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    nc = await connect(jetstream_server.url)
    coordinator = Coordinator(nc, prefix=name, bucket=name, coordinator_id="c1", lease=60.0)
    async with JetStream(nc, timeout=60.0) as js, coordinator:
        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
        topic = JetStreamTopic.of_stream(name, [f"{name}.0", f"{name}.1"])
        joining = GroupConsumer(
            nc, "billing", topic, prefix=name, consumer_id="m1", auto_offset="earliest", timeout=60.0
        )
        async with joining as consumer:
            await js.publish(f"{name}.0", b"first")
            await anext(consumer)
        await js.delete_stream(name)
    await nc.close()
    lines = [one.message for one in caplog.records if one.name == "liftenvelope.group"]
    assert "coordinator c1: has its lease" in lines
    # A member that asks again before its first registration is answered makes one more generation.
    text = "\n".join(lines)
    assert re.search(r"^group billing: generation \d+ has 1 member$", text, re.MULTILINE)
    assert re.search(r"^group billing: m1 has 2 partitions in generation \d+$", text, re.MULTILINE)


async def test_ack_inbox_whose_connection_is_closed(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    nc = await connect(nats_server.url)
    inbox = await AckInbox(nc).start()
    waiting = asyncio.ensure_future(inbox.publish("nobody", b"", timeout=600.0))
    await until(lambda: inbox.outstanding)
    await nc.close()
    with pytest.raises(TransportError):
        await waiting
    assert f"{inbox.subject} ended with its connection, 1 without ack" in caplog.text
    with suppress(TransportError):
        await inbox.close()


async def test_ack_inbox_without_pending_acks_warns_of_nothing(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "liftenvelope")
    nc = await connect(nats_server.url)
    inbox = await AckInbox(nc).start()
    await nc.close()
    line = f"{inbox.subject} ended with its connection, 0 without ack"
    await until(lambda: line in caplog.text)
    assert [one.levelno for one in caplog.records if one.message == line] == [logging.INFO]
    with suppress(TransportError):
        await inbox.close()


async def test_ack_that_nats_py_refuses_after_the_call(
    jetstream_server: NatsServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Only without access to the inside of nats-py: the ack is sent by a task then."""
    nc = await connect(jetstream_server.url)
    js = JetStream(nc, timeout=60)
    stream = await js.create_stream(StreamConfig(name=name))
    await js.publish(name)
    message = await (await stream.create_consumer(ConsumerConfig(name="packing"))).next(timeout=60)
    message._acks._link.direct = False
    message.ack()
    await nc.close()
    await until(lambda: not message._acks._sending)
    assert f"the ack to {message.reply} was not sent: nats-py could not publish" in caplog.text
    gc.collect()  # asyncio reports the exception of a task that nobody has retrieved
    nc = await connect(jetstream_server.url)
    await JetStream(nc).delete_stream(name)
    await nc.close()


def test_bulk_read_and_write_that_go_on(
    jetstream_server: NatsServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def make(nc: Client) -> None:
        async with JetStream(nc, timeout=60.0) as js:
            await js.create_stream(StreamConfig(name=name, subjects=(name,)))

    async def made() -> None:
        nc = await connect(jetstream_server.url)
        await make(nc)
        await nc.close()

    asyncio.run(made())
    table = pa.table({"value": [bytes(10_000)] * 2_000})
    access = Access(reconnect_wait=60.0)
    with FaultProxy(jetstream_server.address) as proxy:
        url = f"nats://{proxy.address}"
        proxy.truncate(1_000_000, "to_server")
        written = bulk.write(url, name, table, subject=name, message_id="job", access=access)
        assert written.acked == 2_000
        reader = bulk.read(url, name, batch_rows=10, access=access)
        rows = reader.read_next_batch().num_rows
        proxy.cut()
        rows += sum(batch.num_rows for batch in reader)
        assert rows == 2_000
    lines = [one.message for one in caplog.records if one.name == "liftenvelope.bulk"]
    assert any("the write is lost, " in line and "writing on: " in line for line in lines)
    assert any("lost at offset" in line and "reading on: " in line for line in lines)


async def test_lines_that_a_server_repeats_are_limited(
    jetstream_server: NatsServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A hundred consumptions lose one connection."""
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        async with JetStream(nc, timeout=60.0) as js, AsyncExitStack() as stack:
            stream = await js.create_stream(StreamConfig(name=name, subjects=(name,)))
            iterations = [stream.ordered_consumer().messages() for _ in range(100)]
            await asyncio.gather(*map(stack.enter_async_context, iterations))
            readers = [asyncio.ensure_future(anext(aiter(one))) for one in iterations]
            await until(lambda: nc.stats["out_msgs"] > 300)
            proxy.cut()
            await until(lambda: len(records(caplog, "liftenvelope.jetstream", "Reconnected")) >= 20)
            await js.account_info()
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)
            await js.delete_stream(name)
        await nc.close()
    assert len(records(caplog, "liftenvelope.jetstream", "Reconnected")) == 20
