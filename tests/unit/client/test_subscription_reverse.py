"""Reading backwards, on brokers that are scripted, of both kinds."""

from __future__ import annotations

from typing import Any

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.errors import (
    UnsupportedByServerError,
)
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import (
    HANDSHAKE,
    answers,
    client_of,
    fill,
    message,
    read,
    scripted,
)

pytestmark = pytest.mark.usefixtures("loop_errors")

#: Sent by the gateway for a call that it stops serving. Liftbridge 1.9.0 closes the connection instead.
CANCELLED = RpcError(StatusCode.CANCELLED, "the server stopped serving the call")


class TestReverse:
    async def test_in_descending_order(self) -> None:
        async with scripted() as (broker,):
            broker.log(*range(10))
            async with client_of([broker]) as client:
                assert await read(client, reverse=True) == list(range(9, -1, -1))
                assert await read(client, reverse=True, start=4) == [4, 3, 2, 1, 0]
                assert await read(client, reverse=True, start=4, stop=2) == [4, 3, 2]
                assert await read(client, reverse=True, start=0) == [0]

    async def test_reverse_read_of_an_empty_partition_is_empty(self) -> None:
        async with scripted() as (broker,):
            broker.log()
            async with client_of([broker]) as client:
                assert await read(client, reverse=True) == []

    async def test_reverse_read_ends_at_the_oldest_message_left(self) -> None:
        async with scripted() as (broker,):
            broker.log(*range(5, 10))
            async with client_of([broker]) as client:
                assert await read(client, reverse=True) == [9, 8, 7, 6, 5]

    @pytest.mark.parametrize("left", [[6], [6, 7], list(range(6, 15))])
    @pytest.mark.parametrize("start", [0, 1, 3])
    async def test_reverse_read_from_a_start_that_was_removed_is_empty(
        self, start: int, left: list[int]
    ) -> None:
        async with scripted() as (broker,):
            broker.log(*left)
            async with client_of([broker]) as client:
                assert await read(client, reverse=True, start=start) == []

    async def test_reverse_read_from_a_gap_in_a_compacted_log(self) -> None:
        async with scripted() as (broker,):
            broker.log(0, 1, 6, 9)
            async with client_of([broker]) as client:
                assert await read(client, reverse=True, start=4) == [1, 0]
                assert await read(client, reverse=True, start=8) == [6, 1, 0]

    async def test_reverse_read_of_a_partition_whose_messages_are_all_removed_is_empty(self) -> None:
        async with scripted() as (broker,):
            broker.log(removed_to=4)
            async with client_of([broker]) as client:
                assert await read(client, reverse=True) == []
                assert await read(client, reverse=True, start=2) == []

    async def test_removed_start_on_a_server_that_can_only_go_forwards(self) -> None:
        async with scripted() as (broker,):
            broker.reads_backwards = False
            log = broker.log(6)
            async with client_of([broker]) as client:
                # Nothing is left below, which the server need not be able to read.
                assert await read(client, reverse=True, start=3) == []
                log.add()
                with pytest.raises(UnsupportedByServerError):
                    await read(client, reverse=True, start=3)

    async def test_reverse_read_of_one_message_left(self) -> None:
        async with scripted() as (broker,):
            broker.log(9)
            async with client_of([broker]) as client:
                assert await read(client, reverse=True) == [9]

    async def test_reverse_read_of_a_read_only_partition(self) -> None:
        over = RpcError(StatusCode.RESOURCE_EXHAUSTED, "End of readonly partition")
        asked: list[tuple[int, bool]] = []

        async def one_each(call: Any, request: bytes) -> None:
            wanted = api_pb2.SubscribeRequest.FromString(request)
            asked.append((wanted.startOffset, wanted.reverse))
            await call.send([HANDSHAKE, message(wanted.startOffset)])
            raise over

        async with scripted() as (broker,):
            broker.log(*range(4))
            broker.always("Subscribe", one_each)
            async with client_of([broker]) as client:
                assert await read(client, reverse=True) == [3, 2, 1, 0]
        assert asked == [(3, False), (2, True), (1, True), (0, True)]

    async def test_on_a_server_that_can_only_go_forwards(self) -> None:
        async with scripted() as (broker,):
            broker.log(*range(10))
            broker.reads_backwards = False
            async with client_of([broker]) as client, client.subscribe("foo", reverse=True) as reader:
                found: list[int] = []
                with pytest.raises(UnsupportedByServerError, match="2026"):
                    await fill(found, reader)
                assert found == list(range(9, 9 - len(found), -1))
                with pytest.raises(UnsupportedByServerError):
                    await reader.next()

    async def test_is_regained(self) -> None:
        async with scripted() as (broker,):
            broker.log(*range(6))
            broker.next("Subscribe", answers(HANDSHAKE, message(5), error=CANCELLED))
            async with client_of([broker]) as client:
                assert await read(client, reverse=True) == [5, 4, 3, 2, 1, 0]
