"""Encode and decode Liftbridge envelopes, which make NATS messages durable, keyed and acknowledged.

    >>> from liftenvelope.envelope import new_message, unmarshal_message
    >>> envelope = new_message(b"21.5", key=b"sensor-1", headers={"unit": b"C"})
    >>> unmarshal_message(envelope).headers["unit"]
    b'C'

Publish the envelope on a subject that a Liftbridge stream records, and set ``ack_inbox`` to a subject that
you subscribe to. The server then sends an ack there: decode it with :func:`unmarshal_ack`.
``liftenvelope.nats`` does all of this for you.

All values are immutable. All functions work without a connection and from any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope._native import env, values
from liftenvelope.types import AckError, AckPolicy, MessageType

if TYPE_CHECKING:
    from liftenvelope._native._fastenv import (
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
    Ack = env.Ack
    Message = env.Message
    is_envelope = env.is_envelope
    marshal_ack = env.marshal_ack
    marshal_message = env.marshal_message
    new_message = env.new_message
    peek_type = env.peek_type
    unmarshal_ack = env.unmarshal_ack
    unmarshal_message = env.unmarshal_message

rebuild = values.rebuild  # internal: pickles store this path

#: Aliases: names of the same functions in Liftbridge's Go client.
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
