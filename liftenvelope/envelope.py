"""Liftbridge envelopes: what makes a NATS message durable, keyed and acknowledged.

    >>> from liftenvelope.envelope import new_message, unmarshal_message
    >>> envelope = new_message(b"21.5", key=b"sensor-1", headers={"unit": b"C"})
    >>> unmarshal_message(envelope).headers["unit"]
    b'C'

Publish the envelope on a subject that a Liftbridge stream records, with ``ack_inbox`` set to a subject that
you are subscribed to, and an ack comes there: :func:`unmarshal_ack` reads it. ``liftenvelope.nats`` does
all of that for you.

Everything here is immutable, needs no connection, and can be used from any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope import _backend, _envelope_py
from liftenvelope.types import AckError, AckPolicy, MessageType

if TYPE_CHECKING:
    from liftenvelope._fastenv import (
        Ack,
        Message,
        is_envelope,
        marshal_ack,
        marshal_message,
        new_message,
        peek_type,
        unmarshal_ack,
        unmarshal_message,
    )
else:
    Ack = _backend.codec.Ack
    Message = _backend.codec.Message
    is_envelope = _backend.codec.is_envelope
    marshal_ack = _backend.codec.marshal_ack
    marshal_message = _backend.codec.marshal_message
    new_message = _backend.codec.new_message
    peek_type = _backend.codec.peek_type
    unmarshal_ack = _backend.codec.unmarshal_ack
    unmarshal_message = _backend.codec.unmarshal_message

# The twin's docstrings serve both.
for _function in (
    is_envelope,
    marshal_ack,
    marshal_message,
    new_message,
    peek_type,
    unmarshal_ack,
    unmarshal_message,
):
    _function.__doc__ = getattr(_envelope_py, _function.__name__).__doc__

#: The same functions under the names that Liftbridge's Go client gives them.
NewMessage = new_message
UnmarshalMessage = unmarshal_message
UnmarshalAck = unmarshal_ack

__all__ = [
    "Ack",
    "AckError",
    "AckPolicy",
    "Message",
    "MessageType",
    "NewMessage",
    "UnmarshalAck",
    "UnmarshalMessage",
    "is_envelope",
    "marshal_ack",
    "marshal_message",
    "new_message",
    "peek_type",
    "unmarshal_ack",
    "unmarshal_message",
]
