"""Lookup of start offsets: asks a partition's leader without reading messages.

The server refuses a subscription whose stop lies before its start, and the refusal names the offset that the
start was resolved to. A subscription with the stop -2 is therefore a lookup. Two server bugs make lookups
necessary:

- If the newest segment of a log is new and still empty, the server resolves every start by time to the end of
  the log (it takes the end of file in its lookup for "later than everything"). A read would silently skip
  messages. In that case the offset is found by a binary search that reads single messages.
- If retention has removed all messages of a partition, the partition has a newest offset and no message. A
  read up to that offset would wait for the next message that is published.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from liftenvelope._pb import api_pb2
from liftenvelope.client.failures import call_error, is_denial, resolved_start
from liftenvelope.client.partition_read import is_worth_another_look, read_messages, was_stopped
from liftenvelope.errors import TransportError
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.client.cluster import Cluster, Deadline
    from liftenvelope.envelope import Message
    from liftenvelope.rpc.aio import Call

__all__ = ["StartLookup"]

# Stop offset before every start. Not -1, which servers treat as no stop.
_BEFORE_ALL: Final = -2
# Seconds to wait for the first answer to a subscription.
_PEEK_TIMEOUT: Final = 2.0
# Seconds of silence that show that there is no message. The lookup waits for two of them, with an answered
# call after each, because a stalled server is silent too.
_SILENCE: Final = 1.0


class StartLookup:
    """Offset lookups at the leader of one partition. A result is None if it can't be found out."""

    def __init__(self, cluster: Cluster, stream: str, partition: int, deadline: Deadline) -> None:
        self._cluster = cluster
        self._stream = stream
        self._partition = partition
        self._deadline = deadline

    async def at_time(self, time_ns: int, newest: int) -> int | None:
        """Return the offset of the first message at or after a time; the newest offset + 1 if there is none.

        Args:
            time_ns: Time in ns since 1970.
            newest: Newest offset of the partition.
        """
        found = await self._resolve(api_pb2.TIMESTAMP, time_ns)
        if found is None or found <= newest or newest < 0:
            return found
        if await self._times_work(newest):
            return found
        oldest = await self._resolve(api_pb2.EARLIEST)
        return None if oldest is None else await self._search(time_ns, oldest, newest)

    async def is_empty(self, stop: int, newest: int) -> bool:
        """Return True if no message is left up to an offset, in a partition that sends none.

        Args:
            stop: The offset.
            newest: Newest offset of the partition, ``stop`` or higher.
        """
        oldest = await self._resolve(api_pb2.EARLIEST)
        if oldest is None or oldest > stop:
            return oldest is not None
        # For an empty log, servers name 0 as the oldest offset, and resolve no times.
        if oldest > 0 or await self._times_work(newest):
            return False
        return await self._peek(0, 0) is None

    async def _times_work(self, newest: int) -> bool:
        """Return True if starts by time are reliable: time 0 must not be resolved to the end of the log."""
        first = await self._resolve(api_pb2.TIMESTAMP, 0)
        return first is None or first <= newest

    async def _search(self, time_ns: int, low: int, newest: int) -> int:
        """Find the first message at or after a time by binary search."""
        high = newest + 1
        while low < high:
            middle = (low + high) // 2
            message = await self._peek(middle, newest)
            if message is None or message.timestamp_ns >= time_ns:
                high = middle
            else:
                low = message.offset + 1
        return low

    async def _resolve(self, position: api_pb2.StartPosition, time_ns: int = 0) -> int | None:
        request = self._request(_BEFORE_ALL)
        request.startPosition, request.startTimestamp = position, time_ns
        try:
            await self._first(request)
        except RpcError as exc:
            if is_denial(exc):
                raise call_error("Subscribe", exc, f"{self._stream}[{self._partition}]") from exc
            return resolved_start(exc)
        except TransportError:
            return None
        return None

    async def _peek(self, offset: int, stop: int) -> Message | None:
        """Return the message at an offset, or else the next one up to ``stop``; None if there is none.

        Raises:
            CallTimeoutError, TransportError: The broker gave no clear answer in time.
        """
        request = self._request(stop)
        request.startPosition, request.startOffset = api_pb2.OFFSET, offset
        attempt = 0
        while True:
            try:
                payload = await self._listen(request)
            except (RpcError, TransportError) as exc:
                if was_stopped(exc):
                    return None
                if self._deadline.is_over or not is_worth_another_look(exc):
                    raise call_error("Subscribe", exc, f"{self._stream}[{self._partition}]") from exc
            else:
                return None if payload is None else read_messages([payload])[0]
            attempt += 1
            await self._deadline.pause(attempt)

    def _request(self, stop: int) -> api_pb2.SubscribeRequest:
        return api_pb2.SubscribeRequest(
            stream=self._stream,
            partition=self._partition,
            stopPosition=api_pb2.STOP_OFFSET,
            stopOffset=stop,
        )

    async def _listen(self, request: api_pb2.SubscribeRequest) -> bytes | None:
        """Return the first message of a subscription; None if none comes while the server answers calls."""
        async with self._subscription(request) as call:
            try:
                async with asyncio.timeout(min(_PEEK_TIMEOUT, self._deadline.left)):
                    await anext(call, None)  # empty first message: the subscription is established
            except TimeoutError:
                text = f"the subscription did not stand within {_PEEK_TIMEOUT} s"
                raise RpcError(StatusCode.DEADLINE_EXCEEDED, text) from None
            for _ in range(2):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SILENCE):
                        return await anext(call, None)
                await self._ask()
            return None

    async def _ask(self) -> None:
        """Make a call to the leader, which raises if the server does not answer."""
        asked = api_pb2.FetchPartitionMetadataRequest(stream=self._stream, partition=self._partition)
        leader = self._cluster.leader_of(self._stream, self._partition)
        about = f"{self._stream}[{self._partition}]"
        await self._cluster.call(
            "FetchPartitionMetadata", asked.SerializeToString(), leader, self._deadline, about
        )

    async def _first(self, request: api_pb2.SubscribeRequest) -> None:
        """Wait for the first answer to a subscription. Raises a refusal; returns if none comes in time."""
        async with self._subscription(request) as call:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_PEEK_TIMEOUT, self._deadline.left)):
                    await anext(call, None)

    @asynccontextmanager
    async def _subscription(self, request: api_pb2.SubscribeRequest) -> AsyncIterator[Call]:
        address = await self._cluster.leader_address(self._stream, self._partition, self._deadline)
        channel = await self._cluster.connections.channel(address, self._deadline.left)
        async with channel.server_stream("/proto.API/Subscribe", request.SerializeToString()) as call:
            yield call
