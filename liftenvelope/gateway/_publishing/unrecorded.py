"""Finds out why no stream recorded the subject of a message.

nats-server answers such a message with 503, and it is not stored. The partition was paused, made readonly or
deleted after its target was looked up, or it handed its subject over. So its record is read again and
compared with the target's. A gateway that makes a partition readonly stops the recording first and changes
the record a moment later, so the record is read several times.

A pause may meet thousands of messages in flight: all messages of a target share one look-up.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway._protocol.failures import status_of
from liftenvelope.rpc.status import NOT_RECORDED, RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftenvelope.gateway._cluster.records import PartitionRecord
    from liftenvelope.gateway._publishing.targets import PublishTarget

__all__ = ["TRIES", "TRY_PAUSE", "Unrecorded"]

#: Times that a partition without a recorded subject is looked up again, and the pause before, in seconds, if
#: its record is as before. A repair, as after two changes by two gateways at once, takes a second.
TRIES: Final = 6
TRY_PAUSE: Final = 0.25


class Unrecorded:
    """Looks up partitions whose messages no stream recorded.

    Args:
        find_again: Reads the record of a partition again, resumes it, and returns its target.
    """

    def __init__(self, find_again: Callable[[str, int], Awaitable[PublishTarget]]) -> None:
        self._find_again = find_again
        # Look-ups in progress by stream and partition, with the target of their messages.
        self._lookups: dict[tuple[str, int], tuple[PublishTarget, asyncio.Task[RpcError | None]]] = {}

    async def reason(self, target: PublishTarget) -> RpcError | None:
        """Return why a message was not recorded; None if the partition seems to be as it was.

        A paused partition is resumed: the next message is stored.

        Args:
            target: Target of the message.
        """
        key = (target.record.name, target.partition)
        found = self._lookups.get(key)
        if found is None or found[0] is not target:
            looking = asyncio.get_running_loop().create_task(self._look(target), name="look up partition")
            found = self._lookups[key] = (target, looking)
            looking.add_done_callback(partial(self._forget, key))
        return await asyncio.shield(found[1])

    def _forget(self, key: tuple[str, int], ended: asyncio.Task[RpcError | None]) -> None:
        if key in self._lookups and self._lookups[key][1] is ended:
            del self._lookups[key]

    async def _look(self, target: PublishTarget) -> RpcError | None:
        before = target.record.partitions[target.partition]
        for number in range(TRIES):
            if number:
                await asyncio.sleep(TRY_PAUSE)
            try:
                found = await self._find_again(target.record.name, target.partition)
            except LiftEnvelopeError as exc:
                return status_of(exc)
            if found.record.id != target.record.id:
                return RpcError(StatusCode.NOT_FOUND, "No such stream")  # that one is deleted
            if reason := _changed(before, found.record.partitions[found.partition]):
                return reason
        return None


def _changed(before: PartitionRecord, now: PartitionRecord) -> RpcError | None:
    """Return why a partition that records messages again did not; None if its record has not changed."""
    if now == before:
        return None
    if now.readonly_ns > max(before.readonly_ns, now.paused_ns):
        return RpcError(StatusCode.FAILED_PRECONDITION, "readonly partition")
    return RpcError(StatusCode.ABORTED, NOT_RECORDED)
