"""Messages in blocks and their columns: a part of the twin of ``_fastframes``."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import accumulate
from typing import Final, Generic, Self, TypeVar, final

from liftenvelope._native.delivered import Delivered, in_order, numbers_of
from liftenvelope.errors import UsageError

__all__ = ["MessageBlock", "header_columns", "joined", "stored_times", "subjects"]

_T = TypeVar("_T", bound=Delivered)

#: Maximum bytes of an Arrow binary column, whose ends have 32 bits.
_LARGEST_COLUMN: Final = 2**31 - 1


@final
class MessageBlock(Generic[_T]):
    """Messages of a consumer in a row. The Cython twin has no object for each, and makes one when asked for.

    Args:
        messages: The messages.

    Attributes:
        size: Bytes of the messages, as :attr:`Delivered._size` or, if that is 0, those of the payload.
    """

    __slots__ = ("_messages", "size")

    def __init__(self, messages: list[_T]) -> None:
        self._messages = tuple(messages)
        self.size = sum(message._size or len(message.data) for message in messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, i: int, /) -> _T:
        if not 0 <= i < len(self):
            raise IndexError(f"message {i} of {len(self)}")
        return self._messages[i]

    def messages(self) -> list[_T]:
        """Return all messages."""
        return list(self._messages)

    def part(self, begin: int, end: int) -> Self:
        """Return the messages from one place up to another as a block, which shares the memory."""
        if not 0 <= begin <= end <= len(self):
            raise IndexError(f"messages {begin} to {end} of {len(self)}")
        return type(self)(list(self._messages[begin:end]))

    @property
    def sequences(self) -> list[int]:
        """Stream sequences of the messages; -1 for a message that does not come from a consumer."""
        return [-1 if (numbers := numbers_of(one)) is None else numbers[0] for one in self._messages]

    @property
    def last_sequence(self) -> int:
        """Stream sequence of the last message, as in ``sequences``."""
        return self.part(len(self) - 1, len(self)).sequences[0]

    def in_order(self, expected: int) -> int:
        """Return how many messages at the start have the deliveries ``expected`` and following."""
        return len(in_order(list(self._messages), expected))


def _messages_of(blocks: list[MessageBlock[_T]]) -> list[_T]:
    return [message for block in blocks for message in block.messages()]


def stored_times(blocks: list[MessageBlock[_T]], read: Callable[[str], int]) -> bytes:
    """Return the times at which messages were stored, as 64-bit numbers in nanoseconds since 1970.

    Args:
        blocks: Messages of consumers.
        read: Parses a reply that is not a consumer's, or raises an error.
    """
    messages = _messages_of(blocks)
    times = (read(one.reply) if (numbers := numbers_of(one)) is None else numbers[2] for one in messages)
    return struct.pack(f"={len(messages)}q", *times)


def joined(blocks: list[MessageBlock[_T]]) -> tuple[bytes, bytes, str | None]:
    """Return the payloads as the buffers of an Arrow binary column, and the subject that they share.

    Returns:
        32-bit ends of the payloads behind a 0, the payloads, and the subject if all messages have the same.

    Raises:
        UsageError: The payloads are larger than a column can be.
    """
    messages = _messages_of(blocks)
    ends, values = _column([one.data for one in messages], "values")
    shared = {one.subject for one in messages}
    return ends, values, shared.pop() if len(shared) == 1 else None


def subjects(blocks: list[MessageBlock[_T]]) -> tuple[bytes, bytes]:
    """Return the subjects of messages as the buffers of an Arrow string column: ends behind a 0, and texts.

    Raises:
        UsageError: The subjects are larger than a column can be.
    """
    return _column([one.subject.encode() for one in _messages_of(blocks)], "subjects")


def header_columns(
    blocks: list[MessageBlock[_T]], entries: Callable[[_T], list[tuple[str, bytes]]]
) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Return the headers of messages as the buffers of an Arrow map column.

    Args:
        blocks: Messages of consumers.
        entries: Returns names and values of the headers of a message. The Cython twin itself reads plain
            blocks, as :func:`liftenvelope.nats.headers.headers_of` does: those without a status, and without
            a name that repeats.

    Returns:
        32-bit ends of the messages' headers behind a 0; ends of the names, and the names; ends of the
        values, and the values.

    Raises:
        UsageError: The headers are larger than a column can be.
    """
    found = [entries(one) if one._headers else [] for one in _messages_of(blocks)]
    ends = list(accumulate(map(len, found), initial=0))
    names = _column([name.encode() for pairs in found for name, _ in pairs], "headers")
    values = _column([value for pairs in found for _, value in pairs], "headers")
    return struct.pack(f"={len(ends)}i", *ends), *names, *values


def _column(texts: list[bytes], what: str) -> tuple[bytes, bytes]:
    """Return the 32-bit ends of texts behind a 0, and the texts."""
    ends = list(accumulate(map(len, texts), initial=0))
    if ends[-1] > _LARGEST_COLUMN:
        text = f"the {what} of a batch must have at most {_LARGEST_COLUMN} bytes, got {ends[-1]}"
        raise UsageError(f"{text}: take fewer rows")
    return struct.pack(f"={len(ends)}i", *ends), b"".join(texts)
