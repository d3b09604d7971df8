"""gRPC messages in the bytes of a stream: the errors of what :mod:`liftenvelope._native.frames` finds."""

from __future__ import annotations

from typing import Final

from liftenvelope._native import frames
from liftenvelope.rpc.status import RpcError, StatusCode

__all__ = ["DEFAULT_MAX_MESSAGE", "frame_message", "message_error"]

#: The longest message that is taken in unless told otherwise, in bytes: what gRPC's own libraries allow.
DEFAULT_MAX_MESSAGE: Final = 4 * 1024 * 1024


def frame_message(message: bytes) -> bytes:
    """Return ``message`` with its prefix."""
    return frames.pack_messages([message])


def message_error(cutter: frames.MessageCutter, max_message: int) -> RpcError | None:
    """Return why a stream takes in no more messages, None if it does."""
    if cutter.fault == frames.COMPRESSED:
        text = f"a message came compressed (flag {cutter.fault_value}), which was not offered"
        return RpcError(StatusCode.INTERNAL, text)
    if cutter.fault == frames.TOO_LONG:
        text = f"a message of {cutter.fault_value} bytes came, the limit is {max_message}"
        return RpcError(StatusCode.RESOURCE_EXHAUSTED, text)
    return None
