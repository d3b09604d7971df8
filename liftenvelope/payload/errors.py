"""Errors of payloads that do not fit their format or schema."""

from __future__ import annotations

from liftenvelope.errors import LiftEnvelopeError

__all__ = ["BadPayloadError"]


class BadPayloadError(LiftEnvelopeError, ValueError):
    """A message does not fit the payload format or its schema.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition; 0 for a JetStream stream.
        offset: Offset of the message.
        reason: Fault of the message.
    """

    def __init__(self, message: str, stream: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(message, stream, partition, offset, reason)
        self.stream = stream
        self.partition = partition
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[0])
