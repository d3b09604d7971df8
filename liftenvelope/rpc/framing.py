"""gRPC message framing: maps the faults found by :mod:`liftenvelope._native.frames` to errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope._native import frames
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["DEFAULT_MAX_MESSAGE", "PayloadSink", "message_error"]

#: Default for the largest message to receive, in bytes: the default of gRPC's own libraries.
DEFAULT_MAX_MESSAGE: Final = 4 * 1024 * 1024


class PayloadSink(Protocol):
    """Takes the payloads of a call's DATA frames in place of messages: gRPC messages with their prefixes."""

    def put(self, view: Buffer, spans: bytes) -> None:
        """Take payloads that were received together, in order.

        Args:
            view: Received bytes. They are overwritten after the call.
            spans: Start and end of each payload in ``view``, as 64-bit integers in native byte order.
        """
        ...


def message_error(cutter: frames.MessageCutter, max_message: int, remedy: str) -> RpcError | None:
    """Return the error for the cutter's fault, None if it has none.

    Args:
        cutter: Cutter of the call's messages.
        max_message: Largest message to receive, in bytes.
        remedy: Ends the text about a larger message.
    """
    if cutter.fault == frames.COMPRESSED:
        text = f"a message came compressed (flag {cutter.fault_value}), which was not offered"
        return RpcError(StatusCode.INTERNAL, text)
    if cutter.fault == frames.TOO_LONG:
        text = f"a message of {cutter.fault_value} bytes came, the limit is {max_message}{remedy}"
        return RpcError(StatusCode.RESOURCE_EXHAUSTED, text)
    return None
