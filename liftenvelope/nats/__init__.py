"""Publish envelopes and receive their acks on an existing nats-py connection.

:class:`AckInbox` publishes single messages and awaits their acks. :class:`EnvelopePublisher` is the fast path
for many messages, with partitions and whole batches. Neither closes the connection or takes its callbacks.
:func:`accelerate` makes receiving acks several times faster.
"""

from liftenvelope.nats import _lean_import  # noqa: F401 - first: before nats-py is imported
from liftenvelope.nats._ack_future import AckFuture
from liftenvelope.nats._ack_inbox import AckInbox
from liftenvelope.nats._batch_acks import BatchAcks, BatchSummary
from liftenvelope.nats._publisher import EnvelopePublisher
from liftenvelope.nats.acceleration import Acceleration, accelerate

__all__ = [
    "Acceleration",
    "AckFuture",
    "AckInbox",
    "BatchAcks",
    "BatchSummary",
    "EnvelopePublisher",
    "accelerate",
]
