"""Publish targets of partitions, and the acks of the messages published there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftenvelope._pb import api_pb2

if TYPE_CHECKING:
    from liftenvelope.gateway._cluster.records import StreamRecord

__all__ = ["PublishTarget", "ack_of"]


@dataclass(frozen=True, slots=True)
class PublishTarget:
    """Publish target of a partition.

    Attributes:
        record: Record of the stream when the target was looked up.
        partition: Number of the partition.
        subject: Subject of the partition.
        stream: Name of the JetStream stream that holds the partition.
    """

    record: StreamRecord
    partition: int
    subject: str
    stream: str

    @property
    def intake(self) -> str:
        """Subject to publish on: the partition's subject, including the intake prefix if any."""
        return self.record.intake_of(self.partition) + self.subject

    @property
    def is_copy(self) -> bool:
        """True if another JetStream stream records the subject and the partition copies from it."""
        return self.record.partitions[self.partition].source is not None


def ack_of(
    target: PublishTarget, request: api_pb2.PublishRequest, sequence: int, received_ns: int
) -> api_pb2.Ack:
    """Return the Liftbridge ack of a message that JetStream has just stored at ``sequence``.

    Args:
        target: Target of the message.
        request: The request of the client.
        sequence: Sequence of the message in the partition.
        received_ns: Time when the gateway received the message, in ns since 1970. A read from that time
            finds the message, because JetStream stored it later, unless the gateway's clock is ahead of the
            server's by more than that took.
    """
    return api_pb2.Ack(
        stream=target.record.name,
        # Liftbridge reports the stream's subject as the subject of every partition.
        partitionSubject=target.record.subject,
        msgSubject=target.subject,
        offset=sequence - 1,
        ackInbox=request.ackInbox,
        correlationId=request.correlationId,
        ackPolicy=request.ackPolicy,
        receptionTimestamp=received_ns,
        commitTimestamp=time.time_ns(),
    )
