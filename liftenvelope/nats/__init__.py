"""Publish envelopes and receive their acks on an existing nats-py connection.

:class:`AckInbox` publishes single messages and awaits their acks. :class:`EnvelopePublisher` is the fast path
for many messages, with partitions and whole batches. Neither closes the connection or takes its callbacks.
:func:`accelerate` makes receiving acks several times faster.
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
