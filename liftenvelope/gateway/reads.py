"""The subscriptions that a gateway serves, and what ends them from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope._pb import api_pb2
    from liftenvelope.gateway.core import Core
    from liftenvelope.gateway.records import StreamRecord

__all__ = ["FENCED", "OpenReads", "Read", "may_send"]

#: Liftbridge's text, by which clients tell what has happened.
FENCED: Final = "Consumer is not currently assigned this partition"


class _Feed(Protocol):
    def wake(self) -> None:
        """Have whoever waits look again."""


class Read:
    """One subscription.

    Attributes:
        record: The stream, as it was when it began.
        partition: The partition.
        any_replica: Whether any gateway may serve it, not the leader alone.
        member: Of a consumer group's member: the group, its epoch, the member. None otherwise.
        confirmed: Whether the group's record has that member and knows that epoch.
        error: What it was ended by; None for a clean end.
        ended: Whether it was ended.
        became_readonly: Whether it is to end at the newest message.
        feed: What is woken when any of that changes.
    """

    def __init__(self, record: StreamRecord, request: api_pb2.SubscribeRequest) -> None:
        self.record = record
        self.partition: int = request.partition
        self.any_replica: bool = request.readISRReplica
        consumer = request.consumer
        self.member: tuple[str, int, str] | None = None
        if request.HasField("consumer"):
            self.member = (consumer.groupId, consumer.groupEpoch, consumer.consumerId)
        self.confirmed = False
        self.error: RpcError | None = None
        self.ended = False
        self.became_readonly = False
        self.feed: _Feed | None = None

    def end(self, error: RpcError | None) -> None:
        """End it, with a status other than OK unless there is no error."""
        if not self.ended:
            self.ended, self.error = True, error
            self.wake()

    def wake(self) -> None:
        """Have it look at what has changed."""
        if self.feed is not None:
            self.feed.wake()


async def may_send(core: Core, read: Read) -> bool:
    """Return whether messages may be sent to a subscriber now; wait while the gateway has no lease.

    Send with no ``await`` in between: the gateway may be stopped for longer than its lease at any time.
    """
    if not read.any_replica:
        await core.brokers.lease()
    return not read.ended


class OpenReads:
    """All subscriptions."""

    def __init__(self) -> None:
        self._reads: dict[tuple[str, int], set[Read]] = {}

    def add(self, read: Read) -> None:
        """Take one in. A read for a consumer group ends those of older or equal epochs.

        An epoch that is not confirmed counts for less than any that is.

        Raises:
            RpcError: FAILED_PRECONDITION: a member of a newer epoch reads the partition.
        """
        reads = self._reads.setdefault((read.record.name, read.partition), set())
        if read.member is not None:
            group, epoch, _ = read.member
            others = [other for other in reads if other.member is not None and other.member[0] == group]
            if any(_rank(other) > (read.confirmed, epoch) for other in others):
                raise RpcError(StatusCode.FAILED_PRECONDITION, FENCED)
            for other in others:
                other.end(None)
                reads.discard(other)
        reads.add(read)

    def remove(self, read: Read) -> None:
        """It is over."""
        key = (read.record.name, read.partition)
        reads = self._reads.get(key, set())
        reads.discard(read)
        if not reads:
            self._reads.pop(key, None)

    def has(self, stream: str, partition: int) -> bool:
        """Whether somebody reads a partition."""
        return (stream, partition) in self._reads

    def stream_changed(self, before: StreamRecord | None, after: StreamRecord | None) -> None:
        """End what can't go on with a stream as it is now."""
        if before is None:
            return
        for partition, part in enumerate(before.partitions):
            for read in list(self._reads.get((before.name, partition), ())):
                if after is None or after.id != before.id:
                    read.end(RpcError(StatusCode.NOT_FOUND, "commit log was deleted"))
                elif after.partitions[partition].paused and not part.paused:
                    read.end(RpcError(StatusCode.FAILED_PRECONDITION, "commit log was closed"))
                elif after.partitions[partition].readonly and not part.readonly:
                    read.became_readonly = True
                    read.wake()

    def end_led(self, error: RpcError) -> None:
        """End every read that only the partition's leader may serve."""
        self._end(error, lambda read: not read.any_replica)

    def end_all(self, error: RpcError) -> None:
        """End every read."""
        self._end(error, lambda _: True)

    def _end(self, error: RpcError, which: Callable[[Read], bool]) -> None:
        for reads in list(self._reads.values()):
            for read in [read for read in reads if which(read)]:
                read.end(error)

    def leaders_changed(self, leads: Callable[[str, int], bool]) -> None:
        """End what another gateway is to serve now."""
        for (stream, partition), reads in self._reads.items():
            if not leads(stream, partition):
                for read in [read for read in reads if not read.any_replica]:
                    read.end(RpcError(StatusCode.UNAVAILABLE, "another broker leads the partition now"))


def _rank(read: Read) -> tuple[bool, int]:
    """Return the order in which reads of one group fence each other out."""
    return (read.confirmed, -1 if read.member is None else read.member[1])
