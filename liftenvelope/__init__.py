"""Durable, keyed, acknowledged messages over NATS.

This package exports the codec. The rest has its own modules, so that the import is cheap:

* ``liftenvelope.envelope``: encode and decode messages and acks. ``liftenvelope.arrow``: whole batches.
* ``liftenvelope.nats``: publish on your own NATS connection, and await the acks.
* ``liftenvelope.connect``, ``liftenvelope.connect_blocking``: a client of a Liftbridge cluster.
* ``liftenvelope.testing``: real servers for your own tests.
"""

from typing import TYPE_CHECKING

from liftenvelope._native import BACKEND
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

if TYPE_CHECKING:
    from liftenvelope.client import Client, connect
    from liftenvelope.client.blocking import BlockingClient, connect_blocking

__all__ = [
    "BACKEND",
    "Ack",
    "AckError",
    "AckPolicy",
    "BlockingClient",
    "Client",
    "LiftEnvelopeError",
    "Message",
    "MessageType",
    "NewMessage",
    "UnmarshalAck",
    "UnmarshalMessage",
    "__version__",
    "connect",
    "connect_blocking",
    "is_envelope",
    "marshal_ack",
    "marshal_message",
    "new_message",
    "peek_type",
    "unmarshal_ack",
    "unmarshal_message",
]

# Loaded on first use: the client needs the [client] extra, and is slow to import.
_LAZY = frozenset({"BlockingClient", "Client", "connect", "connect_blocking"})


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from liftenvelope import client
    from liftenvelope.client import blocking

    return getattr(blocking if name in blocking.__all__ else client, name)
