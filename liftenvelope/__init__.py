"""Durable, keyed, acknowledged messages over NATS.

The codec is at hand here; the rest has its own modules, so that importing this costs little:

* ``liftenvelope.envelope``: messages and acks as bytes. ``liftenvelope.arrow``: whole batches.
* ``liftenvelope.nats``: publish on your own NATS connection, and await the acks.
* ``liftenvelope.testing``: real servers for your own tests.
"""

from liftenvelope._backend import BACKEND
from liftenvelope._version import __version__
from liftenvelope.envelope import (
    Ack,
    AckError,
    AckPolicy,
    Message,
    MessageType,
    NewMessage,
    UnmarshalAck,
    UnmarshalMessage,
    is_envelope,
    marshal_ack,
    marshal_message,
    new_message,
    peek_type,
    unmarshal_ack,
    unmarshal_message,
)
from liftenvelope.errors import LiftEnvelopeError

__all__ = [
    "BACKEND",
    "Ack",
    "AckError",
    "AckPolicy",
    "LiftEnvelopeError",
    "Message",
    "MessageType",
    "NewMessage",
    "UnmarshalAck",
    "UnmarshalMessage",
    "__version__",
    "is_envelope",
    "marshal_ack",
    "marshal_message",
    "new_message",
    "peek_type",
    "unmarshal_ack",
    "unmarshal_message",
]
