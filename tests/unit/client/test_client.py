"""The client forwards its methods to its parts, and users see methods like any other."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from liftenvelope.client._cursors import Cursors
from liftenvelope.client._health import HealthChecks
from liftenvelope.client._publishing import Publisher
from liftenvelope.client._streams import Streams
from liftenvelope.client.binding import options_of
from liftenvelope.client.client import Client, connect
from liftenvelope.errors import UsageError
from tests.unit.scripted_broker import client_of, scripted

FORWARDED = [
    (Publisher, ("publish", "publish_async", "publish_many", "publish_to_subject", "flush")),
    (Streams, ("create_stream", "delete_stream", "pause_stream", "set_stream_readonly")),
    (Streams, ("fetch_metadata", "fetch_partition_metadata")),
    (Cursors, ("set_cursor", "reset_cursor", "fetch_cursor")),
    (HealthChecks, ("check_health",)),
]


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, names in FORWARDED for name in names])
def test_forwarded_method_looks_like_the_part_s(part: type, name: str) -> None:
    mine, theirs = getattr(Client, name), getattr(part, name)
    assert inspect.signature(mine) == inspect.signature(theirs)
    assert mine.__doc__ == theirs.__doc__
    assert mine.__name__ == name
    assert inspect.iscoroutinefunction(mine) == inspect.iscoroutinefunction(theirs)


async def test_forwarded_method_can_be_overridden() -> None:
    class Counting(Client):
        calls = 0

        async def fetch_metadata(self, **options: Any) -> Any:
            self.calls += 1
            return await super().fetch_metadata(**options)

    async with scripted() as (broker,):
        async with await client_of([broker]) as client:
            counting = Counting(options_of(client))
        async with counting:
            assert (await counting.fetch_metadata()).brokers
            assert counting.calls == 1


def test_options_of_a_client() -> None:
    assert options_of(connect("localhost:1", ack_wait=3)).ack_wait == 3


@pytest.mark.parametrize("way", ["publish", "publish_many", "flush", "next", "merged", "fetch_metadata"])
async def test_another_event_loop_gets_an_error_that_says_so(way: str) -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        for partition in range(2):
            broker.log(0, partition=partition)
        async with (
            client.subscribe("foo", start=1) as one,
            client.subscribe("foo", partition="all", start=1) as merged,
        ):
            many = client.publish_many("foo", [b"v"])
            ways: dict[str, Callable[[], Awaitable[object]]] = {
                "publish": lambda: client.publish("foo", b"v"),
                "publish_many": lambda: many,
                "flush": client.flush,
                "next": one.next,
                "merged": merged.next,
                "fetch_metadata": client.fetch_metadata,
            }

            async def use() -> object:
                return await ways[way]()

            with pytest.raises(UsageError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, use())
