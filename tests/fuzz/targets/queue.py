"""The queue of delivered messages, by operations, and the numbers in replies.

The callback of the queue calls back into the queue as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from liftenvelope.nats.headers import headers_of
from tests.fuzz.target import Chunks, Exact, Target, option

__all__ = ["TARGET"]


class Owner:
    """Owns a queue, and does something to it when it runs low."""

    def __init__(self, twin: Any, options: bytes) -> None:
        self.twin, self.mode, self.lows = twin, option(options, 0, 5), list[Any]()
        self.messages: dict[int, Any] = {}
        self.queue = twin.MessageQueue(
            1 + option(options, 1, 30), bool(option(options, 2, 2)), self.note, self.wait
        )

    def note(self) -> None:
        self.lows.append((self.queue.owed, self.queue.buffered, len(self.queue)))
        if self.mode == 4:
            raise ZeroDivisionError
        self.queue.owed += 5
        if len(self.lows) < 40:
            if self.mode == 1:
                self.queue.clear()
            elif self.mode == 2:
                self.queue.extend([self.message(3)] * 3)
            elif self.mode == 3 and len(self.queue):
                self.queue.pop()

    async def wait(self) -> str:
        return "waited"

    def message(self, size: int) -> Any:
        """A message of this size, made once: to make hundreds takes longer than to queue them."""
        if size not in self.messages:
            self.messages[size] = self.twin.Delivered("a", "r", b"x", None, self)
            self.messages[size]._size = size
        return self.messages[size]


def queued(twin: Any, chunks: Chunks, _exact: Exact) -> Any:
    """Each chunk is an operation and its numbers."""
    owner = Owner(twin, chunks[0] if chunks else b"")
    queue, log = owner.queue, list[Any]()
    for chunk in chunks[1:]:
        operation, sizes = option(chunk, 0, 10), chunk[1:]
        try:
            log.append(operate(owner, operation, sizes))
        except (IndexError, ZeroDivisionError, TypeError) as exc:
            log.append(type(exc))
        log.append((len(queue), queue.owed, queue.buffered, queue.size, queue.arrived))
    return log, owner.lows, [one._size for one in queue]


def operate(owner: Owner, operation: int, sizes: bytes) -> Any:
    queue = owner.queue
    if operation == 0:
        queue.extend([owner.message(size) for size in sizes])
    elif operation == 1:
        # As many that those taken are forgotten, which is done for 256 and more at once.
        queue.extend([owner.message(size % 5) for size in (sizes if len(queue) > 300 else sizes[:1] * 260)])
    elif operation == 2:
        queue.append(owner.message(len(sizes)))
    elif operation == 3:
        return [queue.pop()._size for _ in range(1 + option(sizes, 0))]
    elif operation == 4:
        queue.clear()
    elif operation == 5:
        queue.owed += int.from_bytes(sizes[:4], "little", signed=True)
    elif operation == 6:
        return [taken(anext(queue)) for _ in range(1 + option(sizes, 0, 9))]
    elif operation == 8:
        return [one._size for one in queue.pop_many(option(sizes, 0))]
    elif operation == 9:
        return numbers(owner, sizes)
    else:
        kept = iter(queue)
        queue.clear() if option(sizes, 0, 2) else queue.append(owner.message(1))
        return len(list(kept))
    return None


def numbers(owner: Owner, replies: bytes) -> Any:
    """Read the numbers of replies, which are headers too, and change the list of messages meanwhile."""
    twin = owner.twin
    messages = [twin.Delivered("a", one.decode("latin-1"), one, one, None) for one in replies.split(b"|")]

    def read(reply: str) -> int:
        blocks.clear()
        return len(reply)

    blocks = [twin.MessageBlock(messages[:1]), twin.MessageBlock(messages[1:])]
    columns = twin.joined(blocks), twin.subjects(blocks), twin.header_columns(blocks, entries)
    rows = [(block.sequences, block.in_order(1)) for block in blocks]
    return columns, rows, twin.in_order(messages, 1), twin.stored_times(blocks, read)


def entries(message: Any) -> list[tuple[str, bytes]]:
    headers = headers_of(message._headers)
    return [(name, value.encode()) for name in headers for value in headers.get_all(name)]


def taken(awaitable: Any) -> Any:
    """Run a coroutine without an event loop: nothing here waits."""
    steps = awaitable.__await__()
    try:
        while True:
            steps.send(None) if hasattr(steps, "send") else next(steps)
    except StopIteration as stop:
        return stop.value if isinstance(stop.value, str) else stop.value._size


def seeds() -> Iterator[Chunks]:
    operations = [
        b"\0\1\2\3",
        b"\2ab",
        b"\3\1",
        b"\6\3",
        b"\1\1\2\3\4\5",
        b"\3\xff",
        b"\5\x20\0\0\0",
        b"\7\0",
        b"\10\2",
        b"\4",
        b"\11$JS.ACK.s.c.1.2.1.17.0|$JS.ACK.d.a.s.c.1.3.2.18.0.x|y|$JS.ACK.s.c.1.4.4.9223372036854775808.0",
        b"\11NATS/1.0\r\nA: b\r\nB:c\r\n\r\n|NATS/1.0\r\nA: b\r\nA: c\r\n\r\n|NATS/1.0 404 None\r\nA : \xff",
    ]
    for mode in range(5):
        for in_bytes in range(2):
            yield [bytes((mode, 9, in_bytes)), *operations]
            yield [bytes((mode, 29, in_bytes)), operations[4], *operations[5:], *operations[:3]]


TARGET = Target("queue", "_fastframes", queued, seeds)
