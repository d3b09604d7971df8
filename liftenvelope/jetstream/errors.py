"""Errors that only readers of JetStream raise."""

from __future__ import annotations

from liftenvelope.errors import StreamNotFoundError

__all__ = ["StreamReplacedError"]


class StreamReplacedError(StreamNotFoundError):
    """The stream that an ordered consumer reads was deleted and created again, or has lost its messages."""
