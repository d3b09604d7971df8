"""Shell for :class:`~liftenvelope.client.start_lookup.StartLookup` on asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from liftenvelope._pb import api_pb2
from liftenvelope.client.start_lookup import ENDED, Pause, Receive, StartLookup, Subscribe
from liftenvelope.errors import TransportError
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope._deadlines import Deadline
    from liftenvelope.client._brokers.cluster import Cluster
    from liftenvelope.client.start_lookup import Answer, LookupStep, LookupSteps
    from liftenvelope.rpc.aio import Call

__all__ = ["AsyncStartLookup"]

_T = TypeVar("_T")


class AsyncStartLookup:
    """Offset lookups at the leader of one partition. For one task at a time.

    Args:
        cluster: Finds the leader and holds the connections.
        stream: Name of the stream.
        partition: Number of the partition.
        deadline: Deadline over all calls of all lookups.
    """

    def __init__(self, cluster: Cluster, stream: str, partition: int, deadline: Deadline) -> None:
        self._cluster = cluster
        self._stream = stream
        self._partition = partition
        self._deadline = deadline
        self._lookup = StartLookup(stream, partition)
        self._call: Call | None = None

    async def at_time(self, time_ns: int, newest: int) -> int | None:
        """Return the offset of the first message at or after a time: see ``StartLookup.at_time``."""
        return await self.run(self._lookup.at_time(time_ns, newest))

    async def is_empty(self, last: int, newest: int) -> bool:
        """Return True if no message is left up to an offset: see ``StartLookup.is_empty``."""
        return await self.run(self._lookup.is_empty(last, newest))

    async def run(self, steps: LookupSteps[_T]) -> _T:
        """Carry out the steps of a lookup and return its result.

        Raises:
            CallTimeoutError, TransportError: The broker gave no clear answer in time.
            PermissionDeniedError: The client may not subscribe to the stream.
            LiftEnvelopeError: As for ``Cluster.leader_address``.
        """
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._answer(step)
                except (RpcError, TransportError) as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            found: _T = end.value
            return found
        finally:
            self._close()

    async def _answer(self, step: LookupStep) -> Answer:
        match step:
            case Subscribe():
                await self._subscribe(step)
            case Receive(seconds):
                return await self._receive(min(seconds, self._deadline.left))
            case Pause(attempt):
                self._close()
                await asyncio.sleep(self._deadline.pause_before(attempt))
                return not self._deadline.is_over
            case _:
                await self._ask_leader()
        return None

    async def _subscribe(self, step: Subscribe) -> None:
        self._close()
        address = await self._cluster.leader_address(
            self._stream, self._partition, self._deadline, refresh=step.again
        )
        channel = await self._cluster.connections.channel(address, self._deadline.left)
        self._call = channel.server_stream("/proto.API/Subscribe", step.request.SerializeToString())

    async def _receive(self, seconds: float) -> bytes | None:
        assert self._call is not None  # a lookup subscribes first
        try:
            async with asyncio.timeout(seconds):
                return await anext(self._call)
        except StopAsyncIteration:
            raise RpcError(StatusCode.UNAVAILABLE, ENDED) from None
        except TimeoutError:
            return None

    async def _ask_leader(self) -> None:
        asked = api_pb2.FetchPartitionMetadataRequest(stream=self._stream, partition=self._partition)
        leader = self._cluster.leader_of(self._stream, self._partition)
        about = f"{self._stream}[{self._partition}]"
        await self._cluster.call(
            "FetchPartitionMetadata", asked.SerializeToString(), leader, self._deadline, about
        )

    def _close(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
