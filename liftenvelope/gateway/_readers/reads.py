"""Tracks the subscriptions that a gateway serves and ends them when streams, leaders or groups change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope._pb import api_pb2
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core

__all__ = ["CLOSED", "DELETED", "FENCED", "OpenReads", "Read", "may_send"]

#: Liftbridge's status text for the end of a subscription to a paused partition.
CLOSED: Final = "commit log was closed"
#: Liftbridge's status text for the end of a subscription to a deleted stream.
DELETED: Final = "commit log was deleted"
#: Liftbridge's status text for a fenced consumer. Clients recognize the reason by it.
FENCED: Final = "Consumer is not currently assigned this partition"


class _Feed(Protocol):
    """Source of a subscription's messages."""

    def wake(self) -> None:
        """Wake the task that waits for messages, so that it checks the read's state."""


class Read:
    """One subscription.

    Args:
        record: Record of the stream.
        request: The request of the client.

    Attributes:
        record: Record of the stream when the subscription began.
        partition: Number of the partition.
        any_replica: Whether any gateway may serve the subscription; False if only the leader may.
        member: Group id, group epoch and consumer id if a consumer group's member reads; None otherwise.
        confirmed: Whether the group's record has that member and that epoch.
        holds: Whether the read has taken the partition over for its group.
        error: Error that ended the subscription; None for a clean end.
        ended: Whether the subscription was ended.
        became_readonly: Whether the partition became readonly, so that the read ends at the newest message.
        feed: Feed that is woken when one of these attributes changes.
    """

    def __init__(self, record: StreamRecord, request: api_pb2.SubscribeRequest) -> None:
        self.record = record
        self.partition: int = request.partition
        self.any_replica: bool = request.readISRReplica
        consumer = request.consumer
        self.member: tuple[str, int, str] | None = None
        if request.HasField("consumer"):
            self.member = (consumer.groupId, consumer.groupEpoch, consumer.consumerId)
        self.confirmed = self.holds = False
        self.error: RpcError | None = None
        self.ended = False
        self.became_readonly = False
        self.feed: _Feed | None = None

    def end(self, error: RpcError | None) -> None:
        """End the subscription: with the status of ``error``, or with OK if ``error`` is None."""
        if not self.ended:
            self.ended, self.error = True, error
            self.wake()

    def wake(self) -> None:
        """Wake the feed so that the subscription checks its state."""
        if self.feed is not None:
            self.feed.wake()


async def may_send(core: Core, read: Read) -> bool:
    """Return whether messages may be sent to a subscriber now; wait while the gateway has no lease.

    Send right after this, with no ``await`` in between: the process may be stopped for longer than its lease
    at any time. A read that any replica may serve needs no lease.
    """
    if not read.any_replica:
        await core.brokers.lease()
    return not read.ended


class OpenReads:
    """All subscriptions open at this gateway, by stream and partition.

    Attributes:
        open: Number of open subscriptions.
        sent_bytes: Bytes of messages sent to subscribers so far.
    """

    def __init__(self) -> None:
        self.open = self.sent_bytes = 0
        self._reads: dict[tuple[str, int], set[Read]] = {}

    def add(self, read: Read) -> None:
        """Add a subscription, so that it is told of changes.

        Raises:
            RpcError: FAILED_PRECONDITION: a member of the same group with a newer epoch reads the partition.
        """
        self._outranked(read)
        self._reads.setdefault((read.record.name, read.partition), set()).add(read)
        self.open += 1

    def take_over(self, read: Read) -> None:
        """Fence out the group's other reads of the partition, if the read is for a consumer group.

        Reads of the same group and partition with an older or equal epoch are ended. A confirmed epoch ranks
        above every unconfirmed one. Called once the read is sure to begin: a request that is refused must not
        end the read that a member already has.

        Raises:
            RpcError: FAILED_PRECONDITION: a member of the same group with a newer epoch reads the partition.
        """
        for other in self._outranked(read):
            other.end(None)
            self._reads[read.record.name, read.partition].discard(other)
        read.holds = True

    def _outranked(self, read: Read) -> list[Read]:
        """Return the reads that a read would fence out; raise if one of them outranks it."""
        if read.member is None:
            return []
        reads = self._reads.get((read.record.name, read.partition), ())
        others = [r for r in reads if r.holds and r.member is not None and r.member[0] == read.member[0]]
        if any(_rank(other) > _rank(read) for other in others):
            raise RpcError(StatusCode.FAILED_PRECONDITION, FENCED)
        return others

    def remove(self, read: Read) -> None:
        """Remove a subscription that is over. Called once for each that was added."""
        self.open -= 1
        key = (read.record.name, read.partition)
        reads = self._reads.get(key, set())
        reads.discard(read)
        if not reads:
            self._reads.pop(key, None)

    def has(self, stream: str, partition: int) -> bool:
        """Return whether a partition has open subscriptions."""
        return (stream, partition) in self._reads

    def stream_changed(self, before: StreamRecord | None, after: StreamRecord | None) -> None:
        """End the reads of partitions that were deleted or paused; wake those of readonly ones."""
        if before is None:
            return
        for partition, part in enumerate(before.partitions):
            for read in list(self._reads.get((before.name, partition), ())):
                if after is None or after.id != before.id:
                    read.end(RpcError(StatusCode.NOT_FOUND, DELETED))
                elif after.partitions[partition].paused and not part.paused:
                    read.end(RpcError(StatusCode.FAILED_PRECONDITION, CLOSED))
                elif after.partitions[partition].readonly and not part.readonly:
                    read.became_readonly = True
                    read.wake()

    def end_led(self, error: RpcError) -> None:
        """End every subscription that only the partition's leader may serve."""
        self._end(error, lambda read: not read.any_replica)

    def end_all(self, error: RpcError) -> None:
        """End every subscription."""
        self._end(error, lambda _: True)

    def _end(self, error: RpcError, which: Callable[[Read], bool]) -> None:
        for reads in list(self._reads.values()):
            for read in [read for read in reads if which(read)]:
                read.end(error)

    def leaders_changed(self, leads: Callable[[str, int], bool]) -> None:
        """End the subscriptions that another gateway must serve now.

        Args:
            leads: Returns whether this gateway leads a partition, given its stream and number.
        """
        for (stream, partition), reads in self._reads.items():
            if not leads(stream, partition):
                for read in [read for read in reads if not read.any_replica]:
                    read.end(RpcError(StatusCode.UNAVAILABLE, "another broker leads the partition now"))


def _rank(read: Read) -> tuple[bool, int]:
    """Return the sort key by which reads of one group fence each other: confirmed reads, then epochs."""
    return (read.confirmed, -1 if read.member is None else read.member[1])
