"""A gateway that stops: nothing stored stays without its ack, and no publish without its outcome."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client._publish_summary import PublishSummary
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.errors import AckTimeoutError, TransportError
from liftenvelope.gateway import Gateway
from liftenvelope.rpc.aio import Call, Channel
from liftenvelope.rpc.status import UNANSWERED_IS_NOT_STORED, CallNotProcessedError, RpcError, StatusCode
from liftenvelope.testing import NatsServer, run_gateway, run_nats_server
from liftenvelope.testing._ports import free_port
from tests.handled import handled
from tests.integration.conftest import connect, until

from .program_log import unexpected

LINE = re.compile(r"serving the Liftbridge API on (\S+), with the streams of (nats://\S+) in .*\n")


@asynccontextmanager
async def serving(folder: Path, nats_port: int) -> AsyncIterator[tuple[Process, str, str]]:
    """``liftenvelope serve``: the process, its address, and the URL of its NATS server."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "liftenvelope", "serve", "--listen", "127.0.0.1:0"),
        *("--data-dir", str(folder), "--nats-listen", f"127.0.0.1:{nats_port}", "--drain", "60"),
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        match = LINE.fullmatch(line)
        assert match is not None, line or await process.communicate()
        yield process, match[1], match[2]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def stopped(process: Process) -> None:
    """Send SIGTERM, and see that it ends as it should."""
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(120):
        _, errors = await process.communicate()
    assert (process.returncode, unexpected(errors.decode())) == (0, [])


async def stored(folder: Path, nats_port: int, name: str) -> int:
    """Return the number of messages of a stream after a restart."""
    async with serving(folder, nats_port) as (process, address, _):
        async with liftenvelope.connect([address]) as client:
            found = await client.fetch_partition_metadata(name, 0)
        await stopped(process)
    return found.newest_offset + 1


async def test_every_stored_message_of_publish_many_has_its_ack(tmp_path: Path, name: str) -> None:
    nats_port, going = free_port(), True

    async def values() -> AsyncIterator[bytes]:
        while going:
            yield b"x" * 256
            await asyncio.sleep(0)

    async with (
        serving(tmp_path, nats_port) as (process, address, _),
        liftenvelope.connect([address]) as client,
    ):
        await client.create_stream(name, name)
        run = client.publish_many(name, values(), max_in_flight=1_000, on_error="collect", timeout=20.0)
        publishing = asyncio.ensure_future(_finished(run))
        await until(lambda: run.summary.acked > 5_000)
        await stopped(process)
        going = False
        summary = await publishing
    for error in summary.failures.values():
        # The gateway did not take them, and the client knows that.
        assert isinstance(error, AckTimeoutError | TransportError)
        assert not error.sent
    assert await stored(tmp_path, nats_port, name) == summary.acked


async def _finished(run: Any) -> PublishSummary:
    summary: PublishSummary = await run
    return summary


async def test_every_stored_message_of_raw_nats_has_its_ack(tmp_path: Path, name: str) -> None:
    nats_port = free_port()
    async with serving(tmp_path, nats_port) as (process, address, url):
        async with liftenvelope.connect([address]) as client:
            await client.create_stream(name, name)
        nc = await connect(url)
        inbox, acked = nc.new_inbox(), set[int]()

        async def note(msg: Any) -> None:
            acked.add(unmarshal_ack(msg.data).offset)

        await nc.subscribe(inbox, cb=note)
        for number in range(20_000):
            await nc.publish(name, new_message(b"x" * 256, ack_inbox=inbox, correlation_id=str(number)))
        await handled(nc)
        await stopped(process)
        await until(lambda: not nc.is_connected)
    count = await stored(tmp_path, nats_port, name)
    assert (count, acked) == (20_000, set(range(20_000)))


@pytest.fixture
async def gateway(jetstream_server: NatsServer) -> AsyncIterator[Gateway]:
    """A gateway in this process."""
    nc = await connect(jetstream_server.url)
    gateway = Gateway(nc, broker_ttl=60.0)  # so that its lease does not end
    await gateway.start()
    yield gateway
    await gateway.close()
    await nc.close()


async def take_all(call: Call, answers: list[bytes]) -> None:
    """Take all that comes on a call."""
    async for answer in call:
        answers.append(answer)  # noqa: PERF401 - it must be there when the call ends with an error


async def test_publish_async_ends_with_a_status_that_settles_what_has_no_answer(
    gateway: Gateway, name: str
) -> None:
    async with liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
    async with await Channel.connect(gateway.address) as channel:
        call = channel.bidi("/proto.API/PublishAsync")
        requests = [api_pb2.PublishRequest(stream=name, correlationId=str(n)) for n in range(100)]
        await call.send([request.SerializeToString() for request in requests])
        answers = await call.receive()
        assert answers
        closing = asyncio.create_task(gateway.close(grace=60.0))
        with pytest.raises(RpcError) as info:
            await take_all(call, answers)
        assert (info.value.code, info.value.description) == (StatusCode.UNAVAILABLE, UNANSWERED_IS_NOT_STORED)
        assert len(answers) == 100
        with pytest.raises(CallNotProcessedError):
            await channel.unary("/proto.API/FetchMetadata", b"", timeout=60)
        await closing


async def test_subscriptions_end_with_unavailable(gateway: Gateway, name: str) -> None:
    async with liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
    async with await Channel.connect(gateway.address) as channel:
        request = api_pb2.SubscribeRequest(stream=name)
        call = channel.server_stream("/proto.API/Subscribe", request.SerializeToString())
        assert await call.receive() == [b""]
        closing = asyncio.create_task(gateway.close(grace=60.0))
        with pytest.raises(RpcError) as info:
            await call.receive()
        assert info.value.code == StatusCode.UNAVAILABLE
        await closing


async def test_drain_ends_although_nats_refuses_publishes_on_the_subjects(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    limited = {"user": "limited", "password": "s3cret", "permissions": {"publish": {"deny": [f"{name}.>"]}}}
    users = [limited, {"user": "publisher", "password": "s3cret"}]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        nc = await connect(server.url, user="limited", password="s3cret")
        publisher = await connect(server.url, user="publisher", password="s3cret")
        gateway = Gateway(nc, broker_ttl=60.0)
        await gateway.start()
        async with liftenvelope.connect([gateway.address]) as client:
            # More than the gateway catches up with at once.
            await client.create_stream(f"{name}.s", name, partitions=20)
        inbox = await publisher.subscribe(publisher.new_inbox())
        await publisher.publish(f"{name}.s", new_message(b"x", ack_inbox=inbox.subject))
        assert unmarshal_ack((await inbox.next_msg(60)).data).offset == 0
        async with asyncio.timeout(120):
            await gateway.close(grace=10_000.0)
        assert not [line for line in caplog.messages if line.startswith("not all publishes had their acks")]
        await publisher.close()
        await nc.close()


async def test_other_gateway_takes_over_from_one_that_drains(name: str) -> None:
    # With a TTL that nobody waits for.
    async with (
        run_gateway(2, config={"broker_ttl": 120.0}) as cluster,
        liftenvelope.connect(cluster.addresses) as client,
    ):
        await client.create_stream(name, name, partitions=8)
        async with client.subscribe(name, partition="all", start="earliest") as messages:
            await client.publish(name, b"before")
            assert (await anext(messages)).value == b"before"
            stopping = asyncio.create_task(asyncio.to_thread(cluster.nodes[0].stop))
            for partition in range(8):
                await client.publish(name, b"after", partition=partition, timeout=60)
            found = [(await anext(messages)).partition for _ in range(8)]
            await stopping
    assert sorted(found) == list(range(8))
