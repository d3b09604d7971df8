"""Records and questions that another program has written: gateways refuse them and go on."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.errors import ServerError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._protocol.names import encode_name
from liftenvelope.gateway._readers.cursors import cursor_key
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect

JUNK = (
    b"[",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"a":' + b"9" * 5_000 + b"}",
    b"5",
    b"[]",
    b'{"id":[],"host":"x","port":1}',
    b'{"id":"x","host":"\\ud800","port":1}',
    b'{"id":"x","host":"x","port":70000}',
    b'{"state":"ready","partitions":[{}],"name":["x"],"subject":"x","id":"x"}',
    b'{"state":"ready","partitions":[{}],"name":"x","subject":"x","id":"x","created_ns":1' + b"0" * 30 + b"}",
    b'{"state":"ready","partitions":[{"paused":"x"}],"name":"x","subject":"x","id":"x"}',
)
QUESTIONS = (*JUNK, b'{"name":"x","revision":1e400}', b'{"name":"\\ud800","revision":1}')
#: No gateway of these tests is taken for dead.
TTL = 60.0


async def until_known(client: Client, *ids: str) -> None:
    """Wait until a gateway knows these gateways."""
    async with asyncio.timeout(240):
        while set((await client.fetch_metadata()).brokers) != set(ids):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("bucket", ["lift_brokers", "lift_streams"])
async def test_gateways_pass_over_records_of_another_program(bucket: str, name: str) -> None:
    async with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with Gateway(nc, id="one", broker_ttl=TTL) as one:
            for number, junk in enumerate(JUNK):
                await nc.jetstream().publish(f"$KV.{bucket}.junk{number}", junk)
            async with (
                Gateway(nc, id="two", broker_ttl=TTL) as two,
                liftenvelope.connect([one.address]) as client,
                liftenvelope.connect([two.address]) as other,
            ):
                await until_known(client, "one", "two")
                await client.create_stream(name, name)
                assert name in (await other.fetch_metadata()).streams
        await nc.close()


@pytest.mark.parametrize("junk", [b"[", b'{"id":"other","host":"x","port":1}'])
async def test_record_under_the_key_of_a_dead_gateway_does_not_keep_it_alive(junk: bytes) -> None:
    async with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with (
            Gateway(nc, id="living", broker_ttl=2.0) as gateway,
            liftenvelope.connect([gateway.address]) as client,
        ):
            await nc.jetstream().publish("$KV.lift_brokers.dead", b'{"id":"dead","host":"x","port":1}')
            await until_known(client, "living", "dead")
            await nc.jetstream().publish("$KV.lift_brokers.dead", junk)
            await until_known(client, "living")
        await nc.close()


async def test_questions_of_another_program_are_passed_over(jetstream_server: NatsServer) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    nc = await connect(jetstream_server.url)
    async with Gateway(nc, id="asked", broker_ttl=TTL):
        subject = f"_lift.seen.{encode_name('asked')}"
        for question in QUESTIONS:
            await nc.publish(subject, question)
        answer = await nc.request(subject, b'{"name":"x","revision":0}', timeout=60)
        assert answer.data == b""
    await nc.close()
    gc.collect()  # a task reports its error when it is deleted
    assert faults == []


async def test_cursor_beyond_64_bits_is_refused(jetstream_server: NatsServer, name: str) -> None:
    nc = await connect(jetstream_server.url)
    async with (
        Gateway(nc, id="cursors", broker_ttl=TTL) as gateway,
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name)
        await client.set_cursor("c", name, 0, 5)
        await nc.jetstream().publish(f"$KV.lift_cursors.{cursor_key('c', name, 0)}", b"9" * 30)
        with pytest.raises(ServerError, match="can't be read"):
            await client.fetch_cursor("c", name, 0)
    await nc.close()
