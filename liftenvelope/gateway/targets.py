"""Where the messages for a partition go, and their acks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftenvelope._pb import api_pb2

if TYPE_CHECKING:
    from liftenvelope.gateway.records import StreamRecord

__all__ = ["Target", "ack_of"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where the messages for a partition go.

    Attributes:
        record: The stream, as it was when this was looked up.
        partition: The partition.
        subject: The subject to publish on.
        stream: The JetStream stream that holds the partition.
    """

    record: StreamRecord
    partition: int
    subject: str
    stream: str

    @property
    def intake(self) -> str:
        """The subject that JetStream stores it on."""
        return self.record.intake_of(self.partition) + self.subject

    @property
    def is_copy(self) -> bool:
        """Whether another JetStream stream records the subject, from which this one copies."""
        return self.record.partitions[self.partition].source is not None


def ack_of(target: Target, request: api_pb2.PublishRequest, sequence: int) -> api_pb2.Ack:
    """Return the ack of a message that JetStream has stored just now."""
    now = time.time_ns()
    return api_pb2.Ack(
        stream=target.record.name,
        # Liftbridge calls the stream's subject that of the partition.
        partitionSubject=target.record.subject,
        msgSubject=target.subject,
        offset=sequence - 1,
        ackInbox=request.ackInbox,
        correlationId=request.correlationId,
        ackPolicy=request.ackPolicy,
        receptionTimestamp=now,
        commitTimestamp=now,
    )
