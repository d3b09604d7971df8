"""Messages of a consumer as they came, and the queue in which they wait: a part of ``_fastframes``'s twin."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Generic, Self, TypeVar, final

__all__ = ["Delivered", "MessageQueue"]

_T = TypeVar("_T", bound="Delivered")


class Delivered:
    """A message that a consumer delivered: what the public class of such messages is made of.

    Attributes:
        subject: The subject that it was published to.
        data: The payload.
        _size: The bytes of subject, reply, headers and payload; 0 where it was made by hand.
    """

    __slots__ = ("_acked", "_acks", "_headers", "_metadata", "_reply", "_size", "data", "subject")

    def __init__(self, subject: str, reply: str, data: bytes, headers: Any, acks: Any) -> None:
        self.subject = subject
        self._reply: str | bytes = reply
        self.data = data
        self._size = 0
        self._headers = headers
        self._acks = acks
        self._acked = False
        self._metadata: Any = None

    @property
    def reply(self) -> str:
        """The subject that the ack goes to, empty if there is none."""
        if isinstance(self._reply, bytes):
            self._reply = self._reply.decode()
        return self._reply

    @property
    def _is_open(self) -> bool:
        """Whether it can be acknowledged, and has not been."""
        return bool(self._reply) and not self._acked

    def _ack_frame(self, payload: bytes) -> bytes:
        """The command that publishes an ack."""
        reply = self._reply.encode() if isinstance(self._reply, str) else self._reply
        return b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload)


@final
class MessageQueue(Generic[_T]):
    """Delivered messages that wait to be taken, the account of them, and an iterator over them.

    Whoever awaits ``anext()`` of it gets a message that is there without any coroutine in between.

    Args:
        threshold: Below how much ``on_low`` is called.
        in_bytes: Whether sizes are counted, and not messages.
        on_low: Called when a message was taken, and what is owed and buffered is less than the threshold.
        wait: Called for what is awaited instead where no message is there.

    Attributes:
        owed: What is still to come; less with each message, and otherwise for the owner to set.
        buffered: What is there.
    """

    __slots__ = ("_items", "_on_low", "_wait", "buffered", "in_bytes", "owed", "threshold")

    def __init__(
        self,
        threshold: int,
        in_bytes: bool,
        on_low: Callable[[], None],
        wait: Callable[[], Coroutine[Any, Any, _T]],
    ) -> None:
        self.threshold = threshold
        self.in_bytes = in_bytes
        self.owed = 0
        self.buffered = 0
        self._items: deque[_T] = deque()
        self._on_low = on_low
        self._wait = wait

    def __len__(self) -> int:
        return len(self._items)

    def extend(self, messages: list[_T]) -> None:
        """Put messages at the end, of a list that is given away."""
        size = sum(message._size for message in messages) if self.in_bytes else len(messages)
        self.owed -= size
        self.buffered += size
        self._items += messages

    def append(self, message: _T) -> None:
        """Put a message at the end."""
        self.extend([message])

    def clear(self) -> None:
        """Drop what is there."""
        self._items.clear()
        self.buffered = 0

    def pop(self) -> _T:
        """Take the first message.

        Raises:
            IndexError: There is none.
        """
        if not self._items:
            raise IndexError("no message is there")
        message = self._items.popleft()
        self.buffered -= message._size if self.in_bytes else 1
        if self.owed + self.buffered < self.threshold:
            self._on_low()
        return message

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Self:
        return self

    def __await__(self) -> Generator[Any, None, _T]:
        return self._ready() if self._items else self._wait().__await__()

    def _ready(self) -> Generator[Any, None, _T]:
        yield from ()  # nothing: it is a generator for the sake of its result
        return self.pop()

    def __iter__(self) -> Iterator[_T]:
        """Go through the messages, and take none."""
        return iter(tuple(self._items))
