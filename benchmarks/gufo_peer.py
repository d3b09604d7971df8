"""gufo_liftbridge, a Liftbridge client on grpc.aio, as a peer.

Its bulk publishing has no window: everything is sent as fast as it goes.
It bears to be in our process: its protobuf messages and ours are in different pools
(``tests/packaging/test_other_clients.py``).
"""

from __future__ import annotations

from contextlib import aclosing
from importlib.metadata import version
from time import perf_counter
from typing import Any

from gufo.liftbridge.client import LiftbridgeClient
from gufo.liftbridge.types import AckPolicy, StartPosition

VERSION = version("gufo_liftbridge")


async def read(address: str, stream: str, count: int) -> float:
    """Read so many messages from the earliest offset; return seconds from the first of them to the last."""
    began, read, expected = 0.0, 0, 0
    async with LiftbridgeClient([address]) as client:
        messages: Any = client.subscribe(stream, partition=0, start_position=StartPosition.EARLIEST)
        async with aclosing(messages):
            async for message in messages:
                if not read:
                    began, expected = perf_counter(), message.offset
                assert message.offset == expected + read
                read += 1
                if read == count:
                    return perf_counter() - began
    raise AssertionError(f"{read} of {count} messages of {stream}")


async def publish_bulk(address: str, stream: str, count: int, *, size: int = 256) -> float:
    """Publish so many messages with acks of the leader; return seconds until the last ack."""
    value, acked = b"x" * size, 0
    async with LiftbridgeClient([address]) as client:
        # The connection and the server's part in it are made before the clock starts.
        await client.publish(value, stream=stream, partition=0)
        began = perf_counter()
        requests = (
            client.get_publish_request(
                value, stream=stream, partition=0, correlation_id=str(i), ack_policy=AckPolicy.LEADER
            )
            for i in range(count)
        )
        async for _ in client.publish_bulk(requests):
            acked += 1
        took = perf_counter() - began
    assert acked == count, f"{acked} of {count} acked"
    return took


async def publish(address: str, stream: str, count: int, *, size: int = 256) -> list[float]:
    """Publish one after the other, each acked; return the seconds that each took."""
    value, times = b"x" * size, []
    async with LiftbridgeClient([address]) as client:
        await client.publish(value, stream=stream, partition=0)
        for _ in range(count):
            began = perf_counter()
            await client.publish(value, stream=stream, partition=0)
            times.append(perf_counter() - began)
    return times
