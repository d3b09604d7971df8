"""gRPC messages in the bytes of a stream.

Each message has a prefix of 5 bytes::

    0        compressed: 0 or 1
    1..4     length of the message, big-endian
"""

from __future__ import annotations

import struct

from liftenvelope.rpc.status import RpcError, StatusCode

__all__ = ["DEFAULT_MAX_MESSAGE", "MessageReader", "frame_message"]

#: The longest message that is taken in unless told otherwise, in bytes. Servers send at most a little over
#: their replication limit, 1 MiB by default; what is far above that is a fault, not a message.
DEFAULT_MAX_MESSAGE = 64 * 1024 * 1024

_PREFIX = struct.Struct(">BI")


def frame_message(message: bytes) -> bytes:
    """Return ``message`` with its prefix."""
    return _PREFIX.pack(0, len(message)) + message


class MessageReader:
    """Cuts the bytes of one stream into messages, however they were divided on the way.

    Args:
        max_message: The longest message to take in, in bytes.
    """

    def __init__(self, max_message: int = DEFAULT_MAX_MESSAGE) -> None:
        self._max_message = max_message
        self._buffer = bytearray()

    @property
    def inside_message(self) -> bool:
        """Whether what came last was not the end of a message."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Take in more of the stream; return the messages that are complete now.

        Raises:
            RpcError: A message is compressed (INTERNAL: none was offered) or too long
                (RESOURCE_EXHAUSTED). The reader can't go on after either.
        """
        self._buffer += data
        messages = []
        start = 0
        while (end := self._message_end(start)) is not None:
            messages.append(bytes(self._buffer[start + _PREFIX.size : end]))
            start = end
        del self._buffer[:start]
        return messages

    def _message_end(self, start: int) -> int | None:
        if len(self._buffer) - start < _PREFIX.size:
            return None
        flag, length = _PREFIX.unpack_from(self._buffer, start)
        if flag != 0:
            text = f"a message came compressed (flag {flag}), which was not offered"
            raise RpcError(StatusCode.INTERNAL, text)
        if length > self._max_message:
            text = f"a message of {length} bytes came, the limit is {self._max_message}"
            raise RpcError(StatusCode.RESOURCE_EXHAUSTED, text)
        end: int = start + _PREFIX.size + length
        return end if end <= len(self._buffer) else None
