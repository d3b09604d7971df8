"""Counts the in-sync replicas of partitions, for streams with ``minIsr``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope._pb import api_pb2
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.jetstream.context import JetStream

__all__ = ["Replicas", "least_in_sync"]

#: Seconds for which a count is cached.
_AGE: Final = 1.0
#: Counts in the cache, including those of deleted streams.
_MOST_KNOWN: Final = 20_000
#: Value of ``AckPolicy.ALL``.
_ALL: Final = 1


def least_in_sync(record: StreamRecord) -> int:
    """Return the in-sync replicas that a message with ``ALL`` needs for its ack; 0 for no requirement."""
    least = record.setting("minIsr")
    return least if least > 1 else 0


class Replicas:
    """Counts the in-sync replicas of partitions. JetStream is asked at most once a second per partition.

    Args:
        js: JetStream.
    """

    def __init__(self, js: JetStream) -> None:
        self._js = js
        # By JetStream stream: the count and the time when it was received.
        self._known: dict[str, tuple[int, float]] = {}
        self._asking: dict[str, asyncio.Task[int]] = {}

    async def check(self, record: StreamRecord, partition: int, policy: api_pb2.AckPolicy) -> None:
        """Check that a stored message may be acked.

        Raises:
            RpcError: DEADLINE_EXCEEDED: ``policy`` is ALL and too few replicas are in sync.
        """
        least = least_in_sync(record) if policy == _ALL else 0
        if least and (count := await self.count(record.stream_of(partition))) < least:
            text = f"the message is stored, but {count} replicas are in sync, fewer than minIsr={least}"
            raise RpcError(StatusCode.DEADLINE_EXCEEDED, text)

    def are_enough(self, record: StreamRecord, partition: int) -> bool:
        """Return whether enough replicas were in sync at the last count.

        A count older than a second is refreshed in the background. Without a count the result is False.
        """
        least, stream = least_in_sync(record), record.stream_of(partition)
        if not least:
            return True
        count, asked_at = self._known.get(stream, (0, 0.0))
        if asyncio.get_running_loop().time() - asked_at >= _AGE:
            self._ask(stream)
        return count >= least

    async def count(self, stream: str) -> int:
        """Return the number of servers in sync, at most a second old; 0 if JetStream does not report it."""
        count, asked_at = self._known.get(stream, (0, 0.0))
        if asyncio.get_running_loop().time() - asked_at < _AGE:
            return count
        return await asyncio.shield(self._ask(stream))

    def _ask(self, stream: str) -> asyncio.Task[int]:
        """Return the task that counts the replicas of a stream; start it if none is running."""
        task = self._asking.get(stream)
        if task is None:
            task = self._asking[stream] = asyncio.create_task(self._count(stream), name=f"isr of {stream}")
            task.add_done_callback(lambda _: self._asking.pop(stream, None))
        return task

    async def _count(self, stream: str) -> int:
        count = 0
        try:
            cluster = (await self._js.api.request(f"STREAM.INFO.{stream}")).get("cluster") or {}
        except LiftEnvelopeError:
            cluster = {}  # deleted or without a leader: no replica is known to be in sync
        if cluster.get("leader"):
            others = cluster.get("replicas") or []
            count = 1 + sum(1 for one in others if one.get("current") and not one.get("offline"))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[stream] = (count, asyncio.get_running_loop().time())
        return count
