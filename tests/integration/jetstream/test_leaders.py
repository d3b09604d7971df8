"""Leaders of streams and consumers step down, by the library and by the command, on three servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerNotFoundError,
    JetStreamError,
    StreamNotFoundError,
    UsageError,
)
from liftenvelope.jetstream import ConsumerConfig, JetStream, Stream, StreamConfig
from liftenvelope.jetstream._leaders import step_down
from liftenvelope.jetstream.infos import ClusterInfo
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.cli.commands import error_of, json_of, text_of
from tests.integration.conftest import connect
from tests.integration.jetstream_cluster import three_servers

NUMBERS = count()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One of three servers."""
    with three_servers() as servers:
        yield servers["n1"].url


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[JetStream]:
    nc = await connect(url)
    async with JetStream(nc, timeout=60) as js:
        yield js
    await nc.close()


async def stream_of(js: JetStream, replicas: int = 3) -> Stream:
    name = f"S{next(NUMBERS)}"
    return await js.create_stream(StreamConfig(name=name, subjects=(name,), num_replicas=replicas))


def placed(cluster: ClusterInfo | None) -> ClusterInfo:
    assert cluster is not None
    return cluster


async def test_leader_of_a_stream_steps_down(url: str) -> None:
    async with jetstream(url) as js:
        stream = await stream_of(js)
        before = placed((await stream.info()).cluster)
        leader = await stream.step_down()
        after = placed((await stream.info()).cluster)
        assert (after.leader, after.leader_since) != (before.leader, before.leader_since)
        assert leader == after.leader
        await js.publish(stream.name, b"1")
        wanted = after.replicas[-1].name
        assert await stream.step_down(wanted) == wanted
        assert placed((await stream.info()).cluster).leader == wanted


async def test_stream_keeps_the_time_of_its_creation(url: str) -> None:
    """Ordered consumers know a stream by that time: see _ordered_places."""
    async with jetstream(url) as js:
        stream = await stream_of(js)
        created = stream.cached_info.created
        assert created is not None
        await stream.step_down()
        assert (await stream.info()).created == created
        config = replace(stream.cached_info.config, description="changed", num_replicas=1)
        assert (await js.update_stream(config)).cached_info.created == created
        assert (await stream.info()).created == created


async def test_leader_of_a_consumer_steps_down_to_a_replica(url: str) -> None:
    async with jetstream(url) as js:
        stream = await stream_of(js)
        await js.publish(stream.name, b"1")
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        wanted = placed((await consumer.info()).cluster).replicas[0].name
        assert await consumer.step_down(wanted) == wanted
        [message] = await consumer.fetch(1)
        assert message.data == b"1"


async def test_preferred_server_that_loses_an_election_is_asked_for_again(url: str) -> None:
    async with jetstream(url) as js:
        stream = await stream_of(js)
        path = f"STREAM.LEADER.STEPDOWN.{stream.name}"
        lost, wanted = (one.name for one in placed((await stream.info()).cluster).replicas)
        looks = count()

        async def look(seconds: float) -> Any:
            if next(looks) == 1:  # another server leads, as if it had won the election
                await led(stream.info)
                if placed((await stream.info()).cluster).leader != lost:  # it may have won of itself
                    await stream.step_down(lost)
            return await stream.info(timeout=seconds)

        assert await step_down(js.api, path, look, wanted, timeout=60) == wanted
        assert placed((await stream.info()).cluster).leader == wanted


async def test_preferred_server_that_loses_every_election_is_given_up(url: str) -> None:
    async with jetstream(url) as js:
        stream = await stream_of(js)
        wanted = placed((await stream.info()).cluster).replicas[0].name

        async def look(seconds: float) -> Any:
            await led(stream.info)
            found = await stream.info(timeout=seconds)
            if placed(found.cluster).leader == wanted:  # another server leads, as if it had won the election
                await stream.step_down()
                await led(stream.info)
                found = await stream.info(timeout=seconds)
            return found

        path = f"STREAM.LEADER.STEPDOWN.{stream.name}"
        with pytest.raises(CallTimeoutError, match=f"and {wanted} was not elected 3 times"):
            await step_down(js.api, path, look, wanted, timeout=120)


async def test_preferred_server_must_be_another_replica(url: str) -> None:
    async with jetstream(url) as js:
        stream = await stream_of(js)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        leader = placed((await stream.info()).cluster).leader
        for preferred in (leader, "nobody"):
            with pytest.raises(UsageError, match=f"preferred must be a replica .* got '{preferred}'"):
                await stream.step_down(preferred)
        with pytest.raises(UsageError, match="got 'nobody'"):
            await consumer.step_down("nobody")


async def test_single_replica_can_not_step_down(url: str) -> None:
    async with jetstream(url) as js:
        with pytest.raises(UsageError, match="only if there are other replicas"):
            await (await stream_of(js, replicas=1)).step_down()


async def test_stream_and_consumer_that_are_gone(url: str) -> None:
    async with jetstream(url) as js:
        stream = await stream_of(js)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        await js.delete_consumer(stream.name, "worker")
        with pytest.raises(ConsumerNotFoundError):
            await consumer.step_down()
        await js.delete_stream(stream.name)
        with pytest.raises(StreamNotFoundError):
            await stream.step_down()
        # Races lead to these requests, whose errors must name the right thing.
        with pytest.raises(StreamNotFoundError, match=f"'{stream.name}'"):
            await js.api.request(f"STREAM.LEADER.STEPDOWN.{stream.name}")
        other = (await stream_of(js)).name
        with pytest.raises(ConsumerNotFoundError, match=f"'worker' of stream '{other}'"):
            await js.api.request(f"CONSUMER.LEADER.STEPDOWN.{other}.worker")


async def test_deletion_during_the_wait_for_a_leader_is_not_found(url: str) -> None:
    async with jetstream(url) as js:
        stream = await stream_of(js)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        path = f"{stream.name}.worker"
        look = deleted_after_one(consumer.info, consumer.delete)
        with pytest.raises(ConsumerNotFoundError):
            await step_down(js.api, f"CONSUMER.LEADER.STEPDOWN.{path}", look, None, timeout=60)
        look = deleted_after_one(stream.info, lambda: js.delete_stream(stream.name))
        with pytest.raises(StreamNotFoundError):
            await step_down(js.api, f"STREAM.LEADER.STEPDOWN.{stream.name}", look, None, timeout=60)


def deleted_after_one(info: Any, delete: Callable[[], Awaitable[None]]) -> Callable[[float], Awaitable[Any]]:
    """Return what looks for the leader, and deletes the thing before its second look."""
    looks = count()

    async def look(seconds: float) -> Any:
        if next(looks) == 1:
            await led(info)  # without a leader nobody answers the deletion
            await delete()
        return await info(timeout=seconds)

    return look


async def led(info: Any) -> None:
    """Wait for a leader."""
    async with asyncio.timeout(60):
        while True:
            try:
                if placed((await info(timeout=1)).cluster).leader:
                    return
            except (JetStreamError, CallTimeoutError):
                pass
            await asyncio.sleep(0.1)


async def test_call_ends_in_time_without_a_new_leader(url: str) -> None:
    async with jetstream(url) as js:
        stream = await stream_of(js)
        with pytest.raises(CallTimeoutError):
            await stream.step_down(timeout=0.001)


async def test_servers_that_are_no_cluster(jetstream_server: NatsServer, name: str) -> None:
    async with jetstream(jetstream_server.url) as js:
        stream = await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        with pytest.raises(UsageError, match="only if there are other replicas"):
            await stream.step_down()


def test_commands_move_leaders(url: str) -> None:
    at = ("--url", url)
    text_of("stream", "create", "ORDERS", "--replicas", "3", *at)
    text_of("consumer", "create", "ORDERS", "packing", *at)
    for thing in (("stream", "ORDERS"), ("consumer", "ORDERS", "packing")):
        cluster = json_of(thing[0], "info", *thing[1:], *at)["cluster"]
        wanted = cluster["replicas"][1]["name"]
        moved = json_of(thing[0], "step-down", *thing[1:], "--preferred", wanted, *at)
        assert moved["leader"] == wanted
        assert json_of(thing[0], "info", *thing[1:], *at)["cluster"]["leader"] == wanted
        assert " leads " in text_of(thing[0], "step-down", *thing[1:], *at)
        assert "preferred must be a replica" in error_of(
            thing[0], "step-down", *thing[1:], "--preferred", "nobody", *at, code=2
        )


def test_commands_need_jetstream() -> None:
    at = ("--url", "liftbridge://127.0.0.1:1")
    assert "stream step-down needs JetStream" in error_of("stream", "step-down", "a", *at, code=2)
    assert "consumer step-down needs JetStream" in error_of("consumer", "step-down", "a", "b", *at, code=2)


def test_command_on_a_single_server() -> None:
    with run_nats_server(jetstream=True) as server:
        at = ("--url", server.url)
        text_of("stream", "create", "ORDERS", *at)
        assert "only if there are other replicas" in error_of("stream", "step-down", "ORDERS", *at, code=2)
