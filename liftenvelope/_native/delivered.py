"""Delivered messages of a consumer and their queue: a part of the twin of ``_fastframes``."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Final, Generic, Self, TypeVar, final

__all__ = [
    "Delivered",
    "MessageQueue",
    "OrderedQueue",
    "Step",
    "in_order",
    "numbers_of",
]

_T = TypeVar("_T", bound="Delivered")
_Next = TypeVar("_Next")

_LARGEST: Final = 2**63 - 1
#: Reply subject of a consumer's message, in either form (see ``jetstream/message.py``). The groups are the
#: stream sequence, the sequence of the delivery, and the time.
_REPLY: Final = re.compile(
    rb"\$JS\.ACK\.(?:[^.]*\.){3}(\d{1,19})\.(\d{1,19})\.(\d{1,19})\.[^.]*"
    rb"|\$JS\.ACK\.(?:[^.]*\.){5}(\d{1,19})\.(\d{1,19})\.(\d{1,19})\..*",
    re.DOTALL,
)


class Delivered:
    """A message delivered by a consumer: base of the public message class.

    Attributes:
        subject: Subject that the message was published to.
        data: The payload.
        _size: Bytes of subject, reply, headers and payload; 0 if the message was constructed by hand.
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
        """Subject for the ack, empty if there is none."""
        if isinstance(self._reply, bytes):
            self._reply = self._reply.decode()
        return self._reply

    @property
    def _is_open(self) -> bool:
        """True if the message can be acked and has not been."""
        return bool(self._reply) and not self._acked

    def _ack_frame(self, payload: bytes) -> bytes:
        """Return the PUB command of an ack."""
        reply = self._reply.encode() if isinstance(self._reply, str) else self._reply
        return b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload)


@final
class Step(Coroutine[Any, Any, _Next]):
    """Coroutine that ``anext()`` of an iterator returns, to be awaited once or run as a task.

    ``anext()`` with a default asks for the steps again whenever it is resumed, so they are kept.

    Args:
        begin: Called with the first step: returns the steps.
    """

    __slots__ = ("_begin", "_steps")

    def __init__(self, begin: Callable[[], Generator[Any, None, _Next]]) -> None:
        self._begin = begin
        self._steps: Generator[Any, None, _Next] | None = None

    def __await__(self) -> Generator[Any, None, _Next]:
        if self._steps is None:
            self._steps = self._begin()
        return self._steps

    def send(self, value: Any) -> Any:
        """Run until the next pause."""
        return self.__await__().send(value)

    def throw(self, error: Any) -> Any:  # type: ignore[override]  # asyncio gives the error alone
        """Raise an error where the steps pause."""
        if self._steps is None:
            raise error
        return self._steps.throw(error)

    def close(self) -> None:
        """End the steps."""
        if self._steps is not None:
            self._steps.close()


@final
class MessageQueue(Generic[_T]):
    """Queue of delivered messages with flow control, and an asynchronous iterator over them.

    Awaiting ``anext()`` of the queue returns a buffered message without creating a coroutine.

    Args:
        threshold: Messages or bytes, owed and buffered together, below which ``on_low`` is called.
        in_bytes: True to count bytes, False to count messages.
        on_low: Called after a message was taken, if ``owed + buffered`` is below the threshold.
        wait: Returns the coroutine to await if the queue is empty.

    Attributes:
        owed: Messages or bytes requested from the server and not yet received. Each message reduces it;
            otherwise the owner sets it.
        buffered: Messages or bytes in the queue.
        size: Bytes in the queue, whatever is counted. 0 for messages that nats-py has parsed, unless their
            ``PullInbox`` is ``sized``.
        arrived: Bytes that were ever added.
    """

    __slots__ = (
        "_items",
        "_on_low",
        "_wait",
        "arrived",
        "buffered",
        "in_bytes",
        "owed",
        "size",
        "threshold",
    )

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
        self.size = 0
        self.arrived = 0
        self._items: deque[_T] = deque()
        self._on_low = on_low
        self._wait = wait

    def __len__(self) -> int:
        return len(self._items)

    def extend(self, messages: list[_T]) -> None:
        """Append messages. The caller must not use the list afterwards."""
        size = sum(message._size for message in messages)
        amount = size if self.in_bytes else len(messages)
        self.owed -= amount
        self.buffered += amount
        self.size += size
        self.arrived += size
        self._items += messages

    def append(self, message: _T) -> None:
        """Append a message."""
        self.extend([message])

    def clear(self) -> None:
        """Drop all buffered messages."""
        self._items.clear()
        self.buffered = self.size = 0

    def pop(self) -> _T:
        """Remove and return the first message.

        Raises:
            IndexError: The queue is empty.
        """
        if not self._items:
            raise IndexError("no message is there")
        message = self._items.popleft()
        self.size -= message._size
        self.buffered -= message._size if self.in_bytes else 1
        if self.owed + self.buffered < self.threshold:
            self._on_low()
        return message

    def pop_many(self, limit: int) -> list[_T]:
        """Remove and return the first messages, at most ``limit``. ``on_low`` is called at most once."""
        taken = [self._items.popleft() for _ in range(min(limit, len(self._items)))]
        size = sum(message._size for message in taken)
        self.size -= size
        self.buffered -= size if self.in_bytes else len(taken)
        if taken and self.owed + self.buffered < self.threshold:
            self._on_low()
        return taken

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Step[_T]:
        return Step(self._steps)

    def _steps(self) -> Generator[Any, None, _T]:
        return self._ready() if self._items else self._wait().__await__()

    def _ready(self) -> Generator[Any, None, _T]:
        yield from ()  # yields nothing: __await__ needs a generator, whose return value is the message
        return self.pop()

    def __iter__(self) -> Iterator[_T]:
        """Iterate over the messages without removing them."""
        return iter(tuple(self._items))


@final
class OrderedQueue(Generic[_T]):
    """Hands out the messages of an ordered consumer, and is an asynchronous iterator over them.

    Each consumer at the server has a queue of its own. A message is handed out at once if it is the next one
    in order. Everything else is left to ``wait``: an empty queue, a gap, and a reply of another form.

    Args:
        wait: Returns the coroutine to await if no message can be handed out at once.

    Attributes:
        expected: Sequence of the next delivery of the current consumer.
        sequence: Stream sequence of the last message handed out.
        is_held: True to hand out nothing: another task waits.
    """

    __slots__ = ("_queue", "_wait", "expected", "is_held", "sequence")

    def __init__(self, wait: Callable[[], Coroutine[Any, Any, _T]]) -> None:
        self._wait = wait
        self._queue: MessageQueue[_T] | None = None
        self.expected = 1
        self.sequence = 0
        self.is_held = False

    def switch(self, queue: MessageQueue[_T] | None) -> None:
        """Hand out the messages of another queue from now on, or none; the next delivery is the first one."""
        self._queue, self.expected = queue, 1

    def __bool__(self) -> bool:
        """Return True if a message can be handed out at once."""
        return self._next() is not None

    def _next(self) -> int | None:
        """Return the stream sequence of the message that can be handed out at once; None if there is none."""
        if not self._queue or self.is_held:
            return None
        numbers = numbers_of(self._queue._items[0])
        return numbers[0] if numbers is not None and numbers[1] == self.expected else None

    def pop(self) -> _T:
        """Hand out the next message.

        Raises:
            IndexError: No message can be handed out at once.
        """
        sequence, queue = self._next(), self._queue
        if sequence is None or queue is None:
            raise IndexError("no message is next")
        message = queue.pop()  # the owner, called if the queue is low, may switch
        if self._queue is queue:
            self.expected += 1
        self.sequence = sequence
        return message

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Step[_T]:
        return Step(self._steps)

    def _steps(self) -> Generator[Any, None, _T]:
        return self._ready() if self else self._wait().__await__()

    def _ready(self) -> Generator[Any, None, _T]:
        yield from ()
        return self.pop()


def numbers_of(message: Delivered) -> tuple[int, int, int] | None:
    """Return stream sequence, sequence of the delivery and time; None if the reply has another form."""
    reply = message._reply
    found = _REPLY.fullmatch(reply if isinstance(reply, bytes) else reply.encode("utf-8", "surrogatepass"))
    if found is None:
        return None
    sequence, delivery, stored_at = (int(number) for number in found.groups() if number is not None)
    return (sequence, delivery, stored_at) if max(sequence, delivery, stored_at) <= _LARGEST else None


def in_order(messages: list[_T], expected: int) -> list[int]:
    """Return the stream sequences of the messages at the start that are in order.

    Args:
        messages: Messages of one consumer.
        expected: Sequence of the first one's delivery. The next ones follow without a gap.

    Returns:
        Sequences of the messages before the first gap, or before a reply that is not a consumer's.
    """
    found: list[int] = []
    for message in messages:
        numbers = numbers_of(message)
        if numbers is None or numbers[1] != expected + len(found):
            break
        found.append(numbers[0])
    return found
