"""Messages of a stream as people look at them: fields, with envelopes opened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftenvelope.envelope import is_envelope, unmarshal_message
from liftenvelope.errors import EnvelopeError

if TYPE_CHECKING:
    from liftenvelope.envelope import Message

__all__ = ["Received", "from_liftbridge", "opened"]


@dataclass(frozen=True, kw_only=True)
class Received:
    """Message of a stream.

    Attributes:
        stream: Name of the stream.
        offset: Offset; for JetStream, the sequence minus 1.
        partition: Number of the partition; None for JetStream.
        timestamp_ns: Time at which it was stored, in ns since 1970.
        subject: Subject.
        key: Key; empty for none.
        headers: Names and values, in order.
        value: Payload, or the value of an envelope.
        payload: Payload as it was stored.
        envelope: Fields of the envelope in a JetStream message; None if it is none.
        fault: What is wrong with a malformed envelope; empty if nothing is.
    """

    stream: str
    offset: int
    partition: int | None
    timestamp_ns: int
    subject: str
    key: bytes
    headers: Sequence[tuple[str, bytes]]
    value: bytes
    payload: bytes
    envelope: Message | None = None
    fault: str = ""


def from_liftbridge(message: Message) -> Received:
    """Return a message of Liftbridge or the gateway."""
    return Received(
        stream=message.stream,
        offset=message.offset,
        partition=message.partition,
        timestamp_ns=message.timestamp_ns,
        subject=message.subject,
        key=message.key,
        headers=tuple(message.headers.items()),
        value=message.value,
        payload=message.value,
    )


def opened(
    *,
    stream: str,
    sequence: int,
    timestamp_ns: int,
    subject: str,
    headers: Iterable[tuple[str, str]],
    data: bytes,
) -> Received:
    """Return a message of JetStream, with the envelope in it opened."""
    envelope, fault = None, ""
    pairs = [(name, value.encode()) for name, value in headers]
    if is_envelope(data):
        try:
            envelope = unmarshal_message(data)
            pairs += envelope.headers.items()
        except EnvelopeError as exc:
            fault = str(exc)
    return Received(
        stream=stream,
        offset=sequence - 1,
        partition=None,
        timestamp_ns=timestamp_ns,
        subject=subject,
        key=b"" if envelope is None else envelope.key,
        headers=pairs,
        value=data if envelope is None else envelope.value,
        payload=data,
        envelope=envelope,
        fault=fault,
    )
