"""Envelopes and their acks on your own nats-py connection.

:class:`AckInbox` publishes one message at a time and awaits its ack; :class:`EnvelopePublisher` is the hot
path for many, with partitions and whole batches. Neither closes the connection nor takes its callbacks.
:func:`accelerate` has acks read several times as fast.
"""

from liftenvelope.nats.acceleration import Acceleration, accelerate
from liftenvelope.nats.ack_future import AckFuture
from liftenvelope.nats.ack_inbox import AckInbox
from liftenvelope.nats.batch_acks import BatchAcks, BatchSummary
from liftenvelope.nats.publisher import EnvelopePublisher

__all__ = [
    "Acceleration",
    "AckFuture",
    "AckInbox",
    "BatchAcks",
    "BatchSummary",
    "EnvelopePublisher",
    "accelerate",
]
