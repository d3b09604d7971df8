"""Errors that only readers of JetStream raise or handle."""

from __future__ import annotations

from typing import Final

from liftenvelope.errors import StreamNotFoundError

__all__ = ["INACTIVE_TOO_LONG", "StreamReplacedError"]

#: Error number of a consumer that may be inactive for longer than ``consumer_limits`` of its stream allow.
INACTIVE_TOO_LONG: Final = 10153


class StreamReplacedError(StreamNotFoundError):
    """The stream that an ordered consumer reads was deleted and created again, or has lost its messages."""
